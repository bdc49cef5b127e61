"""`aegis up`, `down`, `status`: the stack of this machine, and what answers at a bus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from aegis_bus.errors import BusError
from aegis_proto import api

from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.commands.settings import configuration
from aegis_cli.context import Target, of_stack, resolve
from aegis_cli.errors import CliError
from aegis_cli.login import refuse_login_node
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.stack import client as stacks
from aegis_cli.stack import place, users

SOON = 2.0
"""Seconds that the end of a stack waits to learn which jobs it ends."""
NAMED = 16


@dataclass(frozen=True)
class Part:
    """One line of `aegis status`."""

    part: str
    state: str
    version: str = ""
    address: str = ""
    note: str = ""


COLUMNS = [
    Column("PART", lambda part: part.part),
    Column("STATE", lambda part: part.state),
    Column("VERSION", lambda part: part.version),
    Column("ADDRESS", lambda part: part.address),
    Column("NOTE", lambda part: part.note),
]


def parts_of(info: dict[str, Any], base: Path) -> list[Part]:
    """The parts as the keeper tells them; of one that ended, where its own words are."""
    rows = []
    for part in info.get("parts", ()):
        note = f"pid {part['pid']}" if part.get("pid") else ""
        if part.get("restarts"):
            note += f", restarted {part['restarts']}x ({part.get('last', '')}), see {base}/logs/{part['name']}.log"
        if part.get("note"):
            note += f", {part['note']}" if note else str(part["note"])
        rows.append(Part(part["name"], part["state"], part.get("version", ""), part.get("address", ""), note))
    return rows


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @command(app, "up", acting=True)
    def up(
        env: Env,
        nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=stacks.VIRTUAL_NODES, help="Virtual nodes of this machine.")] = 1,
        masters: Annotated[int, typer.Option("--masters", metavar="N", min=1, max=3, help="Master replicas.")] = 1,
        state: Annotated[Path | None, typer.Option("--state", metavar="DIR", help="Keep the state there (default: it goes with the stack).")] = None,
    ) -> None:
        """Start the stack of this machine and leave it up."""
        refuse_login_node()
        store = state or (Path(configured) if (configured := configuration(env).bus.state) else None)
        base = place.base_dir()
        if env.dry_run:
            env.out.text(
                f"would start nats-server, credentials, {masters} master(s), job controller and {nodes} node(s) in {base}, state in {store or base}"
            )
            return
        stack = stacks.join(base, nodes=nodes, masters=masters, store=store.absolute() if store else None, pin=True, say=env.out.note)
        try:
            verb = "up" if stack.started else "was up already, stays up"
            env.out.note(f"stack {verb} ({stack.seconds:.1f} s) in {base}, state in {stack.info['store']}; aegis down ends it")
            parts = parts_of(stack.info, base)
            env.out.document("Status", {"items": [part.__dict__ for part in parts]}, table(parts, COLUMNS), str(base))
        finally:
            stack.leave()

    @command(app, "down", acting=True)
    def down(env: Env) -> None:
        """End the stack of this machine, and what runs on it."""
        base = place.base_dir()
        info = stacks.running(base)
        jobs = run_async(_alive(of_stack(base, info))) if info and info.get("state") == "up" else []
        told = f", and {_many(jobs)}" if jobs else ""
        if env.dry_run:
            env.out.text(f"would end the stack in {base}{told}" if info is not None else f"no stack in {base}")
            return
        if stacks.end(base):
            env.out.note(f"stack in {base} ended{told}")
        else:
            env.out.note(f"no stack in {base}")

    @command(app, "status")
    def status(env: Env) -> int:
        """The parts: which are up, where, which version."""
        base = place.base_dir()
        target = resolve(env.context)
        rows: list[Part] = []
        info = stacks.running(base) if target is None or target.stack is not None else None
        if info:
            rows += parts_of(info, base)
            target = of_stack(base, info) if info.get("state") == "up" else None
            note = "pinned" if users.pinned(base) else "ends with its last user"
            rows.insert(0, Part("stack", str(info.get("state", "starting")), address=str(base), note=note))
        elif target is None:
            raise CliError("E101", f"no context, and no stack of yours runs in {base}", hint="aegis up, or aegis context add")
        if target is not None:
            rows += run_async(_answers(env, target))
        env.out.document("Status", {"items": [row.__dict__ for row in rows]}, table(rows, COLUMNS), target.name if target else str(base))
        return 0 if all(row.state in ("up", "running") for row in rows) else 1


async def _alive(target: Target) -> list[api.JobSummary]:
    """Jobs that have not ended; none when nobody answers at once (the stack is to end all the same)."""
    try:
        async with Client(target, SOON) as client:
            return await client.jobs(api.JobsRequest())
    except (CliError, BusError):
        return []


def _many(jobs: list[api.JobSummary]) -> str:
    """`2 jobs with it: ddp-1 (RunCommand), llm-2 (Pending)`"""
    names = ", ".join(f"{job.job} ({'suspended' if job.suspended else job.phase})" for job in jobs[:NAMED])
    more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''} with it: {names}{more}"


async def _answers(env: Env, target: Target) -> list[Part]:
    """What the services themselves say."""
    rows: list[Part] = []
    try:
        async with Client.of(env, target) as client:
            rows.append(Part("bus", "up", address=", ".join(target.servers), note=f"as {client.identity.name}"))
            try:
                said = await client.query("status", {}, api.Status)
            except CliError as error:
                rows.append(Part("masters", "down", note=error.message))
            else:
                jobs = ", ".join(f"{number} {phase}" for phase, number in sorted(said.jobs.items()) if number) or "no jobs"
                note = f"{jobs}; store {said.storeUsed:.0%}" + (f"; {said.unowned} without owner" if said.unowned else "")
                rows.append(Part("masters", "up", said.version, ", ".join(replica.replica for replica in said.replicas), note))
            try:
                nodes = await client.nodes()
            except CliError as error:
                rows.append(Part("nodes", "down", note=error.message))
            else:
                good = sum(node.health == "ok" for node in nodes)
                rows.append(Part("nodes", "up", note=f"{good} of {len(nodes)} can take work"))
    except (CliError, BusError) as error:
        rows.append(Part("bus", "down", address=", ".join(target.servers), note=str(error)))
    return rows
