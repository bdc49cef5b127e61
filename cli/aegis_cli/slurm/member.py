"""One node of an allocation: keeps a node daemon for as long as the start lasts, and leaves with its code.

A first node that is lost takes bus and masters with it. What runs goes on without them; when nothing runs here any more the task leaves with 75, and
the deputy (the second task) has the job requeued, with its budget and without the lost node.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aegis_bus.errors import SharedStateDir
from aegis_bus.natsserver import check_state_dir
from aegis_bus.settings import SlurmSettings

from aegis_cli import codes
from aegis_cli.errors import CliError, from_text
from aegis_cli.slurm import control, ledger, records
from aegis_cli.slurm.folder import End, Endpoint, Folder
from aegis_cli.slurm.step import Step, daemon_environment
from aegis_cli.spec import gpus
from aegis_cli.stack import guard, place

LOOK = 0.5
START_WAIT = 180.0
"""Seconds until the first node must have its stack up."""
BACKOFF, BACKOFF_MAX = 1.0, 30.0
STOP_MARGIN = 20.0
"""Seconds that a daemon may take to end."""
TOLD_WAIT = 600.0


def local_folder(step: Step, environ: Mapping[str, str]) -> Path:
    """Node-local: `$SLURM_TMPDIR`, `$TMPDIR` or /tmp; the next one where it lies on a shared file system. E121 when all do."""
    name = f"aegis-{os.getuid()}-{step.name}-{step.restart}-{step.node}"
    refused: SharedStateDir | None = None
    for text in (environ.get("SLURM_TMPDIR", ""), environ.get("TMPDIR", ""), "/tmp", "/var/tmp"):
        if text and os.access(text, os.W_OK):
            try:
                check_state_dir(text)
            except SharedStateDir as error:
                refused = error
            else:
                return place.trusted(Path(text) / name)
    raise from_text(str(refused or "E121 no folder of this node can be written: set TMPDIR"), "E121")


class Member:
    """`run` returns the exit code of the task."""

    def __init__(self, step: Step, folder: Folder, base: Path, *, max_retry: int, settings: SlurmSettings, say: Callable[[str], None]) -> None:
        self.step, self.folder, self.base = step, folder, base
        self.max_retry, self.settings, self.say = max_retry, settings, say
        self.leaving, self.noticed = asyncio.Event(), asyncio.Event()
        self._daemon: subprocess.Popen[bytes] | None = None
        self._heard = time.monotonic()
        self._left_at: float | None = None

    async def run(self) -> int:
        """Until the start has ended, or its first node is lost."""
        try:
            endpoint = await self._endpoint()
            if endpoint is None:
                return self._code()
            command = self._prepare(endpoint)
            await self._keep(command, endpoint)
            return self._code() if self.folder.end(self.step.restart) else await self._abandoned(endpoint)
        finally:
            await self.stop()

    def _code(self) -> int:
        end = self.folder.end(self.step.restart)
        return end.code if end is not None else codes.REQUEUE

    async def _endpoint(self) -> Endpoint | None:
        deadline = time.monotonic() + START_WAIT
        while self.folder.end(self.step.restart) is None:
            found = self.folder.endpoint(self.step.restart)
            if found is not None:
                return found
            if time.monotonic() > deadline:
                self.say(f"{self.step.node}: no stack on the first node after {START_WAIT:.0f} s ({self.folder.path}/endpoint.json)")
                return None
            await asyncio.sleep(LOOK)
        return None

    def _prepare(self, endpoint: Endpoint) -> list[str]:
        """Credentials onto this node, and the command of its daemon."""
        me = endpoint.nodes.get(self.step.node, "")
        if me not in endpoint.creds:
            raise CliError("E102", f"{self.folder.path}/endpoint.json has no credentials for {self.step.node}")
        for name, text in (("node.creds", endpoint.creds[me]), ("ca.pem", endpoint.ca)):
            path = self.base / name
            path.unlink(missing_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        ca, cards = str(self.base / "ca.pem"), gpus()
        command = [sys.executable, "-m", "aegis_agent", "node", "--node", me, "--state", str(self.base / "node")]
        command += ["--servers", ",".join(endpoint.servers), "--creds", str(self.base / "node.creds"), "--tls-ca", ca, "--credentials-ca", ca]
        command += ["--slots", "1", "--echo", "--ports-every", "0", "--label", f"slurm={self.step.node}"]
        return command + (["--virtual"] if self.step.node in endpoint.virtual else []) + (["--gpus", str(cards)] if cards else [])

    async def _keep(self, command: list[str], endpoint: Endpoint) -> None:
        pause, due = BACKOFF, 0.0
        next_look = 0.0
        while not self.leaving.is_set() and self.folder.end(self.step.restart) is None:
            now = time.monotonic()
            if self.noticed.is_set():  # Slurm signals every process of a step: bus and daemons have ended, agents and training save
                if not self._works():
                    self._write_left()
                    await self._until_told()
                    return
            elif self._daemon is None and now >= due:
                self._daemon = self._start(command)
            elif self._daemon is not None and self._daemon.poll() is not None:
                self.say(f"{self.step.node}: the node daemon ended ({self._daemon.returncode}); started again in {pause:g} s")
                self._daemon, due, pause = None, now + pause, min(2 * pause, BACKOFF_MAX)
            if now >= next_look and not self.noticed.is_set():
                next_look = now + min(5.0, self.settings.owner_silent / 3)
                if await asyncio.to_thread(reachable, endpoint.servers[0]):
                    self._heard = time.monotonic()
            if self._given_up(endpoint, now):
                return
            try:
                async with asyncio.timeout(LOOK):
                    await self.leaving.wait()
            except TimeoutError:
                pass

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with open(self.base / "daemon.log", "ab") as log:
            return subprocess.Popen(
                command,
                env=daemon_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=guard.dies_with_parent(signal.SIGTERM),  # noqa: PLW1509 - from the main thread, that lives as long as the task
            )

    def _given_up(self, endpoint: Endpoint, now: float) -> bool:
        """Nothing is heard of the first node and nothing runs here without it; the deputy also waits for the others, but not for ever: one of them
        may be lost too. A word of having left is taken back where it holds no more: who saves would be cut off by it."""
        if self.noticed.is_set() or now - self._heard <= self.settings.owner_silent or self._works():
            if self._left_at is not None:
                with contextlib.suppress(OSError):  # tried again at the next look
                    self.folder.forget_left(self.step.task)
                    self._left_at = None
            return False
        if self._left_at is None:
            self._left_at = now
            self._write_left()
        return not self.step.deputy or self.folder.left() >= len(endpoint.nodes) - 1 or now - self._left_at > TOLD_WAIT

    def _write_left(self) -> None:
        try:
            self.folder.write_left(self.step.task)
        except OSError as error:
            self.say(f"{self.step.node}: {self.folder.path}/left-{self.step.task}: {error.strerror}")

    async def _until_told(self) -> None:
        """The first node says how this start ends; where it does not, Slurm ends everybody."""
        deadline = time.monotonic() + TOLD_WAIT
        while self.folder.end(self.step.restart) is None and time.monotonic() < deadline and not self.leaving.is_set():
            await asyncio.sleep(LOOK)

    def _slot(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.base / "node" / "slots" / "0" / name).read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _works(self) -> bool:
        """A command of the training runs here."""
        return bool(self._slot("status.json").get("running")) and self._agent() is not None

    def _agent(self) -> int | None:
        """Process id of the agent that runs here."""
        record = self._slot("record.json")
        pid, start = int(record.get("pid", 0)), int(record.get("start", 0))
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return pid if pid and stat[0] not in "ZX" and int(stat[19]) == start else None

    async def _abandoned(self, endpoint: Endpoint) -> int:
        """The first node is lost. Only the deputy acts; whatever it cannot do is left to Slurm's own rules for exit code 75."""
        if self.leaving.is_set():
            return codes.REQUEUE
        if self.noticed.is_set():
            return await self._hasten()
        self.say(f"{self.step.node}: nothing heard of {endpoint.owner}, the first node, for {self.settings.owner_silent:.0f} s")
        if not self.step.deputy:
            return codes.REQUEUE
        try:
            kept = self.folder.ledger()
            if records.down(await asyncio.to_thread(control.node, endpoint.owner)):
                kept = ledger.avoid(kept, ledger.Avoided(endpoint.owner, "first node lost", int(time.time() * 1000)))
                self.folder.write_ledger(kept)
            if kept.spent > self.max_retry:
                self.folder.write_end(End(self.step.restart, codes.DO_NOT_REQUEUE, "budget spent"))
                return codes.DO_NOT_REQUEUE
            self.folder.write_end(End(self.step.restart, codes.REQUEUE, "first node lost"))
            if self.settings.requeue:
                await asyncio.to_thread(again, self.step.job, kept.names, "ask", self.settings.requeue_delay)
                self.say(f"{self.step.node}: job {self.step.job} requeued, {kept.spent} of {self.max_retry} restarts used")
        except (control.SlurmRefused, CliError, OSError) as error:
            self.say(f"{self.step.node}: not requeued: {error}")
        return codes.REQUEUE

    async def _hasten(self) -> int:
        """Slurm has ended this start and the first node says nothing: where it was lost, and the job is requeued for that, it need not wait."""
        try:
            state = await asyncio.to_thread(control.job, self.step.job)
            if self.step.deputy and records.notice(state, self.step.restart, 0.0, datetime.datetime.now()).requeued:
                await asyncio.to_thread(again, self.step.job, self.folder.ledger().names, "hasten", self.settings.requeue_delay)
        except (control.SlurmRefused, CliError) as error:
            self.say(f"{self.step.node}: {error}")
        return codes.REQUEUE

    async def stop(self) -> None:
        """End the daemon with its workers, and remove what was only for this start."""
        self.leaving.set()
        process, self._daemon = self._daemon, None
        if process is not None and process.poll() is None:
            process.terminate()  # its agents go on
            try:
                await asyncio.to_thread(process.wait, STOP_MARGIN)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        agent = self._agent()
        if agent is not None:  # its job is over or lost, and it does not know
            await asyncio.to_thread(guard.end_all, lambda: {agent, *guard.below([agent], guard.processes())} if self._agent() == agent else set())
        await asyncio.to_thread(shutil.rmtree, self.base, True)


def reachable(server: str) -> bool:
    """Somebody listens at `tls://host:port`."""
    host, _, port = server.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3.0):
            return True
    except (OSError, ValueError):
        return False


def again(job: str, avoided: tuple[str, ...], how: str, soon: float) -> None:
    """Requeue the job, let it start after `soon` seconds and not on `avoided`. Called by one of its own processes, which Slurm then ends.

    Slurm itself waits two minutes (the life of a credential), unless the start that it finds when the job has come to its end lies later still: so
    `soon` must be longer than that takes. Raises SlurmRefused.
    """
    before = control.job(job)
    if how == "ask":
        if before.get("Requeue") != "1":
            raise control.SlurmRefused(f"job {job} may not be requeued (#SBATCH --requeue)")
        if before.get("JobState") != "RUNNING":
            raise control.SlurmRefused(f"job {job} is {before.get('JobState') or 'unknown'} already")
        control.requeue(job)
    wanted = {"StartTime": f"now+{soon:.0f}"}
    excluded = control.together(before.get("ExcNodeList", ""), avoided)
    if excluded:
        wanted["ExcNodeList"] = excluded
    control.update_job(job, **wanted)
