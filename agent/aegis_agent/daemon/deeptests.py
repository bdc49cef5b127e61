"""Deep tests of this node, by order of a service: reads what is wanted, runs it when nobody trains here, tells what came out, once.

Owns `<state>/deeptest.json` (the order that was taken up, and the answer until it is told), `<state>/deep/` (this node's own speeds, see
`deep.baseline`) and the processes of a test. Reads `aegis.node.<n>.test`; writes `aegis.node.<n>.event.test`. A worker that is placed here has the
node at once: the test is ended, and begins again when the node is free, within what its order allows.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
from aegis_bus.connection import Bus, Stored
from aegis_proto import subjects
from aegis_proto.deeptest import LEAST_SECONDS, MOST_SECONDS, DeepTest, DeepTestDone
from aegis_proto.ids import is_id
from aegis_proto.messages import BadMessage, CheckResult, decode, encode

from aegis_agent import own, scope
from aegis_agent.handover import now_ms, write_whole

log = structlog.get_logger()

FILE = "deeptest.json"
LOOK = 0.5
"""Seconds between two looks whether a worker has come."""
RESERVE = 900.0
"""Seconds a whole test may take beyond what its parts were given: interpreters, torch, large memories filled once."""
PARTS = 12
"""Parts that are given the seconds of the order, at most: memory, compute and copies of host and devices, one collective after the other."""
LATE = 600.0
"""An order that is found this many seconds after it was given, or after its own limit, is of another time."""
TRIES = 3
MOST_BYTES = 48_000
"""Of an answer: an event holds 64 KB."""
REAPED = 2.0
"""Seconds between the end of a process and its exit code: threads of it may still leave the kernel."""
STUCK = "the tests cannot be ended: a process of them is stuck in the kernel"


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The order taken up last. `boot`: of the machine, when its test began. `done`: the answer; `told`: it is in the stream."""

    id: str = ""
    boot: str = ""
    tries: int = 0
    waits: bool = False
    pid: int = 0
    done: DeepTestDone | None = None
    told: bool = False


class DeepTests:
    """`busy()` says who uses this node, "" when nobody does; `environ` is what the tests are started with."""

    def __init__(self, node: str, state: Path, boot: str, busy: Callable[[], str], environ: dict[str, str]) -> None:
        self._node, self._boot, self._busy, self._environ = node, boot, busy, environ
        self._file, self._own = state / FILE, state / "deep"
        self._log = log.bind(node=node)
        self._process: subprocess.Popen[bytes] | None = None
        self._newer = False
        try:
            self._kept = msgspec.json.decode(self._file.read_bytes(), type=Kept)
        except (OSError, msgspec.MsgspecError):
            self._kept = Kept()

    def heard(self, data: bytes) -> None:
        """What a wake-up showed: another order ends the test that runs."""
        try:
            self._newer = decode(DeepTest, data).id != self._kept.id
        except BadMessage:
            pass

    @property
    def pid(self) -> int:
        """Of the test that runs, 0 when none does."""
        return self._process.pid if self._process is not None else 0

    async def look(self, bus: Bus) -> None:
        """Bring this node up to its order. BusError when that could not be read or told: it is called again."""
        stored = await bus.get("NODES", subjects.node_test(self._node))
        order = self._order(stored)
        if order is None or stored is None:
            return
        if self._kept.id != order.id:
            late = now_ms() - max(stored.time_ms, order.until) > LATE * 1000
            self._newer = False
            if self._kept.tries and self._kept.done is None and self._kept.boot == self._boot:
                await self._end(self._kept.pid)  # of a daemon before this one
            self._keep(Kept(order.id))
            if late:
                self._done(order, "refused", "it was asked for before this daemon came, and is of another time", "late")
        elif self._kept.done is None and self._kept.tries:
            await self._cut_short(order)
        if self._kept.done is None:
            await self._serve(bus, order)
        if self._kept.done is not None and not self._kept.told:
            await self._tell(bus, self._kept.done)
            self._keep(msgspec.structs.replace(self._kept, told=True))

    def _order(self, stored: Stored | None) -> DeepTest | None:
        if stored is None or stored.marker:
            return None
        try:
            order = decode(DeepTest, stored.data)
        except BadMessage as error:
            self._log.error("an order of deep tests cannot be read", error=str(error))
            return None
        return order if is_id(order.id) else None

    async def _cut_short(self, order: DeepTest) -> None:
        """A test that was begun has no end: the machine went down in it, or this daemon did."""
        if self._kept.boot != self._boot:
            self._done(order, "failed", "the machine went down during the deep tests", "node_down")
            return
        if not (await self._end(self._kept.pid)).clean:
            self._done(order, "failed", STUCK, "unkillable")
        elif self._kept.tries >= TRIES:
            self._done(order, "failed", f"begun {TRIES} times, and the daemon ended each time before the test did", "no_end")

    async def _serve(self, bus: Bus, order: DeepTest) -> None:
        while self._kept.done is None:
            used = self._busy()
            if not used:
                try:
                    await self._test(order)
                except OSError as error:  # no room for its output, no more processes or files
                    self._done(order, "failed", f"the tests cannot be run: {error}"[:1000], "cannotRun")
            elif now_ms() >= order.until:
                self._done(order, "refused", f"the node is used: {used}", "busy")
            else:
                if not self._kept.waits:
                    await self._tell(bus, DeepTestDone(order.id, self._node, "waiting", f"the node is used: {used}", by=order.by, at=now_ms()))
                    self._keep(msgspec.structs.replace(self._kept, waits=True))
                return  # looked at again when something changes, or in half a minute

    async def _test(self, order: DeepTest) -> None:
        seconds = min(max(order.seconds, LEAST_SECONDS), MOST_SECONDS)
        argv = [*own.python(), "-m", "aegis_agent", "check", "deep", "--seconds", f"{seconds:g}", "--state", str(self._own), "--json"]
        if not self._keep(msgspec.structs.replace(self._kept, boot=self._boot, tries=self._kept.tries + 1, pid=0)):
            raise OSError(f"{self._file} cannot be written, and a test that is not counted might be begun for ever")
        began = time.monotonic()
        with tempfile.TemporaryFile() as output:
            self._process = process = subprocess.Popen(  # noqa: ASYNC220 (forks once, waits by pidfd)
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._file.parent,
                env={**self._environ, scope.VARIABLE: self._scope()},
                start_new_session=True,
            )
            self._log.info("deep tests", id=order.id, by=order.by, reason=order.reason, seconds=seconds, pid=process.pid)
            me = scope.Proc(process.pid, os.getpid(), scope.start_ticks(process.pid) or 0)
            try:
                self._keep(msgspec.structs.replace(self._kept, pid=process.pid))
                end = began + RESERVE + PARTS * seconds
                used = ""
                while not (ended := await scope.all_exited([me], LOOK)):
                    used = self._busy()
                    if used or self._newer or time.monotonic() >= end:
                        break
            finally:
                await asyncio.shield(self._end(process.pid))
                await scope.all_exited([me], REAPED)
                code = process.poll()  # never a wait: what hangs in the kernel has no end
                self._process = None
            output.seek(0)
            text = output.read(1 << 20).decode(errors="replace")
        results = results_in(text)
        spent = time.monotonic() - began
        if code is None:
            self._done(order, "failed", STUCK, "unkillable", results=results, seconds=spent)
            return
        if used and not ended:
            self._log.info("deep tests: ended for a worker", id=order.id, worker=used)
            self._keep(msgspec.structs.replace(self._kept, tries=0))  # no fault of the test
            return
        if self._newer and not ended:
            self._done(order, "refused", "another order came", "replaced")
            return
        if not ended:
            self._done(order, "failed", f"no end within {RESERVE + PARTS * seconds:.0f} s", "timeout", results=results, seconds=spent)
            return
        failed = next((result for result in results if not result.Pass), None)
        if failed is not None:
            state = "refused" if failed.CheckType == "deep" else "failed"
            self._done(order, state, f"{failed.CheckType}: {failed.Result}"[:1000], failed.code, results=results, seconds=spent)
        elif code != 0 or not results:
            last = text.strip().splitlines()[-1:] or ["no word"]
            self._done(order, "failed", f"the tests ended with {code}: {last[0][:300]}", "crashed", results=results, seconds=spent)
        else:
            said = next((result.Result for result in results if result.CheckType == "baseline"), "")
            self._done(order, "passed", f"{len(results)} checks passed; {said}"[:1000], "", results=results, seconds=spent)

    async def _end(self, pid: int) -> scope.Ended:
        """End a test with all that it started: what carries its scope, and its checks, which carry its pid (0: nobody came to note it)."""

        def find() -> dict[int, scope.Proc]:
            return {**scope.members(self._scope(), whole=True), **(scope.members(f"check.{pid}.") if pid else {})}

        return await scope.end(find, scope.Patience(0.0))

    def _scope(self) -> str:
        return f"deep.{self._node}.{self._kept.id}"

    # --- answers ----------------------------------------------------------------------------------------------------------------

    def _done(self, order: DeepTest, state: str, message: str, code: str, *, results: tuple[CheckResult, ...] = (), seconds: float = 0.0) -> None:
        answer = DeepTestDone(order.id, self._node, state, message, code, results, round(seconds, 2), order.by, now_ms())
        self._keep(msgspec.structs.replace(self._kept, done=fitting(answer)))
        self._log.info("deep tests: done", id=order.id, state=state, code=code, message=message)

    async def _tell(self, bus: Bus, answer: DeepTestDone) -> None:
        await bus.publish(subjects.node_event(self._node, "test"), encode(answer), msg_id=f"deep.{self._node}.{answer.id}.{answer.state}")

    def _keep(self, kept: Kept) -> bool:
        """Whether it is on the disk too."""
        self._kept = kept
        try:
            write_whole(self._file, msgspec.json.encode(kept))
        except OSError as error:  # disk full: said again after a restart
            self._log.error("the state of the deep tests could not be kept", error=str(error))
            return False
        return True


def results_in(text: str) -> tuple[CheckResult, ...]:
    """The results in what `check deep --json` printed; other lines are none."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(msgspec.json.decode(line, type=CheckResult))
            except msgspec.MsgspecError:
                continue
    return tuple(found)


def fitting(answer: DeepTestDone) -> DeepTestDone:
    """An answer that an event holds: first without figures, then without what passed."""
    results = answer.results
    bare = tuple(msgspec.structs.replace(result, values={}, Result=result.Result[:500]) for result in results)
    failed = tuple(msgspec.structs.replace(result, Result=result.Result[:200]) for result in bare if not result.Pass)[:64]
    for shorter in (results, bare, failed, ()):
        fits = msgspec.structs.replace(answer, results=shorter)
        if len(msgspec.json.encode(fits)) <= MOST_BYTES:
            break
    return fits
