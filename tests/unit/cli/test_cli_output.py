"""Workers' output as it grows, over new attempts and rotation, never another job's; and why a job is as it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from aegis_cli import why
from aegis_cli.commands import job
from aegis_cli.output import Column, table
from aegis_cli.stack.output import LogLine, WorkerOutput, in_time_order, parse, stored
from aegis_proto.api_nodes import JobPending, NodeRefusal
from cli_data import detail, event, with_workers


def slot(base: Path, node: str, job: str, pod: str, stage: str = "running") -> Path:
    folder = base / "nodes" / node / "slots" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps({"job": job, "pod": pod, "stage": stage}))
    return folder


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def kept(base: Path, since: float, last: int = 0) -> list[LogLine]:
    return in_time_order(stored(base, "ddp-1", since), last)


def test_a_line_names_worker_rank_and_incarnation() -> None:
    assert parse("[w2/r17 i3] loss 2.3", "w2") == LogLine("w2", 17, 3, "loss 2.3")
    assert parse("[w2 i3] epoch 1", "w2") == LogLine("w2", -1, 3, "epoch 1")
    assert parse("connected", "w2") == LogLine("w2", -1, -1, "connected")
    assert parse("connected", "w2").text == "[w2 agent] connected"
    assert parse("[w2/r17 i3 t1795984000123] loss 2.3", "w2") == LogLine("w2", 17, 3, "loss 2.3", 1_795_984_000_123)
    assert parse("[w0 aegis t7] bootcheck: passed", "w0") == LogLine("w0", -1, -1, "bootcheck: passed", 7)


def test_of_a_line_that_was_written_over_itself_the_last_state_is_shown() -> None:
    assert parse("[w0/r0 i0] 10%\r20%", "w0") == LogLine("w0", 0, 0, "20%")
    assert parse("[w0/r0 i0] ended as on other systems\r", "w0").message == "ended as on other systems"


def test_control_characters_of_a_worker_do_not_reach_the_terminal() -> None:
    assert parse("[w0/r0 i0] \x1b]0;owned\x07", "w0").message == "\\x1b]0;owned\\x07"


def test_output_is_read_once_and_whole_lines_only(tmp_path: Path) -> None:
    log = slot(tmp_path, "node1", "ddp-1", "w0") / "agent.log"
    output = WorkerOutput(tmp_path, "ddp-1")
    assert list(output.read()) == []
    append(log, "[w0/r0 i0] one\n[w0/r0 i0] tw")
    assert [line.message for line in output.read()] == ["one"]
    append(log, "o\n")
    assert [line.message for line in output.read()] == ["two"]
    assert list(output.read()) == []
    output.close()


def test_a_new_attempt_is_followed_after_the_end_of_the_old_file(tmp_path: Path) -> None:
    log = slot(tmp_path, "node1", "ddp-1", "w0") / "agent.log"
    output = WorkerOutput(tmp_path, "ddp-1")
    append(log, "[w0/r0 i0] one\n")
    assert [line.message for line in output.read()] == ["one"]
    append(log, "[w0/r0 i0] last words\n")
    log.rename(log.with_name("agent.log.1"))
    append(log, "[w0/r0 i1] again\n")
    assert [line.message for line in output.read()] == ["last words", "again"]
    with log.open("w") as file:  # copied and truncated, as a rotation by size does
        file.write("[w0/r0 i1] b\n")
    assert [line.message for line in output.read()] == ["b"]
    output.close()


def test_another_jobs_log_in_the_same_slot_is_not_taken(tmp_path: Path) -> None:
    folder = slot(tmp_path, "node1", "ddp-1", "w0", "starting")
    append(folder / "agent.log", "[w0/r0 i0] of the job before\n")
    output = WorkerOutput(tmp_path, "ddp-1")
    assert list(output.read()) == []
    assert kept(tmp_path, 0.0) == []
    (folder / "agent.log").rename(folder / "agent.log.1")
    os.utime(folder / "agent.log.1", (1000, 1000))
    slot(tmp_path, "node1", "ddp-1", "w0")
    append(folder / "agent.log", "[w0/r0 i0] mine\n")
    assert [line.message for line in output.read()] == ["mine"]
    assert [line.message for line in kept(tmp_path, 2000.0)] == ["mine"]
    assert [line.message for line in kept(tmp_path, 500.0)] == ["of the job before", "mine"]
    output.close()


def test_the_last_lines_are_the_last_of_all_workers_in_the_order_of_time(tmp_path: Path) -> None:
    first, second = slot(tmp_path, "node1", "ddp-1", "w0"), slot(tmp_path, "node2", "ddp-1", "w1")
    append(first / "agent.log", "[w0/r0 i0 t1001] a\n[w0/r0 i0 t1003] c\nTraceback of nobody\n[w0/r0 i0 t1006] f\n")
    append(second / "agent.log.1", "[w1/r1 i0 t1002] b\n")
    append(second / "agent.log", "[w1/r1 i0 t1004] d\n[w1/r1 i0 t1005] e\n")
    assert [line.message for line in kept(tmp_path, 0.0)] == ["a", "b", "c", "Traceback of nobody", "d", "e", "f"]
    assert [line.message for line in kept(tmp_path, 0.0, 3)] == ["d", "e", "f"]
    output = WorkerOutput(tmp_path, "ddp-1")
    assert [line.message for line in in_time_order(output.workers())] == ["a", "c", "Traceback of nobody", "d", "e", "f"]
    append(second / "agent.log", "[w1/r1 i0 t1007] g\n")
    append(first / "agent.log", "[w0/r0 i0 t1008] h\n")
    assert [line.message for line in in_time_order(output.workers())] == ["g", "h"]
    output.close()


# --- why -------------------------------------------------------------------------------------------------------------------------


def test_a_verdict_about_a_mark_is_asked_for_before_anything_was_counted() -> None:
    fine = detail(recoverCount=0)
    marked = with_workers(fine, msgspec.structs.replace(fine.workers[0], mark="hang"))
    assert (job.judged(fine), job.judged(marked), job.judged(detail(recoverCount=1))) == (False, True, True)


def test_why_tells_the_events_in_order_with_who_and_evidence() -> None:
    events = [
        event(1, "w0 was killed, counted", pod="w0", node="n01", counted=True, cause="killed", incarnation=0),
        event(2, "all passed, run", cause="passed"),
    ]
    found = why.explain(detail(), events, None)
    assert found.now == "ddp-7f3a21 is RunCommand, incarnation 2, 2 of 10 restarts used"
    assert [(line.time, line.who, line.evidence, line.counted) for line in found.lines] == [
        ("2026-11-29T20:30:01Z", "w0 on n01", "killed", True),
        ("2026-11-29T20:30:02Z", "master", "passed", False),
    ]
    assert [line.what for line in why.explain(detail(), events, None, "last").lines] == ["all passed, run"]
    assert [line.what for line in why.explain(detail(), events, None, "0").lines] == ["w0 was killed, counted"]
    text = why.render(found)
    assert text.splitlines()[0] == found.now
    assert "✗" in text


def test_why_falls_back_on_the_transitions_of_the_state() -> None:
    found = why.explain(detail(), [], None)
    assert len(found.lines) == len(detail().transitions)
    assert "w1 reported an error" in found.lines[5].what


@pytest.mark.parametrize(
    ("pending", "text"),
    [
        (
            JobPending("ddp", message="E113 3 workers asked, 2 nodes usable", refusals=(NodeRefusal("n3", "excluded", "XID 79"),)),
            "E113 3 workers asked, 2 nodes usable [n3: excluded (XID 79)]",
        ),
        (JobPending("ddp", workers=3, waiting=("w2",), waitingTotal=1), "1 of 3 workers wait for a node (w2)"),
        (JobPending("ddp", stopping=("w0",)), "the previous process of w0 is not yet known to be gone"),
        (None, "the masters own words"),
    ],
)
def test_why_says_what_a_job_waits_for(pending: JobPending | None, text: str) -> None:
    waiting = msgspec.structs.replace(detail(phase="Pending"), waiting="the masters own words")
    assert why.explain(waiting, [], pending).waiting == text
    ended = msgspec.structs.replace(detail(phase="Succeed"), waiting="x")
    assert why.explain(ended, [], pending).waiting == ""


def test_a_table_is_aligned_and_empty_values_are_dashes() -> None:
    columns = [Column("A", lambda row: row[0]), Column("LONG", lambda row: row[1]), Column("W", lambda row: row[2], wide=True)]
    assert table([("x", "", 1), ("yyyy", None, "a\nb")], columns) == "A     LONG\nx     -\nyyyy  -"
    assert table([("x", "", 1)], columns, wide=True) == "A  LONG  W\nx  -     1"
