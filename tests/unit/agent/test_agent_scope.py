"""A run is ended as a whole: whatever hid, ignored SIGTERM, was stopped or daemonised; and nothing else is touched."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_agent import cgroup
from aegis_agent.env import RunPlan
from aegis_agent.procs import Proc, carries, live, members, scope_id, start_ticks
from aegis_agent.reaper import Child, Reaper
from aegis_agent.runner import Run
from aegis_agent.scope import Patience, all_exited, end, end_scope, send, ticks_now
from agent_scripted_master import until

SCOPE = f"uid-{os.getpid()}.w0.1.0"


def plan(nproc: int = 1, incarnation: int = 0, uid: str = "") -> RunPlan:
    scope = scope_id(uid or f"uid-{os.getpid()}", "w0", 1, incarnation)
    return RunPlan("job-1", "w0", 1, incarnation, 0, 1, nproc, "127.0.0.1", 29500, 3, scope)


@pytest_asyncio.fixture
async def reaper() -> AsyncIterator[Reaper]:
    opened = Reaper()
    opened.open()
    yield opened
    await end_scope(f"uid-{os.getpid()}.", limit=5.0)
    opened.close()


def started(reaper: Reaper, script: str, *, nproc: int = 1, grace: float = 5.0, python: bool = False) -> Run:
    argv = [sys.executable, "-c", script] if python else ["sh", "-c", script]
    run = Run(reaper, plan(nproc), argv, environ=os.environ, grace=grace)
    run.start()
    return run


def of_scope() -> list[int]:
    return sorted(members(SCOPE, whole=True))


async def test_obedient_children_are_gone_and_verified(reaper: Reaper) -> None:
    for _ in range(5):
        run = started(reaper, "exec sleep 600", nproc=4)
        await until(lambda: len(of_scope()) == 4, "four sleepers")
        ended = await run.stop()
        assert ended.clean and ended.killed == 0 and not of_scope()


async def test_what_a_training_starts_to_save_is_left_to_it_and_its_orphans_are_told(reaper: Reaper, tmp_path: Path) -> None:
    """The handler of SIGTERM starts two programs: one that it waits for, and one that it leaves behind."""
    save = f"trap 'echo told >> {tmp_path}/save' TERM; echo $$ > {tmp_path}/saver; while [ ! -e {tmp_path}/done ]; do sleep 0.02; done"
    left = f"trap 'echo told >> {tmp_path}/left; exit 0' TERM; echo $$ > {tmp_path}/leaver; while :; do sleep 0.02; done"
    script = f"""
import os, signal, subprocess, sys, time
def save(*_):
    subprocess.Popen(["sh", "-c", {left!r}])
    subprocess.run(["sh", "-c", {save!r}])
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open({str(tmp_path / "ready")!r}, "w").close()
while True:
    time.sleep(0.02)
"""
    run = started(reaper, script, python=True, grace=60.0)
    await until((tmp_path / "ready").exists, "handler")
    since = ticks_now()
    pid = run.pids[0]
    os.kill(pid, signal.SIGTERM)
    await until(lambda: all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in ("saver", "leaver")), "both have started")
    begun = time.monotonic()
    ending = asyncio.ensure_future(end(lambda: members(SCOPE, whole=True), Patience(60.0), told={(pid, start_ticks(pid) or 0)}, since=since))
    saver = int((tmp_path / "saver").read_text())
    while time.monotonic() < begun + 0.5:  # many sweeps could have told it by now
        assert start_ticks(saver) is not None
        await asyncio.sleep(0.05)
    assert not (tmp_path / "save").exists() and not (tmp_path / "left").exists()
    (tmp_path / "done").touch()
    ended = await ending
    assert ended.clean and ended.killed == 0, "nobody waited for the grace to end"
    assert not (tmp_path / "save").exists()
    assert (tmp_path / "left").read_text() == "told\n"


async def test_daemons_that_forked_twice_into_their_own_session_are_found(reaper: Reaper, tmp_path: Path) -> None:
    daemon = tmp_path / "daemon.pid"
    script = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(daemon)!r}, 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
"""
    run = started(reaper, script, python=True)
    pid = int(await until(lambda: daemon.exists() and daemon.read_text(), "daemon"))
    result = await run.result  # its parent ended with 0; the run is over only when the daemon is gone
    assert result.code == 0 and run.gone is not None and run.gone.clean
    assert start_ticks(pid) is None


async def test_a_daemon_without_our_environment_is_found_by_descent(reaper: Reaper, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    run = started(reaper, f"setsid env -i sh -c 'echo $$ > {file}; exec sleep 600' & exec sleep 600")
    pid = int(await until(lambda: file.exists() and file.read_text().strip(), "pid"))
    assert not carries(pid, SCOPE)
    assert (await run.stop()).clean and start_ticks(pid) is None


async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(reaper: Reaper) -> None:
    run = started(reaper, "trap '' TERM; echo > /dev/null; while :; do sleep 600; done", grace=0.3)
    await until(lambda: len(of_scope()) == 2, "shell and sleep")
    begun = time.monotonic()
    ended = await run.stop()
    assert ended.clean and ended.killed >= 1 and time.monotonic() - begun >= 0.3
    assert run.result.result().ending.signal == signal.SIGKILL


async def test_patience_can_only_be_shortened(reaper: Reaper) -> None:
    run = started(reaper, "trap '' TERM; while :; do sleep 600; done", grace=600)
    await until(lambda: len(of_scope()) == 2, "shell and sleep")
    first = asyncio.ensure_future(run.stop())
    await asyncio.sleep(0)
    longer = asyncio.ensure_future(run.stop(1200))
    await asyncio.sleep(0)
    begun = time.monotonic()
    assert (await run.stop(0.1)).clean and (await first).clean and (await longer).clean
    assert time.monotonic() - begun < 60.0


async def test_a_stopped_child_hears_sigterm(reaper: Reaper, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    script = f"""
import signal, sys, time, pathlib
signal.signal(15, lambda *_: (pathlib.Path({str(saved)!r}).touch(), sys.exit(0)))
time.sleep(600)
"""
    run = started(reaper, script, python=True, grace=10)
    (pid,) = await until(of_scope, "child")
    await until(lambda: _handles(pid, signal.SIGTERM), "handler")
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: _state(pid) == "T", "stopped child")
    ended = await run.stop()
    assert ended.clean and ended.killed == 0 and saved.exists()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _handles(pid: int, number: int) -> bool:
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


async def test_orphans_are_reaped(reaper: Reaper) -> None:
    before = reaper.orphans
    run = started(reaper, "for i in 1 2 3 4 5; do setsid sh -c 'exit 0' & done; (sleep 0.05 &) ; exec sleep 600")
    await until(lambda: reaper.orphans > before, "orphan")
    await run.stop()
    await until(lambda: not _zombies(), "no zombie left")


def _zombies() -> list[int]:
    mine = []
    for name in os.listdir("/proc"):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split() if name.isdigit() else []
        except OSError:
            continue
        if fields[:2] == ["Z", str(os.getpid())]:
            mine.append(int(name))
    return mine


async def test_processes_of_others_are_untouched(reaper: Reaper) -> None:
    env = {**os.environ, "AEGIS_SCOPE": scope_id(f"uid-{os.getpid()}", "w0", 1, 7), "X": f"AEGIS_SCOPE={SCOPE}"}
    other = reaper.spawn(["sleep", "600"], env=env, helper=True)
    run = started(reaper, "exec sleep 600")
    assert (await run.stop()).clean
    assert other.alive and live(other.pid) is not None


async def test_a_helper_of_the_agent_lives_on(reaper: Reaper) -> None:
    helper = reaper.spawn(["sh", "-c", "sleep 600 & wait"], env={"PATH": os.environ["PATH"]}, helper=True)
    run = started(reaper, "exec sleep 600")
    assert (await run.stop()).clean and helper.alive
    assert len(members("no-such-scope", roots=(os.getpid(),), spare=())) >= 2


async def test_a_scope_is_not_a_prefix_of_another(reaper: Reaper) -> None:
    run = Run(reaper, plan(incarnation=10), ["sleep", "600"], environ=os.environ)
    run.start()
    await until(lambda: members(scope_id(f"uid-{os.getpid()}", "w0", 1, 10), whole=True), "sleeper of incarnation 10")
    assert not members(scope_id(f"uid-{os.getpid()}", "w0", 1, 1), whole=True)
    assert members(f"uid-{os.getpid()}.w0.1.")
    await run.stop()


async def test_the_sweep_of_a_node_daemon_ends_what_a_dead_agent_left() -> None:
    """No agent any more: only the environment says whose it is."""
    env = {**os.environ, "AEGIS_SCOPE": f"left-{os.getpid()}.w0.1.3"}
    child = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], env=env, start_new_session=True)  # noqa: ASYNC220
    try:
        await until(lambda: len(members(f"left-{os.getpid()}.w0.1.")) == 3, "shell and two sleeps")
        ended = await end_scope(f"left-{os.getpid()}.w0.1.", grace=5.0)
        assert ended.clean and not members(f"left-{os.getpid()}.")
    finally:
        child.wait()


async def test_what_would_not_die_is_told() -> None:
    immortal = Proc(os.getpid(), 1, 1)  # a pid with another start time: never signalled, never gone
    ended = await end(lambda: {immortal.pid: immortal}, Patience(0.0), limit=0.3)
    assert not ended.clean and ended.left == (os.getpid(),)


async def test_a_reused_pid_is_never_hit() -> None:
    child = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220
    try:
        proc = await until(lambda: live(child.pid), "sleep")
        assert not send(Proc(child.pid, 0, proc.start + 1), signal.SIGKILL)
        assert await all_exited([Proc(child.pid, 0, proc.start + 1)], 5.0)
        assert not await all_exited([proc], 0.05)
        assert send(proc, signal.SIGKILL) and await all_exited([proc], 5.0)
    finally:
        child.kill()
        child.wait()


async def test_a_leader_whose_threads_live_on_is_alive() -> None:
    script = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nctypes.CDLL(None).syscall(60, 0)"
    child = subprocess.Popen([sys.executable, "-c", script])  # noqa: ASYNC220
    try:
        await until(lambda: _state(child.pid) == "Z", "zombie leader")
        proc = live(child.pid)
        assert proc is not None and send(proc, signal.SIGKILL) and await all_exited([proc], 5.0)
    finally:
        child.wait()


async def test_children_die_with_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"""
import asyncio, os
from aegis_agent.reaper import Reaper
async def main():
    r = Reaper(); r.open()
    c = r.spawn(["sleep", "600"], env=os.environ)
    open({str(file)!r}, "w").write(str(c.pid))
    await asyncio.sleep(600)
asyncio.run(main())
"""
    agent = subprocess.Popen([sys.executable, "-c", script])  # noqa: ASYNC220
    pid = int(await until(lambda: file.exists() and file.read_text(), "child"))
    proc = live(pid)
    assert proc is not None
    agent.kill()
    agent.wait()
    assert await all_exited([proc], 5.0)


@pytest.mark.skipif(cgroup.own_cgroup() is None or not os.access(cgroup.own_cgroup() or "/", os.W_OK), reason="no cgroup of our own here")
async def test_a_cgroup_of_ours_holds_the_run_and_is_gone_with_it(reaper: Reaper) -> None:
    folder = (cgroup.own_cgroup() or Path()) / f"aegis-{SCOPE}"
    run = started(reaper, "trap '' TERM; while :; do sleep 600; done", grace=0.1)
    await until(lambda: len(of_scope()) == 2, "shell and sleep")
    assert sorted(int(line) for line in (folder / "cgroup.procs").read_text().split()) == of_scope()
    assert (await run.stop()).clean and not folder.exists()


@pytest.mark.skipif(cgroup.own_cgroup() is None or not os.access(cgroup.own_cgroup() or "/", os.W_OK), reason="no cgroup of our own here")
async def test_empty_cgroups_of_killed_agents_go_and_used_ones_stay(reaper: Reaper, monkeypatch: pytest.MonkeyPatch) -> None:
    used, empty = cgroup.Cgroup.make(SCOPE), cgroup.Cgroup.make(f"{SCOPE}-left")
    assert used is not None and empty is not None
    child = reaper.spawn(["sleep", "600"], env=os.environ, cgroup_procs=used.procs)
    cgroup.remove_abandoned(used.folder.parent)
    assert empty.folder.exists()  # young: its agent may be about to use it
    monkeypatch.setattr(cgroup, "ABANDONED", -1.0)
    cgroup.remove_abandoned(used.folder.parent)
    assert used.folder.exists() and not empty.folder.exists()
    used.kill()
    assert await child.exit == -9
    used.remove()


async def test_an_exit_is_noticed_with_its_signal(reaper: Reaper) -> None:
    for _ in range(3):
        child: Child = reaper.spawn(["sleep", "600"], env=os.environ)
        await asyncio.sleep(0)
        os.kill(child.pid, signal.SIGKILL)
        assert await child.exit == -9
