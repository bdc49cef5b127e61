"""A level of recovery that did not hold is not tried again; it is told from the story in the head, whoever owns the job."""

from __future__ import annotations

import pytest
from aegis_master import events as ev
from aegis_master import machine
from aegis_master.invariants import broken
from aegis_master.levels import escalated, repeats
from aegis_master.recoveries import Recoveries
from aegis_proto.messages import CheckResult
from aegis_proto.phases import LostReason, Phase
from aegis_proto.state import JobSpec, JobState
from prometheus_client import REGISTRY

S = 1000


class Job:
    """Two workers, unless said otherwise, through the real machine; time moves as told."""

    def __init__(self, workers: int = 2, **spec: object) -> None:
        self.now = 0
        self.state: JobState = machine.create("j", JobSpec("j", ("x",), workers=workers, maxRetry=9, **spec), "u", "a", 0)  # type: ignore[arg-type]
        self.notes: list[str] = []
        for i in range(workers):
            self.here(i)
        self.checked()

    def step(self, event: ev.Event, seconds: float = 1.0) -> None:
        self.now += round(seconds * S)
        self.state, effects = machine.step(self.state, event, self.now)
        self.notes += [effect.kind for effect in effects if isinstance(effect, ev.Note)]
        assert not broken(self.state)

    def here(self, i: int) -> None:
        attempt = self.state.pod(i).attempt
        self.step(ev.PodReady(i, attempt, f"b{i}.{attempt}.{self.now}", node=f"n{i}{attempt}"))

    def checked(self, **lost: int) -> None:
        """All answer the round, with what the master adds to it. `lost`: whose check fails, by the check's name."""
        for i in range(self.state.head.workerNum):
            pod, head = self.state.pod(i), self.state.head
            results = tuple(CheckResult(name, False, "broken") for name, who in lost.items() if who == i)
            if (finding := escalated(self.state, i)) is not None:
                results += (finding,)
            self.step(ev.Finished(i, pod.attempt, pod.boot, head.incarnation, head.seqNum, results=results))

    def fails(self, i: int, after: float = 5.0, reason: LostReason = LostReason.ERROR) -> None:
        pod, head = self.state.pod(i), self.state.head
        assert head.phase is Phase.RUN_COMMAND
        self.step(ev.Errored(i, pod.attempt, pod.boot, head.incarnation, head.seqNum, reason, at=self.now), after)

    def leaves(self, i: int) -> None:
        """It was ordered to leave, has left, and its successor is here."""
        assert self.state.pod(i).toQuit
        self.step(ev.PodGone(i, self.state.pod(i).attempt))
        self.here(i)
        self.checked()


def test_a_restart_in_place_comes_first_then_a_fresh_container_then_another_node() -> None:
    job = Job()
    job.fails(1)
    job.checked()
    assert (job.state.head.phase, job.state.pod(1).attempt) == (Phase.RUN_COMMAND, 1)  # L1
    job.fails(1)
    job.checked()
    assert job.state.head.phase is Phase.RESTARTING and job.state.pod(1).pin == "n11"  # L2: wished for the same node
    job.leaves(1)
    assert (job.state.head.phase, job.state.pod(1).attempt, job.state.head.errorNodes) == (Phase.RUN_COMMAND, 2, ())
    job.fails(1)
    job.checked()
    assert [(entry.name, entry.reason) for entry in job.state.head.errorNodes] == [("n12", "persistent")]  # L3
    job.leaves(1)
    assert job.state.head.phase is Phase.RUN_COMMAND


@pytest.mark.parametrize("check", ["io", "runtime"])
def test_what_a_fresh_container_on_the_node_fails_again_is_the_node_s(check: str) -> None:
    def answer(job: Job, *failed: str) -> None:
        head = job.state.head
        for i in range(2):
            pod = job.state.pod(i)
            results = tuple(CheckResult(name, False, "broken") for name in failed) if i else ()
            job.step(ev.Finished(i, pod.attempt, pod.boot, head.incarnation, head.seqNum, results=results))

    def leaves(job: Job, node: str) -> None:
        attempt = job.state.pod(1).attempt
        job.step(ev.PodGone(1, attempt))
        job.step(ev.PodReady(1, attempt + 1, f"b{attempt + 1}", node=node))

    job = Job()
    job.fails(1)
    answer(job, check)
    assert (job.state.pod(1).pin, job.state.head.errorNodes) == ("n11", ())  # L2
    leaves(job, "n11")
    answer(job, check)
    assert [(entry.name, entry.reason) for entry in job.state.head.errorNodes] == [("n11", check)] and job.state.pod(1).pin == ""  # L3
    leaves(job, "n9")
    answer(job)
    assert (job.state.head.phase, job.state.pod(1).pin) == (Phase.RUN_COMMAND, "")

    job.fails(1, 70.0)  # it was well between: a container is the first thing to be tried again
    answer(job, check)
    leaves(job, "n9")
    answer(job)
    job.fails(1, 70.0)
    answer(job, check)
    assert (job.state.pod(1).pin, len(job.state.head.errorNodes)) == ("n9", 1)
    leaves(job, "n5")  # the wish was not met: nothing is known of n5 yet
    answer(job, check)
    assert (job.state.pod(1).pin, len(job.state.head.errorNodes)) == ("n5", 1)


@pytest.mark.parametrize(
    ("second", "after", "reason"),
    [(0, 5.0, LostReason.ERROR), (1, 61.0, LostReason.ERROR), (1, 5.0, LostReason.COLLATERAL)],
    ids=["another worker", "not at once", "because of a peer"],
)
def test_what_is_not_the_same_again_at_once_is_restarted_in_place(second: int, after: float, reason: LostReason) -> None:
    job = Job()
    job.fails(1)
    job.checked()
    job.fails(second, after, reason)
    job.checked()
    assert job.state.head.phase is Phase.RUN_COMMAND and {pod.attempt for pod in job.state.pods()} == {1}


def test_a_gpu_lost_beside_the_worker_that_fails_again_explains_it() -> None:
    """Of two workers one is named by the story and one by its check: both leaving would be a common cause, and the end of the job."""
    job = Job()
    job.fails(1)
    job.checked()
    job.fails(1)
    job.checked(gpu=0)
    head = job.state.head
    assert (head.phase, head.massQuitRounds, head.recent[-1].cause) == (Phase.TROUBLESHOOTING, 1, "quit")
    job.checked(gpu=0)
    assert [(entry.name, entry.reason) for entry in job.state.head.errorNodes] == [("n01", "gpu")]
    job.leaves(0)
    job.fails(1)
    job.checked()
    assert (job.state.head.phase, job.state.pod(1).attempt) == (Phase.RUN_COMMAND, 1), "its earlier failures were the lost GPU's"
    job.fails(1)
    job.checked()
    assert job.state.head.phase is Phase.RESTARTING and job.state.pod(1).pin == "n11"


def test_the_story_tells_how_often_whoever_reads_it() -> None:
    job = Job()
    for count in (1, 2, 3):
        job.fails(1)
        assert repeats(job.state.head.recent, job.state.head.incarnation) == ("w1", count)
        job.checked()
        if count > 1:
            job.leaves(1)


def test_a_run_between_that_is_not_counted_ends_the_row() -> None:
    job = Job()
    job.fails(1)
    job.checked()
    job.fails(0, reason=LostReason.PREEMPTED)
    job.leaves(0)
    job.fails(1)
    assert repeats(job.state.head.recent, job.state.head.incarnation) == ("w1", 1)


def test_a_worker_alone_is_restarted_in_place_until_its_budget_is_spent() -> None:
    """There is nothing to compare it with: what ends it is most likely the command."""
    job = Job(1)
    for _ in range(3):
        job.fails(0)
        assert escalated(job.state, 0) is None
        job.checked()


def test_a_recovery_is_measured_by_the_level_that_brought_the_run_back() -> None:
    """In place; in a fresh container on the same node; on another node."""

    def count(level: str) -> float:
        return REGISTRY.get_sample_value("aegis_recovery_duration_seconds_count", {"level": level}) or 0.0

    job, was = Job(), {level: count(level) for level in ("L1", "L2", "L3")}
    clock = Recoveries(job.state)
    for successor in ("", "n11", "n9"):
        job.fails(1, 70.0)
        left = job.state
        if successor:
            pod, head = job.state.pod(1), job.state.head
            job.step(ev.PodLost(1, pod.attempt, LostReason.KILLED, at=job.now, gone=True))
            job.step(ev.PodReady(1, pod.attempt + 1, f"b{job.now}", node=successor))
            assert job.state.head.incarnation == head.incarnation
        job.checked()
        assert job.state.head.phase is Phase.RUN_COMMAND
        for transition in (left.head.recent[-1], job.state.head.recent[-1]):
            clock.see(job.state, transition)
    assert {level: count(level) - before for level, before in was.items()} == {"L1": 1, "L2": 1, "L3": 1}


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_where_nothing_is_done_to_nodes_the_restart_in_place_goes_on(mode: str) -> None:
    job = Job(actions=mode)
    job.fails(1)
    pod, head = job.state.pod(1), job.state.head
    job.step(ev.Finished(0, 1, job.state.pod(0).boot, head.incarnation, head.seqNum))
    job.step(ev.Finished(1, 1, pod.boot, head.incarnation, head.seqNum, results=(CheckResult("gpu", False, "Xid 79"),)))
    assert (job.state.head.phase, job.state.head.errorNodes, job.state.pod(1).attempt) == (Phase.RUN_COMMAND, (), 1)
    assert "advice" in job.notes
    job.step(ev.Marked(1, 1, pod.boot, job.state.head.incarnation))
    deadline = job.state.head.deadline
    assert deadline is not None
    job.step(ev.DeadlinePassed("hang", deadline.seqNum, deadline.incarnation), 600.0)
    assert (job.state.head.phase, job.state.head.errorNodes, job.state.pod(1).toQuit) == (Phase.TROUBLESHOOTING, (), False)
    assert job.state.pod(1).retries == 2
