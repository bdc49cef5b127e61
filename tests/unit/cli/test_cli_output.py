"""Workers' output as it grows, over new attempts and rotation, never another job's; and why a job is as it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from aegis_cli import why
from aegis_cli.output import Column, table
from aegis_cli.stack.output import LogLine, WorkerOutput, parse, stored
from aegis_proto.api_nodes import JobPending, NodeRefusal
from cli_data import detail, event


def slot(base: Path, node: str, job: str, pod: str, stage: str = "running") -> Path:
    folder = base / "nodes" / node / "slots" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "record.json").write_text(json.dumps({"job": job, "pod": pod, "stage": stage}))
    return folder


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_line_names_worker_rank_and_incarnation() -> None:
    assert parse("[w2/r17 i3] loss 2.3", "w2") == LogLine("w2", 17, 3, "loss 2.3")
    assert parse("[w2 i3] epoch 1", "w2") == LogLine("w2", -1, 3, "epoch 1")
    assert parse("connected", "w2") == LogLine("w2", -1, -1, "connected")
    assert parse("connected", "w2").text == "[w2 agent] connected"
    assert parse("[w0/r0 i0] 10%\r[w0/r0 i0] 20%", "w0").message == "20%"


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
    assert list(stored(tmp_path, "ddp-1", 0.0)) == []
    (folder / "agent.log").rename(folder / "agent.log.1")
    os.utime(folder / "agent.log.1", (1000, 1000))
    slot(tmp_path, "node1", "ddp-1", "w0")
    append(folder / "agent.log", "[w0/r0 i0] mine\n")
    assert [line.message for line in output.read()] == ["mine"]
    assert [line.message for line in stored(tmp_path, "ddp-1", 2000.0)] == ["mine"]
    assert [line.message for line in stored(tmp_path, "ddp-1", 500.0)] == ["of the job before", "mine"]
    output.close()


# --- why -------------------------------------------------------------------------------------------------------------------------


def test_why_tells_the_events_in_order_with_who_and_evidence() -> None:
    events = [
        event(1, "w0 was killed, counted", pod="w0", node="n01", counted=True, cause="killed", incarnation=0),
        event(2, "all passed, run", cause="passed"),
    ]
    found = why.explain(detail(), events, None)
    assert found.now == "ddp-7f3a21 is RunCommand, incarnation 2, 2 of 10 restarts used"
    assert [(line.time, line.who, line.evidence, line.counted) for line in found.lines] == [
        ("20:30:01", "w0 on n01", "killed", True),
        ("20:30:02", "master", "passed", False),
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
