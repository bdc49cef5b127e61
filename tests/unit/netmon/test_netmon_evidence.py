"""What may count as evidence: no time in which nothing could be counted, no symptom, and nothing that a busy port does anyway."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from aegis_netmon import collect, correlate, flaps, health, transport
from aegis_netmon.api import Api
from aegis_netmon.correlate import Incident, PortEvent
from aegis_netmon.expected import Seen
from aegis_netmon.fabricpoll import ZEROES, Reading, ends
from aegis_netmon.hostpoll import NodePoll, PortPoll
from aegis_netmon.hosts import Hosts
from aegis_netmon.incidents import Incidents
from aegis_netmon.limits import default
from aegis_netmon.picture import Picture
from aegis_netmon.series import Poll, Port, observe
from aegis_netmon.topology import Fabric, build
from aegis_netmon.watch import Watch, step
from aegis_parsers import parse

UP = flaps.FlapVerdict("up")


@pytest.fixture(scope="module")
def fabric(shared: Path) -> Fabric:
    return build(parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover_p.txt").read_text()).items)


def run(*readings: Mapping[str, int | None], every: float = 10.0) -> Port:
    port = None
    for n, values in enumerate(readings):
        port = observe(port, Poll("0x1", 1, n * every, dict(values)))
    assert port is not None
    return port


def test_hours_at_the_cap_prove_no_bit_error_rate_when_the_counter_was_cleared() -> None:
    stuck = [{"symbol_error": 65535}] * 3
    assert health.judge(run(*stuck, {"symbol_error": 0}, {"symbol_error": 0}, every=3600), UP, gbps=425).state == "unproven"
    assert health.judge(run(*[{"symbol_error": 0}] * 4, every=3600), UP, gbps=425).state == "healthy"


def test_what_every_busy_port_counts_is_no_rise_of_a_step() -> None:
    names = ("port_xmit_packets", "unicast_xmit_packets", "rx_write_requests", "port_xmit_wait", "symbol_error")
    last = run(*(dict.fromkeys(names, n * 1000) for n in range(2))).steps[-1]
    assert (dict(last.counts), last.xmit_packets, last.waited) == ({"symbol_error": 1000}, 1000, 1000)
    capped = run({"port_xmit_wait": 5}, {"port_xmit_wait": 2**32 - 1}, {"port_xmit_wait": 2**32 - 1})
    assert [(step.waited, set(step.least)) for step in capped.steps] == [(2**32 - 6, set()), (0, set())]


def test_the_worst_links_are_those_with_errors_and_not_those_that_wait() -> None:
    picture = Picture(Hosts())
    for at in range(3):
        for n, values in enumerate(({"port_xmit_wait": 10**6 * at, "symbol_error": 0}, {"port_xmit_wait": 0, "symbol_error": 5 * at})):
            seen = PortPoll(Seen(f"n{n}", "mlx5_0", 1, True), Poll(f"{n:016x}", 1, 10.0 * at, dict(values)), f"{n:016x}", "", None, "")
            picture.hosts.take(NodePoll(f"n{n}", 10.0 * at, 10.0, None, (seen,)))
    picture.round(20.0)
    api = Api(None, picture, None, None, "net-1")  # type: ignore[arg-type]
    assert max(picture.lines.values(), key=api._errors).id == "n1-mlx5_0-1"


def test_what_link_downed_counts_since_a_boot_is_the_boot_and_no_alarm() -> None:
    port = None
    for at, count, boot in ((0.0, 48, "a"), (10.0, 48, "a"), (500.0, 1, "b"), (510.0, 1, "b")):
        port = observe(port, Poll("0x1", 1, at, {"link_downed": count}, boot))
    assert port is not None
    assert health.judge(port, UP).findings == () and not list(correlate.events_of(port, ("0x1", 1)))
    again = health.judge(observe(port, Poll("0x1", 1, 520.0, {"link_downed": 2}, "b")), UP)
    assert [finding.code for finding in again.findings] == ["link_went_down"]


def test_queue_pairs_that_died_with_their_peer_are_no_event_of_the_network() -> None:
    dead = PortEvent(4995.0, 10.0, ("a1", 1), "req_transport_retries_exceeded", 8)
    alone = transport.judge(5000.0, started=0.0, worked=True, dips={}, events=[dead], peer_died=4990.0)
    assert (alone.cause, alone.network) == ("peer", False)
    assert transport.judge(5000.0, started=0.0, worked=True, dips={}, events=[dead]).cause == "link"
    incidents = [Incident(str(n), 1e5 * n) for n in range(1, 9)]
    events = [msgspec.structs.replace(dead, at=one.at) for one in incidents]
    assert correlate.judge(incidents, events, (0.0, 1e6)).suspect is None


def test_a_burst_of_bit_errors_is_an_event_of_its_port_and_one_port_does_not_push_out_the_others() -> None:
    incidents, port = Incidents(default()), None
    for n in range(60):
        port = observe(port, Poll("0x1", 1, 10.0 * n, {"symbol_error": 400 * n, "port_rcv_errors": n}))
        incidents.counted(("a1", 1), port, 10.0 * n)
    assert {event.counter for event in incidents.events} == {"symbol_error"}
    assert len(incidents.events) == 10, "once a minute"


def test_a_link_between_switches_shows_its_bit_error_rate(fabric: Fabric) -> None:
    watch, picture = Watch(), Picture(Hosts())
    link = next(link for link in fabric.links.values() if link.tier == 1)
    for n in range(3):
        rises = {link.a: {"symbol_error": 40 * n}}
        polls = tuple(Poll(*end, 30.0 * n, {**ZEROES, **rises.get(end, {})}) for end in sorted(ends(fabric)))
        watch, verdicts = step(watch, Reading(30.0 * n, fabric, polls))
    picture.swept(watch, fabric, verdicts)
    info = picture.info(picture.lines[link.id], 60.0)
    assert info.ber == pytest.approx(80 / (60 * info.gbps * 1e9)) and info.berHigh is not None and info.berHigh > info.ber


def test_what_a_daemon_told_before_it_fell_silent_is_no_rate_of_now(fabric: Fabric) -> None:
    picture, watch = Picture(Hosts()), Watch()
    link = next(link for link in fabric.links.values() if link.tier == 0)
    host = next(end for end in (link.a, link.b) if fabric.devices[end[0]].kind == "host")
    for n in range(3):
        seen = Seen("node01", "mlx5_0", host[1], True)
        poll = Poll(*host, 10.0 * n, {"packet_seq_err": 900 * n, "symbol_error": 50 * n})
        picture.hosts.take(NodePoll("node01", 10.0 * n, 10.0, None, (PortPoll(seen, poll, host[0], "", None, ""),)))
    for at in (20.0, 600.0, 630.0):
        polls = tuple(Poll(*end, at, dict(ZEROES)) for end in sorted(ends(fabric)))
        watch, verdicts = step(watch, Reading(at, fabric, polls))
        picture.swept(watch, fabric, verdicts)
        picture.round(at)
        info = picture.info(picture.lines[link.id], at)
        assert (info.errors, info.retransmits) == ((100, 90.0) if at == 20.0 else (0, 0.0))


def test_a_tool_that_cannot_be_killed_does_not_hold_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that runs as another user."""
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\nexec sleep 100\n")
    tool.chmod(0o700)
    kill = collect.kill
    held: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(collect, "kill", held.append)
    monkeypatch.setattr(collect, "GRACE", 0.2)
    with pytest.raises(collect.NoFabric, match="left to itself"):
        collect.FabricReader((str(tool),), budget=0.2).read(0.0)
    (running,) = held
    kill(running)
    running.wait(10)


def test_a_site_s_own_thresholds_of_ibqueryerrors_hide_nothing(shared: Path, tmp_path: Path) -> None:
    """A tool that shows small counts only when it is told to use no thresholds, as the real one with a file in /etc."""
    net, tool = shared / "net/ibsim", tmp_path / "tool"
    graph = f'"ibnetdiscover -p") cat {net}/ibnetdiscover_p.txt;;ibnetdiscover) cat {net}/ibnetdiscover.txt;;'
    row = "   GUID 0x200004 port 7: [PortXmitDiscards == 7]"
    tool.write_text(f'#!/bin/sh\ncase "$*" in {graph}*"threshold-file /dev/null") echo "{row}";;*) echo "##";; esac\n')
    tool.chmod(0o700)
    assert [poll.values["port_xmit_discards"] for poll in collect.FabricReader((str(tool),)).read(0.0).polls] == [7]


@pytest.mark.parametrize(
    ("end", "times", "well"), [("kill -SEGV $$", 1, True), ("exit 139", 1, True), ("kill -SEGV $$", 2, False), ("exit 2", 1, False)]
)
def test_a_tool_that_a_signal_ended_is_asked_once_more(shared: Path, tmp_path: Path, end: str, times: int, well: bool) -> None:
    """A fabric that changes can kill the tool that reads it; one that refuses by itself is believed."""
    tool, calls = tmp_path / "tool", tmp_path / "calls"
    tool.write_text(f"#!/bin/sh\necho x >>{calls}\n[ $(wc -l <{calls}) -gt {times} ] || {end}\ncat {shared}/net/ibsim/ibnetdiscover.txt\n")
    tool.chmod(0o700)
    parsed, why = collect.FabricReader((str(tool),)).run(("ibnetdiscover",), time.monotonic() + 60.0)
    assert (parsed is not None, why == "") == (well, well)
    assert len(calls.read_text().splitlines()) == (1 if end == "exit 2" else 2)
