"""A fabric under watch: what is missing, what a reading does not say, and which device many bad links have in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from aegis_netmon import collect, fabricpoll, watch
from aegis_netmon.fabricpoll import ZEROES, Reading
from aegis_netmon.series import Poll
from aegis_netmon.topology import Fabric, build
from aegis_netmon.verdicts import Told, closed, of_gone
from aegis_netmon.watch import ALARMS, LinkVerdict, Watch, step
from aegis_parsers import parse
from harness.waiting import until_sync

DATA = """Data Counters for 0x100000 "node01 mlx5_0"
   GUID 0x100000 port 1: [PortXmitData == 1584 (6.188KB)] [PortRcvData == 1656 (6.469KB)] [PortXmitPkts == 22 (22.000)] [PortRcvPkts == 23 (23.000)]

## Summary: 22 nodes checked, 0 bad nodes found
"""


@pytest.fixture(scope="module")
def fabric(shared: Path) -> Fabric:
    return build(parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover_p.txt").read_text()).items)


def reading(fabric: Fabric, at: float, rises: Mapping[tuple[str, int], Mapping[str, int]] | None = None, gone: str = "") -> Reading:
    """Every port with zeros, but for `rises` (device name and port); `gone`: a link that is down."""
    named = {device.id: device.name.split(" ")[0] for device in fabric.devices.values()}
    polls = tuple(Poll(end[0], end[1], at, {**ZEROES, **(rises or {}).get((named[end[0]], end[1]), {})}) for end in sorted(fabricpoll.ends(fabric)))
    if gone:
        link = fabric.links[gone]
        links = {key: value for key, value in fabric.links.items() if key != gone}
        fabric = msgspec.structs.replace(fabric, links=links, down=fabric.down | {link.a, link.b})
    return Reading(at, fabric, polls)


def play(*readings: Reading) -> list[LinkVerdict]:
    state, verdicts = Watch(), []
    for each in readings:
        state, verdicts = step(state, each)
    return [verdict for verdict in verdicts if verdict.state in ALARMS]


def test_a_fabric_that_counts_nothing_is_quiet(fabric: Fabric) -> None:
    assert play(*(reading(fabric, 30.0 * n) for n in range(5))) == []


def test_history_before_the_first_reading_is_no_alarm(fabric: Fabric) -> None:
    old = {("leaf2", 5): {"symbol_error": 65535, "link_downed": 48}}
    assert play(*(reading(fabric, 30.0 * n, old) for n in range(3))) == []


def test_the_end_that_counts_is_named_and_the_other_side_blamed(fabric: Fabric) -> None:
    (verdict,) = play(reading(fabric, 0), reading(fabric, 30), reading(fabric, 60, {("leaf2", 5): {"symbol_error": 900}}))
    assert (verdict.end, verdict.at_fault) == ("leaf2 port 5", "spine1 port 3")


def test_a_link_that_was_there_and_is_missing_is_down(fabric: Fabric) -> None:
    gone = next(key for key, link in fabric.links.items() if link.tier == 1)
    (verdict,) = play(reading(fabric, 0), reading(fabric, 30, gone=gone))
    assert (verdict.link, verdict.state, verdict.side.suspect) == (gone, "down", "cable")


def test_a_link_taken_out_on_purpose_is_forgotten(fabric: Fabric) -> None:
    gone = next(iter(fabric.links))
    state, _ = step(Watch(), reading(fabric, 0))
    _, verdicts = step(watch.forget(state, gone), reading(fabric, 30, gone=gone))
    assert not [verdict for verdict in verdicts if verdict.link == gone]


def test_a_link_that_is_gone_for_a_month_was_taken_out_and_what_was_said_of_it_is_taken_back(fabric: Fabric) -> None:
    gone = next(iter(fabric.links))
    state, days = Watch(), []
    for day in (0, 1, 2, 29, 33, 34):
        state, verdicts = step(state, reading(fabric, 86400.0 * day, gone=gone if day else ""))
        days.append(next((verdict.state for verdict in verdicts if verdict.link == gone), ""))
    assert days == ["unknown", "down", "down", "down", "", ""]
    told = {gone: Told("down"), "n1-mlx5_0-1": Told("healthy"), "part-card-x": Told("suspect"), "l": Told("watch")}
    assert closed(told, {"l"}) == [gone]
    back = of_gone(gone, 5)
    assert (Told.of(back), back.nodes, "not there any more" in back.sentence) == (Told("unknown"), (), True)


def test_a_port_that_nobody_looked_at_is_unknown_and_not_down(fabric: Fabric) -> None:
    key, link = next(iter(fabric.links.items()))
    blind = msgspec.structs.replace(fabric, links={each: value for each, value in fabric.links.items() if each != key})
    state, _ = step(Watch(), reading(fabric, 0))
    _, verdicts = step(state, Reading(30.0, blind, ()))
    assert link.a in fabricpoll.ends(fabric)
    assert next(verdict.state for verdict in verdicts if verdict.link == key) not in ALARMS


def test_many_bad_links_of_a_switch_are_the_switch(fabric: Fabric) -> None:
    sick = {("leaf3", port): {"symbol_error": 500 + port} for port in range(1, 7)}
    verdicts = play(reading(fabric, 0), reading(fabric, 30), reading(fabric, 60, sick))
    assert len(verdicts) == 6
    assert {verdict.at_fault for verdict in verdicts} == {"leaf3"}


def test_a_port_that_answered_has_zeros_and_one_that_did_not_is_unknown(shared: Path) -> None:
    texts = {name: (shared / "net/ibsim" / f"{name}.txt").read_text() for name in ("ibnetdiscover_p", "ibnetdiscover", "ibqueryerrors")}
    made = fabricpoll.read(
        10.0,
        parse("ibnetdiscover", texts["ibnetdiscover_p"]),
        parse("ibnetdiscover", texts["ibnetdiscover"]),
        parse("ibqueryerrors", DATA),
        parse("ibqueryerrors", texts["ibqueryerrors"]),
    )
    polls = {made.fabric.name((poll.guid, poll.port)): poll.values for poll in made.polls}
    assert polls["node01 mlx5_0 port 1"]["symbol_error"] == 0
    assert polls["node01 mlx5_0 port 1"]["port_xmit_data"] == 1584
    assert polls["leaf3 port 7"] == {"port_xmit_discards": 1234}
    assert any("60 ports did not answer" in what for what in made.partial)


@pytest.fixture
def slow_tools(shared: Path, tmp_path: Path) -> tuple[str, ...]:
    """Words before each tool: ibnetdiscover prints the sample, ibqueryerrors (and its child) never ends."""
    script = tmp_path / "tool"
    script.write_text(f'#!/bin/sh\n[ "$1" = ibqueryerrors ] && {{ sleep 100; exit; }}\ncat {shared / "net/ibsim/ibnetdiscover_p.txt"}\n')
    script.chmod(0o700)
    return (str(script),)


def test_a_tool_that_does_not_end_costs_its_part_and_says_so(slow_tools: tuple[str, ...]) -> None:
    made = collect.FabricReader(slow_tools, budget=0.5).read(0.0)
    assert len(made.fabric.links) == 32
    assert made.polls == ()
    assert any("no answer within the budget of 0.5 s" in what for what in made.partial)


def test_a_sweep_that_is_stopped_ends_at_once(slow_tools: tuple[str, ...]) -> None:
    reader = collect.FabricReader(slow_tools, budget=60.0)
    begun = time.monotonic()
    thread = threading.Thread(target=reader.read)
    thread.start()
    until_sync(lambda: (running := reader.running) is not None and "ibqueryerrors" in str(running.args), 20, "the tool that does not end")
    reader.stop()
    thread.join(20)
    assert not thread.is_alive() and time.monotonic() - begun < 40


def test_without_a_graph_there_is_no_reading() -> None:
    with pytest.raises(collect.NoFabric, match="No such file"):
        collect.FabricReader(("/nowhere/sudo",)).read(0.0)
