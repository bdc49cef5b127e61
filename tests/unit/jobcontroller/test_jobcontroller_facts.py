"""Facts: what holds in the present world, and what of it must be said now."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from aegis_jobcontroller.facts import REPEAT, SILENT_REPEAT, News, Teller, facts
from aegis_jobcontroller.world import World
from aegis_proto.phases import FactKind, Phase
from worlds import HERE, NOW, PLAIN, RESTARTS, RUNS, at, held, make_job, make_node, make_world, running, told


def kinds(world: World) -> list[tuple[str, FactKind, int]]:
    return [(item.pod, item.fact.kind, item.fact.attempt) for item in facts(world)]


def test_a_placed_worker_is_said_to_be_placed_until_it_runs() -> None:
    job = make_job("job-a", 1)
    waits = make_node("n0", holdings={"0": held(job, 0)})
    assert kinds(make_world([job], [waits], [at(job, 0, "n0")])) == [("w0", FactKind.PLACED, 1)]
    assert kinds(make_world([job], [running(job, 0, "n0")], [at(job, 0, "n0")])) == [("w0", FactKind.RUNNING, 1)]


def test_gone_carries_how_it_ended() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    node = running(job, 0, "n0", state="gone", exitCode=137, signal=9, lastWord="{}", clean=False, at=5)
    (news,) = facts(make_world([job], [node], [at(job, 0, "n0")]))
    fact = news.fact
    assert (fact.kind, fact.exitCode, fact.signal, fact.lastWord, fact.clean, fact.node, fact.at) == (FactKind.GONE, 137, 9, "{}", False, "n0", 5)
    assert news.until_seen


def test_gone_is_not_said_again_once_the_state_shows_it() -> None:
    node = running(make_job("job-a", 1), 0, "n0", state="gone")
    for pod in (dict(attempt=2, gone=True), dict(attempt=2, boot="b2")):
        job = make_job("job-a", 1, {0: pod}, **RESTARTS)
        assert kinds(make_world([job], [node], [at(job, 0, "n0")])) == []
    waits = make_job("job-a", 1, {0: dict(attempt=2)}, **RESTARTS)
    assert kinds(make_world([waits], [node], [at(waits, 0, "n0")])) == [("w0", FactKind.GONE, 1)]


def test_an_ended_job_gets_no_facts() -> None:
    job = make_job("job-a", 1, {0: HERE}, phase=Phase.SUCCEED)
    assert kinds(make_world([job], [running(job, 0, "n0", state="gone")], [at(job, 0, "n0")])) == []


def test_a_silent_node_is_said_to_be_silent_and_no_more() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    silent = running(job, 0, "n0", alive=False, silent_for=20.0)
    assert kinds(make_world([job], [silent], [at(job, 0, "n0")])) == [("w0", FactKind.NODE_SILENT, 1)]
    unheard = running(job, 0, "n0", alive=False, silent_for=3.0)
    assert kinds(make_world([job], [unheard], [at(job, 0, "n0")])) == []


def test_a_machine_that_was_started_anew_has_lost_its_workers() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    node = running(job, 0, "n0", boot="boot-0")
    assert kinds(make_world([job], [node], [at(job, 0, "n0")])) == [("w0", FactKind.NODE_LOST, 1)]


def test_plain_is_said_until_the_job_is_plain() -> None:
    job = make_job("job-a", 1)
    node = running(job, 0, "n0", plain=True)
    assert (("w0", FactKind.PLAIN, 1)) in kinds(make_world([job], [node], [at(job, 0, "n0")]))
    job = make_job("job-a", 1, {}, **PLAIN)
    assert kinds(make_world([job], [node], [at(job, 0, "n0")])) == [("w0", FactKind.RUNNING, 1)]


def test_the_end_of_a_plain_worker_is_said_until_the_state_has_it() -> None:
    for pod, expected in ((HERE, [FactKind.GONE]), ({**HERE, "exitCode": 0, "finished": True}, []), ({**HERE, "exitCode": 3}, [])):
        job = make_job("job-a", 1, {0: pod}, **PLAIN)
        assert [kind for _, kind, _ in kinds(make_world([job], [running(job, 0, "n0", state="gone")], [at(job, 0, "n0")]))] == expected


def test_a_slot_that_was_taken_over_means_gone() -> None:
    job, other = make_job("job-a", 1, {0: HERE}, **RUNS), make_job("job-b", 1)
    taken = make_node("n0", 1, {"0": told(other, 0, "running")}, holdings={"0": held(other, 0)})
    world = make_world([job, other], [taken], [at(job, 0, "n0"), at(other, 0, "n0")])
    assert kinds(world) == [("w0", FactKind.GONE, 1), ("w0", FactKind.RUNNING, 1)]


def test_a_job_with_the_same_name_but_another_uid_gets_no_facts_of_the_old_one() -> None:
    job = make_job("job-a", 1)
    (where, placed) = at(make_job("job-a", 1), 0, "n0")
    foreign = placed.place.__class__("other-uid", "w0", 1, "n0", "0")
    assert kinds(make_world([job], [running(job, 0, "n0")], [(where, placed.__class__(foreign, 7))])) == []


def say(teller: Teller, world: World, now: float) -> list[FactKind]:
    """What is due at `now`, acknowledged."""
    due = teller.due(facts(world), now, NOW + int(now * 1000))
    for item in due:
        teller.said(item, now)
    return [item.fact.kind for item in due]


def test_running_is_said_once_and_again_after_silence() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    runs = make_world([job], [running(job, 0, "n0")], [at(job, 0, "n0")])
    silent = make_world([job], [running(job, 0, "n0", alive=False, silent_for=16.0)], [at(job, 0, "n0")])
    teller = Teller()
    assert say(teller, runs, 0) == [FactKind.RUNNING]
    assert say(teller, runs, 1000) == []
    assert say(teller, silent, 1001) == [FactKind.NODE_SILENT]
    assert say(teller, silent, 1002) == []
    assert say(teller, silent, 1002 + SILENT_REPEAT) == [FactKind.NODE_SILENT], "a master that took over hears it"
    assert say(teller, runs, 1100) == [FactKind.RUNNING]
    assert say(teller, runs, 1101) == []
    assert say(teller, silent, 1102) == [FactKind.NODE_SILENT]


def test_a_fact_that_was_not_acknowledged_is_due_again() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    world = make_world([job], [running(job, 0, "n0")], [at(job, 0, "n0")])
    teller = Teller()
    assert len(teller.due(facts(world), 0, NOW)) == 1
    assert len(teller.due(facts(world), 0, NOW)) == 1


def test_gone_is_repeated_with_growing_pauses_until_the_state_shows_it() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)
    world = make_world([job], [running(job, 0, "n0", state="gone")], [at(job, 0, "n0")])
    teller = Teller()
    times = [second / 10 for second in range(0, 6000) if say(teller, world, second / 10)]
    assert times[:4] == [0, REPEAT, REPEAT * 3, REPEAT * 7]


def test_replicas_give_the_same_fact_the_same_id_and_other_facts_another() -> None:
    job = make_job("job-a", 1, {0: HERE}, **RUNS)

    def id_of(era: str = "", **values: object) -> str:
        now = replace(job, head=msgspec.structs.replace(job.head, era=era))
        (news,) = facts(make_world([now], [running(job, 0, "n0", state="gone", **values)], [at(job, 0, "n0")]))
        return news.msg_id

    assert id_of(exitCode=1) == id_of(exitCode=1) != id_of(exitCode=2)
    assert id_of("e1", exitCode=1) != id_of("e2", exitCode=1), "who takes up a new era passes over what was said before"


def test_the_memory_of_what_was_said_is_bounded() -> None:
    teller = Teller()
    for number in range(5000):
        job = make_job(f"job-{number}", 1, {0: HERE}, **RUNS)
        say(teller, make_world([job], [running(job, 0, "n0")], [at(job, 0, "n0")]), number)
    assert len(teller._said) <= 2000
    assert isinstance(next(facts(make_world([job], [running(job, 0, "n0")], [at(job, 0, "n0")]))), News)
