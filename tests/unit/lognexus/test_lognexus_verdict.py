"""One verdict per failure: the earliest strong evidence decides, an echo never, and a tenant's text alone accuses no node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aegis_lognexus.evidence import BadLink, Check, Failure, Log, Loss, NodeEvent, Worker
from aegis_lognexus.flight.report import BadOp, Report
from aegis_lognexus.readings import CHECK_CAUSES
from aegis_lognexus.verdict import WORDS, decide
from aegis_parsers.causes import CAUSES, classify_lines
from aegis_proto import messages
from aegis_proto.messages import CheckResult
from hypothesis import given, settings
from hypothesis import strategies as st

WORKERS = tuple(Worker(f"w{i}", f"n{i}", (2 * i, 2 * i + 1)) for i in range(4))
TIMEOUT = "[rank0]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
XID = "[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus"


def log(rank: int, *lines: str) -> Log:
    return Log(f"w{rank // 2}", rank, tuple(classify_lines(lines)), len(lines))


def failure(*logs: Log, **more: object) -> Failure:
    return replace(Failure("digits-abc123", 2, workers=WORKERS, logs=logs), **more)  # type: ignore[arg-type]


def test_the_exception_of_one_rank_is_the_cause_and_the_timeouts_of_the_others_its_echo() -> None:
    found = decide(failure(log(0, TIMEOUT), log(2, "step", "KeyError: 'target'"), log(4, TIMEOUT), log(6, TIMEOUT)))
    assert (found.cause, found.suspects, found.nodes, found.accused) == ("user_code", ("w1/r2",), (), ())
    assert found.first_line == "w1/r2:2: KeyError: 'target'"
    assert "w1/r2" in found.sentence and "KeyError" in found.sentence
    assert "训练代码" in found.sentence_zh


def test_an_exception_of_every_rank_suspects_none_of_them() -> None:
    found = decide(failure(*(log(rank, "KeyError: 'target'") for rank in range(8))))
    assert (found.cause, found.suspects) == ("user_code", ())


def test_operations_of_different_groups_are_not_compared() -> None:
    """A group of all that is behind in one rank; groups of two that have made fewer operations are not."""
    line = "[rank{r}]:[E ProcessGroupNCCL.cpp:1] [PG ID {i} PG GUID {g} Rank 0] Exception, last enqueued NCCL work: {n}, last completed NCCL work: 9."
    all_ = [line.format(r=r, i=0, g="0(default_pg)", n=99 if r == 5 else 100) for r in range(8)]
    pairs = [line.format(r=r, i=3, g=f"{r // 2}(tensor)", n=7000 if r < 4 else 12) for r in range(8)]
    assert decide(failure(*(log(r, pairs[r], all_[r]) for r in range(8)))).suspects == ("w2/r5",)
    assert decide(failure(*(log(r, pairs[r]) for r in range(8)))).suspects == ()


def test_a_tenants_text_alone_never_excludes_a_node() -> None:
    found = decide(failure(log(0, XID, ECC), log(2, TIMEOUT)))
    assert (found.cause, found.suspects, found.nodes) == ("gpu_hw", ("w0/r0",), ("n0",))
    assert found.accused == ()
    assert "not excluded" in found.sentence and "不会因此隔离" in found.sentence_zh


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([TIMEOUT, ECC, XID, "KeyError: 'x'", "nfs: server x not responding"])), max_size=12))
def test_no_set_of_log_lines_accuses_a_node(lines: list[tuple[int, str]]) -> None:
    report = Report("hang", (1,), "gpu_error", BadOp("dp", "0", 7, "all_reduce"), "high")
    checks = (Check("w0", "n0", CheckResult("gpu", False)),)
    found = decide(failure(*(log(rank, text) for rank, text in lines), flight=report, checks=checks))
    assert found.accused == ()


def test_a_daemons_event_names_the_node_before_any_line() -> None:
    event = NodeEvent("n3", "xid_79", "gpu_hw", "GPU has fallen off the bus", 5_000)
    found = decide(failure(log(0, "KeyError: 'x'"), log(2, TIMEOUT), events=(event,)))
    assert (found.cause, found.accused, found.nodes, found.suspects) == ("gpu_hw", ("n3",), ("n3",), ("w3",))
    assert any("KeyError" in text for text in found.evidence)
    alone = decide(failure(log(2, TIMEOUT), events=(event,)))
    assert found.confidence < alone.confidence


def test_of_several_events_the_earliest_decides() -> None:
    events = (NodeEvent("n1", "ib_link_down", "network", at=9_000), NodeEvent("n2", "xid_48", "gpu_hw", at=3_000))
    assert decide(failure(events=events)).accused == ("n2",)


def test_what_most_nodes_show_at_once_accuses_none_of_them() -> None:
    events = tuple(NodeEvent(f"n{i}", "nfs_not_responding", "storage", at=i) for i in range(3))
    found = decide(failure(events=events))
    assert (found.cause, found.accused, found.nodes) == ("storage", (), ())
    checks = tuple(Check(f"w{i}", f"n{i}", CheckResult("rdma", False), by_daemon=True) for i in range(3))
    found = decide(failure(checks=checks))
    assert (found.cause, found.accused) == ("network", ())


@pytest.mark.parametrize(("check", "cause"), CHECK_CAUSES.items())
def test_a_failed_check_gives_its_cause_and_only_a_daemons_check_accuses(check: str, cause: str) -> None:
    result = CheckResult(check, False, "7 of 8", code="gpu-count")
    cause = "unknown" if check.startswith("allreduce") and cause == "network" else cause  # it reaches nobody, which has other reasons, too
    passed = Check("w0", "n0", CheckResult(check, True))
    by_agent = decide(failure(checks=(passed, Check("w2", "n2", result))))
    assert (by_agent.cause, by_agent.suspects, by_agent.accused) == (cause, ("w2",), ())
    assert decide(failure(checks=(passed, Check("w2", "n2", result, by_daemon=True)))).accused == ("n2",)


def test_a_node_that_the_platform_lost_is_accused_and_a_preemption_is_nobodys_fault() -> None:
    lost = decide(failure(losses=(Loss("w1", "n1", "nodeLost", platform=True),)))
    assert (lost.cause, lost.accused) == ("node_hw", ("n1",))
    told = decide(failure(losses=(Loss("w1", "n1", "nodeLost"),)))
    assert (told.cause, told.accused) == ("unknown", ())
    taken = decide(failure(log(0, TIMEOUT), losses=(Loss("w1", "n1", "preempted"),)))
    assert (taken.cause, taken.accused, taken.nodes) == ("preemption", (), ())


def test_the_flight_record_names_who_where_the_logs_only_time_out() -> None:
    report = Report("hang", (5,), "not_joined", BadOp("dp", "0", 7, "all_reduce"), "high", ("rank 5 has not entered it",))
    found = decide(failure(*(log(rank, TIMEOUT) for rank in range(8)), flight=report))
    assert (found.cause, found.suspects) == ("unknown", ("w2/r5",))
    assert "w2/r5" in found.sentence and "all_reduce 7" in found.sentence


def test_a_mismatch_in_the_flight_record_is_code_and_a_stopped_gpu_is_a_hint_only() -> None:
    code = decide(failure(flight=Report("mismatch", (3,), "size_mismatch", None, "high")))
    assert (code.cause, code.suspects, code.nodes) == ("user_code", ("w1/r3",), ())
    gpu = decide(failure(flight=Report("hang", (3,), "gpu_error", None, "high")))
    assert (gpu.cause, gpu.nodes, gpu.accused) == ("gpu_hw", ("n1",), ())


def test_an_exception_and_the_flight_record_that_agree_are_worth_more_than_either() -> None:
    report = Report("hang", (2,), "not_joined", None, "high")
    both = decide(failure(log(0, TIMEOUT), log(2, "KeyError: 'x'"), flight=report))
    assert both.suspects == ("w1/r2",)
    assert both.confidence > decide(failure(log(0, TIMEOUT), log(2, "KeyError: 'x'"))).confidence


def test_a_healthy_or_empty_flight_record_says_nothing() -> None:
    for verdict in ("healthy", "no_evidence"):
        assert decide(failure(flight=Report(verdict))).suspects == ()


def test_by_the_watchdogs_numbers_the_rank_behind_is_looked_at_first() -> None:
    line = "[rank{r}]: [PG 1 Rank {r}] Exception detected by watchdog at work: 1580, last enqueued NCCL work: {e}, last completed NCCL work: 1579."
    logs = [log(rank, line.format(r=rank, e=1579 if rank == 3 else 1582)) for rank in range(8)]
    found = decide(failure(*logs))
    assert (found.cause, found.suspects) == ("unknown", ("w1/r3",))
    level = decide(failure(*(log(rank, line.format(r=rank, e=1582)) for rank in range(8))))
    assert (level.cause, level.suspects) == ("unknown", ()) and "nobody is missing" in level.sentence


def test_the_one_rank_that_says_nothing_is_looked_at_first() -> None:
    found = decide(failure(*(log(rank, TIMEOUT if rank != 6 else "step 12") for rank in range(8))))
    assert (found.cause, found.suspects) == ("unknown", ("w3/r6",))


def test_without_evidence_the_cause_is_unknown_and_it_says_what_was_missing() -> None:
    found = decide(failure(not_asked=("the logs of w3 could not be read",)))
    assert (found.cause, found.suspects, found.confidence) == ("unknown", (), 0.0)
    assert found.missing == ("the logs of w3 could not be read", "no line of w0, w1, w2, w3", "no failed check", "no flight records")
    assert found.sentence.startswith("Cause unknown")


CLOSED = "[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:42726"


@pytest.mark.parametrize(
    ("reason", "message", "own", "suspects"),
    [
        ("signal", "w1 died of a signal: rank 3: killed by SIGKILL, counted", "step 4", ("w1/r3",)),
        ("signal", "w1 died of a signal: rank 3: killed by SIGSEGV, counted", "step 4", ("w1/r3",)),
        ("killed", "w1 was killed: killed by signal 9, counted", "step 4", ("w1",)),
        ("slow", "w1 was slow: paid at checkpoint, counted", "step 4", ("w1",)),
        ("error", "w1 reported an error: rank 3: exit 3, counted", "step 4", ("w1/r3",)),
        ("signal", "w1 died of a signal: rank 3: killed by SIGABRT, counted", TIMEOUT, ("w0/r0",)),
        ("collateral", "w1 failed because a peer did: rank 3: Connection closed by peer, counted", CLOSED, ("w0/r0",)),
    ],
)
def test_who_ended_by_itself_is_looked_at_before_those_who_lost_it(reason: str, message: str, own: str, suspects: tuple[str, ...]) -> None:
    found = decide(failure(log(0, CLOSED), log(2, CLOSED), log(3, own), log(4, CLOSED), log(6, "step"), losses=(Loss("w1", "n1", reason, message),)))
    assert (found.cause, found.suspects, found.accused) == ("unknown", suspects, ())
    if suspects[0].startswith("w1"):
        assert message.removesuffix(", counted") in found.sentence and message.removesuffix(", counted") in found.sentence_zh
    strong = decide(failure(log(2, "KeyError: 'target'"), log(4, CLOSED), losses=(Loss("w1", "n1", reason, message),)))
    assert (strong.cause, strong.suspects) == ("user_code", ("w1/r2",))


def test_a_stopped_process_is_named_before_the_stacks_of_those_who_wait_for_it() -> None:
    words = "critical hang_stopped pid 4360: stopped by a signal or a debugger (c2c9.w1.1.0); 1 processes use 0.00 cores (beside the run)"
    stopped = Check("w1", "n1", CheckResult("hang", False, words))
    found = decide(failure(log(0, TIMEOUT), log(2, "step"), checks=(stopped,), workers=tuple(replace(w, ranks=w.ranks[:1]) for w in WORKERS)))
    assert (found.cause, found.suspects, found.accused) == ("unknown", ("w1/r2",), ())
    assert found.sentence == "Cause unknown; first to look at: w1/r2: w1: pid 4360: stopped by a signal or a debugger"
    assert decide(failure(checks=(stopped,))).suspects == ("w1",)
    everywhere = tuple(replace(stopped, pod=worker.pod) for worker in WORKERS)
    assert decide(failure(checks=everywhere)).suspects == ()


def test_a_tenants_escapes_reach_nobodys_terminal() -> None:
    bad = "KeyError: '\x1b]0;owned\x07\x1b[2J\u202e\x9b'"
    found = decide(failure(log(0, bad)))
    for text in (found.sentence, found.sentence_zh, found.first_line, *found.evidence):
        assert text.isprintable(), text
    assert "owned" in found.sentence


def test_every_cause_has_words_in_both_languages_and_the_message_travels() -> None:
    assert set(WORDS) == set(CAUSES)
    found = decide(failure(log(0, "KeyError: 'x'")))
    sent = found.message(1_796_000_000_000)
    assert messages.decode(messages.Verdict, messages.encode(sent)) == sent
    assert sent.id == decide(failure(log(2, TIMEOUT))).message(5).id, "one verdict per failure"
    assert sent.id != decide(replace(failure(), incarnation=3)).message(5).id


GONE = "n2:1:2 [3] net_ib.cc:12 NCCL WARN NET/IB : Got completion from peer 10.0.0.3<5> with status=12 opcode=1 vendor err 129"
PORT = NodeEvent("n2", "ib_lost_carrier", "network", "mlx5_0: Port: 1 Link DOWN", 4_000)


@pytest.mark.parametrize(
    ("seen", "cause"),
    [
        ({}, "unknown"),
        ({"events": (PORT,)}, "network"),
        ({"events": (replace(PORT, trusted=False),)}, "network"),
        ({"links": (BadLink("leaf2 port 5: down", nodes=("n1",)),)}, "network"),
        ({"checks": (Check("w1", "n1", CheckResult("rdma", False, "1 of 2 ports")),)}, "network"),
        ({"checks": (Check("w1", "n1", CheckResult("rdma", True)),)}, "unknown"),
        ({"checks": (Check("w1", "n1", CheckResult("allreduce_connection", False, "no answer")),)}, "unknown"),
        ({"events": (NodeEvent("n2", "memoryGrowth", "host_oom", trusted=False),)}, "host_oom"),
    ],
)
@pytest.mark.parametrize("line", [GONE, "misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.0.0.2<58355> failed : Broken pipe"])
def test_the_network_is_the_cause_only_where_a_port_or_a_link_was_seen_to_fail(line: str, seen: dict[str, object], cause: str) -> None:
    found = decide(failure(log(2, line), log(4, TIMEOUT), **seen))
    assert found.cause == cause
    if cause == "unknown":
        assert found.suspects in (("w1/r2",), ("w1",)) and found.confidence <= 0.3 and found.accused == ()
        assert "the network is suspected" in found.sentence and "怀疑网络故障" in found.sentence_zh
        assert any("about a port or a link" in text for text in found.missing)
    else:
        assert not any("about a port or a link" in text for text in found.missing)


def test_a_peer_that_is_gone_hides_no_exception_where_no_port_was_seen_to_fail() -> None:
    early = f"2026-02-23 16:20:00,100 {GONE}"
    code = "KeyError: 'target'"
    found = decide(failure(log(2, early), log(4, code)))
    assert (found.cause, found.suspects) == ("user_code", ("w2/r4",))
    assert decide(failure(log(2, early), log(4, code), events=(PORT,))).cause == "network"


def test_a_bad_link_of_the_job_is_the_cause_where_nothing_proves_another() -> None:
    link = BadLink("leaf2 port 5 - spine1 port 3: degraded, look at spine1 port 3 first", nodes=("n2", "another"))
    found = decide(failure(log(0, TIMEOUT), log(2, TIMEOUT), links=(link,)))
    assert (found.cause, found.nodes, found.accused) == ("network", ("n2",), ())
    assert "it uses leaf2 port 5" in found.sentence
    proven = decide(failure(log(0, TIMEOUT), log(2, "KeyError: 'target'"), links=(link,)))
    assert proven.cause == "user_code"
    assert any("leaf2 port 5" in line for line in proven.evidence)
    assert decide(failure(log(0, TIMEOUT), log(2, TIMEOUT))).cause == "unknown", "without a port event it is not the network"
    doubtful = decide(failure(log(0, TIMEOUT), links=(replace(link, certain=False),)))
    assert doubtful.confidence < found.confidence and "it may use" in doubtful.sentence
