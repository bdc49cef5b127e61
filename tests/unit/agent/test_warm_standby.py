"""The warm standby: a script forked out of it is the script executed cold, and where it would not be, it is executed cold."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_agent.env import RunPlan, rank_environment
from aegis_agent.procs import carries, processes
from aegis_agent.reaper import Child, Reaper
from aegis_agent.scope import end_scope, scope_id
from aegis_agent.warm import Standby, python_command, run
from aegis_agent.warm import standby as module
from harness.waiting import until

UID = f"warm-{os.getpid()}"
PYTHON = sys.executable

SHOW = """
import json, os, pathlib, signal, sys, threading, warnings
import numpy  # of site-packages
main = sys.modules["__main__"]
link = lambda fd: os.readlink(f"/proc/self/fd/{fd}") if os.path.exists(f"/proc/self/fd/{fd}") else ""
fds = [fd for fd in range(3, 64) if link(fd) and not link(fd).endswith((".modules", "/fd"))]
read = lambda name: pathlib.Path(f"/proc/self/{name}").read_bytes()
told = dict(item.split(b"=", 1) for item in read("environ").split(b"\\0") if b"=" in item)
print(json.dumps({
    "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "file": __file__, "name": __name__, "main": sorted(vars(main)),
    "is": main.__dict__ is globals(),
    "loader": type(__loader__).__name__, "spec": repr(__spec__), "flags": str(sys.flags), "cwd": os.getcwd(),
    "environ": dict(sorted(os.environ.items())),
    "scope": told[b"AEGIS_SCOPE"].decode(), "rank": told[b"RANK"].decode(), "port": told[b"MASTER_PORT"].decode(),
    "cmdline": read("cmdline").rstrip(b"\\0").decode().split("\\0"), "comm": read("comm").decode(), "stdin": os.readlink("/proc/self/fd/0"),
    "stdout": os.readlink("/proc/self/fd/1").split(":")[0], "seekable": sys.stdout.seekable(), "buffered": sys.stdout.line_buffering, "fds": fds,
    "leader": os.getpid() == os.getpgid(0) == os.getsid(0), "parent": os.getppid(), "threads": threading.active_count(),
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()], "mask": str(signal.pthread_sigmask(0, [])),
    "umask": os.umask(0o22), "meta": [str(finder)[:40] for finder in sys.meta_path if type(finder).__name__ != "Recorder"],
}))
print("to stderr", file=sys.stderr)
"""
ENDS = {
    "exits 3": "import sys; sys.exit(3)",
    "exits with a text": "import sys; sys.exit('no data')",
    "raises": "def f(x):\n    return 1 / x\n\ntry:\n    f(0)\nexcept ZeroDivisionError as e:\n    raise ValueError('bad') from e\n",
    "does not parse": "def f(:\n",
    "has a hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0].__name__)\nraise KeyError(1)\n",
    "is interrupted": "raise KeyboardInterrupt\n",
    "is killed": "import os\nprint('last', flush=True)\nos.kill(os.getpid(), 11)\n",
    "cleans up": "import atexit, threading\natexit.register(print, 'at exit')\nthreading.Timer(.05, print, ['thread']).start()\n",
    "leaves at once": "import os\nprint('lost')\nos._exit(5)\n",
    "warns": "import warnings\nwarnings.warn('careful')\nprint(sum(range(4)))\n",
}


class Lab:
    """A reaper, and the environment of a rank, as the agent has them."""

    def __init__(self, reaper: Reaper, folder: Path) -> None:
        self.reaper, self.folder = reaper, folder
        self.said: list[str] = []
        self.standby: Standby | None = None

    def env(self, incarnation: int, name: str = "", **more: str) -> dict[str, str]:
        scope = scope_id(UID, "w0", 1, name or incarnation)
        plan = RunPlan("job-1", "w0", 1, incarnation, 0, 1, 1, "127.0.0.1", 29500 + incarnation, 3, scope, node="n1")
        base = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **more}
        return rank_environment(base, plan, 0)

    def open(self, argv: list[str], cwd: Path | None = None) -> Standby:
        command = python_command(argv)
        assert command is not None
        self.standby = Standby(self.reaper, command, self.env(0, "agent"), cwd=str(cwd or self.folder), folder=self.folder, say=self.said.append)
        self.standby.open()
        return self.standby

    async def ready(self, preloaded: int = 0) -> Standby:
        standby = self.standby
        assert standby is not None
        await until(lambda: standby.given_up or (standby._idle and standby.preloaded >= preloaded), 60, "the standby is ready")
        assert not standby.given_up, standby.given_up
        return standby

    async def finish(self, child: Child) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        assert child.stdout is not None and child.stderr is not None
        async with asyncio.timeout(30):
            out, err = await asyncio.gather(asyncio.to_thread(child.stdout.read), asyncio.to_thread(child.stderr.read))
            return await child.exit, out.decode(), err.decode()

    async def cold(self, argv: list[str], incarnation: int = 1, cwd: Path | None = None) -> tuple[int, str, str]:
        return await self.finish(
            self.reaper.spawn(argv, env=self.env(incarnation), cwd=str(cwd or self.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )

    def fork(self, argv: list[str], incarnation: int = 1, cwd: Path | None = None, record: bool = True) -> tuple[Child, bool]:
        options = dict(cwd=str(cwd or self.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, record=record)
        return run(self.standby, self.reaper, argv, env=self.env(incarnation), **options)

    async def warm(self, argv: list[str], incarnation: int = 1, cwd: Path | None = None) -> tuple[int, str, str]:
        child, warm = self.fork(argv, incarnation, cwd)
        assert warm, self.standby and self.standby.given_up
        return await self.finish(child)


@pytest_asyncio.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    for name in ("LOOK", "QUIET", "LOOK_LATER"):
        monkeypatch.setattr(module, name, 0.05)
    reaper = Reaper()
    reaper.open()
    made = Lab(reaper, tmp_path)
    yield made
    if made.standby is not None:
        made.standby.close()
    await end_scope(f"{UID}.", limit=5.0)
    reaper.close()


@pytest.mark.parametrize(
    "argv",
    [
        [PYTHON, "show.py", "--lr", "1e-4", "ä b"],
        [PYTHON, "-u", "-W", "error::UserWarning", "-Xdev", "./show.py"],
        ["bash", "-c", f"{PYTHON} -B pkg/../show.py x=1,2"],
        [PYTHON, "-I", "{folder}/show.py"],
    ],
)
async def test_a_script_out_of_the_standby_finds_what_it_finds_cold(lab: Lab, tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "pkg").mkdir()
    argv = [word.replace("{folder}", str(tmp_path)) for word in argv]
    lab.open(argv)
    await lab.ready()
    first = await lab.warm(argv, 0)
    await lab.ready(preloaded=100)
    code, out, err = await lab.warm(argv)
    cold_code, cold_out, cold_err = await lab.cold(argv)
    assert (code, err) == (cold_code, cold_err) and cold_code == first[0] == 0, err + cold_err
    told, wanted = json.loads(out), json.loads(cold_out)
    for name in ("PWD", "SHLVL", "_", "OLDPWD") if argv[0] == "bash" else ():  # a shell's own words
        wanted["environ"].pop(name, None)
    for key, value in wanted.items():
        assert told[key] == value, key
    assert any("ready" in line for line in lab.said)


@pytest.mark.parametrize("name", ENDS)
async def test_a_script_out_of_the_standby_ends_as_it_ends_cold(lab: Lab, tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(ENDS[name])
    argv = [PYTHON, "train.py"]
    lab.open(argv)
    await lab.ready()
    assert await lab.warm(argv) == await lab.cold(argv)


async def test_what_the_run_before_imported_is_there_and_the_users_own_files_are_not(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import wave\n")
    (tmp_path / "train.py").write_text("import sys\nprint([m in sys.modules for m in ('numpy.linalg', 'wave', 'mine')])\nimport numpy.linalg, mine\n")
    argv = [PYTHON, "train.py"]
    lab.open(argv)
    await lab.ready()
    assert (await lab.warm(argv, 0))[1] == "[False, False, False]\n"
    await lab.ready(preloaded=100)
    assert (await lab.warm(argv, 1))[1] == "[True, True, False]\n"
    (tmp_path / "train.py").write_text("import mine\nprint('new', mine.X)\n")
    (tmp_path / "mine.py").write_text("X = 2\n")
    assert (await lab.warm(argv, 2))[1] == "new 2\n"


async def test_a_fork_is_found_by_its_scope_and_dies_with_what_ended_it(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import subprocess, time\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\ntime.sleep(600)\n")
    argv = [PYTHON, "train.py"]
    lab.open(argv)
    await lab.ready()
    child, warm = lab.fork(argv, 4)
    assert warm and child.stdout is not None
    inner = int((await asyncio.to_thread(child.stdout.readline)).decode())
    scope = scope_id(UID, "w0", 1, 4)
    assert carries(child.pid, scope, whole=True)
    await until(lambda: carries(inner, scope, whole=True))  # in the middle of its exec it shows no environment yet
    assert processes()[child.pid].parent == os.getpid()
    ended = await end_scope(scope, whole=True, limit=5.0)
    assert ended.clean and await child.exit in (-15, -9) and inner not in processes()
    assert (await lab.ready())._idle


def site_package(tmp_path: Path, text: str) -> Callable[[], None]:
    """A package in the site-packages of the interpreter of these tests, until the returned function is called."""
    import sysconfig

    path = Path(sysconfig.get_paths()["purelib"]) / f"aegis_test_{os.getpid()}.py"
    path.write_text(text)
    return path.unlink


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import os\nRANK = int(os.environ.get('RANK', 0))\n", "reads RANK"),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n", "starts threads"),
    ],
)
async def test_a_package_that_a_fork_would_harm_is_not_preloaded(lab: Lab, tmp_path: Path, text: str, why: str) -> None:
    remove = site_package(tmp_path, text)
    try:
        name = f"aegis_test_{os.getpid()}"
        (tmp_path / "train.py").write_text(f"import sys\nprint('{name}' in sys.modules)\nimport numpy, {name}\n")
        argv = [PYTHON, "train.py"]
        standby = lab.open(argv)
        await lab.ready()
        await lab.warm(argv, 0)
        await until(lambda: standby._tainted == {name} and standby.preloaded > 100 and standby._idle, 60, why)
        assert (await lab.warm(argv, 1))[1] == "False\n"
    finally:
        remove()


async def test_files_of_a_preloaded_package_that_changed_are_read_anew(lab: Lab, tmp_path: Path) -> None:
    remove = site_package(tmp_path, "X = 1\n")
    try:
        name = f"aegis_test_{os.getpid()}"
        (tmp_path / "train.py").write_text(f"import {name}\nprint({name}.X)\n")
        argv = [PYTHON, "train.py"]
        standby = lab.open(argv)
        await lab.ready()
        assert (await lab.warm(argv, 0))[1] == "1\n"
        await lab.ready(preloaded=1)
        site_package(tmp_path, "X = 22\n")
        child, warm = lab.fork(argv, 1)
        assert not warm and (await lab.finish(child))[1] == "22\n"
        assert not standby.given_up
        await lab.ready()
        assert (await lab.warm(argv, 2))[1] == "22\n"
    finally:
        remove()


async def test_a_standby_that_died_is_not_tried_again_and_the_cold_path_works(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    argv = [PYTHON, "train.py"]
    standby = lab.open(argv)
    await lab.ready()
    assert standby._child is not None
    os.kill(standby._child.pid, 9)
    for incarnation in (0, 1):
        child, warm = lab.fork(argv, incarnation)
        assert not warm and (await lab.finish(child))[:2] == (0, "trained\n")
    assert "given up" in lab.said[0] and len(lab.said) == 1


async def test_a_standby_that_does_not_answer_costs_two_seconds_once(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    argv = [PYTHON, "train.py"]
    standby = lab.open(argv)
    await lab.ready()
    assert standby._child is not None
    os.kill(standby._child.pid, 19)
    began = time.monotonic()
    child, warm = lab.fork(argv, 1)
    assert not warm and time.monotonic() - began < module.ANSWER + 2
    assert (await lab.finish(child))[1] == "trained\n" and standby.given_up


def framed(*messages: str) -> str:
    """As printf writes it."""
    return "".join(f"\\0\\0\\0\\{len(message):o}{message}" for message in messages)


@pytest.mark.parametrize("words", [framed("junk"), framed("[]"), "\\377" * 8, framed('{"is":"up"}', '{"is":"forked","pid":1}')])
async def test_an_interpreter_that_talks_nonsense_is_given_up_and_the_cold_path_works(lab: Lab, tmp_path: Path, words: str) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/bash\nif [ -n "$AEGIS_WARM_FD" ]; then printf \'{words}\' >&$AEGIS_WARM_FD; sleep 60; fi\nexec {PYTHON} "$@"\n')
    python.chmod(0o755)
    standby = lab.open([str(python), "train.py"])
    child, warm = lab.fork([str(python), "train.py"])
    assert not warm and (await lab.finish(child))[:2] == (0, "trained\n")
    assert standby.given_up and len(standby._data) < module.MOST_SAID


@pytest.mark.parametrize(
    ("argv", "plain"),
    [
        (["python", "train.py", "--x"], True),
        (["/opt/env/bin/python3.11", "-u", "-X", "dev", "train.py"], True),
        (["bash", "-c", "python -u train.py --lr=1e-4 data/a.txt"], True),
        (["python", "-m", "train"], False),
        (["python", "-c", "print(1)"], False),
        (["python", "-i", "train.py"], False),
        (["python"], False),
        (["bash", "-c", "cd x && python train.py"], False),
        (["bash", "-c", "python train.py --lr $LR"], False),
        (["bash", "-c", "python train.py", "name"], False),
        (["torchrun", "train.py"], False),
        (["python", "-m", "torch.distributed.run", "train.py"], False),
        (["./train.py"], False),
        (["pythonista", "train.py"], False),
    ],
)
def test_only_a_plain_python_script_is_started_out_of_a_standby(argv: list[str], plain: bool) -> None:
    assert (python_command(argv) is not None) == plain
