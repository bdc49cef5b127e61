"""The shell of one slot: makes the processes equal to what the slot says, one step at a time (`reconcile.decide`), each remembered on disk first.

Owns the agent of its slot: starts it in its own session, notices its end by pidfd (own child or adopted), ends it, and calls the slot gone only
when the agent and every process of its scope are verified gone. Reads the wanted Slot that the daemon hands in; writes the files of `slotdir`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from aegis_bus.crashpoint import crashpoint
from aegis_proto.messages import Held, Slot, SlotStatus
from aegis_proto.state import JobSpec

from aegis_agent import scope
from aegis_agent.cgroup import kill_scopes, remove_scopes
from aegis_agent.daemon.processes import AGENT, Sweep, find_agent
from aegis_agent.daemon.reconcile import Action, decide
from aegis_agent.daemon.slotdir import Record, SlotDir, Stage, Word, slot_key, status_of
from aegis_agent.daemon.tail import Tail
from aegis_agent.handover import WorkerTask, now_ms

log = structlog.get_logger()

TICK = 1.0
"""Seconds between two looks at an agent's status file and log size."""
GONE_LIMIT = scope.GONE_LIMIT
RETRY_UNCLEAN = 5.0
START_TRIES = 5
"""Starts, a second apart, that the disk may refuse before the attempt is over here and the job goes on elsewhere."""
OLDER = 16
"""Earlier attempts whose control groups are looked for before a start (their processes are found by scope however old they are)."""
STOP_MARGIN = 5.0
"""Seconds an agent gets beyond the job's own stop grace, to stop its command and say so."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How agents are started on this node. `command` gets `--slot-file PATH` appended."""

    command: tuple[str, ...]
    environ: dict[str, str]
    node: str
    address: str = ""
    tls_ca: str = ""
    echo: Callable[[str, bytes], None] | None = None
    baseline: str = ""


class SlotKeeper:
    """One slot. `changed` is called after every change of `status`; `agents` gives the pids of all living agents of this daemon."""

    def __init__(self, files: SlotDir, launch: Launch, boot: str, changed: Callable[[], None], agents: Callable[[], frozenset[int]]) -> None:
        self.files = files
        self.name = files.name
        self.launch = launch
        self.boot = boot
        self.changed = changed
        self.agents = agents
        self.wanted: Slot | None = None
        self.since = 0
        self.seq = 0
        self._kept = False
        """What is wanted is on disk as well, for a loss of the store; tried again whenever the slot is read."""
        self.closing = False
        self.record: Record | None = None
        self._swept = ("", "")
        """Pod whose processes this daemon has verified gone, at the end of its last attempt in this slot."""
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        """Exit code of the agent that was collected last."""
        self._unkept = False
        """`record` is not on disk yet."""
        self._refused_starts = 0
        self._pidfd = -1
        self._wake = asyncio.Event()
        self._tail = Tail(files.log)
        self._status_seen = 0.0
        self._log = log.bind(slot=self.name)

    # --- what others see ---------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> SlotStatus:
        return status_of(self.name, self.record)

    @property
    def agent_pid(self) -> int:
        """Pid of the living or not yet collected agent, 0 when there is none."""
        return self.record.pid if self.record is not None and self.record.stage is Stage.RUNNING else 0

    def older(self, since: int, seq: int) -> bool:
        """Whether what was stored then comes from a restored store: both its time (ms) and its sequence lie behind what is known. A server whose
        clock was set back still counts on; a store that was made anew counts from one, later."""
        return since < self.since and seq <= self.seq

    def want(self, slot: Slot, since: int, seq: int) -> None:
        """What the slot says now; `since`, `seq`: when the server stored that (ms), and as what number of the stream."""
        if self.older(since, seq):
            self._log.warning("slot is older than what is known: not obeyed", stored=since, known=self.since)
            return
        self.since, self.seq = since, seq
        if slot != self.wanted:
            self.wanted, self._kept = slot, False
            self._wake.set()
        if not self._kept:
            try:
                self.files.hold(slot)
                self._kept = True
            except OSError as error:  # it runs all the same; after a loss of the store nobody could be told of it
                self._log.error("the slot's record could not be kept", error=str(error))

    def held(self) -> Held | None:
        """What is to be told when the store has lost this slot's record: the worker that runs here under Aegis, None when there is none such."""
        record = self.record
        if record is None or record.plain or not self._lives():
            return None
        return self.files.held(record)

    def wake(self) -> None:
        self._wake.set()

    # --- life --------------------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Take over what an earlier daemon of this state directory left: a running agent, one that ended unseen, or a start that was cut short."""
        record = self.files.load()
        self.since, self.seq = (record.since, record.seq) if record is not None else (0, 0)
        if record is None or record.stage is Stage.GONE:
            self.record = record
            return
        if record.bootId != self.boot:
            self.record = self._end(record, "the machine was restarted", clean=True)
            return
        if record.stage is Stage.STARTING:
            found = find_agent(str(self.files.slot_file))
            if found is not None:
                record = msgspec.structs.replace(record, stage=Stage.RUNNING, pid=found.pid, start=found.start)
            elif self.files.word(record).last:
                record = msgspec.structs.replace(record, stage=Stage.RUNNING)
            else:
                self.files.forget()  # nothing was started: the slot will be started anew
                return
        self.record = record
        self._unkept = not self._keep(record)
        self._watch(record)
        self._log.info("adopted", pod=record.pod, attempt=record.attempt, pid=record.pid, lives=self._lives())

    async def run(self) -> None:
        """Keep the slot, for ever; with `closing`, until it is empty."""
        while True:
            self._wake.clear()
            wanted = Slot() if self.closing else self.wanted
            action = decide(wanted, self.record, self._lives())
            if self.closing and action is Action.HOLD:
                return
            if action is not Action.HOLD:
                self._log.info(action.value, pod=(self.record.pod if self.record else wanted.pod if wanted else ""))
            try:
                await self._perform(action, wanted)
            except OSError as error:  # disk full, /proc unreadable: nothing was decided, try again
                self._log.error("slot could not be changed", action=action.value, error=str(error))
                await asyncio.sleep(TICK)
            if action in (Action.HOLD, Action.STOP) or (self.record is not None and not self.record.clean):
                await self._wait(RETRY_UNCLEAN if self.record is not None and not self.record.clean else TICK)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _perform(self, action: Action, wanted: Slot | None) -> None:
        record = self.record
        if action is Action.START and wanted is not None:
            await self._start(wanted)
        elif action is Action.REFUSE and wanted is not None:
            self._gone(self._record_for(wanted), "stopped before it was started")
        elif action is Action.STOP and record is not None:
            await self._stop(record)
        elif action is Action.SETTLE and record is not None:
            await self._settle(record)
        elif action is Action.HOLD and record is not None:
            self._unkept = self._unkept and not self._keep(record)
            if record.stage is Stage.RUNNING:
                self._look(record)

    # --- start -------------------------------------------------------------------------------------------------------------------

    def _record_for(self, slot: Slot) -> Record:
        try:
            grace = msgspec.json.decode(slot.spec, type=JobSpec).stopGrace + STOP_MARGIN
        except msgspec.MsgspecError:
            grace = 15.0 + STOP_MARGIN
        return Record(slot.job, slot.uid, slot.pod, slot.attempt, bootId=self.boot, at=now_ms(), since=self.since, seq=self.seq, grace=grace)

    async def _start(self, slot: Slot) -> None:
        """Intent on disk, sweep of everything older, then the process."""
        crashpoint("daemon.before-intent")
        try:
            record = self.record = self.files.save(self._record_for(slot))
        except OSError as error:
            self._refused_starts += 1
            if self._refused_starts < START_TRIES:
                raise
            self._not_started(self._record_for(slot), error)
            return
        self._refused_starts, self._code = 0, None
        sweep = Sweep(slot.uid, slot.pod, slot.attempt, str(self.files.slot_file))
        found = sweep()
        if sweep.highest > slot.attempt:
            self._gone(record, "a higher attempt runs on this machine: this one is over")
            return
        if found or self._swept != (slot.uid, slot.pod):
            ended = await scope.end(sweep, scope.Patience(0.0), limit=GONE_LIMIT, kill_all=lambda: self._kill_older(slot))
        else:
            ended = scope.Ended(True, 0.0)  # verified when the attempt before ended here; nothing can have come since
        if ended.killed:
            self._log.warning("killed what an older attempt left", pod=slot.pod, attempt=slot.attempt, processes=ended.killed)
        if not ended.clean:
            self._gone(record, f"processes {_pids(ended.left)} of an older attempt do not die", clean=False)
            return
        if self.closing or self.wanted is None or slot_key(self.wanted) != record.key or self.wanted.stop:
            self.record = None
            self.files.forget()
            return
        try:
            self.files.prepare(self._task(slot), f"{slot.job} {slot.uid} {slot.pod}")
            crashpoint("daemon.before-start")
            self._process = self._spawn(record)
        except msgspec.MsgspecError as error:
            self._gone(record, f"the job specification in the slot cannot be read: {error}")
            return
        except OSError as error:
            self._not_started(record, error)
            return
        crashpoint("daemon.after-start")
        start = scope.start_ticks(self._process.pid) or 0
        self.record = self.files.save(msgspec.structs.replace(record, stage=Stage.RUNNING, pid=self._process.pid, start=start))
        self._status_seen = 0.0
        self._watch(self.record)
        self.changed()

    def _not_started(self, record: Record, error: OSError) -> None:
        self._refused_starts = 0
        self._gone(msgspec.structs.replace(record, notStarted=True), f"the agent could not be started: {error}")

    def _spawn(self, record: Record) -> subprocess.Popen[bytes]:
        output = self.files.open_log()
        try:
            return subprocess.Popen(
                [*self.launch.command, "--slot-file", str(self.files.slot_file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self.launch.environ, scope.VARIABLE: f"{record.prefix}{AGENT}"},
                start_new_session=True,
            )
        finally:
            os.close(output)

    def _kill_older(self, slot: Slot) -> None:
        for attempt in range(max(1, slot.attempt - OLDER), slot.attempt + 1):
            kill_scopes(f"{slot.uid}.{slot.pod}.{attempt}.")

    def _task(self, slot: Slot) -> bytes:
        """The slot as the agent's task: the slot, and what only this node knows."""
        spec = msgspec.json.decode(slot.spec, type=JobSpec)
        return msgspec.json.encode(
            WorkerTask(
                spec,
                slot.job,
                slot.uid,
                slot.namespace or spec.namespace,
                slot.pod,
                slot.attempt,
                slot.workers or spec.workers,
                slot.token,
                slot.credentials,
                self.launch.tls_ca,
                slot.plainAddr,
                slot.plainPort,
                node=self.launch.node,
                address=self.launch.address,
                stateDir=str(self.files.path),
                stamp=True,
                baseline=self.launch.baseline,
            )
        )

    # --- end ---------------------------------------------------------------------------------------------------------------------

    async def _stop(self, record: Record) -> None:
        """SIGTERM to the agent (it stops its command), after the grace SIGKILL. What is left afterwards is settled by the next step."""

        def agent() -> dict[int, scope.Proc]:
            return {record.pid: scope.Proc(record.pid, 0, record.start)} if self._lives() else {}

        ended = await scope.end(agent, scope.Patience(record.grace), limit=GONE_LIMIT)
        if not ended.clean:
            self._gone(record, f"agent {record.pid} does not die", clean=False)

    async def _settle(self, record: Record) -> None:
        """The agent is gone. Everything of its scope must be, before anybody is told."""
        code = self._collect()
        sweep = Sweep(record.uid, record.pod, record.attempt, str(self.files.slot_file), orphans=True, agents=self.agents)
        limit = GONE_LIMIT if record.clean else RETRY_UNCLEAN
        ended = await scope.end(sweep, scope.Patience(0.0), limit=limit, kill_all=lambda: kill_scopes(record.prefix))
        if ended.killed:
            self._log.warning("killed what the agent left", pod=record.pod, attempt=record.attempt, processes=ended.killed)
        if not ended.clean:
            text = f"processes {_pids(ended.left)} do not die"
            if record.clean or record.message != text:
                self._gone(record, text, code, clean=False)
            return
        remove_scopes(record.prefix)
        self._swept = (record.uid, record.pod)
        crashpoint("daemon.before-gone")
        self._gone(record, "" if record.clean else "all processes are gone now", code)

    def _collect(self) -> int | None:
        """Exit code of our own child (negative: its signal), None for an adopted agent."""
        process, self._process = self._process, None
        self._unwatch()
        if process is not None:
            self._code = process.wait()
        return self._code

    def _gone(self, record: Record, message: str, code: int | None = None, clean: bool = True) -> None:
        self.record = self._end(record, message, code, clean)
        self._log.info("gone", pod=record.pod, attempt=record.attempt, exit=self.record.exitCode, signal=self.record.signal, clean=clean)
        self.changed()

    def _end(self, record: Record, message: str, code: int | None = None, clean: bool = True) -> Record:
        """The record of an end. What is verified gone is told also when the disk refuses to keep it: a daemon that comes after this one finds no such
        process either, and says the same. It is kept as soon as there is room."""
        word = self.files.word(record) if record.stage is not Stage.STARTING else Word()
        again = record.stage is Stage.GONE  # only `clean` and the message are news
        changes: dict[str, Any] = dict(stage=Stage.GONE, clean=clean)
        if not again:
            changes |= dict(at=now_ms(), plain=record.plain or word.plain, lastWord=word.text)
            if code is not None:
                changes |= dict(exitCode=128 - code, signal=-code) if code < 0 else dict(exitCode=code)
            elif word.last:
                changes |= dict(exitCode=word.code)
        changes["message"] = message or word.message or record.message
        ended = msgspec.structs.replace(record, **changes)
        self._unkept = not self._keep(ended)
        return ended

    def _keep(self, record: Record) -> bool:
        try:
            self.files.save(record)
        except OSError as error:
            if not self._unkept:
                self._log.error("the slot's record could not be kept", pod=record.pod, stage=record.stage.value, error=str(error))
            return False
        return True

    # --- watching ----------------------------------------------------------------------------------------------------------------

    def _lives(self) -> bool:
        record = self.record
        if record is None or record.stage is not Stage.RUNNING or not record.pid:
            return False
        return scope.start_ticks(record.pid) == record.start

    def _watch(self, record: Record) -> None:
        self._unwatch()
        try:
            self._pidfd = os.pidfd_open(record.pid)
        except OSError:
            self._wake.set()
            return
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended)

    def _ended(self) -> None:
        self._unwatch()
        self._wake.set()

    def _unwatch(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def _look(self, record: Record) -> None:
        """Once a second: did the agent say that it is plain? Is its log too large?"""
        seen = self.files.status_changed()
        if seen != self._status_seen:
            self._status_seen = seen
            word = self.files.word(record)
            if word.plain and not record.plain:
                self.record = msgspec.structs.replace(record, plain=True, lastWord=word.text)
                self._unkept = not self._keep(self.record)
                self.changed()
        self.files.rotate_log()

    def echo(self) -> None:
        """Pass on what the agent wrote since the last call."""
        data = self._tail.read()
        if data and self.launch.echo is not None:
            self.launch.echo(self.record.pod if self.record is not None else "", data)

    def close(self) -> None:
        """Forget the agent without touching it: another daemon will adopt it."""
        self._unwatch()


def _pids(left: tuple[int, ...]) -> str:
    return ", ".join(map(str, left[:8])) + (" ..." if len(left) > 8 else "")


OWN_VARIABLES = ("AEGIS_BUS_", "AEGIS_NODE_", "AEGIS_CREDENTIALS_", "AEGIS_SERVICE_")


def agent_environment(environ: dict[str, str], crash_at_prefix: str = "daemon.") -> dict[str, str]:
    """Environment of agents: the daemon's, without its own credentials and settings, and without crash points meant for the daemon."""
    kept = {key: value for key, value in environ.items() if not key.startswith(OWN_VARIABLES) and key != scope.VARIABLE}
    points = [point for point in kept.pop("AEGIS_CRASH_AT", "").split(",") if point and not point.startswith(crash_at_prefix)]
    return kept | ({"AEGIS_CRASH_AT": ",".join(points)} if points else {})
