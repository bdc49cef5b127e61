"""The ghost as netmon meets it: weeks of polls, failures and verdicts of lognexus, and a service that is started anew each week."""

from __future__ import annotations

import random

import msgspec
import pytest
from aegis_netmon import flaps, transport
from aegis_netmon.correlate import PortEvent, Sensor
from aegis_netmon.expected import Seen
from aegis_netmon.hostpoll import NodePoll, PortPoll
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


def at_work(settings: dict[str, str] | None = None) -> tuple[Incidents, Picture, Port]:
    """A job on two nodes, whose first port has sent 2 GB since the run began at T0."""
    picture = Picture(Hosts())
    picture.jobs = {JOB.job: JobUse(JOB.job, "default", ("n1", "n2"), "uid")}
    polls = (NodePoll("n1", T0 + 10 * n, 10.0, None, (reading(n * 250_000_000),), {JOB.job: settings or {}}) for n in range(3))
    incidents = Incidents(default())
    started = JobEvent("s", JOB.job, "default", "phase", "", 1, 1, "RunCommand")
    incidents.heard(started, T0, picture)
    for poll in polls:
        picture.hosts.take(poll)
    port = picture.hosts.ports["n1", "mlx5_0", 1].port
    assert port is not None
    return incidents, picture, port


def reading(words: int, up: bool = True) -> PortPoll:
    seen = Seen("n1", "mlx5_0", 1, up, "InfiniBand", 400.0)
    return PortPoll(seen, Poll("00000000000000a1", 1, T0 + words / 25_000_000, {"port_xmit_data": words}), "00000000000000a1", "", None, "")


@pytest.mark.parametrize(
    ("cause", "settings", "down", "says"),
    [
        ("error", {}, 45.0, "link: n1 mlx5_0 port 1 was down for 45 s, longer than NCCL_IB_TIMEOUT 20 x NCCL_IB_RETRY_CNT 7 bears (30 s)"),
        ("error", {}, 5.0, "link: n1 mlx5_0 port 1 was down for 5 s, which NCCL_IB_TIMEOUT 20 x NCCL_IB_RETRY_CNT 7 (30 s) should have borne"),
        ("error", {"NCCL_IB_TIMEOUT": "16"}, 5.0, "longer than NCCL_IB_TIMEOUT 16 x NCCL_IB_RETRY_CNT 7 bears (2 s)"),
        ("signal", {}, 0.0, "peer: the other process ended"),
        ("error", {}, 0.0, "unknown: no event of either port"),
    ],
)
def test_a_failure_is_held_against_the_ports_of_its_job_with_its_own_settings(cause: str, settings: dict[str, str], down: float, says: str) -> None:
    incidents, picture, _ = at_work(settings)
    failed = T0 + 1000
    if down:
        port = picture.hosts.ports["n1", "mlx5_0", 1]
        port.flap = flaps.History(True, (flaps.Dip(failed - down - 1, failed - 1),), at=failed)
    incidents.heard(msgspec.structs.replace(failure(1, "n2"), cause=cause), failed, picture)
    (incident,) = incidents.incidents.values()
    assert incident.worked, "its ports carried 2 GB since the start"
    verdict = transport.of_incident(incident, incidents.events, picture)
    assert f"{verdict.cause}: {verdict.reason}".startswith(says) or says in verdict.reason
    assert verdict.network == (verdict.cause == "link")
    assert not incidents.settled(failed + 179) and incidents.settled(failed + 181) == [incident]
    incidents.said(incident, says)
    assert not incidents.settled(failed + 181)


def test_a_failure_at_launch_over_ports_that_carried_nothing_was_never_connected() -> None:
    incidents, picture, _ = at_work()
    incidents.heard(JobEvent("s", JOB.job, "default", "phase", "", 2, 1, "RunCommand"), T0 + 5000, picture)
    incidents.heard(failure(2, "n2"), T0 + 5040, picture)
    (incident,) = incidents.incidents.values()
    assert transport.of_incident(incident, (), picture).cause == "connectivity"


def test_a_successor_adopts_what_only_the_holder_saw_and_keeps_its_own_of_the_rest() -> None:
    holder, picture, _ = at_work()
    successor = Incidents(default(), holder.kept())
    holder.heard(failure(1, "n2"), T0 + 100, picture)
    holder.incidents = {key: msgspec.structs.replace(one, links=frozenset({"l"})) for key, one in holder.incidents.items()}
    holder.heard(failure(2, "n2"), T0 + 200, picture)
    holder.explained(explained(2, "user_code"))
    event = PortEvent(T0 + 90, 10.0, ("0000000000002001", 3), "port_xmit_discards", 9000)
    holder.events.append(event)
    holder.sensor(Sensor(T0 + 90, "core1/L6", "fan", "fan3", 4100.0))
    for n in (1, 2, 3):
        successor.heard(failure(n, "n2"), T0 + 100 * n, picture)
    successor.explained(explained(2, "user_code"))
    successor.adopt(msgspec.msgpack.decode(msgspec.msgpack.encode(holder.kept()), type=KeptIncidents))
    assert {key: one.links for key, one in successor.incidents.items()} == {f"{JOB.job}-1": frozenset({"l"}), f"{JOB.job}-3": None}
    successor.adopt(holder.kept())
    assert list(successor.events) == [event] and len(list(successor.sensors())) == 1
