"""A check is a program that can be killed, and what it prints is not trusted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from aegis_agent import procs
from aegis_agent.checks import process, registry
from aegis_agent.checks.registry import CHECKS, Check, Context, run_check, run_round
from aegis_agent.procs import live, members, processes
from aegis_agent.reaper import Reaper
from aegis_agent.scope import send
from aegis_proto.messages import CheckResponse, CheckResult, encode
from harness.waiting import until_sync

DEADLINES = {"io": 30.0, "gpu": 66.0, "rdma": 25.0}
"""The seed's budgets in seconds."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program_under_test.py"


async def result_of(program: Path, text: str, deadline: float = 60.0) -> CheckResult:
    program.write_text(text)
    reaper = Reaper()
    reaper.open()
    environ = {**os.environ, "PYTHONPATH": f"{program.parent}:{os.environ.get('PYTHONPATH', '')}:{':'.join(sys.path)}"}
    try:
        check = Check("io", program.stem, deadline)
        return await run_check(reaper, check, Context("", str(program.parent), os.getpid()), environ, f"check.{os.getpid()}.0.{program.parent.name}")
    finally:
        reaper.close()


async def test_a_check_that_does_not_answer_is_ended_with_its_tree_and_is_a_finding(program: Path) -> None:
    pids = program.parent / "pids"
    result = await result_of(
        program,
        f"""
import os, subprocess, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open({str(pids)!r} + ".new", "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename({str(pids)!r} + ".new", {str(pids)!r})
time.sleep(600)
""",
        deadline=5.0,
    )
    assert (result.Pass, result.code, result.CheckType) == (False, "timeout", "io")
    assert not set(map(int, pids.read_text().split())) & set(processes())


async def test_output_without_end_is_cut_and_a_finding(program: Path) -> None:
    result = await result_of(program, "while True: print('x' * 100000)")
    assert (result.Pass, result.code) == (False, "tooMuchOutput")


@pytest.mark.parametrize("line", ["", "nonsense", "[1]", "[" * 60000, '{"pass": "yes"}', '{"pass": null}'])
async def test_an_answer_that_is_none_never_passes(program: Path, line: str) -> None:
    assert (await result_of(program, f"print({line!r})")).Pass is False


async def test_a_check_that_dies_after_it_passed_did_not_pass(program: Path) -> None:
    result = await result_of(program, """print('{"pass": true}', flush=True); import os; os.abort()""")
    assert (result.Pass, result.code) == (False, "crashed")


async def test_a_check_that_cannot_start_says_why(program: Path) -> None:
    result = await result_of(program, "import no_such_module")
    assert (result.Pass, result.code) == (False, "crashed") and "No module named 'no_such_module'" in result.Result


async def test_only_finite_numbers_are_values(program: Path) -> None:
    result = await result_of(program, """print('{"pass": true, "values": {"a": 1, "b": "x", "c": NaN, "d": 1e999, "e": [2]}}')""")
    assert result.Pass and result.values == {"a": 1.0}


async def test_a_text_that_is_none_is_still_told(program: Path) -> None:
    result = await result_of(program, r"""print('{"pass": false, "result": "/data/\\udcff", "code": "\\ud800", "values": {"\\udcff": 1}}')""")
    assert (result.Pass, result.Result, result.values) == (False, "/data/?", {"?": 1.0})
    assert encode(CheckResponse((result,)))


async def test_a_round_runs_what_applies_here() -> None:
    reaper = Reaper()
    reaper.open()
    try:
        table = [row for row in CHECKS if row.name == "process"] + [Check("gpu", "no.such.module", 60.0, applies=lambda context: False)]
        context = Context("", os.getcwd(), os.getpid(), round="troubleshoot")
        results = await run_round(reaper, context, os.environ, scope=f"check.{os.getpid()}", table=table)
    finally:
        reaper.close()
    assert [(result.CheckType, result.Pass) for result in results] == [("process", True)]


def test_the_budgets_are_the_seeds_and_each_round_looks_at_what_it_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {check.name: check.deadline for check in CHECKS if check.name in DEADLINES} == DEADLINES
    monkeypatch.delenv("AEGIS_CHECKS_EXPECTED_GPUS", raising=False)
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert not registry.accelerators()
    monkeypatch.setenv("AEGIS_CHECKS_EXPECTED_GPUS", "8")
    assert registry.accelerators()
    rounds = {name: {check.name for check in CHECKS if name in check.rounds} for name in ("bootcheck", "troubleshoot", "hang")}
    assert rounds["bootcheck"] == rounds["troubleshoot"] == {"process", "io", "gpu", "runtime", "rdma"}
    assert rounds["hang"] == {"io", "gpu", "runtime", "rdma", "hang"}, "none of them stops, or needs a free device"
    runtime = registry.named("runtime")
    assert runtime is not None and not runtime.applies(Context("", "/", 1, round="bootcheck")), "the command names no python that uses torch"
    assert runtime.applies(Context("", "/", 1, round="bootcheck", python="/bin/python3")) and runtime.applies(Context("", "/", 1))


async def test_checks_of_a_round_run_side_by_side(tmp_path: Path) -> None:
    """Each waits for the other's file: in a row they would wait for ever."""
    for me, other in (("one", "two"), ("two", "one")):
        (tmp_path / f"meet_{me}.py").write_text(
            f"import os, time\nopen({str(tmp_path / me)!r}, 'w').close()\nwhile not os.path.exists({str(tmp_path / other)!r}): time.sleep(0.01)\n"
            "print('{\"pass\": true}')\n"
        )
    reaper = Reaper()
    reaper.open()
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    try:
        table = [Check("one", "meet_one", 60.0), Check("two", "meet_two", 60.0)]
        context = Context("", str(tmp_path), os.getpid(), round="bootcheck")
        results = await asyncio.wait_for(run_round(reaper, context, environ, scope=f"check.{os.getpid()}", table=table), 100)
    finally:
        reaper.close()
    assert all(result.Pass for result in results), results


async def test_of_several_checks_one_that_hangs_or_crashes_holds_itself_alone_and_one_that_ends_the_others_is_run_apart(tmp_path: Path) -> None:
    programs = {
        "hangs": "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('{\"pass\": true}', flush=True)\ntime.sleep(600)\n",
        "lingers": "import os, time\nprint('{\"pass\": true}', flush=True)\nos.closerange(1, 256)\ntime.sleep(600)\n",
        "leaves": "import os, time\nif os.fork() == 0:\n    null = os.open('/dev/null', os.O_RDWR)\n"
        "    [os.dup2(null, fd) for fd in (0, 1, 2)]\n    time.sleep(600)\nprint('{\"pass\": true}')\n",
        "crashes": "import no_such_module\n",
        "talks": "while True: print('x' * 100000)\n",
        "well": 'import json, sys\nprint(json.dumps({"pass": True, "result": json.loads(sys.stdin.readline())["cwd"]}))\n',
        "hostile": f"import os, signal\nif not os.path.exists({str(tmp_path / 'done')!r}):\n    open({str(tmp_path / 'done')!r}, 'w').close()\n"
        "    os.kill(os.getppid(), signal.SIGKILL)\n    signal.pause()\nprint('{\"pass\": true}')\n",
    }
    for name, text in programs.items():
        (tmp_path / f"part_{name}.py").write_text(text)
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    reaper = Reaper()
    reaper.open()

    async def found(*names: str) -> dict[str, CheckResult]:
        table = [Check(name, f"part_{name}", 4.0 if name in ("hangs", "lingers", "leaves") else 60.0) for name in names]
        scope = f"check.{os.getpid()}.{tmp_path.name}"
        results = await registry.run_checks(reaper, table, Context("", str(tmp_path), os.getpid()), environ, scope=scope)
        return {result.CheckType: result for result in results}

    try:
        one = await found("hangs", "lingers", "leaves", "crashes", "talks", "well")
        assert not members(f"check.{os.getpid()}.{tmp_path.name}"), "nothing of those that were ended is left"
        two = await found("hostile", "well")
    finally:
        reaper.close()
    assert {name: (result.Pass, result.code) for name, result in one.items()} == {
        "hangs": (False, "timeout"),
        "lingers": (False, "timeout"),
        "leaves": (True, ""),
        "crashes": (False, "crashed"),
        "talks": (False, "tooMuchOutput"),
        "well": (True, ""),
    }
    assert "no answer within 4 s" in one["hangs"].Result and "no end within 4 s" in one["lingers"].Result
    assert "No module named 'no_such_module'" in one["crashes"].Result and one["well"].Result == str(tmp_path)
    assert one["well"].duration < min(one["hangs"].duration, one["lingers"].duration), "each has the time at which its own answer came"
    assert all(result.Pass for result in two.values()), two


def test_checks_end_with_who_runs_them_however_that_ends(tmp_path: Path) -> None:
    (tmp_path / "part_asks.py").write_text("from aegis_agent.checks import tool\ntool.ask(['sleep', '600'], 500.0)\n")
    by_hand = "import asyncio\nfrom aegis_agent.checks.command import run_all\nfrom aegis_agent.checks.registry import Check\n"
    by_hand += "asyncio.run(run_all([Check(name, 'part_asks', 500.0) for name in ('one', 'two')]))"
    command = subprocess.Popen([sys.executable, "-c", by_hand], env={**os.environ, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"})
    scope = f"check.{command.pid}."
    try:
        until_sync(lambda: len(members(scope)) == 5, 60, "one that holds two checks, each with its tool")
        command.kill()
        command.wait(30)
        until_sync(lambda: not members(scope), 30, "all are gone")
    finally:
        command.kill()
        command.wait(30)
        for pid in members(scope):
            os.kill(pid, 9)


RANK = """
import os, signal
from aegis_agent.collective import member
me = os.getpid()
if os.fork() == 0:
    out = os.dup(1)
    member.alone(None, me)
    os.write(out, b"%d" % os.getpid())
signal.pause()
"""
CONDUCTOR = """
import os, signal
from aegis_agent.collective import program
out = os.dup(1)
class Hub:
    def __init__(self, listener, told): pass
    def run(self):
        os.write(out, b"%d" % os.getpid())
        signal.pause()
program.Hub = Hub
program.hold_hub({"hub": ["127.0.0.1", 0], "meet": 10.0})
signal.pause()
"""


@pytest.mark.parametrize("text", [RANK, CONDUCTOR], ids=["rank", "conductor"])
def test_what_a_member_of_a_meeting_forks_ends_with_it_however_that_ends(text: str) -> None:
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        rank = live(os.read(parent.stdout.fileno(), 32).decode())
        parent.kill()
        assert rank is not None
        try:
            until_sync(lambda: (now := live(rank.pid)) is None or now.start != rank.start, 30, "the rank is gone")
        finally:
            send(rank, signal.SIGKILL)


def test_a_check_s_tool_that_ends_while_it_is_looked_at_is_no_leftover(monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = f"left{os.getpid()}.w0.1."
    looked: list[str] = []

    def once(path: str, size: int = 65536) -> bytes:
        """What /proc says of it at the first look; it is gone at the next."""
        if path == f"/proc/{child.pid}/environ" and looked:
            return b""
        looked.extend([path] if path == f"/proc/{child.pid}/environ" else [])
        return contents(path, size)

    contents = procs.contents
    for scope, expected in ((f"{prefix}check-together", False), (f"{prefix}agent", False), (f"{prefix}0", True)):
        child = subprocess.Popen(["sleep", "600"], env={**os.environ, procs.VARIABLE: scope})
        try:
            until_sync(lambda pid=child.pid, scope=scope: procs.variable(pid, procs.VARIABLE) == scope, 30)
            looked.clear()
            with monkeypatch.context() as patched:
                patched.setattr(procs, "contents", once)
                assert (child.pid in process.leftovers(prefix)) is expected
        finally:
            child.kill()
            child.wait()
