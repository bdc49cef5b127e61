"""What the machine keeps beside the variables of the model (`spec/left_out.py`): no graph shows a change of it, each is held here."""

from __future__ import annotations

import pytest
from aegis_master import asked, machine, rounds
from aegis_master import events as ev
from aegis_master.invariants import broken
from aegis_proto.messages import CheckResult
from aegis_proto.phases import LostReason, Mode, OrderPhase, Phase
from aegis_proto.state import JobSpec, JobState


class Job:
    """Its workers are here; nodes are named after place and attempt, unless said otherwise. Every event takes a second."""

    def __init__(self, workers: int = 3, **spec: object) -> None:
        counts = {"workers": workers, "maxRetry": 9} | spec
        self.state: JobState = machine.create("j-1", JobSpec("j", **counts), "uid", "era", 0)  # type: ignore[arg-type]
        self.now = 0
        for i in range(workers):
            self.here(i)

    def take(self, event: ev.Event) -> None:
        self.now += 1000
        self.state, _ = machine.step(self.state, event, self.now)

    def here(self, i: int, node: str = "") -> None:
        attempt = self.state.pod(i).attempt
        self.take(ev.PodReady(i, attempt, f"b{attempt}", "10.0.0.9", node or f"n{i}.{attempt}", check_port=24001))

    def who(self, i: int) -> tuple[int, int, str, int]:
        return i, self.state.pod(i).attempt, self.state.pod(i).boot, self.state.head.incarnation

    def check(self, failed: dict[int, str] | None = None) -> None:
        """All answer the round of checks."""
        for i in range(self.state.head.workerNum):
            results = (CheckResult(failed[i], False),) if failed and i in failed else ()
            self.take(ev.Finished(*self.who(i), self.state.head.seqNum, results=results))
        assert not broken(self.state)

    def fail(self, i: int, reason: LostReason = LostReason.ERROR, code: int = 1) -> None:
        self.take(ev.Errored(*self.who(i), self.state.head.seqNum, reason, code, at=self.now))

    def mark(self, i: int, kind: str) -> None:
        self.take(ev.Marked(*self.who(i), kind))


@pytest.mark.parametrize("reason", [LostReason.KILLED, LostReason.NODE_LOST, LostReason.PREEMPTED])
def test_a_worker_of_a_plain_job_that_ended_nobody_knows_how_has_not_succeeded(reason: LostReason) -> None:
    state = machine.create("j-1", JobSpec("j", workers=2), "uid", "era", 0)
    state, _ = machine.step(state, ev.PlainFact(0, 1), 1000)
    assert state.head.mode is Mode.PLAIN
    state, _ = machine.step(state, ev.PlainExit(1, 1, 0), 2000)
    assert machine.step(state, ev.PodLost(1, 1, reason), 2500)[0] is state, "it has told how it ended"
    state, _ = machine.step(state, ev.PodLost(0, 1, reason), 3000)
    assert (state.head.phase, state.head.exitCode) == (Phase.FAILED, rounds.REQUEUE)


@pytest.mark.parametrize(
    ("reason", "code", "ends"),
    [(LostReason.ERROR, 3, 3), (LostReason.SIGNAL, 139, 139), (LostReason.COLLATERAL, 3, 75), (LostReason.GPU_LOST, 3, 75)],
)
def test_a_spent_budget_ends_with_the_code_of_an_own_error_and_else_with_one_that_a_requeue_helps(reason: LostReason, code: int, ends: int) -> None:
    job = Job(maxRetry=0)
    job.check()
    job.fail(1, reason, code)
    assert (job.state.head.phase, job.state.head.exitCode) == (Phase.FAILED, ends)


def test_a_run_that_is_not_counted_is_none_that_brought_nothing() -> None:
    job = Job(retryResetAfter=1)
    job.check()
    run = (*job.who(0), job.state.head.seqNum)
    job.fail(1)
    assert job.state.head.fruitless == 1
    job.take(ev.Errored(*run, LostReason.PREEMPTED, at=job.state.head.stopOrderAt))
    assert (job.state.head.failures, job.state.head.fruitless) == (0, 0)
    job.check()
    job.fail(1)
    job.check()
    assert job.state.head.fruitless == 1
    job.now += 1000
    job.take(ev.Healthy())
    assert (job.state.head.failures, job.state.head.fruitless) == (0, 0)


def test_so_many_leave_at_once_that_the_head_keeps_its_size_also_when_marks_are_paid() -> None:
    job = Job(2 * rounds.MAX_LEAVING + 2)
    job.check()
    for i in range(rounds.MAX_LEAVING + 1):
        job.mark(i, "slow")
    job.take(ev.Checkpointed(0, 1))
    head = job.state.head
    assert (head.phase, head.tally.quitting, len(head.order.exceptions)) == (Phase.TROUBLESHOOTING, rounds.MAX_LEAVING, rounds.MAX_LEAVING)


@pytest.mark.parametrize(("kind", "blamed"), [("slow", ["n2.1"]), ("hang", [])])
@pytest.mark.parametrize("stop", ["fail", "restart", "lost"])
def test_at_another_stop_a_marked_worker_leaves_and_only_a_slow_one_has_its_node_blamed(kind: str, blamed: list[str], stop: str) -> None:
    job = Job()
    job.check()
    job.mark(2, kind)
    job.take({"fail": ev.Errored(*job.who(0), job.state.head.seqNum), "restart": ev.RestartAsked(), "lost": ev.PodLost(0, 1)}[stop])
    assert job.state.pod(2).toQuit
    assert [node.name for node in job.state.head.errorNodes] == blamed


def test_a_container_that_fails_another_check_than_it_came_for_gets_a_fresh_one_first() -> None:
    job = Job()
    for check, blamed in (("runtime", []), ("io", []), ("io", ["n1.1"])):
        job.check({1: check})
        assert [node.name for node in job.state.head.errorNodes] == blamed
        assert job.state.pod(1).toQuit
        job.take(ev.PodGone(1, job.state.pod(1).attempt))
        job.here(1, "n1.1")


def test_a_container_that_has_run_is_one_like_another() -> None:
    job = Job()
    for _ in range(2):
        job.check({1: "runtime"})
        assert (job.state.pod(1).pin, job.state.head.errorNodes) == ("n1.1", ())
        job.take(ev.PodGone(1, job.state.pod(1).attempt))
        job.here(1, "n1.1")
        job.check()
        assert (job.state.head.phase, job.state.pod(1).pin) == (Phase.RUN_COMMAND, "")
        job.fail(1)


@pytest.mark.parametrize(("seconds", "meets"), [(rounds.AT_ONCE_MS // 1000 - 5, True), (rounds.AT_ONCE_MS // 1000 + 5, False)])
def test_workers_meet_when_a_second_run_failed_at_once_and_not_when_it_had_worked(seconds: int, meets: bool) -> None:
    job = Job(2)
    job.check()
    job.fail(1)
    job.check()
    job.now += seconds * 1000
    job.fail(1)
    assert bool(job.state.head.order.masterAddr) is meets


def test_a_new_run_knows_neither_fault_nor_checkpoint_of_the_one_before() -> None:
    job = Job(allowInject=True)
    job.check()
    job.take(ev.InjectAsked(1, "i1", "kill"))
    job.take(ev.Checkpointed(0, 7))
    assert job.state.head.inject is not None and job.state.head.checkpointAt > 0
    job.fail(1)
    job.check()
    head = job.state.head
    assert (head.phase, head.incarnation, head.inject, head.checkpointAt, head.checkpointStep) == (Phase.RUN_COMMAND, 1, None, 0, 7)
    job.take(ev.Checkpointed(1, 5))  # it began before what the other one had saved last
    assert job.state.head.checkpointStep == 7


def test_a_notice_gives_commands_the_time_to_save_and_a_round_of_checks_has_none() -> None:
    job = Job(preemptGrace=90.0)
    usual = job.state.head.order.grace
    job.fail(1, LostReason.PREEMPTED)
    assert (job.state.head.order.phase, job.state.head.order.grace) == (OrderPhase.STOP, usual)
    job = Job(preemptGrace=90.0)
    job.check()
    job.fail(1, LostReason.PREEMPTED)
    assert (job.state.head.order.phase, job.state.head.order.grace) == (OrderPhase.STOP, 90.0)


@pytest.mark.parametrize(("incarnation", "clean", "gone"), [(1, True, True), (1, False, False), (0, True, False)])
def test_a_place_is_free_when_all_of_the_present_run_is_gone_from_it(incarnation: int, clean: bool, gone: bool) -> None:
    job = Job()
    job.check()
    job.fail(0)
    job.check()
    job.take(ev.PodLost(1, 1))
    assert (job.state.head.incarnation, job.state.pod(1).gone) == (1, False)
    job.take(ev.Stopped(1, 1, "b1", incarnation, clean))
    assert job.state.pod(1).gone is gone


@pytest.mark.parametrize("grace", [0.0, 7.0])
def test_who_stops_a_job_says_how_long_its_commands_may_take(grace: float) -> None:
    job = Job()
    job.take(ev.StopAsked("ann", grace=grace))
    assert (job.state.head.order.phase, job.state.head.order.grace) == (OrderPhase.QUIT, grace)


def test_a_port_taken_late_is_counted_and_a_counted_failure_gives_the_new_ports_back() -> None:
    job = Job()
    for reason, ran, failures, ports in (("port", 31.0, 1, 0), ("port", 1.0, 1, 1), ("error", 1.0, 2, 0)):
        job.check()
        job.take(ev.Errored(*job.who(1), job.state.head.seqNum, LostReason(reason), 1, ran_for=ran))
        assert (job.state.head.failures, job.state.head.portRetries) == (failures, ports)


# --- asked for, by people or by the store -------------------------------------------------------------------------------------


def era(job: Job, incarnation: int, running: bool = True) -> None:
    """The store is another one; all say what runs."""
    job.take(ev.EraChanged("era2"))
    for i in range(job.state.head.workerNum):
        pod = job.state.pod(i)
        job.take(ev.PodReady(i, pod.attempt, "b2", "10.0.0.9", f"n{i}.{pod.attempt}", running=running, incarnation=incarnation))


def test_a_job_that_is_suspended_asks_nobody_any_more_what_runs() -> None:
    job = Job()
    job.check()
    job.take(ev.EraChanged("era2"))
    assert job.state.head.adopting
    job.take(ev.SuspendAsked("ann"))
    assert (job.state.head.phase, job.state.head.adopting) == (Phase.PENDING, False)


@pytest.mark.parametrize(("incarnation", "taken"), [(1, True), (2, True), (0, False), (-1, False)])
def test_only_a_run_that_is_not_older_than_the_state_is_taken_over(incarnation: int, taken: bool) -> None:
    job = Job()
    job.check()
    job.take(ev.RestartAsked())
    job.check()
    assert (job.state.head.incarnation, job.state.head.countedIncarnation) == (1, -1)
    era(job, incarnation)
    assert (job.state.head.phase is Phase.RUN_COMMAND) is taken
    assert job.state.head.incarnation == max(1, incarnation)


def test_a_run_that_is_counted_as_failed_is_not_taken_over() -> None:
    job = Job()
    job.check()
    job.fail(1)
    assert job.state.head.countedIncarnation == 0
    era(job, 0)
    assert job.state.head.phase is not Phase.RUN_COMMAND


def test_a_run_that_the_state_never_knew_makes_it_one_that_has_begun() -> None:
    job = Job()
    assert not job.state.head.started
    era(job, 3, running=False)
    head = job.state.head
    assert (head.adopting, head.started, head.incarnation) == (False, True, 3)
    assert head.phase is not Phase.RUN_COMMAND


@pytest.mark.parametrize(("allowed", "runs"), [(True, True), (False, True), (True, False)])
def test_a_fault_is_injected_only_where_the_job_allows_it_and_runs(allowed: bool, runs: bool) -> None:
    job = Job(allowInject=allowed)
    if runs:
        job.check()
    job.take(ev.InjectAsked(1, "i1", "kill"))
    assert (job.state.head.inject is not None) is (allowed and runs)


def test_a_job_without_progress_is_ended_only_when_it_recovers_and_its_runs_are_known() -> None:
    job = Job(noProgressRuns=2)
    for step in (4, 0):
        job.check()
        job.take(ev.Checkpointed(job.state.head.incarnation, step))
        assert asked.fruitless(job.state) is None
        job.fail(1)
    job.check()
    job.fail(1)
    found = asked.fruitless(job.state)
    assert found is not None and found.no_progress
    job.take(ev.EraChanged("era2"))
    assert job.state.head.adopting and asked.fruitless(job.state) is None, "who knows what runs, and how far it is"


# --- who is leaving keeps the reason it leaves for -----------------------------------------------------------------------------


def leaving(reason: str) -> Job:
    """w2 was told to leave while the job recovers, for its own reason."""
    job = Job()
    job.check()
    job.mark(2, "slow")
    job.fail(0, LostReason.COLLATERAL)
    pod = job.state.pod(2)
    assert pod.toQuit and pod.reason == reason
    return job


def test_who_leaves_and_is_not_heard_in_time_leaves_for_its_own_reason() -> None:
    job = leaving("slow")
    deadline = job.state.head.deadline
    assert deadline is not None and deadline.kind == "round"
    job.take(ev.DeadlinePassed(deadline.kind, deadline.seqNum, deadline.incarnation))
    assert job.state.pod(2).reason == "slow"
    assert job.state.pod(0).reason == LostReason.NO_ANSWER.value or job.state.pod(1).reason == LostReason.NO_ANSWER.value


def test_who_leaves_and_turns_out_to_be_the_cause_leaves_for_its_own_reason() -> None:
    job = leaving("slow")
    said = job.state.head.seqNum - 1
    job.take(ev.Errored(2, 1, "b1", 0, said, LostReason.GPU_LOST, 1, at=job.state.head.stopOrderAt))
    assert job.state.head.countedPod == "w2"
    assert job.state.pod(2).reason == "slow"


@pytest.mark.parametrize("absent", [(0,), (1, 2)])
def test_the_first_who_did_not_come_is_named_when_placing_takes_too_long(absent: tuple[int, ...]) -> None:
    job = Job()
    job.check()
    for i in absent:
        job.take(ev.PodLost(i, 1))
    deadline = job.state.head.deadline
    assert deadline is not None and deadline.kind == "placing"
    job.take(ev.DeadlinePassed(deadline.kind, deadline.seqNum, deadline.incarnation))
    last = job.state.head.recent[-1]
    assert (last.phaseTo, last.podName, last.cause) == (Phase.FAILED, f"w{absent[0]}", "placing")
