"""The keeper: owner of every process of the stack of one user on one machine. Runs below `guard`.

Start: site, nats-server, streams, then all services and node daemons side by side; `up` when each answers. With `--member` it serves daemons on other
machines too: bus and credentials listen at `--host`, by TLS, and each member's credentials are made. Loop: a part that ends is started again
(with backoff, and it is said so); when nobody uses the stack and it is not pinned, or when told so, everything ends and the keeper with it.
Owns `keeper.json`, `control.sock`, `creds/`, and the folders of `place`. Reads `users/` and `pinned`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer, find_server, free_port
from aegis_credentials.daemons import node_creds
from aegis_credentials.setup import Site, create_site, ensure_streams
from aegis_proto import VERSION
from aegis_proto.api import Status
from aegis_proto.api_nodes import NodesAnswer, NodesQuery

from aegis_cli import times
from aegis_cli.client import Client
from aegis_cli.context import Target
from aegis_cli.errors import CliError
from aegis_cli.stack import guard, parts, users
from aegis_cli.stack.health import healthy

LOOK = 0.1
"""Seconds between looks at children, users and health."""
USERS_LOOK = 0.5
READY_TIMEOUT = 45.0
BACKOFF, BACKOFF_MAX = 0.2, 5.0
STANDBY_WAIT = 10.0
"""Before a master is started again while another one lives: that one takes its jobs first, undisturbed."""
HEALTHY = 30.0
"""A part that ran so long starts its backoff anew."""
STOP_GRACE = 4.0
LOG_BYTES = 16 << 20
"""Size at which a part's log is copied to .1 and begun anew."""


class Keeper:
    """See the module. `run` is its whole life."""

    def __init__(
        self, base: Path, mark: str, store: Path | None, *, nodes: int, masters: int, host: str = "127.0.0.1", members: tuple[str, ...] = ()
    ) -> None:
        self.base, self.mark, self.host, self.members = base, mark, host, members
        self.store = store or base / "store"
        self.kept = store is not None
        self.nodes, self.masters = nodes, masters
        self.parts: list[parts.Part] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        tls = self.store / "site" / "tls"
        certificate = (tls / "server.pem", tls / "server.key") if members else None
        self.nats = NatsServer(self.store / "nats", die_with_parent=True, name="aegis-stack", host=host, tls=certificate)
        self.nats_part = parts.Part("nats", "nats-server")
        self.layout: parts.Layout
        self.site: Site
        self.stopping = asyncio.Event()
        self.why = ""
        self._state, self._error, self._told = "starting", "", ""
        self._replicas = 0
        self._adding = asyncio.Lock()
        self._store_lock = -1  # held until this process ends: two servers on one store would destroy it
        self._begun: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._tries: dict[str, int] = {}

    # --- telling -----------------------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        print(f"{times.moment(time.time())} {text}", flush=True)

    def info(self) -> dict[str, Any]:
        return {
            "mark": self.mark,
            "pid": os.getpid(),
            "state": self._state,
            "error": self._error,
            "servers": [self.nats.url],
            "creds": str(self.base / "creds" / "operator.creds"),
            "ca": self.ca or "",
            "store": str(self.store),
            "parts": [part.told() for part in (self.nats_part, *self.parts)],
        }

    def tell(self, state: str | None = None) -> None:
        """Write keeper.json when it changed, whole or not at all."""
        self._state = state or self._state
        text = json.dumps(self.info())
        if text != self._told:
            self._told = text
            partial = self.base / ".keeper.json"
            partial.write_text(text)
            os.replace(partial, self.base / "keeper.json")

    # --- starting ----------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring everything up; CliError or another error with a code when that cannot be."""
        self.store.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._store_lock = users.open_lock(self.store / "keeper.lock")
        if not users.try_lock(self._store_lock):
            raise CliError("E105", f"the state in {self.store} is in use by another stack. End that one first, or name another folder with --state")
        (self.base / "logs").mkdir(exist_ok=True, mode=0o700)
        found = find_server()
        self.nats_part.version, self.nats_part.note = found.version_text, found.where
        self.tell()
        self.site = await asyncio.to_thread(create_site, self.store / "site", tuple(dict.fromkeys(("127.0.0.1", "localhost", self.host))))
        self._write_creds("admin")
        (self.nats.state_dir).mkdir(parents=True, exist_ok=True)
        (self.nats.state_dir / "auth.conf").write_text(self.site.auth_conf.read_text())
        self._start_nats()
        self.layout = parts.Layout(self.base, self.store, self.nats.url, f"{self.host}:{free_port(self.host)}")
        admin = await Bus.connect(Identity.from_creds_file(self.layout.creds("admin")), [self.nats.url], name="setup", tls_ca=self.ca)
        try:
            await ensure_streams(admin)
        finally:
            await admin.close(1.0)
        self.layout.creds("admin").unlink()
        for role in ("master", "jobcontroller", "lognexus", "lemon", "netmon"):
            self._write_creds(role)
        self._write_creds("operator", ttl=0)
        self.parts = [parts.credentials(self.layout, free_port()), parts.jobcontroller(self.layout, free_port())]
        self.parts += [self._master(number) for number in range(1, self.masters + 1)]
        await self._issue(self.members)
        await self._add_nodes(self.nodes)
        self.parts += [parts.lognexus(self.layout, free_port())] if parts.has_lognexus() else []
        self.parts += [parts.lemon(self.layout, free_port())] if parts.has_lemon() else []
        self.parts += [parts.netmon(self.layout, free_port())] if parts.wants_netmon(self.base) else []
        for part in self.parts:
            self._launch(part)
        await self.ready()

    def _master(self, number: int) -> parts.Part:
        self._replicas += 1
        return parts.master(self.layout, free_port(), number, f"m{self._replicas}")

    async def _add_nodes(self, count: int) -> list[parts.Part]:
        async with self._adding:
            have = sum(part.kind == "node" for part in self.parts)
            names = [parts.node_name(number) for number in range(have + 1, count + 1)]
            await self._issue(names)
            new = [parts.node(self.layout, name, alone=count == 1, ports=parts.wants_netmon(self.base)) for name in names]
            self.parts += new
            return new

    async def _issue(self, names: Sequence[str]) -> None:
        if names:
            bus = await Bus.connect(Identity.from_creds(self.site.issue("credentials")), [self.nats.url], name="setup", tls_ca=self.ca)
            try:
                for name in names:
                    Identity.from_creds(await node_creds(self.site, bus, name)).to_creds_file(self.base / "creds" / f"{name}.creds")
            finally:
                await bus.close(1.0)

    @property
    def ca(self) -> str | None:  # where the bus is for this machine alone: none
        return str(self.store / "site" / "tls" / "ca.pem") if self.members else None

    def _write_creds(self, role: str, ttl: float | None = None) -> None:
        folder = self.base / "creds"
        folder.mkdir(exist_ok=True, mode=0o700)
        Identity.from_creds(self.site.issue(role, None, ttl, name=f"stack-{role}")).to_creds_file(folder / f"{role}.creds")

    def _start_nats(self) -> None:
        """In this thread: the server is to die with the process, and PDEATHSIG goes by thread."""
        self.nats.start()
        process = self.nats.process
        self.nats_part.state, self.nats_part.address = "up", self.nats.url
        self.nats_part.pid = process.pid if process is not None else 0
        self.tell()

    def _launch(self, part: parts.Part) -> None:
        with open(self.base / "logs" / f"{part.name}.log", "ab") as log:
            process = subprocess.Popen(
                part.command,
                env=parts.environment_of(part),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.base,
                preexec_fn=guard.dies_with_parent(),  # noqa: PLW1509 - set before exec, and this process has one thread that forks
            )
        self.processes[part.name] = process
        part.state, part.pid, part.version = "starting", process.pid, VERSION
        self._begun[part.name] = time.monotonic()
        self.tell()

    async def ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Until every part answers; E123 names the one that does not, with the end of its log."""
        deadline = time.monotonic() + timeout
        while not self.stopping.is_set():
            await self.look_health()
            if all(part.state == "up" for part in self.parts if part.needed):
                return
            for part in self.parts:
                if part.needed and self.processes[part.name].poll() is not None and self._tries.get(part.name, 0) >= 2:
                    raise CliError("E123", f"{part.name} ends at once: {self._tail(part)}")
            self.look_children()
            if time.monotonic() > deadline:
                late = next(part for part in self.parts if part.needed and part.state != "up")
                raise CliError("E123", f"{late.name} does not answer within {timeout:.0f} s: {self._tail(late)}")
            await asyncio.sleep(0.05)

    def _tail(self, part: parts.Part) -> str:
        path = self.base / "logs" / f"{part.name}.log"
        try:
            lines = path.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"{lines[-1][:300]} ({path})" if lines else f"it wrote nothing ({path})"

    # --- looking -----------------------------------------------------------------------------------------------------------------

    async def look_health(self) -> None:
        """Services by their health page; masters and node daemons also by what is answered on the bus: only that makes them useful."""
        waiting = [part for part in self.parts if part.state == "starting" and self.processes[part.name].poll() is None]
        asked = [part for part in waiting if part.http]
        healthy_now = await asyncio.gather(*(asyncio.to_thread(healthy, part.http) for part in asked))
        well = [part for part, good in zip(asked, healthy_now, strict=True) if good]
        for part in well:
            if part.kind != "master":
                part.state = "up"
        masters = [part for part in well if part.kind == "master"]
        nodes = [part for part in waiting if part.kind == "node"]
        if any(part.state != "up" for part in self.parts if part.kind in ("credentials", "jobcontroller")):
            nodes = []
        if masters or nodes:
            known = await self._known(bool(masters), bool(nodes))
            for part in (*masters, *nodes):
                if part.name in known or part.replica in known:
                    part.state = "up"
        self.tell()

    async def _known(self, masters: bool, nodes: bool) -> set[str]:
        """Names of the replicas and nodes that the services speak of; a service that does not answer yet speaks of none."""
        found: set[str] = set()
        target = Target("stack", (self.nats.url,), str(self.layout.creds("operator")), self.ca or "")
        try:
            async with Client(target, timeout=1.0) as client:
                if masters:
                    status = await client.query("status", {}, Status)
                    found |= {replica.replica for replica in status.replicas}
                if nodes:
                    answer = await client.query_nodes("nodes", NodesQuery(), NodesAnswer)
                    found |= {node.node for node in answer.nodes if node.health != "silent"}
        except (BusError, CliError):
            pass
        return found

    def look_children(self) -> None:
        """A part that ended is started again, after a while that grows when it keeps ending."""
        now = time.monotonic()
        if self.nats.process is not None and self.nats.process.poll() is not None:
            if "nats-server" not in self._due:
                self._ended(self.nats_part, self.nats.process.returncode, now)
            if now >= self._due["nats-server"]:
                try:
                    self._start_nats()
                except BusError as error:
                    self.say(str(error))
                    self._ended(self.nats_part, 1, now)
                else:
                    self._begun["nats-server"] = now
                    del self._due["nats-server"]
        for part in self.parts:
            process = self.processes[part.name]
            code = process.poll()
            if code is None:
                continue
            if part.name not in self._due:
                self._ended(part, code, now)
            if now >= self._due[part.name]:
                del self._due[part.name]
                if part.kind == "master":  # a new name: its predecessor's lease must run out, so that another replica may take its jobs
                    self._replicas += 1
                    part.replica = part.environment["AEGIS_SERVICE_REPLICA"] = f"m{self._replicas}"
                self._launch(part)

    def _ended(self, part: parts.Part, code: int, now: float) -> None:
        tries = 0 if now - self._begun.get(part.name, now) > HEALTHY else self._tries.get(part.name, 0)
        wait = min(BACKOFF * 2**tries, BACKOFF_MAX)
        if part.kind == "master" and any(other.kind == "master" and other.state == "up" for other in self.parts if other is not part):
            wait = STANDBY_WAIT
        self._tries[part.name], self._due[part.name] = tries + 1, now + wait
        part.restarts, part.state, part.pid = part.restarts + 1, "down", 0
        part.last = f"signal {-code}" if code < 0 else f"exit {code}"
        self.say(f"{part.name} ended ({part.last}); started again in {wait:g} s")
        self.tell()

    # --- being asked -------------------------------------------------------------------------------------------------------------

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer."""
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), 5.0))
            reply = await self._do(request)
        except (CliError, BusError) as error:
            reply = {"error": str(error)}
        except (ValueError, TypeError, AttributeError, TimeoutError) as error:
            reply = {"error": f"E107 request not understood: {error or type(error).__name__}"}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        what = request.get("do")
        if what == "status":
            return self.info()
        if what == "nodes":
            for part in await self._add_nodes(int(request["count"])):
                self._launch(part)
            await self.ready()
            return self.info()
        if what == "down":
            self.why = "told to"
            self.stopping.set()
            return self.info()
        raise ValueError(f"unknown request {what!r}")

    # --- ending ------------------------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Until told to stop, or nobody needs the stack. Returns with the gate held by this process when it was the latter."""
        looked = time.monotonic()
        while not self.stopping.is_set():
            self.look_children()
            await self.look_health()
            if time.monotonic() - looked > USERS_LOOK:
                looked = time.monotonic()
                self._trim_logs()
                if self._deserted():
                    self.why = "the last user went"
                    return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), LOOK)

    def _trim_logs(self) -> None:
        for path in (*(self.base / "logs").glob("*.log"), self.nats.log_path):
            try:
                if path.stat().st_size > LOG_BYTES:
                    shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)  # its writer appends
            except OSError:
                continue

    def _deserted(self) -> bool:
        """Nobody uses it and nobody can come in the meantime: the gate is then ours until the end."""
        if users.pinned(self.base) or users.in_use(self.base):
            return False
        gate = users.open_lock(self.base / "gate")
        if users.try_lock(gate) and not users.pinned(self.base) and not users.in_use(self.base, clean=True):
            return True  # the descriptor stays open on purpose: it ends with this process
        os.close(gate)
        return False

    async def stop(self) -> None:
        """End all parts, then whatever they left, then remove what was only for this stack."""
        self.tell("stopping")
        self.say(f"stopping: {self.why}")
        for part in reversed(self.parts):
            process = self.processes.get(part.name)
            if process is not None and process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + STOP_GRACE
        while any(process.poll() is None for process in self.processes.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        nats = self.nats.process.pid if self.nats.process is not None else 0
        spare = {os.getpid(), nats}
        guard.end_all(lambda: guard.below([os.getppid()], guard.processes()) - spare)
        for process in self.processes.values():
            process.wait()
        self.nats.stop(5.0)
        (self.base / "control.sock").unlink(missing_ok=True)
        for name in ("nodes", "creds", *(() if self.kept else ("store",))):
            shutil.rmtree(self.base / name, ignore_errors=True)
        (self.base / "pinned").unlink(missing_ok=True)
        self.tell("failed" if self._error else "gone")

    async def run(self) -> int:
        """The keeper's life; exit code 0, or 1 when the stack did not come up."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number.name)
        code = 0
        folder = os.open(self.base, os.O_RDONLY | os.O_DIRECTORY)
        server = await asyncio.start_unix_server(self.answer, path=f"/proc/self/fd/{folder}/control.sock")  # the real path may be too long
        try:
            await self.start()
            if not self.stopping.is_set():
                self.tell("up")
                self.say(f"up: {self.nats.url}, {self.masters} master(s), {self.nodes} node(s)")
                await self.serve()
        except (CliError, BusError, OSError, ValueError, RuntimeError) as error:
            self._error, code = str(error), 1
            self.why = f"it did not come up: {error}"
        server.close()
        await self.stop()
        return code

    def _signalled(self, name: str) -> None:
        self.why = self.why or name
        self.stopping.set()


def main() -> int:
    """Read the arguments and keep a stack."""
    parser = argparse.ArgumentParser(prog="python -m aegis_cli.stack.keeper")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--mark", required=True)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--masters", type=int, default=1)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--member", action="append", default=[])
    given = parser.parse_args()
    return asyncio.run(
        Keeper(given.dir, given.mark, given.store, nodes=given.nodes, masters=given.masters, host=given.host, members=tuple(given.member)).run()
    )


if __name__ == "__main__":
    sys.exit(main())
