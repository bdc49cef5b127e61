"""The live screen is a pure function of its model; its text is kept in golden/ (AEGIS_REWRITE_GOLDEN=1 writes it anew)."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from aegis_cli import model as models
from aegis_cli import screen
from aegis_proto.api import WorkerView
from aegis_proto.phases import Phase
from cli_data import BEGAN, detail, event, with_error_node, with_workers
from rich.console import Console

GOLDEN = Path(__file__).parent / "golden"
NOW = BEGAN / 1000 + 2500
SIZES = [(80, 24), (140, 40)]


def running() -> models.Model:
    model = models.with_detail(models.Model("ddp-7f3a21", keys="Ctrl-C stop · twice = kill"), with_error_node(detail()), NOW)
    for item in (
        event(1, "w0 was killed, counted", pod="w0", counted=True),
        event(2, "all passed, run"),
        event(
            3,
            "w1 reported an error: ValueError (train.py:88), counted; the last step of all ranks was 8,139, the checkpoint 8,000",
            pod="w1",
            counted=True,
        ),
        event(4, "all passed, run"),
    ):
        model = models.with_event(model, item)
    return model


def troubled() -> models.Model:
    workers = (
        WorkerView("w0", "n01", state="RunCommand", retries=2),
        WorkerView("w1", "n02", state="RunCommand", retries=2, mark="slow"),
        WorkerView("w2", "", state="empty", retries=2, reason="killed"),
        WorkerView("w3", "n04", state="suspect", retries=2),
        WorkerView("w4", "n05", state="leaving", retries=2, reason="gpuLost"),
        WorkerView("w5", "n06", state="RunCommand", retries=2, finished=True),
        WorkerView("w6", "", state="empty"),
        WorkerView("w7", "n08", state="Troubleshooting"),
    )
    model = models.with_detail(models.Model("ddp-7f3a21"), with_workers(detail(phase="Restarting", mode="managed"), *workers), NOW)
    return models.at(
        model, NOW, "Pending: 8 workers asked, 6 nodes usable: 1 excluded (n03, XID 79, until Mon 11:42), 1 busy (job llm-2). aegis node ls"
    )


def large() -> models.Model:
    workers = [WorkerView(f"w{i}", f"cn-{i:03d}", state="RunCommand") for i in range(200)]
    workers[17] = WorkerView("w17", "cn-017", state="RunCommand", mark="hang")
    workers[114] = WorkerView("w114", "", state="empty", reason="nodeLost", retries=1)
    return models.with_detail(models.Model("llm-0a1b2c"), with_workers(detail(job="llm-0a1b2c"), *workers), NOW)


SCREENS = {"running": running, "troubled": troubled, "large": large, "nothing-known": lambda: models.Model("ddp-7f3a21", now=NOW)}


def text_of(model: models.Model, width: int, height: int) -> str:
    console = Console(width=width, height=height, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(screen.view(model, width, height))
    return captured.get()


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("name", SCREENS)
def test_the_screen_looks_as_it_did(name: str, width: int, height: int) -> None:
    text = text_of(SCREENS[name](), width, height)
    path = GOLDEN / f"{name}-{width}x{height}.txt"
    if os.environ.get("AEGIS_REWRITE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", SCREENS)
@pytest.mark.parametrize(("width", "height"), [(20, 3), (40, 5), (80, 8), (200, 60)])
def test_the_screen_never_outgrows_the_terminal(name: str, width: int, height: int) -> None:
    lines = text_of(SCREENS[name](), width, height).splitlines()
    assert 1 <= len(lines) <= height
    assert max(map(len, lines)) <= width


def test_every_state_has_a_sign_of_its_own_meaning_without_colour() -> None:
    signs = [sign for sign, _ in screen.SIGNS.values()]
    assert all(len(sign) == 1 for sign in signs)
    for state in screen.ODD:
        assert screen.SIGNS[state][0] not in {screen.SIGNS[plain][0] for plain in ("run", "check", "wait", "done")}


def test_an_older_answer_changes_nothing_but_the_clock() -> None:
    model = running()
    older = msgspec.structs.replace(detail(phase="Pending"), seq=1)
    stale = models.with_detail(model, older, NOW + 2)
    assert stale.detail == model.detail
    assert stale.now == NOW + 2


def test_an_event_that_comes_twice_is_shown_once() -> None:
    model = running()
    assert models.with_event(model, event(4, "all passed, run")) is model


def test_phases_seen_earlier_stay_when_the_head_forgets_them() -> None:
    model = running()
    full = detail()
    forgetful = models.with_detail(model, msgspec.structs.replace(full, transitions=full.transitions[-2:], seq=201), NOW)
    assert [span.phase for span in forgetful.spans] == [span.phase for span in model.spans]
    assert sum(span.failed for span in forgetful.spans) == 2


def test_counted_failures_are_crosses_in_the_phase_bar() -> None:
    bar = text_of(running(), 80, 24).splitlines()[1]
    assert bar.count("✗") == 2
    assert bar.startswith("phases")


@pytest.mark.parametrize(
    ("worker", "word"),
    [
        (WorkerView("w0", state="RunCommand"), "run"),
        (WorkerView("w0", state="RunCommand", finished=True), "done"),
        (WorkerView("w0", state="Succeed"), "done"),
        (WorkerView("w0", state="RunCommand", mark="hang"), "hung"),
        (WorkerView("w0", state="empty"), "wait"),
        (WorkerView("w0", state="empty", reason="killed"), "gone"),
        (WorkerView("w0", state="Failed"), "ended"),
        (WorkerView("w0", state="BootChecking"), "check"),
        (WorkerView("w0", state=""), "wait"),
    ],
)
def test_what_is_odd_about_a_worker_comes_first(worker: WorkerView, word: str) -> None:
    assert models.state_of(worker) == word


def test_a_plain_line_has_time_phase_incarnation_retries_and_text() -> None:
    line = screen.plain(event(5, "was killed, counted", pod="w0", retries="1:0:0", phase=Phase.RESTARTING.value))
    assert line == "20:30:05 Restarting inc 2 1:0:0  w0: was killed, counted"
