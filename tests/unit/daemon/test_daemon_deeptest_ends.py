"""Deep tests on a machine that is ill: what cannot be begun, counted or ended is an answer, and never ends or holds the daemon."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from aegis_agent import scope
from aegis_agent.daemon import deeptests
from aegis_agent.daemon.deeptests import FILE, TRIES, DeepTests, Kept
from aegis_agent.handover import now_ms
from aegis_bus.connection import Bus, Stored
from aegis_proto.deeptest import DeepTest, DeepTestDone
from aegis_proto.messages import decode, encode
from harness.waiting import until, until_sync


class Orders:
    """The one order that is in the store, and what was told of it."""

    def __init__(self, order: DeepTest) -> None:
        self.order = order
        self.told: list[DeepTestDone] = []

    async def get(self, stream: str, subject: str) -> Stored:
        return Stored(subject, 1, now_ms(), encode(self.order), {})

    async def publish(self, subject: str, data: bytes, msg_id: str) -> None:
        self.told.append(decode(DeepTestDone, data))

    async def looked_at(self, tests: DeepTests) -> DeepTestDone:
        async with asyncio.timeout(60):
            await tests.look(cast(Bus, self))
        return self.told[-1]


@pytest.fixture
def orders() -> Orders:
    return Orders(DeepTest(f"a{os.getpid()}d{time.monotonic_ns():x}"[:36], "alice", seconds=0.1, at=now_ms()))


@pytest.fixture
def sleeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """In place of a test: something that sleeps; pids of what was started. Ended with this test, whatever becomes of it."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    begun: list[subprocess.Popen[bytes]] = []
    pids: list[int] = []
    start = subprocess.Popen

    def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(start(*args, **options))
        pids.append(begun[-1].pid)
        return begun[-1]

    monkeypatch.setattr(deeptests.subprocess, "Popen", popen)
    yield pids
    for process in begun:
        process.kill()
        process.wait(30)


def daemon_in(state: Path, busy: Callable[[], str] = lambda: "") -> DeepTests:
    return DeepTests("n1", state, "boot", busy, dict(os.environ))


async def test_a_test_that_cannot_be_ended_is_a_failure_and_holds_nobody(
    orders: Orders, sleeping: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a process in the kernel that hears no signal: the loop goes on, and the order is answered."""

    async def given_up(*args: Any, **options: Any) -> scope.Ended:
        return scope.Ended(False, 30.0, 1, tuple(sleeping))

    monkeypatch.setattr(scope, "end", given_up)
    monkeypatch.setattr(deeptests, "REAPED", 0.05)
    tests = daemon_in(tmp_path, lambda: "job-a/w0" if sleeping else "")
    done = await orders.looked_at(tests)
    assert (done.state, done.code) == ("failed", "unkillable") and tests.pid == 0, done
    assert scope.live(sleeping[0]) is not None, "nothing waited for it"
    (tmp_path / FILE).write_bytes(msgspec.json.encode(Kept(orders.order.id, "boot", 1, pid=sleeping[0])))
    again = await orders.looked_at(daemon_in(tmp_path))
    assert (again.state, again.code, len(sleeping)) == ("failed", "unkillable", 1), "a daemon after this one begins none beside it"


async def test_without_room_for_its_output_a_test_cannot_run_and_the_daemon_goes_on(
    orders: Orders, sleeping: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    done = await orders.looked_at(daemon_in(tmp_path))
    assert (done.state, done.code) == ("failed", "cannotRun") and "No space left" in done.message and not sleeping, done


async def test_a_test_that_cannot_be_counted_is_not_begun(
    orders: Orders, sleeping: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that takes the machine down would be begun again after every start of it."""

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(deeptests, "write_whole", full)
    for _ in range(2):  # and so says the daemon after this one
        done = await orders.looked_at(daemon_in(tmp_path))
        assert (done.state, done.code) == ("failed", "cannotRun") and FILE in done.message and not sleeping, done


@pytest.mark.parametrize("replaced", [False, True])
async def test_what_a_killed_daemon_began_and_did_not_come_to_note_is_ended_before_the_next(orders: Orders, tmp_path: Path, replaced: bool) -> None:
    begun = orders.order.id
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, scope.VARIABLE: f"deep.n1.{begun}"}, start_new_session=True)  # noqa: ASYNC220
    try:
        until_sync(lambda: scope.carries(left.pid, f"deep.n1.{begun}", whole=True), 30, "it is started")
        (tmp_path / FILE).write_bytes(msgspec.json.encode(Kept(begun, "boot", TRIES)))
        if replaced:
            orders.order = msgspec.structs.replace(orders.order, id=f"b{begun}"[:36])
        looked = asyncio.create_task(orders.looked_at(daemon_in(tmp_path, lambda: "job-a/w0")))
        await until(lambda: left.poll() == -9, 30, "the test that was left is ended")
        assert (await looked).code == ("busy" if replaced else "no_end")
    finally:
        left.kill()
        left.wait(30)
