"""What a daemon, a tool or a clock does that it should not costs itself alone; and whoever takes over says nothing that is not so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aegis_agent.daemon.ports import Ports, PortSettings, message
from aegis_bus.connection import Bus, PubAck
from aegis_bus.errors import UnknownResult
from aegis_bus.settings import NetmonSettings
from aegis_netmon import flaps, health, hostpoll, kept, memory
from aegis_netmon.fabricpoll import Reading
from aegis_netmon.flaps import History
from aegis_netmon.hosts import Hosts
from aegis_netmon.incidents import Incidents, KeptIncidents
from aegis_netmon.intake import Intake
from aegis_netmon.limits import default
from aegis_netmon.memory import Memory
from aegis_netmon.picture import Picture
from aegis_netmon.series import MOST, Poll, Port, observe
from aegis_netmon.sweeping import Sweeping
from aegis_netmon.topology import Device, Fabric, Link, link_id
from aegis_netmon.watch import Watch, in_time, step
from aegis_parsers.ib.live import PortReading
from aegis_proto.messages import decode, encode
from aegis_proto.net import NodePorts, Optics, PortCounts
from harness.netservice import Sysfs

LEAF = f"{0x5000:016x}"


def told(ports: Iterable[PortCounts], at: float, node: str, **more: Any) -> hostpoll.NodePoll:
    made = NodePorts("b", int(at * 1000), ("symbol_error",), tuple(ports), int((at - 9000) * 1000), **more)
    return hostpoll.read(node, at, decode(NodePorts, encode(made)))


def port(device: str, guid: int = 0, number: int = 1, *, state: str | None = "ACTIVE", values: Sequence[int] = (0,), note: str = "") -> PortCounts:
    return PortCounts(device, number, f"{guid:016x}" if guid else "", state, 400.0, "InfiniBand", 7, tuple(values), note)


def fleet(*devices: tuple[str, int]) -> tuple[Hosts, Picture]:
    """Six nodes with these ports, three polls."""
    hosts = Hosts()
    for at in (1000.0, 1010.0, 1020.0):
        for n in range(6):
            hosts.take(told([port(device, 1 + n + 32 * k, number) for k, (device, number) in enumerate(devices)], at, f"n{n}"))
    picture = Picture(hosts)
    picture.round(1021.0)
    return hosts, picture


def states(picture: Picture, now: float) -> dict[str, str]:
    picture.round(now)
    return {key: line.state for key, line in picture.lines.items() if line.state != "unproven"}


# --- daemons -----------------------------------------------------------------------------------------------------------------------


def test_of_a_device_that_does_not_return_no_port_is_down() -> None:
    hosts, picture = fleet(("mlx5_0", 1), ("mlx5_0", 2))
    hosts.take(told([port("mlx5_0", state=None, values=(), note="its files do not return")], 1030.0, "n0"))
    assert states(picture, 1031.0) == {}
    assert hosts.ports["n0", "mlx5_0", 2].note == "its files do not return"


def test_a_device_that_is_excluded_from_now_on_is_not_down(tmp_path: Path) -> None:
    Sysfs(tmp_path, 1, devices=2)
    ports = Ports(PortSettings(root=str(tmp_path), exclude=("mlx5_1",)))
    made = message("b", 1, ports.read(), excluded=ports.reader.excluded())
    assert ([one.device for one in made.ports], made.excluded) == (["mlx5_0"], ("mlx5_1",))
    hosts, picture = fleet(("mlx5_0", 1), ("mlx5_1", 1))
    hosts.take(told([port("mlx5_0", 1)], 1030.0, "n0", excluded=("mlx5_1",)))
    hosts.take(told([port("mlx5_0", 2)], 1030.0, "n1"))
    assert states(picture, 1031.0) == {"n1-mlx5_1-1": "down"}
    assert "n0-mlx5_1-1" not in picture.lines


def test_a_daemon_that_names_a_switch_s_port_speaks_for_itself_alone() -> None:
    fabric, picture = fabric_of(range(2)), Picture(Hosts())
    (key, link), *_ = fabric.links.items()
    (leaf,) = (end for end in (link.a, link.b) if end[0] == LEAF)
    watch, verdicts = step(Watch(), reading(fabric, 1000.0))
    picture.swept(watch, fabric, verdicts)
    for at, state in ((1000.0, "ACTIVE"), (1010.0, "ACTIVE"), (1020.0, "DOWN")):
        picture.hosts.take(told([port("x", int(leaf[0], 16), leaf[1], state=state)], at, "n9"))
    assert states(picture, 1021.0)[key] == "unknown"
    assert picture.lines[key].ports == () and picture.ends(picture.lines[key])[1] == "leaf1 port 1"


def test_a_node_of_ever_new_devices_has_no_more_ports_than_a_machine_may() -> None:
    hosts = Hosts()
    for n in range(6):
        hosts.take(told((port(f"d{n}-{k}") for k in range(200)), 1000.0 + 10 * n, "n0"))
    assert len(hosts.ports) <= 512 and len(hosts.of_node["n0"]) == len(hosts.ports)


def test_one_port_never_costs_its_node() -> None:
    """A name of nobody, more ports than are told, and an answer of mlxlink that cannot be."""
    good = PortReading("mlx5_0", 1, None, "ACTIVE", None, 400.0, "InfiniBand", 4, {"symbol_error": 1, "odd name": 2})
    many = [msgspec.structs.replace(good, device=f"mlx5_{n}") for n in range(1, 300)]
    odd = {"mlx5_0/1": Optics(1, minutes=3e14, gbps=425.0, symbolBer=0.0)}
    made = message("b", 1, [good, msgspec.structs.replace(good, device="rxe eth0:1"), *many], odd)
    poll = hostpoll.read("n1", 1.0, decode(NodePorts, encode(made)))
    assert len(poll.ports) == 256 and {one.seen.device for one in poll.ports} == {f"mlx5_{n}" for n in range(256)}
    first = next(one for one in poll.ports if one.seen.device == "mlx5_0")
    assert first.poll is not None and dict(first.poll.values) == {"symbol_error": 1}
    assert (first.optics, first.note) == (None, "mlxlink says numbers of it that no port has")


def test_words_of_a_daemon_are_no_commands_to_a_terminal() -> None:
    (one,) = told([port("x", note="\x1b[2J\x07gone\n")], 1.0, "n0").ports
    assert one.note == "[2J gone"


def test_a_count_that_no_port_has_is_remembered_all_the_same() -> None:
    hosts = Hosts()
    for n in range(6):
        made = NodePorts("b", 1, ("port_rcv_data",), (port("x", values=(MOST * (n % 2),)),))
        hosts.take(hostpoll.read("n0", 10.0 * n, made))
    packed = kept.pack(kept.gather(hosts, Watch(), KeptIncidents(), 1, "e"))
    assert packed and next(iter(hosts.ports.values())).port.total.rcv_bits == MOST  # type: ignore[union-attr]


def test_after_a_restart_a_guid_is_still_its_first_owner_s() -> None:
    hosts, again = Hosts(), Hosts()
    for node in ("n1", "n2"):
        hosts.take(told([port("x", 7)], 1000.0, node))
    kept.give_back(kept.gather(hosts, Watch(), KeptIncidents(), 1, "e"), again)
    assert again.by_guid[f"{7:016x}", 1].seen.node == "n1"


# --- clocks and counters -----------------------------------------------------------------------------------------------------------


def test_when_the_clock_of_the_bus_is_set_back_ports_are_still_watched() -> None:
    hosts, picture = fleet(("mlx5_0", 1))
    hosts.take(told([port("mlx5_0", 1, state="DOWN")], 1030.0, "n0"))
    assert states(picture, 1031.0) == {"n0-mlx5_0-1": "down"}
    for at in (400.0, 410.0):
        for n in range(6):
            hosts.take(told([port("mlx5_0", 1 + n, state="DOWN" if n == 1 else "ACTIVE")], at, f"n{n}"))
    assert states(picture, 411.0) == {"n0-mlx5_0-1": "watch", "n1-mlx5_0-1": "down"}


@pytest.mark.parametrize("every", [10.0, 10.1, 9.0])
def test_a_link_that_goes_down_at_each_second_poll_flaps(every: float) -> None:
    """Were each change merged with the one before, it would be one dip for ever."""
    seen, counted = History(), History()
    for n in range(60):
        seen = flaps.observe(seen, 1000.0 + every * n, n % 2 == 0)
        counted = flaps.observe(counted, 1000.0 + every * n, True, downed=1)
    assert {flaps.judge(history, 1000.0 + every * 59).state for history in (seen, counted)} == {"flapping"}


@pytest.mark.parametrize(("name", "gbps"), [("symbol_error", 400.0), ("symbol_error", None), ("port_rcv_errors", 400.0)])
def test_one_error_raises_nothing_however_little_was_carried(name: str, gbps: float | None) -> None:
    def after(errors: int) -> str:
        seen: Port | None = None
        for n, count in enumerate((0, 0, errors, errors)):
            seen = observe(seen, Poll("g", 1, 10.0 * n, {name: count, "symbol_error": 0 if name != "symbol_error" else count, **traffic(n)}))
        assert seen is not None
        return health.judge(seen, flaps.FlapVerdict("up"), gbps=gbps).state

    assert (after(1), after(2) in ("watch", "degraded")) == ("unproven", True)


def traffic(n: int) -> dict[str, int]:
    return {"port_rcv_data": 100 * n, "port_rcv_packets": 10 * n}


def test_an_id_of_a_link_is_fit_for_a_subject() -> None:
    assert link_id(("00 ab.c>", 1), ("9*", 1)) == "00_ab_c_-1-9_-1"


# --- sweeps and successors -----------------------------------------------------------------------------------------------------------


def fabric_of(hosts: Iterable[int]) -> Fabric:
    """One leaf with these hosts."""
    devices, links, of = {LEAF: Device(LEAF, "leaf1", "switch")}, dict[str, Link](), dict[str, tuple[str, ...]]()
    for n in hosts:
        own = f"{0x100 + n:016x}"
        key = link_id((own, 1), (LEAF, n + 1))
        devices[own], links[key] = Device(own, f"n{n} mlx5_0", "host"), Link(key, (own, 1), (LEAF, n + 1), "4x", "EDR")
        of[own] = (key,)
    return Fabric(devices, links, {**of, LEAF: tuple(links)}, {})


def reading(fabric: Fabric, at: float) -> Reading:
    ends = sorted(end for link in fabric.links.values() for end in (link.a, link.b))
    return Reading(at, fabric, tuple(Poll(*end, at, {"symbol_error": 0}) for end in ends))


def sweeping(picture: Picture) -> Sweeping:
    return Sweeping(NetmonSettings(fabric=False), lambda: True, picture, Incidents(default()), lambda: None)


async def swept(picture: Picture, *readings: Reading) -> Counter[str]:
    sweeps = sweeping(picture)
    for one in readings:
        await sweeps._take(one, 1.0)
    picture.round(readings[-1].at + 1)
    return Counter(line.state for line in picture.lines.values())


async def test_a_successor_doubts_a_first_sweep_that_sees_few_of_the_links_that_were_there() -> None:
    first, few = Picture(Hosts()), reading(fabric_of(range(3)), 1120.0)
    await swept(first, reading(fabric_of(range(16)), 1000.0), reading(fabric_of(range(16)), 1060.0))
    successor = Picture(Hosts())
    successor.adopt(first.watch)
    assert await swept(successor, few) == {"unknown": 16}
    successor = Picture(Hosts())
    successor.adopt(first.watch)
    assert (await swept(successor, few, msgspec.structs.replace(few, at=1180.0)))["down"] == 13


async def test_what_a_sweep_said_before_another_had_the_lease_is_not_said_again() -> None:
    picture, whole = Picture(Hosts()), fabric_of(range(4))
    counted = await swept(picture, reading(whole, 1000.0), reading(whole, 1060.0), reading(fabric_of(range(3)), 1120.0))
    assert counted["down"] == 1
    watch = picture.watch
    for at in (1180.0, 9000.0):  # by the other one
        watch, verdicts = step(watch, reading(whole, at))
    assert {verdict.state for verdict in verdicts} == {"unproven"}
    picture.adopt(watch)
    picture.round(9001.0)
    assert {line.state for line in picture.lines.values()} == {"unknown"}, "until this one sweeps"


def test_when_the_clock_of_the_sweeper_was_set_back_links_are_still_watched() -> None:
    whole, watch, verdicts = fabric_of(range(4)), Watch(), []
    for at in (90000.0, 90060.0):
        watch, _ = step(watch, reading(whole, at))
    for at in (50000.0, 50060.0):
        poll = Poll(LEAF, 2, at, {"symbol_error": 900 if at > 50000.0 else 0})
        other = msgspec.structs.replace(reading(whole, at), polls=(poll,))
        watch, verdicts = step(in_time(watch, at), other)
    assert [(one.state, one.end) for one in verdicts[:2]] == [("degraded", "leaf1 port 2"), ("unknown", "n0 mlx5_0 port 1")]
    assert in_time(watch, 50059.0) is watch


async def test_what_is_remembered_stays_whole_when_the_answer_to_its_head_is_lost(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    picture, incidents = Picture(Hosts()), Incidents(default())
    intake = Intake(bus, lambda poll: None)
    mine = Memory(bus, "net-1", "era", 60.0, lambda: True)
    mine.mine = True
    await mine.write(picture, incidents, intake)
    real, lost = bus.publish, [memory.HEAD]

    async def publish(subject: str, data: bytes, **how: Any) -> PubAck:
        ack = await real(subject, data, **how)
        if subject in lost:
            lost.remove(subject)
            raise UnknownResult("no answer")
        return ack

    monkeypatch.setattr(bus, "publish", publish)
    with pytest.raises(UnknownResult):
        await mine.write(picture, incidents, intake)
    picture.hosts.take(told([port("x", 7)], 1000.0, "n1"))
    await mine.write(picture, incidents, intake)
    found = await Memory(bus, "net-2", "era", 60.0, lambda: True).read()
    assert found is not None and found.ports == (), "the one before it, whole"
    await mine._take_over(picture, incidents)
    mine.mine = True
    await mine.write(picture, incidents, intake)
    found = await Memory(bus, "net-2", "era", 60.0, lambda: True).read()
    assert found is not None and len(found.ports) == 1


def test_a_rate_that_is_no_number_costs_the_rate_alone(tmp_path: Path) -> None:
    Sysfs(tmp_path, 1).set("mlx5_0", rate="1.2.3 Gb/sec (4X)")
    (one,) = Ports(PortSettings(root=str(tmp_path))).read()
    assert (one.state, one.gbps, one.counters["symbol_error"], one.note) == ("ACTIVE", None, 0, "")
