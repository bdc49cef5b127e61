"""The phase machine is held to the model without Java: the graph that `machine.step` walks has the digest that TLC's graph had."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from aegis_master import counting, events, machine, reports, rounds, transitions
from aegis_proto.messages import CheckResult
from aegis_proto.state import Head, Pod

SPEC = Path(__file__).resolve().parents[3] / "spec"
sys.path.insert(0, str(SPEC))

import conform  # noqa: E402
import graph  # noqa: E402
import left_out  # noqa: E402
import mapping  # noqa: E402
import mutate  # noqa: E402
import run  # noqa: E402
import tla  # noqa: E402

DIGESTS = json.loads(conform.DIGESTS.read_text())
STORED = DIGESTS["graphs"]


LONG = {"base3", "era2", "pairs3", "phase3", "whole2"}
"""Graphs that take much longer than others; they are walked by `spec/conform.py --code` alone."""
SMALL = 1000
"""States; graphs of so many are walked depth first too, all others by `spec/conform.py`."""
SOME = 2000
"""States; in graphs of more the silent events are tried by `spec/conform.py` alone. They have no edge: the graph is the same."""
QUICK = sorted(set(STORED) - LONG)


@pytest.mark.parametrize("name", QUICK)
def test_the_code_walks_the_graph_that_the_model_checker_found(name: str) -> None:
    taken: set[str] = set()
    text = (conform.CONFIGS / f"{name}.cfg").read_text()
    if STORED[name]["states"] > SOME:
        text = text.replace(', "silent"', "")
    assert asdict(graph.summary(conform.code_graph(text, taken))) == STORED[name], f"the edges: python spec/conform.py {name}; spec/README.md"
    if STORED[name]["states"] <= SMALL:
        assert asdict(graph.summary(conform.code_graph(text, depth_first=True))) == STORED[name]
    assert {row for row, graph_name in DIGESTS["rows"].items() if graph_name == name} <= taken


def test_every_row_of_the_table_is_taken_in_a_graph_that_is_walked() -> None:
    """In which one is stored; the test above holds that it is."""
    assert {conform.row(edge) for edge in transitions.EDGES} == set(DIGESTS["rows"])
    assert {row for row, name in DIGESTS["rows"].items() if name not in QUICK} == set()


def test_every_configuration_has_a_stored_digest() -> None:
    assert {path.stem for path in conform.CONFIGS.glob("*.cfg")} == set(STORED)


def test_the_whole_graph_of_three_workers_is_that_of_the_checked_model() -> None:
    assert conform.constants((conform.CONFIGS / "phase3.cfg").read_text()) == conform.constants((SPEC / "AegisPhase.cfg").read_text())


def test_the_mapping_has_a_rule_for_every_variable_of_the_model_and_no_other() -> None:
    text = tla.modules()["AegisPhase"]
    translation = text.split("BEGIN TRANSLATION")[1]
    variables = {name.strip() for name in translation.split("VARIABLES")[1].split("(*")[0].replace("\n", " ").split(",")}
    assert variables == set(mapping.HEAD) | set(mapping.POD)


class Read:
    """A head or a pod that notes which of its fields are read."""

    def __init__(self, struct: msgspec.Struct, fields: set[str]) -> None:
        self._struct, self._fields = struct, fields

    def __getattr__(self, name: str) -> Any:
        known = getattr(type(self._struct), name, None)
        if isinstance(known, property) and known.fget is not None:
            return known.fget(self)
        self._fields.add(name)
        return getattr(self._struct, name)


@pytest.mark.parametrize(
    ("rules", "left_out", "struct"),
    [
        pytest.param(mapping.HEAD, left_out.HEAD, Head("", "", "", "", 1, 1, adopting=True, countedIncarnation=0, countedPod="w0"), id="head"),
        pytest.param(mapping.POD, left_out.POD, Pod(toQuit=True), id="pod"),
    ],
)
def test_every_field_is_in_a_variable_or_left_out_for_a_reason(rules: dict[str, Any], left_out: dict[str, str], struct: msgspec.Struct) -> None:
    """The state is one in which no rule ends before it has read all that it reads."""
    read: set[str] = set()
    seen = Read(struct, read)
    for rule in rules.values():
        rule(seen if isinstance(struct, Pod) else SimpleNamespace(head=seen))
    assert read | set(left_out) == set(struct.__struct_fields__)
    assert read & set(left_out) == set()


def test_the_stored_graphs_are_of_the_model_that_is_here() -> None:
    assert conform.digest_of_model(tla.modules()["AegisPhase"]) == DIGESTS["model"], "AegisPhase has changed; spec/README.md: Add a row"


class Held:
    """`spec/conform.py --code`, of machine and model as they are now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def ask(self, name: str) -> tuple[int, str]:
        """Exit code, and what is said."""
        self._monkeypatch.setattr(sys, "argv", ["conform.py", "--code", name])
        try:
            code, why = conform.main(), ""
        except AssertionError as error:
            code, why = 1, f"AssertionError: {error}"
        said = self._capsys.readouterr()
        return code, said.out + said.err + why

    def put(self, module: ModuleType, old: str, new: str) -> None:
        """The module is as if its file said `new` for `old`, in one function or in the table."""
        assert module.__file__ is not None
        text = Path(module.__file__).read_text()
        assert text.count(old) == 1, (module.__name__, text.count(old))
        before, after = ast.parse(text), ast.parse(text.replace(old, new))
        (changed,) = [node for was, node in zip(before.body, after.body, strict=True) if ast.dump(was) != ast.dump(node)]
        future = after.body[1]
        made: dict[str, Any] = {}
        exec(compile(ast.Module([future, changed], []), module.__file__, "exec"), module.__dict__, made)
        del made["annotations"]
        if "EDGES" in made:
            made["_INDEX"] = {(edge.source, edge.target, edge.trigger): edge for edge in made["EDGES"]}
        for name, value in made.items():
            self._monkeypatch.setattr(module, name, value)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Held:
    return Held(monkeypatch, capsys)


def test_what_is_not_changed_is_held(held: Held) -> None:
    code, said = held.ask("base2")
    assert code == 0, said
    assert re.fullmatch(r"base2: [\d,]+ states, [\d,]+ edges; as stored\n", said), said


@pytest.mark.parametrize("command", [conform, mutate, run])
def test_a_name_that_nothing_has_is_refused(command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["command", "base22"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "base22" in capsys.readouterr().err


def test_a_name_that_is_nearly_one_is_answered_by_that_one() -> None:
    assert tla.unknown("graph", ["base2"], ["base2", "marks2"]) == ""
    assert tla.unknown("configuration", ["aegisphase"], ["AegisPhase", "AegisOwner"]).startswith(
        "no configuration aegisphase; did you mean AegisPhase"
    )
    assert tla.unknown("graph", ["qqqq"], ["marks2", "base2"]) == "no graph qqqq; there are: base2 marks2"


def test_without_java_no_mutant_is_said_to_survive(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", ["mutate.py", "OneTooEarly"])
    with pytest.raises(tla.SpecError, match="install a Java runtime, version 17"):
        mutate.main()
    assert "SURVIVES" not in capsys.readouterr().out


def test_the_commands_of_the_readme_name_what_is_there() -> None:
    said = (SPEC / "README.md").read_text()
    known = {
        "run": {config.name for config in tla.configs()},
        "mutate": {mutant.name for mutant in mutate.load()},
        "conform": set(STORED),
    }
    named = [(script, word) for script, words in re.findall(r"python spec/(\w+)\.py((?: [\w-]+)*)", said) for word in words.split()]
    named = [(script, word) for script, word in named if script in known and not word.startswith("-") and word != "NAME"]
    assert named
    assert [word for script, word in named if word not in known[script]] == []
    assert re.findall(r"aegis_master\.docs ([\w/.-]+)", said) == []  # else it would write the page there


LOST = 'Edge(T, X, Trigger.LOST, Counting.{}, "a pod is lost")'
PASSED = 'Edge(B, {}, Trigger.PASSED, Counting.ALIGN, "all PASS")'
READY = '    Edge(X, T, Trigger.READY, Counting.NONE, "every place filled, bootcheck passed before (a new pod runs its bootcheck in it)"),\n'


PRESENT = '    if not pod.present or event.boot != pod.boot:\n        return "boot"\n'
ROUND = '    if not head.roundSeqNum <= event.seq_num <= head.seqNum:\n        return "round"\n'
DATED = "        and 0 < at <= head.stopOrderAt\n"

HALF = "half = max(2, draft.head.workerNum // 2 + 1)"


@pytest.mark.parametrize(
    ("name", "module", "old", "new"),
    [
        pytest.param("base2", transitions, LOST.format("UNCOUNTED"), LOST.format("NONE"), id="another count"),
        pytest.param("base2", transitions, PASSED.format("R"), PASSED.format("T"), id="another target"),
        pytest.param("base2", transitions, READY, "", id="no edge"),
        pytest.param("base2", reports, '    if event.attempt != pod.attempt:\n        return "attempt"\n', "", id="stale is taken: attempt"),
        pytest.param("base2", reports, PRESENT, PRESENT.replace("event.boot != pod.boot", "False"), id="stale is taken: boot"),
        pytest.param("base2", reports, '    if event.incarnation != head.incarnation:\n        return "incarnation"\n', "", id="stale is taken: run"),
        pytest.param("base2", reports, ROUND, "", id="stale is taken: round"),
        pytest.param("base2", reports, "event.boot == pod.boot != ", "pod.boot != ", id="stale is taken: a late word of another boot"),
        pytest.param("base2", counting, DATED, "        and 0 < at\n", id="stale is taken: said after the stop order"),
        # of two workers and of three, half of them and one more is two anyway
        pytest.param("base4", rounds, HALF, HALF.replace(" + 1", ""), id="half is most"),
        pytest.param("advise2", rounds, 'draft.spec.actions == "act"', 'draft.spec.actions != "observe"', id="advice is done"),
        pytest.param("advise2", reports, ', reason=event.reason.value, mark="")', ", reason=event.reason.value)", id="a mark hides a notice"),
        pytest.param("pairs2", rounds, 'draft.change(i, mark="slow")', "pass", id="slow is not marked"),
        pytest.param("pairs2", rounds, "massQuitRounds > 0 and", "massQuitRounds > 1 and", id="tests that name nobody end the job"),
    ],
)
def test_a_change_of_the_machine_without_one_of_the_model_is_refused(held: Held, name: str, module: ModuleType, old: str, new: str) -> None:
    held.put(module, old, new)
    code, said = held.ask(name)
    assert code != 0
    assert "NOT the stored graph" in said or "AssertionError" in said, said


def test_a_change_of_the_model_without_one_of_the_machine_is_refused(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    said, pending = tla.modules(), 'await phase = "Init"; phase := "Pending"; innerPhase'
    changed = said["AegisPhase"].replace(pending, pending.replace("Pending", "BootChecking"))
    assert changed != said["AegisPhase"]
    monkeypatch.setattr(tla, "modules", lambda: said | {"AegisPhase": changed})
    code, told = held.ask("pairs2")
    assert code == 1
    assert "AegisPhase is not the model of the stored graphs" in told


def test_a_comment_is_no_change_of_the_model() -> None:
    text = tla.modules()["AegisPhase"]
    remarked = text.replace("variables\n", "variables \\* of the job\n", 1)
    assert remarked != text
    assert conform.digest_of_model(remarked) == conform.digest_of_model(text)


def test_every_configuration_checks_every_invariant() -> None:
    assert tla.incomplete(tla.configs(), tla.modules()) == []


def test_a_configuration_that_forgets_an_invariant_is_noticed() -> None:
    forgetful = [c if c.name != "AegisPhase" else tla.Config(c.name, c.module, c.invariants[1:], c.properties) for c in tla.configs()]
    assert tla.incomplete(forgetful, tla.modules()) == ["AegisPhase.cfg leaves out invariant ValidPhase"]


def test_a_configuration_that_is_named_for_liveness_and_checks_none_is_noticed() -> None:
    forgetful = [c if c.name != "AegisPhaseLive3" else tla.Config(c.name, c.module, c.invariants, c.properties[:-1]) for c in tla.configs()]
    assert tla.incomplete(forgetful, tla.modules()) == ["AegisPhaseLive3.cfg checks no liveness property"]


def test_all_that_may_happen_in_the_model_happens_in_a_checked_configuration_with_liveness_and_in_a_graph() -> None:
    """Else a feature that is taken from a configuration would leave a smaller model, which holds all the more."""
    known = set(re.findall(r'On\("(\w+)"\)', tla.modules()["AegisPhase"]))

    def features(paths: list[Path]) -> set[str]:
        return {name for path in paths for name in re.findall(r'"(\w+)"', conform.constants(path.read_text())["Features"])}

    ends = [SPEC / f"{config.name}.cfg" for config in tla.configs() if config.module == "AegisPhase" and "Ends" in config.properties]
    assert features(ends) == known
    assert features(list(conform.CONFIGS.glob("*.cfg"))) == known - {"quiet"} | {"silent"}


@pytest.mark.parametrize("name", ["InvariantLeftOut", "PropertyLeftOut"])
def test_a_configuration_that_forgets_is_caught_by_the_name_of_what_it_forgets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(mutant for mutant in mutate.load() if mutant.name == name)
    assert mutate.verdict(mutant, tla.modules()).caught
    monkeypatch.setattr(tla, "incomplete", lambda found, texts: ["AegisPhase.cfg leaves out invariant ValidPhase"])
    assert not mutate.verdict(mutant, tla.modules()).caught


def test_every_property_is_what_some_mutant_is_caught_by() -> None:
    assert mutate.unaimed(mutate.load(), tla.configs()) == []


def test_a_property_without_a_mutant_is_noticed() -> None:
    fewer = [mutant for mutant in mutate.load() if mutant.expect != "BootedBeforeRun"]
    assert mutate.unaimed(fewer, tla.configs()) == ["no mutant of AegisPhase is aimed at BootedBeforeRun"]


def test_a_new_budget_goes_on_in_the_graph_of_that_budget() -> None:
    """maxRetry is a constant of the model. It is never set below what is used: a live job then stands in the graph of the new one, where it stood."""
    text = (conform.CONFIGS / "base2.cfg").read_text().replace('"silent"', "")

    def live(max_retry: int) -> set[mapping.State]:
        states = [dict(state) for state in conform.code_graph(text.replace("MaxRetry = 1", f"MaxRetry = {max_retry}"))]
        return {tuple(state.items()) for state in states if state["phase"] not in ("Succeed", "Failed") and state["failures"] <= 1}

    assert live(1) == live(2) != set()
    before = machine.create("set", mapping.spec_of(2, 1, 2, "act"), "u", "a", mapping.NOW)
    after, _ = machine.step(before, events.SettingChanged(2), mapping.later(before))
    assert (after.head.maxRetry, mapping.model_state(after)) == (2, mapping.model_state(before))


def test_at_most_so_many_leave_at_once_and_who_is_left_over_leaves_after_the_next_round() -> None:
    """The one difference of scale to the model: it shows in jobs of more than twice as many workers."""
    workers = 2 * rounds.MAX_LEAVING + 2
    state = machine.create("wide", mapping.spec_of(workers, 1, 2, "act"), "u", "a", mapping.NOW)

    def step(event: events.Event) -> None:
        nonlocal state
        state, _ = machine.step(state, event, mapping.later(state))

    def fill() -> None:
        for i, pod in enumerate(state.pods()):
            if not pod.present:
                step(events.PodReady(i, pod.attempt, f"b{pod.attempt}"))

    def check(bad: range) -> list[int]:
        head = state.head
        for i, pod in enumerate(state.pods()):
            results = (CheckResult("gpu", i not in bad),)
            step(events.Finished(i, pod.attempt, pod.boot, head.incarnation, head.seqNum, results=results))
        return [i for i, pod in enumerate(state.pods()) if pod.toQuit]

    fill()
    leaving = check(range(rounds.MAX_LEAVING + 1))
    assert leaving == list(range(rounds.MAX_LEAVING))
    for i in leaving:
        step(events.PodLost(i, 1))
    fill()
    assert check(range(rounds.MAX_LEAVING, rounds.MAX_LEAVING + 1)) == [rounds.MAX_LEAVING]


def test_every_seeded_fault_still_fits_its_model() -> None:
    for mutant in mutate.load():
        before = (SPEC / mutant.file).read_text()
        assert mutate.seeded(mutant, before) != before, mutant.name


def test_the_fault_that_shows_a_decision_is_a_seeded_one() -> None:
    said = (SPEC.parent / "docs/decisions/0010-models.md").read_text().split("## Where the description contradicts itself")[1]
    rows = [line.strip("| ").split("|") for line in said.splitlines() if line.startswith("| ")]
    (*_, head), *decided = rows
    assert head.strip() == "fault that shows it"
    named = {name.strip() for *_, names in decided for name in names.split(",")}
    assert named - {mutant.name for mutant in mutate.load()} == set()


def test_an_edge_that_only_one_side_has_changes_the_digest() -> None:
    code = conform.code_graph((conform.CONFIGS / "pairs2.cfg").read_text())
    whole = graph.summary(code)
    state = next(state for state, steps in code.items() if steps)
    code[state] = set(list(code[state])[1:])
    assert graph.summary(code).digest != whole.digest
