"""A host's ports become series under the same name as the fabric side's, and what was not read says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from aegis_agent.daemon.ports import message
from aegis_netmon import hostpoll, kept, verdicts
from aegis_netmon.hostpoll import NodePoll
from aegis_netmon.hosts import Hosts
from aegis_netmon.incidents import KeptIncidents
from aegis_netmon.picture import Picture
from aegis_parsers.ib.live import PortReading, Reader, port_guid
from aegis_proto.messages import BadMessage, decode, encode
from aegis_proto.net import ABSENT, NodePorts, Optics, PortCounts
from hypothesis import given, settings
from hypothesis import strategies as st


def travelled(node: str, at: float, boot: str, ports: list[PortReading]) -> NodePoll:
    """A reading as the service has it: told by the daemon, encoded, decoded."""
    return hostpoll.read(node, at, decode(NodePorts, encode(message(boot, int(at * 1000), ports))))


@pytest.mark.parametrize(
    ("gid", "guid"),
    [
        ("fe80:0000:0000:0000:b83f:d203:0012:3456", "b83fd20300123456"),
        ("fe80:0000:0000:0000:0000:0000:0000:0000", None),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_the_guid_of_a_port_is_that_of_its_first_gid(gid: str | None, guid: str | None) -> None:
    assert port_guid(gid) == guid


def test_a_node_is_one_message_with_its_counters_states_and_what_was_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "mlx5_0/ports/1"
    for name, text in {
        "state": "4: ACTIVE",
        "link_layer": "InfiniBand",
        "rate": "400 Gb/sec (4X NDR)",
        "gids/0": "fe80:0000:0000:0000:0000:0000:0010:000b",
        "counters/symbol_error": "3",
        "hw_counters/lifespan": "12",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (tmp_path / "hfi1_0/ports/1").mkdir(parents=True)
    (folder / "counters/link_downed").write_text("N/A (no PMA)")
    made = travelled("node06", 5.0, "boot-1", Reader(tmp_path).poll())
    load = (tmp_path / "mlx5_0/ports").stat().st_ino
    polls = [port.poll for port in made.ports if port.poll is not None]
    assert [(poll.guid, poll.port, dict(poll.values), poll.boot) for poll in polls] == [
        ("000000000010000b", 1, {"symbol_error": 3, "link_downed": None}, f"boot-1.{load}")
    ]
    assert [(port.seen.device, port.seen.up, port.seen.gbps, port.seen.layer) for port in made.ports] == [
        ("hfi1_0", None, None, "OmniPath"),
        ("mlx5_0", True, 400.0, "InfiniBand"),
    ]
    assert [port.note for port in made.ports] == ["unsupported: Omni-Path", ""]


def test_a_port_without_a_guid_has_a_series_of_its_own() -> None:
    port = PortReading("rxe0", 1, None, "ACTIVE", None, None, "Ethernet", None, {"sent_pkts": 7})
    (one,) = travelled("n1", 0.0, "", [port]).ports
    assert one.poll is not None and one.poll.guid == "n1/rxe0"


@pytest.mark.parametrize(
    "told",
    [
        NodePorts("b", 0, ("symbol_error", "symbol_error")),
        NodePorts("b", 0, ("a b",)),
        NodePorts("b", 0, ("x",), (PortCounts("mlx5_0", 1, values=(1, 2)),)),
        NodePorts("b", 0, ("x",), (PortCounts("mlx5_0", 1, values=(-7,)),)),
        NodePorts("b", 0, (), (PortCounts("../x", 1),)),
        NodePorts("b", 0, (), (PortCounts("mlx5_0", 1, "not hex"),)),
        NodePorts("b", 0, (), (PortCounts("mlx5_0", 1),) * 300),
    ],
)
def test_what_is_no_poll_is_refused_whole(told: NodePorts) -> None:
    with pytest.raises(BadMessage):
        hostpoll.read("n1", 1.0, told)


def test_where_there_is_no_infiniband_there_are_no_ports(tmp_path: Path) -> None:
    assert Reader(tmp_path / "nothing").poll() == []


def test_a_roce_port_that_loses_its_carrier_has_a_dip(tmp_path: Path) -> None:
    folder, net = tmp_path / "infiniband/mlx5_0/ports/1", tmp_path / "net/eth4"
    for name, text in {"state": "4: ACTIVE", "link_layer": "Ethernet", "gid_attrs/ndevs/0": "eth4", "hw_counters/np_cnp_sent": "0"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    net.mkdir(parents=True)
    hosts, reader = Hosts(), Reader(tmp_path / "infiniband")
    for n, count in enumerate((7, 7, 9)):
        (net / "carrier_down_count").write_text(f"{count}\n")
        hosts.take(travelled("n1", 10.0 * n, "boot", reader.poll()))
    (port,) = hosts.ports.values()
    assert port.health is not None and (port.health.state, port.health.flap.dips, port.flap.dips[0].downs) == ("watch", 1, 2)
    assert "carrier_down rose by 2 in 20 s" in {finding.story for finding in port.health.findings}
    (folder / "gid_attrs/ndevs/0").write_text("../../etc")
    assert "carrier_down" not in reader.poll()[0].counters


def told(guid: str, symbol_error: int) -> list[PortReading]:
    return [PortReading("mlx5_0", 1, guid, "ACTIVE", None, 400.0, "InfiniBand", 4, {"symbol_error": symbol_error})]


def test_a_guid_stays_with_the_node_that_told_it_first_as_long_as_that_tells() -> None:
    hosts = Hosts()
    hosts.take(travelled("n1", 0.0, "b", told("0" * 15 + "7", 0)))
    hosts.take(travelled("n2", 1.0, "b", told("0" * 15 + "7", 0)))
    assert hosts.by_guid["0" * 15 + "7", 1].seen.node == "n1"
    assert "n1 tells of the same GUID" in next(hosts.unread())
    hosts.take(travelled("n2", 100.0, "b", told("0" * 15 + "7", 0)))
    assert hosts.by_guid["0" * 15 + "7", 1].seen.node == "n2", "the adapter was moved: n1 tells nothing any more"


def test_a_silent_node_s_ports_are_unknown_and_a_port_that_is_gone_is_down() -> None:
    hosts = Hosts()
    for at in (0.0, 10.0):
        for n in range(5):
            hosts.take(travelled(f"n{n}", at, "b", two_of(n)))
    for n in range(1, 5):
        hosts.take(travelled(f"n{n}", 20.0, "b", told(f"{n:016x}", 0) if n == 1 else two_of(n)))
    hosts.expect(20.0)
    gone = hosts.ports["n1", "mlx5_1", 1]
    assert gone.health is not None and (gone.health.state, gone.note) == ("down", "not there any more")
    assert hosts.silent_nodes(50.0) == ["n0"]
    picture = Picture(hosts)
    picture.round(50.0)
    states = {key: line.state for key, line in picture.lines.items()}
    assert (states["n0-mlx5_0-1"], states["n1-mlx5_1-1"], states["n2-mlx5_0-1"]) == ("unknown", "down", "unproven")


def two_of(n: int) -> list[PortReading]:
    return [*told(f"{n:016x}", 0), PortReading("mlx5_1", 1, f"{n + 64:016x}", "ACTIVE", None, 400.0, "InfiniBand", 5, {"symbol_error": 0})]


REALS = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, 1e-300, 1e308, -1.0, 5e-324]))
STATES = st.sampled_from([None, "ACTIVE", "DOWN", "?"])
COUNTS = st.one_of(st.none(), st.integers(-2, 2**70), st.sampled_from([ABSENT, 0, 15, 255, 65535, 2**63 - 1]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            COUNTS, COUNTS, REALS, st.sampled_from([None, "ACTIVE", "DOWN", "?"]), st.tuples(REALS, REALS, REALS, REALS), st.integers(-5, 10**15)
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_a_daemon_tells_is_refused_or_judged(polls: list[Any]) -> None:
    hosts = Hosts()
    picture = Picture(hosts)
    for n, (one, other, gbps, state, optics, at) in enumerate(polls):
        row = PortCounts("mlx5_0", 1, "", state, gbps, "InfiniBand", n // 3, (one, other), optics=Optics(at, *optics))
        try:
            hosts.take(hostpoll.read("n1", 10.0 * n, NodePorts("b", at, ("symbol_error", "port_rcv_data"), (row,), booted=at // 2)))
        except BadMessage:
            continue
        picture.round(10.0 * n)
        for line in picture.lines.values():
            verdicts.of_link(picture.info(line, 10.0 * n), 1)
    kept.give_back(msgspec.msgpack.decode(msgspec.msgpack.encode(kept.gather(hosts, picture.watch, KeptIncidents(), 1, "")), type=kept.Kept), Hosts())
