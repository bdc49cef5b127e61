"""The table, the docs made from it, and the small pure parts of the phase machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from aegis_master import counting, docs, events, ledger, machine, orders, rounds, story, transitions
from aegis_master.draft import Draft
from aegis_master.transitions import Counting, Trigger
from aegis_proto.messages import CheckResult
from aegis_proto.phases import LedgerState, LostReason, OrderPhase, Phase
from aegis_proto.state import JobSpec, JobState, Ledger, Pod

ROOT = Path(__file__).parents[3]


def job(workers: int = 3, retries: int = 2) -> JobState:
    return machine.create("j-1", JobSpec("j", workers=workers, maxRetry=retries), "uid", "era", 1000)


def test_docs_of_the_table_are_current() -> None:
    """Run `python -m aegis_master.docs` after a change of the table."""
    assert (ROOT / "docs/phase-machine.md").read_text() == docs.page()


def test_the_table_has_no_row_twice() -> None:
    keys = [(edge.source, edge.target, edge.trigger) for edge in transitions.EDGES]
    assert len(keys) == len(set(keys))


def test_nothing_leaves_a_terminal_phase() -> None:
    assert not [edge for edge in transitions.EDGES if edge.source is not None and edge.source.terminal]


def test_alignment_only_on_edges_into_the_run() -> None:
    assert {edge.target for edge in transitions.EDGES if edge.counting is Counting.ALIGN} == {Phase.RUN_COMMAND}


def test_only_a_run_that_stops_counts() -> None:
    counted = [edge for edge in transitions.EDGES if edge.counting is Counting.COUNT]
    assert all(edge.source is Phase.RUN_COMMAND or edge.trigger is Trigger.PLAIN for edge in counted)


def test_stop_is_an_edge_from_every_live_phase() -> None:
    assert {edge.source for edge in transitions.EDGES if edge.trigger is Trigger.STOPPED} == {phase for phase in Phase if not phase.terminal}


def test_an_edge_that_is_not_in_the_table_tells_the_story_of_the_job() -> None:
    with pytest.raises(AssertionError, match=r"no edge Pending -> Succeed(.|\n)*job j-1: Pending"):
        rounds.go(Draft(job(), 0), Phase.SUCCEED, Trigger.FINISHED)


def test_an_index_that_is_no_place_changes_nothing() -> None:
    state = job()
    assert machine.step(state, events.PodLost(3, 1), 0) == (state, (events.Dropped("index"),))
    assert machine.step(state, events.PodReady(-1, 1, "b"), 0) == (state, (events.Dropped("index"),))


def test_a_dropped_event_leaves_the_very_same_state() -> None:
    state = job()
    assert machine.step(state, events.Acked(0, 1, "b", 1), 0)[0] is state


def test_an_answer_of_a_round_acknowledges_its_order() -> None:
    """An agent that answers at once sends no acknowledgement of its own."""
    state = job(2)
    for index in range(2):
        state, _ = machine.step(state, events.PodReady(index, 1, "b"), 1000)
    seq = state.head.seqNum
    assert state.head.phase is Phase.BOOT_CHECKING and state.pod(0).acked < seq
    state, _ = machine.step(state, events.Finished(0, 1, "b", 0, seq), 2000)
    assert state.pod(0).acked == seq
    state, _ = machine.step(state, events.Errored(1, 1, "b", 0, seq, LostReason.ERROR), 2000)
    assert state.pod(1).acked == seq


def test_only_the_shard_of_a_changed_pod_is_a_new_object() -> None:
    state = job(600)
    after, _ = machine.step(state, events.PodReady(300, 1, "b"), 2000)
    assert [a is b for a, b in zip(after.shards, state.shards, strict=True)] == [True, False, True]


def test_attempts_are_run_length() -> None:
    shards = ((Pod(attempt=1), Pod(attempt=1), Pod(attempt=3)), (Pod(attempt=3), Pod(attempt=1)))
    assert orders.attempts(shards) == ((1, 2), (3, 2), (1, 1))


def test_an_order_names_the_attempts_and_who_leaves() -> None:
    draft = Draft(job(), 0)
    draft.change(1, toQuit=True, attempt=2)
    orders.give(draft, OrderPhase.STOP)
    order = draft.head.order
    assert (order.phase, order.seqNum, order.attempts, order.exceptions) == ("stop", 2, ((1, 1), (2, 1), (1, 1)), {"w1": "hangWithQuit"})
    orders.give(draft, OrderPhase.QUIT)
    assert draft.head.order.exceptions == {}


def test_retries_string_shows_at_most_sixteen_places_the_odd_ones_first() -> None:
    few = (tuple(Pod(retries=n) for n in (1, 0, 2)),)
    assert story.retries(few) == "1:0:2"
    many = (tuple(Pod(retries=1 + (i == 7) * 2 + (i == 300)) for i in range(400)),)
    assert story.retries(many) == "w7=3:w300=2:...1"
    all_odd = (tuple(Pod(retries=i) for i in range(40)),)
    assert story.retries(all_odd).count("w") == 16


def test_budget_in_both_languages() -> None:
    head = msgspec.structs.replace(job().head, recoverCount=3, errorNodesTotal=4)
    english, chinese = story.budget(head)
    assert english == "at most 2 restarts, 2 used; on a hardware fault the system re-places by itself, 4 times so far"
    assert chinese == "您的最大重启次数为 2 次,目前已重启 2 次;当发现硬件问题,系统将自动帮您重调度,目前已发生 4 次"


@pytest.mark.parametrize("trigger", list(Trigger))
@pytest.mark.parametrize("reason", list(LostReason))
def test_every_edge_has_a_sentence_for_every_cause(trigger: Trigger, reason: LostReason) -> None:
    for text in story.sentence(trigger, "w1", reason.value, counted=True, message="why"):
        assert text and "{" not in text


def test_evidence_is_ranked_pod_lost_signal_error_collateral() -> None:
    ranked = [counting.EVIDENCE[reason] for reason in (LostReason.COLLATERAL, LostReason.ERROR, LostReason.SIGNAL, LostReason.KILLED)]
    assert ranked == sorted(set(ranked))


@pytest.mark.parametrize(
    ("results", "tree_gone", "worst"),
    [
        ((CheckResult("io check", True),), True, ""),
        ((CheckResult("io check", False), CheckResult("gpu check", False)), True, "gpu"),
        ((CheckResult("allreduce connection", False), CheckResult("runtime check", False)), True, "runtime"),
        ((CheckResult("allreduce performance", False),), True, "allreduce"),
        ((CheckResult("health", False, code="rdma-port-down"),), True, "rdma"),
        ((CheckResult("alive", False),), True, "alive"),
        ((), False, "tree"),
    ],
)
def test_the_failed_check_that_decides(results: tuple[CheckResult, ...], tree_gone: bool, worst: str) -> None:
    assert rounds.worst(results, tree_gone) == worst


def test_the_ledger_books_every_millisecond_once() -> None:
    book = ledger.book(Ledger(since=1000), LedgerState.PRODUCTIVE, "start", 3000)
    book = ledger.save(book, 3000)
    book = ledger.save(book, 5000)  # a complete checkpoint
    book = ledger.lose(ledger.book(book, LedgerState.BOOTING, "platform", 5700), "platform")
    assert book.totals == {"queued": 2000, "productive": 2000, "lost": 700}
    assert book.charged == {"start": 2000, "platform": 700}
    assert ledger.total(book, 6000) == 5000


def test_a_clock_that_goes_back_books_nothing_twice() -> None:
    book = ledger.book(Ledger(since=1000), LedgerState.CHECKING, "start", 3000)
    book = ledger.book(book, LedgerState.PRODUCTIVE, "start", 2500)
    assert (book.totals, book.since) == ({"queued": 2000}, 3000)


def test_every_reason_says_who_is_charged() -> None:
    assert {reason.value for reason in LostReason} - set(ledger.CHARGED) == {LostReason.ORDERED.value}


def test_head_and_shards_keep_their_size() -> None:
    """<= 16 KB and <= 48 KB with long words, many nodes to avoid, as many leaving as may, and everybody's reason set."""
    state = machine.create("j" * 40, JobSpec("j" * 33, workers=256, maxRetry=99), "u" * 32, "e" * 26, 1_800_000_000_000)
    now = 1_800_000_000_000
    for i in range(256):
        state, _ = machine.step(state, events.PodReady(i, 1, f"{i:016x}", "10.200.100.1", f"node-{i:05}"), now)
    while not state.head.phase.terminal and state.head.incarnation < 9:
        head = state.head
        for i in range(256):
            pod = state.pod(i)
            state, _ = machine.step(state, events.Finished(i, pod.attempt, pod.boot, head.incarnation, head.seqNum), now)
        pod = state.pod(7)
        failed = events.Errored(7, pod.attempt, pod.boot, state.head.incarnation, state.head.seqNum, exit_code=1, at=now, message="x" * 500)
        state, _ = machine.step(state, failed, now)
    draft = Draft(state, now)
    for i in range(64):
        rounds.blame(draft, i, f"node-{i:05}.rack-12", "gpu")
        draft.change(i, toQuit=True)
    orders.give(draft, OrderPhase.STOP)
    for i in range(256):
        draft.change(i, reason="performance")
    assert len(msgspec.json.encode(draft.head)) <= 16 * 1024
    assert len(msgspec.json.encode(draft.shards[0])) <= 48 * 1024


def test_what_an_agent_says_of_itself_cannot_blow_up_a_shard() -> None:
    state, _ = machine.step(job(1), events.PodReady(0, 1, "b" * 32, "i" * 999, "n" * 999, "u" * 999), 0)
    assert len(msgspec.json.encode(state.shards[0])) * 256 <= 128 * 1024
    assert machine.step(job(1), events.PodReady(0, 1, "b" * 33), 0)[1] == (events.Dropped("boot"),)


def test_a_job_that_is_found_running_asks_what_runs_and_begins_its_counts_anew() -> None:
    state = machine.found("j-1", JobSpec("j", workers=300, maxRetry=2), "uid", "era2", 1000, attempts={"w1": 3, "w299": 2})
    head = state.head
    assert (head.phase, head.era, head.adopting, head.order.phase) == (Phase.RESTARTING, "era2", True, OrderPhase.WAIT)
    assert (head.recoverCount, head.failures, head.maxRetry, head.uid) == (0, 0, 2, "uid")
    assert [len(shard) for shard in state.shards] == [256, 44]
    assert {i: pod.attempt for i, pod in enumerate(state.pods()) if pod.attempt != 1} == {1: 3, 299: 2}
    assert head.order.attempts == ((1, 1), (3, 1), (1, 297), (2, 1))
    assert machine.LOST in head.recent[-1].message
    for index, pod in enumerate(state.pods()):
        state, _ = machine.step(state, events.PodReady(index, pod.attempt, f"b{index}", running=True, incarnation=4), 2000)
    assert (state.head.phase, state.head.incarnation, state.head.recoverCount) == (Phase.RUN_COMMAND, 4, 0)
