"""Traces of real runs are held to the model: what the machine did passes, what it cannot have done is refused at the step where it shows."""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aegis_bus.jobstore import Loaded
from aegis_master import events, machine
from aegis_master.trace import Trace
from aegis_proto.phases import LostReason
from aegis_proto.state import JobSpec, JobState

SPEC = Path(__file__).resolve().parents[3] / "spec"
sys.path.insert(0, str(SPEC))

import mapping  # noqa: E402
import record  # noqa: E402
import tla  # noqa: E402
import traces  # noqa: E402

Line = dict[str, Any]


def has_java() -> bool:
    try:
        return bool(tla.find_java() and tla.find_jar())
    except tla.SpecError:
        return False


java = pytest.mark.skipif(not has_java(), reason="needs Java 17 and tla2tools.jar (extra `spec`)")


@pytest.fixture
def worked_example(tmp_path: Path) -> Path:
    """The worked example of the design, as a master writes it."""
    path = tmp_path / "trace.ndjson"
    trace, now = Trace(str(path)), 1000
    state = machine.create("example-000001", JobSpec("example", workers=3, maxRetry=2), "uid1", "era1", now)
    trace.void(Loaded(state, 1, now))

    def step(event: events.Event) -> None:
        nonlocal state, now
        now += 1000
        before, state = state, machine.step(state, event, now)[0]
        trace.write(before, event, state, now)

    def finish(state: JobState, places: tuple[int, ...] = (0, 1, 2)) -> list[events.Event]:
        head = state.head
        return [events.Finished(i, state.pod(i).attempt, state.pod(i).boot, head.incarnation, head.seqNum) for i in places]

    def fail(state: JobState, i: int) -> events.Event:
        return events.Errored(i, state.pod(i).attempt, state.pod(i).boot, state.head.incarnation, state.head.seqNum)

    for i in range(3):
        step(events.PodReady(i, 1, f"b{i}"))
    for event in finish(state):
        step(event)
    for i, died in ((0, now), (1, 0), (2, 0)):
        step(events.PodLost(i, state.pod(i).attempt, LostReason.KILLED, died, gone=True))
        step(events.PodReady(i, state.pod(i).attempt, f"c{i}"))
    for i in (1, 2):
        for event in finish(state):
            step(event)
        step(fail(state, i))
    assert (state.head.phase, state.head.failedReason, [pod.retries for pod in state.pods()]) == ("Failed", "budget", [2, 2, 3])
    trace.close()
    return path


def lines_of(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def change(path: Path, edit: Callable[[list[Line]], None]) -> None:
    lines = lines_of(path)
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def complaints(path: Path, by_model: bool) -> list[traces.Complaint]:
    reader = traces.Reader()
    reader.read([path])
    assert reader.chains
    if not by_model:
        return reader.complaints + traces.replay(reader.chains)
    return reader.complaints + [bad for *_, bad in traces.validate(reader.chains) if bad is not None]


def counted_elsewhere(lines: list[Line]) -> None:
    """The kill of w0 is counted for w1, from that step on."""
    where = first(lines, lambda before, after: after["failures"] == 1)
    lines[where]["after"]["retries"] = [0, 1, 0]
    lines[where]["after"]["countedPod"] = "w1"
    del lines[where + 1 :]


def first(lines: list[Line], wanted: Callable[[Line, Line], bool]) -> int:
    """Index of the first step whose (before, after) is wanted."""
    return next(n for n, line in enumerate(lines) if line["kind"] == "step" and wanted(line["before"], line["after"]))


def counted_twice(lines: list[Line]) -> None:
    """The loss of a pod in Troubleshooting is counted again."""
    where = next(
        n for n, line in enumerate(lines) if line["kind"] == "step" and line["before"]["phase"] == "Troubleshooting" != line["after"]["phase"]
    )
    lines[where]["after"] |= {"failures": 2, "recoverCount": 2, "retries": [1, 1, 0]}
    del lines[where + 1 :]


def trains_unchecked(lines: list[Line]) -> None:
    """The last place is filled, and the command runs at once."""
    lines[3]["after"] |= {
        "phase": "RunCommand",
        "innerPhase": ["RunCommand"] * 3,
        "booted": True,
        "started": True,
        "order": "command",
        "deadline": "none",
    }
    del lines[4:]


def another_order(lines: list[Line]) -> None:
    """Diagnosis begins, and the order lets everybody go on."""
    where = first(lines, lambda before, after: after["phase"] == "Troubleshooting")
    lines[where]["after"]["order"] = "command"
    del lines[where + 1 :]


def another_deadline(lines: list[Line]) -> None:
    """Diagnosis begins, and may take for ever."""
    where = first(lines, lambda before, after: after["phase"] == "Troubleshooting")
    lines[where]["after"]["deadline"] = "none"
    del lines[where + 1 :]


def another_event(lines: list[Line]) -> None:
    """What a loss does, without one: the place was told to be silent."""
    where = first(lines, lambda before, after: after["failures"] == 1)
    lines[where] |= {"event": "SuspectChanged"}
    del lines[where + 1 :]


def another_place(lines: list[Line]) -> None:
    """What the loss of w0 does, told of w1."""
    where = first(lines, lambda before, after: after["failures"] == 1)
    lines[where]["args"] |= {"index": 1}
    del lines[where + 1 :]


FORGED = [counted_elsewhere, counted_twice, trains_unchecked, another_order, another_deadline, another_event, another_place]
WAYS = [pytest.param(True, id="model", marks=java), pytest.param(False, id="code")]


@pytest.mark.parametrize("by_model", WAYS)
def test_what_the_machine_did_is_a_behaviour_of_the_model(worked_example: Path, by_model: bool) -> None:
    assert complaints(worked_example, by_model) == []


@pytest.mark.parametrize(
    ("forge", "by_model"),
    [*((forge, False) for forge in FORGED), *(pytest.param(forge, True, marks=java) for forge in (another_order, another_deadline, another_event))],
)
def test_a_forged_step_is_refused_where_it_was_made(worked_example: Path, forge: Callable[[list[Line]], None], by_model: bool) -> None:
    change(worked_example, forge)
    found = complaints(worked_example, by_model)
    assert [complaint.where for complaint in found] == [f"trace.ndjson:{len(lines_of(worked_example))}"], found


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param("hello", id="no JSON"),
        pytest.param("", id="empty"),
        pytest.param("\xff", id="no text"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param({"kind": "stop"}, id="kind"),
        pytest.param({"args": None}, id="arguments"),
        pytest.param({"args": {"index": 3}}, id="no place"),
        pytest.param({"args": {"index": "0"}}, id="place in words"),
        pytest.param({"after": {}}, id="nothing of the state"),
        pytest.param({"after": {"phase": "Running"}}, id="phase"),
        pytest.param({"after": {"retries": [0]}}, id="too few places"),
    ],
)
def test_a_line_that_is_none_of_a_trace_is_refused_by_its_number(worked_example: Path, wrong: str | Line) -> None:
    lines = worked_example.read_text().splitlines()
    if isinstance(wrong, dict):
        line = json.loads(lines[3])
        for name, value in wrong.items():
            line[name] = line[name] | value if name == "after" and value else value
        wrong = json.dumps(line)
    worked_example.write_bytes("\n".join([*lines[:3], wrong, *lines[4:]]).encode("latin-1"))
    with pytest.raises(tla.SpecError, match=r"trace\.ndjson:4: no line that a master writes"):
        traces.Reader().read([worked_example])


def test_a_step_that_is_missing_shows(worked_example: Path) -> None:
    change(worked_example, lambda lines: lines.pop(5))
    earliest = complaints(worked_example, False)[0]
    assert (earliest.where, earliest.why) == ("trace.ndjson:6", "the step does not begin where the one before ended")


def test_a_master_that_read_what_nobody_wrote_shows(worked_example: Path) -> None:
    change(worked_example, lambda lines: lines.__delitem__(slice(1, 9)))
    change(worked_example, lambda lines: lines[0].update(state=lines[1]["before"]))
    assert "to which nobody has stepped" in complaints(worked_example, False)[0].why


def test_a_takeover_goes_on_where_the_first_master_stopped(worked_example: Path, tmp_path: Path) -> None:
    lines = lines_of(worked_example)
    second = tmp_path / "second.ndjson"
    void = {"kind": "void", "job": lines[0]["job"], "state": lines[9]["after"]}
    second.write_text("".join(json.dumps(line) + "\n" for line in [void, *lines[10:]]))
    change(worked_example, lambda lines: lines.__delitem__(slice(10, None)))
    reader = traces.Reader()
    reader.read([worked_example, second])
    assert (reader.complaints, traces.replay(reader.chains), len(reader.chains)) == ([], [], 2)


def test_a_changed_budget_begins_a_chain_and_may_change_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.ndjson"
    trace = Trace(str(path))
    before = machine.create("set-000001", JobSpec("set", workers=2, maxRetry=1), "uid1", "era1", 1000)
    trace.void(Loaded(before, 1, 1000))
    event = events.SettingChanged(5, "ann")
    after, _ = machine.step(before, event, 2000)
    trace.write(before, event, after, 2000)
    ready = events.PodReady(0, 1, "b0")
    trace.write(after, ready, machine.step(after, ready, 3000)[0], 3000)
    trace.close()
    assert complaints(path, False) == []
    change(path, lambda lines: [told.update(suspended=True) for told in (lines[1]["after"], lines[2]["before"], lines[2]["after"])])
    assert "changes what never changes" in complaints(path, False)[0].why


def test_every_event_of_the_code_has_its_processes_and_every_process_is_in_the_trace_model() -> None:
    kinds = {kind.__name__ for kind in events.Event.__args__}
    assert kinds == set(mapping.PROCESSES)
    modules = tla.modules()
    named = {name for names in mapping.PROCESSES.values() for name in names} | {"B1_Create"}
    model = {line.split()[2] for line in modules["AegisPhase"].splitlines() if line.startswith(("fair process", "fair+ process"))}
    model |= {line.split()[1] for line in modules["AegisPhase"].splitlines() if line.startswith("process")}
    assert model - {"Quiet"} == named
    walked = {line.split('"')[1] for line in modules["AegisTrace"].splitlines() if ' p = "' in line}
    assert walked == named


def test_the_mapping_names_an_event_as_the_table_of_processes_does() -> None:
    state = machine.create("names", mapping.spec_of(2, 1, 2, "act"), "u", "a", mapping.NOW)
    for event in (events.PodReady(0, 1, "x"), events.PodReady(1, 1, "y")):
        state, _ = machine.step(state, event, mapping.later(state))
    seen = {(name, type(event).__name__) for name, event in mapping.events_of(state, frozenset(traces.FEATURES))}
    assert seen and all(name in mapping.PROCESSES[kind] for name, kind in seen)


def test_every_event_is_tried_as_each_process_that_it_may_be() -> None:
    """An event that is tried no more would take no edge from a graph, where another one takes the same."""
    wanted = {(name, kind) for kind, names in mapping.PROCESSES.items() for name in names}
    start = state = machine.create("tried", mapping.spec_of(2, 2, 3, "act"), "u", "a", mapping.NOW)
    for i in (0, 1):
        state, _ = machine.step(state, events.PodReady(i, 1, "b"), mapping.NOW)
    for i in (0, 1):
        state, _ = machine.step(state, events.Finished(i, 1, "b", 0, state.head.seqNum), mapping.NOW)
    running = state
    draw, tried = random.Random(1), set[tuple[str, str]]()
    for n in range(2000):
        if wanted <= tried:
            break
        if n % 12 == 0 or state.head.phase.terminal:
            state = draw.choice((start, running))
        events_here = list(mapping.events_of(state, frozenset(traces.FEATURES) - {"stop"}))
        tried |= {(name, type(event).__name__) for name, event in events_here}
        tried |= {(name, type(event).__name__) for name, event in mapping.events_of(state, frozenset({"stop"}))}
        state = machine.step(state, draw.choice(events_here)[1], mapping.later(state))[0]
    assert wanted - tried == set()


def test_every_event_without_a_process_is_tried_where_silence_is_walked() -> None:
    """And of each kind that tells of an attempt, a boot, a run or a round, those of another one."""
    state = machine.create("silent", mapping.spec_of(1, 1, 2, "act"), "u", "a", mapping.NOW)
    tried = {type(event).__name__ for name, event in mapping.events_of(state, frozenset({"silent"})) if name == mapping.SILENT}
    assert tried >= {kind for kind, names in mapping.PROCESSES.items() if not names}
    dated = {"attempt", "boot", "incarnation", "seq_num", "seqNum"}
    assert tried >= {kind.__name__ for kind in events.Event.__args__ if dated & {field.name for field in dataclasses.fields(kind)}}
    walked = {path.stem for path in (SPEC / "conform").glob("*.cfg") if '"silent"' in path.read_text()}
    assert walked == {"base2", "marks3", "plain2", "preempt2", "era2", "whole2"}


def test_a_trace_holds_all_that_the_mapping_reads() -> None:
    state = machine.create("whole", mapping.spec_of(2, 1, 2, "act"), "u", "a", mapping.NOW)
    for event in (events.PodReady(0, 1, "x"), events.PodReady(1, 1, "y"), events.PodLost(1, 1, LostReason.KILLED)):
        state, _ = machine.step(state, event, mapping.later(state))
        told = json.loads(msgspec.json.encode(traces.trace.variables(state)))
        assert mapping.model_state(mapping.state_of(told)) == mapping.model_state(state)


def test_who_was_asked_and_told_of_no_step_is_missed(tmp_path: Path, worked_example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worked_example.rename(tmp_path / "demo-1.ndjson")
    lines = lines_of(tmp_path / "demo-1.ndjson")
    (tmp_path / "integration-2.ndjson").write_text(json.dumps(lines[0]) + "\n")
    assert record.written(tmp_path, ["demo"]) == []
    assert record.written(tmp_path, ["simulation", "demo", "integration"]) == ["simulation: no step is told", "integration: no step is told"]
    assert f"demo: 1 traces, 1 chains, {len(lines) - 1} steps" in capsys.readouterr().out


@pytest.mark.parametrize("torn", ['{"kind": "st', '{"a": 1}', "[1]"])
def test_a_line_that_no_master_writes_is_named(torn: str, worked_example: Path) -> None:
    lines = worked_example.read_text().splitlines()
    worked_example.write_text("\n".join([*lines, torn]) + "\n")
    with pytest.raises(tla.SpecError, match=f":{len(lines) + 1}: no line that a master writes"):
        traces.Reader().read([worked_example])


def test_a_trace_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["traces.py", str(tmp_path / "none.ndjson")])
    with pytest.raises(SystemExit) as ended:
        traces.main()
    assert ended.value.code == 2
    assert f"no such file: {tmp_path / 'none.ndjson'}" in capsys.readouterr().err


@java
def test_the_command_line_says_which_step_is_bad(worked_example: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    change(worked_example, counted_elsewhere)
    monkeypatch.setattr(sys, "argv", ["traces.py", str(worked_example)])
    assert traces.main() == 1
    assert "no step of the model: PodLost of w0 in RunCommand" in capsys.readouterr().err
