"""From what the master tells about a failure, and the lines that are kept, to the evidence of a verdict."""

from __future__ import annotations

from pathlib import Path

import msgspec
from aegis_lognexus.evidence import Log
from aegis_lognexus.gathering import PER_LOG, gather, read_logs
from aegis_lognexus.store import LogStore
from aegis_lognexus.verdict import decide
from aegis_lognexus.where import Places, local_ranks
from aegis_proto.logs import LogBatch, LogLine
from aegis_proto.messages import JobEvent
from harness.site import job_state
from log_batches import JOB, T0, batch

TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"


def event(kind: str, pod: str = "", cause: str = "", message: str = "", *, incarnation: int = 1, node: str = "", counted: bool = False) -> JobEvent:
    at = "2026-11-30T00:00:00Z"
    return JobEvent("id", JOB, "default", kind, at, incarnation, 5, "Troubleshooting", cause, pod, node, message=message, counted=counted)


THERE = Places(job_state(JOB, "uid", workers=3).head, ("n0", "n1", "n2"))


def test_failed_checks_and_losses_of_this_incarnation_become_evidence() -> None:
    counted = event("counted", "w1", "signal", "w1: killed by signal 9", node="old-n1", counted=True)
    events = [
        event("check", "w0", "check", "w0 failed gpu: old", incarnation=0, node="n0"),
        counted,
        event("check", "w2", "check", "w2 failed gpu: 7 of 8 GPUs", node="n2"),
        event("check", "w0", "check", "no check at all"),
        event("moved", "", "moved", "the count goes"),
    ]
    seen = tuple(Log(pod, rank) for pod, rank in (("w0", 0), ("w0", 1), ("w2", 5)))
    failure = gather(counted, events, THERE, (seen, False))
    assert [(check.pod, check.node, check.result.CheckType, check.result.Result) for check in failure.checks] == [("w2", "n2", "gpu", "7 of 8 GPUs")]
    assert [(loss.pod, loss.reason, loss.platform) for loss in failure.losses] == [("w1", "signal", False)]
    where = [(worker.pod, worker.node, worker.ranks) for worker in failure.workers]
    assert where == [("w0", "n0", (0, 1)), ("w1", "old-n1", (2, 3)), ("w2", "n2", (4, 5))]
    found = decide(failure)
    assert (found.cause, found.suspects, found.nodes, found.accused) == ("gpu_hw", ("w2",), ("n2",), ())


def test_what_failed_in_the_bootcheck_is_no_evidence_about_the_run_that_came_after() -> None:
    """w0 was placed anew before the run began; the run ends by w1, and w1 is on another node by the time of the verdict."""
    counted = event("counted", "w1", "error", "w1: ValueError", incarnation=0, node="n1", counted=True)
    boot = [
        event("podReady", "w1", "podReady", incarnation=0, node="n1"),
        event("podReady", "w0", "podReady", incarnation=0, node="bad"),
        event("check", "w0", "check", "w0 failed io: nothing is mounted there", incarnation=0),
        event("podLost", "w0", "preempted", "w0 lost", incarnation=0, node="bad"),
        event("podReady", "w0", "podReady", incarnation=0, node="n0"),
    ]
    begun = msgspec.structs.replace(event("phase", "", "passed", incarnation=0), phase="RunCommand")
    after = [
        event("mark", "w0", "slow", "w0: marked slow, nothing stopped (fan)", incarnation=0),
        counted,
        event("check", "w1", "check", "w1 failed gpu: 7 of 8 GPUs", incarnation=0),
        event("podReady", "w1", "podReady", incarnation=0, node="n9"),
    ]
    failure = gather(counted, [*boot, begun, *after], THERE, ((), False))
    assert [check.result.CheckType for check in failure.checks] == ["gpu"]
    assert [loss.reason for loss in failure.losses] == ["error"], "a mark may have been withdrawn"
    assert [worker.node for worker in failure.workers] == ["n0", "n1", "n2"]
    assert decide(failure).cause == "gpu_hw"
    early = gather(counted, boot, THERE, ((), False))  # it never ran: the bootcheck is the evidence
    assert [check.result.CheckType for check in early.checks] == ["io"]


def test_what_could_not_be_read_is_named() -> None:
    counted = event("counted", "w1", "error", counted=True)
    failure = gather(counted, [counted], None, ((), True), behind=True)
    text = "; ".join(failure.not_asked)
    for part in ("state is gone", "had not been read", "lines before the last"):
        assert part in text


def test_only_the_lines_of_the_failed_incarnation_are_read_and_repeated_symptoms_stay_few(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append(JOB, "w0", batch(1, "KeyError: 'of the run before'", incarnation=0), 1)
    store.append(JOB, "w0", batch(2, *[TIMEOUT] * (PER_LOG + 50), incarnation=1), 2)
    store.append(JOB, "w0", batch(1000, "ValueError: now", incarnation=1), 3)
    store.append(JOB, "w1", LogBatch("u", 1, "b", 1, (LogLine(T0, 1, -1, "agent", "KeyError: 'in the words of the agent'"),)), 4)
    store.flush()
    logs, more = read_logs(tmp_path / "jobs" / JOB, 1)
    assert not more
    (log,) = logs
    assert (log.pod, log.rank, log.read, len(log.found)) == ("w0", 0, PER_LOG + 51, PER_LOG + 1)
    assert (log.found[-1].text, log.found[-1].n) == ("ValueError: now", PER_LOG + 51)
    assert read_logs(tmp_path / "jobs" / "nothing", 1) == ((), False)
    store.close()


def test_how_many_ranks_a_worker_has_is_told_by_where_they_were_seen() -> None:
    assert local_ranks([]) == 1 and local_ranks([("w0", -1), ("x", 7)]) == 1
    assert local_ranks([("w0", 0), ("w1", 1), ("w2", 2)]) == 1
    assert local_ranks([("w0", 0), ("w1", 8), ("w3", 31)]) == 8
    assert local_ranks([("w0", 0), ("w0", 1), ("w0", 2)]) == 3
    assert local_ranks([("w0", 900), ("w1", 0)]) == 1  # nobody's layout: a tenant may say anything
