"""The first node of an allocation: stack, job, ledger; and what Slurm is told of nodes and of the end.

Order of an end: the job is over -> ledger -> `end.json`, by which all nodes leave -> own daemon and stack -> requeue, when it is to run again.
"""

from __future__ import annotations

import asyncio
import datetime
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aegis_bus.config import Config
from aegis_bus.errors import BusError
from aegis_proto.api import JobDetail
from aegis_proto.api_nodes import NodeLostAnswer, NodeLostRequest
from aegis_proto.state import JobSpec

from aegis_cli import codes, model, outcome, verdicts
from aegis_cli.client import Client
from aegis_cli.commands.run import submit
from aegis_cli.context import Target, of_stack
from aegis_cli.errors import CliError
from aegis_cli.follow import Follower, Lines
from aegis_cli.output import Output
from aegis_cli.signals import Signals
from aegis_cli.slurm import control, ledger, records
from aegis_cli.slurm.ending import Ending, ending, interrupted, used
from aegis_cli.slurm.folder import End, Endpoint, Folder
from aegis_cli.slurm.ledger import Ledger
from aegis_cli.slurm.member import Member, again
from aegis_cli.slurm.step import Step, node_ids
from aegis_cli.stack import client as stacks
from aegis_cli.stack import place

NOTICE_LOOK, NODES_LOOK = 1.0, 5.0


@dataclass(frozen=True)
class Allocation:
    """The nodes of this step: Slurm's name -> `scontrol show node` of each."""

    names: tuple[str, ...]
    records: dict[str, dict[str, str]]

    def virtual(self) -> tuple[str, ...]:
        """Several nodes on one machine, each with a slurmd of its own."""
        hosts = [self.records[name].get("NodeHostName", name) for name in self.names]
        return tuple(name for name, host in zip(self.names, hosts, strict=True) if hosts.count(host) > 1)

    def address(self, name: str) -> str:
        """Where the other nodes reach this one: Slurm's own address of it, as a number."""
        wanted = self.records[name].get("NodeAddr", name)
        for text in (wanted, name, socket.gethostname()):
            try:
                return str(socket.getaddrinfo(text, None, family=socket.AF_INET, type=socket.SOCK_STREAM)[0][4][0])
            except OSError:
                continue
        raise CliError("E101", f"{wanted}, the address of {name} in Slurm, cannot be resolved here")


def look(step: Step) -> Allocation:
    """Ask Slurm about the nodes of this step."""
    names = control.hostnames(step.nodelist)
    return Allocation(names, {name: control.node(name) for name in names})


class Recorder(Lines):
    """What is shown of the job, line by line; each new answer also goes to the owner."""

    def __init__(self, out: Output, owner: Owner) -> None:
        super().__init__(out)
        self.owner = owner

    def show(self, model: model.Model) -> None:
        if model.detail is not None:
            self.owner.record(model.detail)


class Owner:
    """See the module. `run` is its whole life and gives the exit code."""

    def __init__(self, step: Step, spec: JobSpec, settings: Config, out: Output, base: Path) -> None:
        self.step, self.spec, self.settings, self.out, self.base = step, spec, settings, out, base
        self.folder = Folder.of(step)
        self.ledger = Ledger()
        self.allocation: Allocation
        self.ids: dict[str, str] = {}
        self.notice: records.Notice | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._frozen = False
        """What is heard while everything is being ended says nothing about the training."""

    async def run(self) -> int:
        """One start, from the ledger to the exit code of every task. A stack that does not come up ends it for all: nobody waits for it in vain."""
        try:
            with Signals() as signals:
                return await self._leave(await self._begin(signals))
        except (CliError, BusError, control.SlurmRefused, OSError) as error:
            self.out.note(str(error))
            return self._told(Ending(codes.REQUEUE, "", "no stack"))
        finally:
            await asyncio.to_thread(shutil.rmtree, self.base, True)

    async def _begin(self, signals: Signals) -> Ending:
        """Whether this start can be one."""
        self.folder.make()
        self.folder.begin()
        self.ledger = self.folder.ledger()
        spent = self.ledger.spent
        if spent > self.spec.maxRetry:
            self.out.note(f"E301 the budget of job {self.step.job} is spent: {spent} faults in earlier starts, {self.spec.maxRetry} allowed")
            return Ending(codes.DO_NOT_REQUEUE, "", "budget spent")
        self.allocation = await asyncio.to_thread(look, self.step)
        names = self.allocation.names
        self.ids = node_ids(names)
        self.ledger = ledger.begin(self.ledger, ledger.Start(self.step.restart, _now(), names))
        self._save()
        usable = [name for name in names if name not in self.ledger.names]
        if len(usable) < self.spec.workers:
            refused = ", ".join(f"{item.node} ({item.reason})" for item in self.ledger.avoided if item.node in names)
            self.out.note(f"E113 {self.spec.workers} workers asked, {len(usable)} nodes usable" + (f": not {refused}" if refused else ""))
            if len(names) < self.spec.workers:  # no requeue makes the allocation larger
                return self._ended(Ending(codes.USAGE, "", "too few nodes"))
            return self._ended(Ending(codes.REQUEUE, "ask", "too few usable nodes"))
        return await self._start(signals)

    async def _start(self, signals: Signals) -> Ending:
        address = self.allocation.address(self.step.node)
        members = list(self.ids.values())
        stack = await asyncio.to_thread(
            lambda: stacks.join(place.trusted(self.base / "stack"), nodes=0, host=address, members=members, say=self.out.note)
        )
        member: Member | None = None
        daemon: asyncio.Task[int] | None = None
        try:
            target = of_stack(stack.base, stack.info)
            self.folder.write_endpoint(self._endpoint(target))
            started = f"stack of job {self.step.job} up in {stack.seconds:.1f} s on {self.step.node}: {target.servers[0]}"
            restart = f", start {self.step.restart + 1}, {self.ledger.spent - 1} of {self.spec.maxRetry} restarts used" if self.step.restart else ""
            self.out.note(started + restart)
            member = Member(
                self.step,
                self.folder,
                place.trusted(self.base / "member"),
                max_retry=self.spec.maxRetry,
                settings=self.settings.slurm,
                say=self.out.note,
            )
            daemon = asyncio.create_task(member.run())
            end = self._ended(await self._job(target, signals, member))
            self._told(end)
            await daemon
            return end
        finally:
            if member is not None and daemon is not None and not daemon.done():
                await member.stop()
                await asyncio.gather(daemon, return_exceptions=True)
            self.folder.forget_endpoint()
            stack.leave()
            await asyncio.to_thread(stacks.end, stack.base)

    def _endpoint(self, target: Target) -> Endpoint:
        creds = self.base / "stack" / "creds"
        return Endpoint(
            self.step.restart,
            target.servers,
            Path(target.ca).read_text(),
            Path(target.creds).read_text(),
            self.ids,
            {name: (creds / f"{name}.creds").read_text() for name in self.ids.values()},
            self.step.node,
            self.allocation.virtual(),
        )

    # --- the job -----------------------------------------------------------------------------------------------------------------

    async def _job(self, target: Target, signals: Signals, member: Member) -> Ending:
        """Submit it with what is left of the budget, and follow it to its end, or until Slurm signals the step."""
        left = self.spec.maxRetry - (self.ledger.spent - 1)  # this start is open, and not a fault yet
        exclude = tuple(self.ids[name] for name in self.ledger.names if name in self.ids)
        spec = msgspec.structs.replace(self.spec, maxRetry=left, exclude=(*self.spec.exclude, *exclude))
        async with Client(target) as client:
            job = await submit(client, spec)
            follower = Follower(client, job.job, Recorder(self.out, self), signals=signals)
            signalled = asyncio.Event()
            following = asyncio.create_task(follower.until(lambda m: m.terminal, lambda *_: signalled.set()))
            watching = asyncio.create_task(self._watch(client, job.job))
            looking = asyncio.create_task(self._look_at_nodes(client))
            waiting = asyncio.create_task(signalled.wait())
            try:
                await asyncio.wait({following, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    return await self._interrupted(member)
                found = following.result()
            finally:
                for task in (following, watching, looking, waiting):
                    task.cancel()
                await asyncio.gather(following, watching, looking, waiting, return_exceptions=True)
            await follower.settle(self.spec.preemptGrace if self.notice else self.spec.stopGrace + 5.0, lambda: None)
            if found.detail is None:
                raise CliError("E108", f"nothing is known of {job.job}")
            self.record(found.detail)
            await asyncio.gather(*self._work, return_exceptions=True)
            error = outcome.problem(found.detail, 0)
            if error is not None and self.notice is None:
                self.out.note(str(error))
                if left < self.spec.maxRetry:
                    self.out.note(f"earlier starts of job {self.step.job} had used {self.spec.maxRetry - left} of {self.spec.maxRetry} restarts")
                reasons = await verdicts.of_the_end(client, found.detail)
                if reasons:
                    self.out.note(verdicts.sentence(reasons))
        return ending(found.detail, self.spec.maxRetry, self.notice)

    async def _watch(self, client: Client, job: str) -> None:
        """The batch script's notice of the time limit: the training is stopped in order, and may save first."""
        while not self.folder.noticed:
            await asyncio.sleep(NOTICE_LOOK)
        self.notice = await self._meaning()
        grace = min(self.spec.preemptGrace, self.notice.grace)
        again = ", and the job runs again" if self.notice.again else ""
        self.out.note(f"Slurm: {self.notice.why}; the training has {grace:.0f} s to save{again}")
        while True:
            try:
                detail = await client.job(job, workers=False)
                if detail.summary.phase not in ("Succeed", "Failed"):
                    await client.action("stop", detail.summary, f"Slurm: {self.notice.why}", grace)
            except (BusError, CliError) as error:
                self.out.note(str(error))
                await asyncio.sleep(1.0)
            else:
                return

    async def _look_at_nodes(self, client: Client) -> None:
        """A node that Slurm has given up and whose daemon is not heard is lost: two witnesses. Either alone may be wrong: a dead slurmd is no dead
        training, and a bus that is away neither."""
        told: set[str] = set()
        names = {node: name for name, node in self.ids.items()}
        while True:
            await asyncio.sleep(NODES_LOOK)
            try:
                silent = {node.node for node in await client.nodes() if node.health == "silent"} & names.keys() - told
                for node in silent:
                    state = await asyncio.to_thread(control.node, names[node])
                    if records.down(state):
                        reason = f"Slurm: {state.get('State', '')} {state.get('Reason', '')}".strip()
                        await client.act_nodes("node-lost", node, NodeLostRequest(client.who, reason[:200]), NodeLostAnswer)
                        told.add(node)
            except (BusError, CliError, control.SlurmRefused) as error:
                self.out.note(f"nodes could not be looked at: {error}")

    async def _interrupted(self, member: Member) -> Ending:
        """Every process of the step has had the signal, the stack's too. Agents and training save; this waits for them as long as Slurm does."""
        self._frozen = True
        member.noticed.set()
        self.notice = await self._meaning()
        end = interrupted(self.notice)
        grace = min(self.spec.preemptGrace, self.notice.grace)
        self.out.note(f"Slurm: {self.notice.why}; the training has {grace:.0f} s to save" + (", and the job runs again" if end.again else ""))
        deadline = time.monotonic() + grace
        while self.folder.left() < len(self.allocation.names) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        return end

    async def _meaning(self) -> records.Notice:
        try:
            state = await asyncio.to_thread(control.job, self.step.job)
            wait = (await asyncio.to_thread(control.config)).get("KillWait", "30").split(" ")[0]
        except control.SlurmRefused as error:
            self.out.note(f"what the signal means is not known: {error}")
            return records.Notice("ended by Slurm", 25.0, False)
        return records.notice(state, self.step.restart, float(wait) if wait.isdigit() else 30.0, datetime.datetime.now())

    def record(self, detail: JobDetail) -> None:
        """Keep what was counted and which nodes are bad; said to Slurm once each."""
        if self._frozen:
            return
        kept = self.ledger
        names = {node: name for name, node in self.ids.items()}
        bad = [ledger.Avoided(names[node.name], node.reason, node.timeStamp) for node in detail.errorNodes if node.name in names]
        fresh = [item for item in bad if item.node not in kept.names]
        kept = ledger.avoid(ledger.update(kept, self.step.restart, used=used(detail), job=detail.summary.job), *bad)
        if kept != self.ledger:
            self.ledger = kept
            self._save()
        for item in fresh:
            task = asyncio.ensure_future(self._exclude(item))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _exclude(self, item: ledger.Avoided) -> None:
        """Drain it where that is wanted and allowed; a requeue leaves it out in any case."""
        if self.settings.slurm.exclude == "list" or self.settings.actions.mode != "act" or self.spec.actions != "act":
            self.out.note(f"{item.node} is left out of the next start of this job: {item.reason}")
            return
        try:
            await asyncio.to_thread(control.drain, item.node, f"aegis: {item.reason} (job {self.step.job})")
            self.out.note(f"{item.node} drained in Slurm: {item.reason}. Back: scontrol update nodename={item.node} state=resume")
        except control.SlurmRefused as error:
            level = "is left out of the next start of this job" if self.settings.slurm.exclude == "auto" else "could not be drained"
            self.out.note(f"{item.node} {level}: {item.reason} ({error})")

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def _ended(self, end: Ending) -> Ending:
        self.ledger = ledger.update(self.ledger, self.step.restart, end=end.end, code=end.code)
        self._save()
        return end

    def _save(self) -> None:
        try:
            self.folder.write_ledger(self.ledger)
        except OSError as error:
            self.out.note(f"the budget of this job could not be kept: {self.folder.path}/ledger.json: {error.strerror}")

    def _told(self, end: Ending) -> int:
        self.folder.write_end(End(self.step.restart, end.code, end.end))
        return end.code

    async def _leave(self, end: Ending) -> int:
        """Requeue when the job is to run again. Its processes are then ended by Slurm; none of them is needed any more."""
        self._told(end)
        if end.again and self.settings.slurm.requeue:
            try:
                await asyncio.to_thread(again, self.step.job, self.ledger.names, end.again, self.settings.slurm.requeue_delay)
                self.out.note(f"job {self.step.job} is requeued ({end.end}); {self.ledger.spent} of {self.spec.maxRetry} restarts used")
            except control.SlurmRefused as error:
                self.out.note(f"job {self.step.job} was not requeued: {error}")
        return end.code


def _now() -> int:
    return int(time.time() * 1000)
