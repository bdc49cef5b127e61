"""The ghost: a large job times out once or twice a week, with other ranks in other racks each time. It ends at one line card with a slow fan."""

from __future__ import annotations

import random
from typing import NamedTuple

import msgspec
import pytest
from aegis_netmon import correlate
from aegis_netmon.correlate import Incident, PortEvent, Sensor
from aegis_netmon.series import Poll, Port, observe
from aegis_netmon.topology import Fabric, build
from aegis_parsers.schema import Item

WEEK = 7 * 86400.0
CARDS, PORTS, LEAVES = 8, 4, 32
GHOST = "core1/L6"


class Story(NamedTuple):
    """Twelve weeks of a fabric."""

    fabric: Fabric
    incidents: list[Incident]
    events: list[PortEvent]
    sensors: list[Sensor]


def fabric() -> Fabric:
    """A director of eight line cards above 32 leaves, each leaf with one uplink to one card."""
    items: list[Item] = []
    for leaf in range(LEAVES):
        card, port = divmod(leaf, PORTS)
        items.append(
            {
                **{"id": f"leaf{leaf}", "kind": "link", "type": "SW", "guid": f"0x1{leaf:03x}", "port": 40, "name": f"leaf{leaf}"},
                **{"peer_guid": f"0x2{card:03x}", "peer_port": port + 1, "peer": f"MF0;core1:CS8500/L{card + 1}/U1"},
            }
        )
    return build(items)


def bursts(rng: random.Random, at: float, fine: dict[tuple[int, int], Port], hurt: dict[tuple[int, int], int]) -> list[PortEvent]:
    """Two polls of every card's ports around `at`; those in `hurt` drop so many packets for microseconds within the second."""
    found = []
    for (card, number), port in list(fine.items()):
        before = port.values["port_xmit_discards"] or 0
        calm = observe(port, Poll(port.guid, number, at - 10 + rng.random(), {"port_xmit_discards": before + rng.randrange(20)}))
        after = (calm.values["port_xmit_discards"] or 0) + hurt.get((card, number), 0)
        fine[card, number] = observe(calm, Poll(port.guid, number, at + rng.random(), {"port_xmit_discards": after}))
        seen = msgspec.structs.replace(fine[card, number], steps=fine[card, number].steps[-2:])
        found += correlate.events_of(seen, (f"{int(port.guid, 16):016x}", number))
    return found


def story(seed: int, ghost: bool = True) -> Story:
    rng = random.Random(seed)
    ports = {
        (card, n): observe(None, Poll(f"0x2{card:03x}", n, 0.0, {"port_xmit_discards": 0})) for card in range(CARDS) for n in range(1, PORTS + 1)
    }
    times = sorted(
        [(week * WEEK + rng.uniform(0.1, 0.9) * WEEK, "timeout") for week in range(12)] + [(rng.uniform(0, 12) * WEEK, "noise") for _ in range(80)]
    )
    incidents, events, sensors = [], [], []
    for at, kind in times:
        sick = [(5, rng.randint(1, PORTS))] if kind == "timeout" and ghost else [(rng.randrange(CARDS), rng.randint(1, PORTS))]
        if kind == "timeout" and not ghost:
            sick = []
        events += bursts(rng, at - 5, ports, {end: rng.randint(20_000, 60_000) for end in sick})
        if kind == "timeout":
            incidents.append(Incident(f"run{len(incidents)}", at, tuple(f"rack{rng.randrange(128)}-n{rng.randrange(4)}" for _ in range(3))))
        slow = kind == "timeout" and ghost
        for card in range(1, CARDS + 1):
            hot = slow and f"core1/L{card}" == GHOST
            sensors.append(Sensor(at - 30, f"core1/L{card}", "temperature", "chip", rng.gauss(92 if hot else 61, 2)))
            for fan in range(1, 5):
                sensors.append(Sensor(at - 30, f"core1/L{card}", "fan", f"fan{fan}", rng.gauss(4100 if hot and fan == 3 else 8400, 100)))
    return Story(fabric(), incidents, events, sensors)


def verdict(told: Story) -> correlate.Verdict:
    return correlate.judge(told.incidents, told.events, (0.0, 12 * WEEK), sensors=told.sensors, fabric=told.fabric)


@pytest.mark.parametrize("seed", range(5))
def test_weekly_timeouts_of_different_ranks_end_at_one_line_card_with_a_slow_fan(seed: int) -> None:
    found = verdict(story(seed))
    assert found.suspect is not None
    assert (found.suspect.kind, found.suspect.id, found.suspect.hits) == ("card", GHOST, 12)
    assert found.cause == "slow fan fan3"
    words = "\n".join(found.evidence)
    assert "not one node" in words
    assert "port_xmit_discards" in words
    assert "chip was at" in words


@pytest.mark.parametrize("seed", range(5))
def test_timeouts_that_no_port_saw_are_not_called_network(seed: int) -> None:
    found = verdict(story(seed, ghost=False))
    assert found.suspect is None
    assert "no part of the network stands out" in found.evidence[-1]


def test_a_part_that_drops_all_the_time_is_no_suspect() -> None:
    noisy = [PortEvent(60.0 * n, 10.0, ("a", 1), "port_xmit_discards", 5000) for n in range(1000)]
    incidents = [Incident(str(n), 9000.0 * n + 4000) for n in range(6)]
    assert correlate.judge(incidents, noisy, (0.0, 60_000.0)).suspect is None


def test_an_event_on_a_link_that_the_job_did_not_use_does_not_count() -> None:
    told = story(0)
    away = [msgspec.structs.replace(incident, links=frozenset({"another"})) for incident in told.incidents]
    assert verdict(told._replace(incidents=away)).suspect is None


def test_a_host_that_falls_behind_each_time_is_looked_at_first() -> None:
    same = [Incident(str(n), n * WEEK, ("n7", f"n{n + 20}")) for n in range(5)]
    assert "n7 fell behind in 5 of 5" in correlate.judge(same, [], (0.0, 5 * WEEK)).evidence[0]


def test_one_port_is_named_rather_than_its_card_when_it_alone_explains_it() -> None:
    incidents = [Incident(str(n), n * WEEK + 1000) for n in range(6)]
    events = [PortEvent(incident.at - 5, 10.0, ("0000000000002002", 3), "port_xmit_discards", 9000) for incident in incidents]
    found = correlate.judge(incidents, events, (0.0, 6 * WEEK), fabric=fabric())
    assert found.suspect is not None
    assert (found.suspect.kind, found.suspect.id) == ("port", "0000000000002002 port 3")
