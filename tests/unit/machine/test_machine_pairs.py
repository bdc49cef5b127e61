"""Tests of two workers at a time: whoever is bad is named, or said to be one of a few; nobody who is well is named."""

from __future__ import annotations

from itertools import combinations

import pytest
from aegis_agent.collective import pairing
from aegis_master import events as ev
from aegis_master import machine, pairs
from aegis_proto.messages import CheckResult
from aegis_proto.phases import OrderPhase
from aegis_proto.state import JobSpec, JobState
from hypothesis import given
from hypothesis import strategies as st


def play(workers: int, bad: frozenset[int], rounds: int = pairing.ROUNDS) -> dict[tuple[int, int], bool]:
    """The outcomes of the pairings that are made when just `bad` are bad: a pair passes when neither of its members is."""
    outcomes: dict[tuple[int, int], bool] = {}
    for _ in range(rounds):
        made = pairing.next_pairs(range(workers), outcomes)
        if not made:
            break
        members = [member for pair in made for member in pair]
        assert len(members) == len(set(members)) and not set(made) & set(outcomes)
        outcomes |= {pair: not bad & set(pair) for pair in made}
    return outcomes


def verdict(outcomes: dict[tuple[int, int], bool]) -> pairs.Named:
    """As the master comes to it: each worker tells its own pairings."""
    told: dict[int, list[tuple[int, float]]] = {}
    for (a, b), passed in outcomes.items():
        told.setdefault(a, []).append((b, float(passed)))
        told.setdefault(b, []).append((a, float(passed)))
    return pairs.judge(pairs.outcomes(told, passes=0.0))


@pytest.mark.parametrize("workers", range(2, 13))
def test_any_single_bad_worker_and_any_two_are_named_or_suspected_and_nobody_else_is_named(workers: int) -> None:
    for count in (1, 2):
        for bad in map(frozenset, combinations(range(workers), count)):
            named = verdict(play(workers, bad))
            assert named.bad <= bad, (bad, named)
            assert bad <= named.bad | named.suspected, (bad, named)
            if count == 1 and workers >= 3:
                assert named == pairs.Named(bad), (bad, named)
            if count == 2 and workers >= 5:
                assert named == pairs.Named(bad), (bad, named)


@pytest.mark.parametrize("workers", range(4, 13))
def test_two_pairings_are_enough_for_a_single_bad_worker(workers: int) -> None:
    for bad in range(workers):
        assert verdict(play(workers, frozenset({bad}), rounds=2)) == pairs.Named(frozenset({bad}))


def test_of_two_workers_nobody_can_say_which() -> None:
    assert verdict(play(2, frozenset({1}))) == pairs.Named(suspected=frozenset({0, 1}))


def test_one_that_failed_with_three_whom_nobody_cleared_is_named() -> None:
    """That those three are bad and it is well would be three."""
    assert verdict({(0, 1): False, (0, 2): False, (0, 3): False}) == pairs.Named(frozenset({0}))


@pytest.mark.parametrize("told", [{0: [(1, 1.0)], 1: [(0, 0.0)]}, {0: [(1, 0.0)], 1: [(0, 1.0)]}])
def test_a_pair_has_passed_when_both_say_so(told: dict[int, list[tuple[int, float]]]) -> None:
    assert pairs.outcomes(told, passes=0.0) == {frozenset({0, 1}): False}


@given(st.data())
def test_whatever_is_told_nobody_is_named_who_passed_with_somebody(data: st.DataObject) -> None:
    workers = data.draw(st.integers(2, 9))
    shares = st.sampled_from((0.0, 0.3, 0.79, 0.8, 1.0))
    told = {
        i: tuple(data.draw(st.dictionaries(st.integers(0, workers - 1), shares, max_size=4)).items())
        for i in range(workers)
        if data.draw(st.booleans())
    }
    for passes in (0.0, pairs.SLOW):
        outcome = pairs.outcomes(told, passes)
        named = pairs.judge(outcome)
        good = {member for pair, passed in outcome.items() if passed for member in pair}
        assert not named.bad & good and not named.suspected & good and not named.bad & named.suspected
        failed = [pair for pair, passed in outcome.items() if not passed and pair - good]
        assert all(pair & (named.bad | named.suspected) for pair in failed)


def test_more_than_two_bad_are_named_where_a_good_one_was_with_each() -> None:
    bad = frozenset({0, 3, 7, 11, 12})
    named = verdict(play(40, bad))
    assert named == pairs.Named(bad)


@pytest.mark.parametrize("members", range(2, 12))
def test_everybody_is_in_two_pairings_with_different_partners(members: int) -> None:
    met: dict[int, set[int]] = {i: set() for i in range(members)}
    for turn in range(pairing.turns(range(members))):
        for a, b in pairing.pairing(range(members), turn):
            assert b not in met[a]
            met[a].add(b)
            met[b].add(a)
    assert min(map(len, met.values())) == (1 if members == 2 else 2)


def test_what_a_worker_tells_of_its_pairings_is_bounded() -> None:
    values = {"pair.1": 0.0, "pair.x": 1.0, "pair.99": 1.0, "pair.-1": 1.0, "net.4.1": 3.0, "pair.2": float("inf"), "pair.3": 1e9, "pair.4": -5.0}
    told = pairs.told([CheckResult("allreduce", False, values=values), CheckResult("gpu", False, values={"pair.5": 0.0})], 0, 8)
    assert told == ((1, 0.0), (3, 9.999), (4, 0.0))
    many = {f"pair.{i}": 1.0 for i in range(1, 200)}
    assert len(pairs.told([CheckResult("performance", True, values=many)], 0, 200)) == pairs.MOST_PAIRS


# --- in the machine ---------------------------------------------------------------------------------------------------------------------------


class Job:
    """A job whose workers answer the present round of checks with pairings."""

    def __init__(self, workers: int) -> None:
        self.state: JobState = machine.create("demo-1", JobSpec("demo", workers=workers), "uid", "era1", 0)
        self.notes: list[str] = []
        for i in range(workers):
            self.take(ev.PodReady(i, 1, f"b{i}", ip=f"10.0.0.{i}", node=f"n{i}", check_port=23000 if i == 0 else 0))

    def take(self, event: ev.Event) -> None:
        self.state, effects = machine.step(self.state, event, 1000)
        self.notes += [effect.message for effect in effects if isinstance(effect, ev.Note)]

    def answer(self, shares: dict[tuple[int, int], float], check: str = "allreduce", failed: dict[int, str] | None = None) -> None:
        head = self.state.head
        for i in range(head.workerNum):
            own = {f"pair.{sum(pair) - i}": share for pair, share in shares.items() if i in pair}
            well = any(own.values()) or not own
            results = [CheckResult(check, well, values=own)]
            if failed and i in failed:
                results.append(CheckResult(failed[i], False))
            self.take(ev.Finished(i, 1, f"b{i}", head.incarnation, head.seqNum, tuple(results), "10.0.0.9", 24000, check_port=24001))


def test_the_order_of_a_round_of_checks_names_where_to_meet_and_that_of_a_run_where_rank_0_listens() -> None:
    job = Job(3)
    order = job.state.head.order
    assert (order.phase, order.masterAddr, order.masterPort) == (OrderPhase.BOOTCHECK, "10.0.0.0", 23000)
    job.answer({})
    order = job.state.head.order
    assert (order.phase, order.masterAddr, order.masterPort) == (OrderPhase.COMMAND, "10.0.0.9", 24000)


def errored(job: Job, reason: str = "error") -> None:
    from aegis_proto.phases import LostReason

    head = job.state.head
    job.take(ev.Errored(1, 1, "b1", head.incarnation, head.seqNum, LostReason(reason), 1, 0, 1000, 100.0))


def test_a_failure_of_one_process_is_diagnosed_without_a_meeting_and_one_that_may_lie_between_workers_with() -> None:
    job = Job(3)
    job.answer({})
    errored(job)
    assert (job.state.head.order.phase, job.state.head.order.masterPort) == (OrderPhase.TROUBLESHOOT, 0)
    job.take(ev.GapFound())  # the same order again
    assert (job.state.head.order.phase, job.state.head.order.masterPort) == (OrderPhase.TROUBLESHOOT, 0)
    job.answer({})
    errored(job)  # again at once
    assert (job.state.head.order.phase, job.state.head.order.masterPort) == (OrderPhase.TROUBLESHOOT, 24001)
    job = Job(3)
    job.answer({})
    errored(job, "collateral")
    assert (job.state.head.order.phase, job.state.head.order.masterPort) == (OrderPhase.TROUBLESHOOT, 24001)


def test_a_worker_named_by_its_pairings_leaves_and_its_node_is_not_used_again() -> None:
    job = Job(4)
    job.answer({(0, 1): 0.0, (2, 3): 1.0, (1, 2): 0.0, (0, 3): 1.0})
    head = job.state.head
    assert head.phase == "Restarting" and head.order.exceptions == {"w1": OrderPhase.HANG_WITH_QUIT}
    assert [(node.name, node.reason) for node in head.errorNodes] == [("n1", "collective")]
    assert any("w1 is named" in note for note in job.notes)


def test_of_two_workers_that_fail_together_none_is_accused() -> None:
    job = Job(2)
    job.answer({(0, 1): 0.0})
    head = job.state.head
    assert head.phase == "BootChecking" and not head.errorNodes, "the round is repeated once"
    assert any("one of w0, w1 is bad" in note for note in job.notes)


def test_tests_that_fail_twice_and_name_nobody_do_not_end_a_job() -> None:
    """What fails may be the test itself, or its way through the network: a training that cannot communicate says so."""
    for workers in (2, 3, 6):
        pairings = {(i, j): 0.0 for i in range(workers) for j in range(i)}
        job = Job(workers)
        job.answer(pairings)
        assert job.state.head.phase == "BootChecking"
        job.answer(pairings)
        assert job.state.head.phase == "RunCommand" and not job.state.head.errorNodes
        assert any("the command is run all the same" in note for note in job.notes)


def test_beside_a_gpu_that_is_lost_a_failed_collective_accuses_nobody() -> None:
    job = Job(3)
    job.answer({(0, 1): 0.0, (0, 2): 0.0, (1, 2): 0.0}, failed={1: "gpu"})
    head = job.state.head
    assert [(node.name, node.reason) for node in head.errorNodes] == [("n1", "gpu")]
    assert head.order.exceptions == {"w1": OrderPhase.HANG_WITH_QUIT}


def test_a_worker_slow_in_both_pairings_is_marked_and_the_job_runs() -> None:
    job = Job(4)
    job.answer({(0, 1): 0.5, (2, 3): 1.0, (1, 2): 0.6, (0, 3): 1.0}, check="performance")
    assert job.state.head.phase == "RunCommand"
    assert [pod.mark for pod in job.state.pods()] == ["", "slow", "", ""]
    job = Job(4)
    job.answer({(0, 1): 0.5, (2, 3): 1.0, (1, 2): 0.95, (0, 3): 1.0}, check="performance")
    assert [pod.mark for pod in job.state.pods()] == ["", "", "", ""], "one pairing proves nothing"


def test_while_one_of_some_is_bad_nobody_is_marked_slow() -> None:
    job = Job(6)
    job.answer({(0, 1): 0.0, (2, 3): 0.5, (2, 4): 0.5, (3, 4): 1.0, (4, 5): 1.0})
    assert job.state.head.phase == "RunCommand" and any("one of w0, w1 is bad" in note for note in job.notes)
    assert [pod.mark for pod in job.state.pods()] == [""] * 6
