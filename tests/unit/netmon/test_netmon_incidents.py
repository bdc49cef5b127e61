"""The ghost as netmon meets it: weeks of polls, failures and verdicts of lognexus, and a service that is started anew each week."""

from __future__ import annotations

import random

import msgspec
import pytest
from aegis_netmon.correlate import Sensor
from aegis_netmon.hosts import Hosts
from aegis_netmon.incidents import MOST_READINGS, Incidents, KeptIncidents, of_part, part_id
from aegis_netmon.limits import default
from aegis_netmon.picture import JobUse, Picture
from aegis_netmon.series import Poll, Port, observe
from aegis_proto.messages import JobEvent, Verdict
from test_netmon_ghost import CARDS, PORTS, WEEK, fabric

T0 = 1_796_000_000.0
JOB = JobUse("big-111111", "default", tuple(f"n{n}" for n in range(64)))


def failure(incarnation: int, node: str = "") -> JobEvent:
    return JobEvent(str(incarnation), JOB.job, "default", "counted", "", incarnation, 1, "Troubleshooting", "hang", "w0", node, counted=True)


def explained(incarnation: int, cause: str, *nodes: str) -> Verdict:
    return Verdict(f"{JOB.job}-{incarnation}", "lognexus", cause, job=JOB.job, incarnation=incarnation, nodes=nodes)


def weeks(seed: int, *, ghost: bool) -> tuple[Incidents, Picture]:
    """Twelve weeks: one timeout a week, on card 6 when there is a ghost; failures of the training's own code; bursts elsewhere that hurt nobody."""
    rng = random.Random(seed)
    picture = Picture(Hosts())
    picture.fabric = fabric()
    picture.jobs = {JOB.job: JOB}
    incidents, number = Incidents(default()), 0
    ports: dict[tuple[str, int], Port] = {}

    def poll(at: float, sick: tuple[str, int] | None, count: int) -> None:
        for card in range(CARDS):
            for n in range(1, PORTS + 1):
                end = (f"{0x2000 + card:016x}", n)
                old = ports.get(end)
                before = (old.values["port_xmit_discards"] or 0) if old is not None else 0
                ports[end] = observe(old, Poll(end[0], n, at, {"port_xmit_discards": before + (count if end == sick else rng.randrange(5))}))
                incidents.counted(end, ports[end], at)

    for week in range(12):
        moments = [(rng.uniform(0.1, 0.9), "timeout"), (rng.uniform(0.1, 0.9), "bug"), *((rng.uniform(0, 1), "noise") for _ in range(4))]
        for share, kind in sorted(moments):
            at = T0 + (week + share) * WEEK
            slow = kind == "timeout" and ghost
            card = 5 if slow else rng.randrange(CARDS)
            sick = None if kind == "bug" or (kind == "timeout" and not ghost) else (f"{0x2000 + card:016x}", rng.randint(1, PORTS))
            poll(at - 20, None, 0)
            poll(at - 10, sick, rng.randint(20_000, 60_000))
            for other in range(1, CARDS + 1):
                hot = slow and other == 6
                incidents.sensor(Sensor(at - 30, f"core1/L{other}", "temperature", "chip", rng.gauss(92 if hot else 61, 1)))
                for fan in range(1, 5):
                    incidents.sensor(Sensor(at - 30, f"core1/L{other}", "fan", f"fan{fan}", rng.gauss(4100 if hot and fan == 3 else 8400, 80)))
            if kind != "noise":
                number += 1
                incidents.heard(failure(number), at, picture)
                node = f"n{rng.randrange(64)}"
                incidents.explained(explained(number, "user_code" if kind == "bug" else "unknown", node))
        incidents = Incidents(default(), msgspec.msgpack.decode(msgspec.msgpack.encode(incidents.kept()), type=KeptIncidents))
        incidents._due = T0 + (week + 1) * WEEK  # what a failure just before the restart left to be judged
    return incidents, picture


@pytest.mark.parametrize("seed", range(3))
def test_weekly_timeouts_end_at_one_line_card_with_a_slow_fan_over_restarts(seed: int) -> None:
    incidents, picture = weeks(seed, ghost=True)
    assert len(incidents.incidents) == 12, "the training's own failures are none of ours"
    question = incidents.question(T0 + 12 * WEEK, picture)
    assert question is not None
    found = question()
    assert found.suspect is not None and (found.suspect.kind, found.suspect.id, found.suspect.hits) == ("card", "core1/L6", 12)
    verdict = of_part(found, {}, 1000)
    assert verdict is not None and part_id(found.suspect) == "part-card-core1_L6"
    assert verdict.sentence == "12 of 12 incidents coincide with card core1/L6, cause: slow fan fan3"
    assert any("not one node" in line for line in verdict.evidence)
    assert incidents.question(T0 + 12 * WEEK, picture) is None, "it is not asked again before something new happens"


@pytest.mark.parametrize("seed", range(3))
def test_timeouts_that_no_port_saw_name_no_part(seed: int) -> None:
    incidents, picture = weeks(seed, ghost=False)
    question = incidents.question(T0 + 12 * WEEK, picture)
    assert question is not None
    assert of_part(question(), {}, 0) is None


def test_what_is_kept_has_a_bound_and_incidents_before_the_first_poll_prove_nothing() -> None:
    incidents, picture = Incidents(default()), Picture(Hosts())
    picture.jobs = {JOB.job: JOB}
    for n in range(2 * MOST_READINGS):
        incidents.sensor(Sensor(T0 + n, "p", "fan", "fan1", 8000.0 if n % 2 else 4000.0))
    assert len(list(incidents.sensors())) == MOST_READINGS
    quiet = Incidents(default())
    for n in range(1000):
        quiet.sensor(Sensor(T0 + 60 * n, "p", "fan", "fan1", 8000.0 + n % 7))
    assert len(list(quiet.sensors())) == 3, "60,000 seconds: one in six hours"
    for n in range(500):
        incidents.heard(failure(n), T0 + n, picture)
    assert len(incidents.incidents) == 256
    incidents.counted(("a", 1), None, T0 + 10_000)
    assert incidents.question(T0 + 20_000, picture) is None


def test_a_failure_on_one_node_is_no_matter_of_the_network() -> None:
    incidents, picture = Incidents(default()), Picture(Hosts())
    picture.jobs = {JOB.job: JobUse(JOB.job, "default", ("n1",))}
    incidents.heard(failure(1), T0, picture)
    assert not incidents.incidents
