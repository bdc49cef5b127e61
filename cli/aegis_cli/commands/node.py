"""`aegis node ...`: which nodes there are, and excluding them."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import msgspec
import typer
from aegis_proto.api_nodes import NodeInfo, NodeLostAnswer, NodeLostRequest, NodesAnswer, NodesQuery, TaintAnswer, TaintRequest
from aegis_proto.job import duration

from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.units import age


def until(ms: int) -> str:
    """End of an exclusion, local time; `until lifted` for 0."""
    return time.strftime("%a %H:%M:%S", time.localtime(ms / 1000)) if ms else "until lifted"


LIST = [
    Column("NODE", lambda node: node.node),
    Column("HEALTH", lambda node: node.health),
    Column("JOB", lambda node: ",".join(node.jobs)),
    Column("FREE", lambda node: f"{node.free}/{len(node.slots)}"),
    Column("GPUS", lambda node: node.gpus or ""),
    Column("EXCLUDED-UNTIL", lambda node: until(node.until) if node.excluded else ""),
    Column("REASON", lambda node: node.reason),
    Column("HOST", lambda node: node.host, wide=True),
    Column("ADDRESS", lambda node: node.addr, wide=True),
    Column("SEEN", lambda node: f"{node.seenAgo:.0f}s ago" if node.seenAgo >= 0 else "never", wide=True),
    Column("VIRTUAL", lambda node: "yes" if node.virtual else "no", wide=True),
    Column("VERSION", lambda node: node.version, wide=True),
]
SLOTS = [
    Column("SLOT", lambda slot: slot.slot),
    Column("JOB", lambda slot: slot.job),
    Column("W", lambda slot: slot.pod),
    Column("ATTEMPT", lambda slot: slot.attempt or ""),
    Column("STATE", lambda slot: slot.state),
    Column("PID", lambda slot: slot.pid or ""),
    Column("EXIT", lambda slot: slot.exitCode),
    Column("MESSAGE", lambda slot: slot.message),
]
ACTED = [
    Column("NODE", lambda row: row.node),
    Column("BEFORE", lambda row: row.before),
    Column("AFTER", lambda row: row.after),
    Column("UNTIL", lambda row: until(row.until) if row.after.startswith("excluded") else ""),
    Column("STAYS-RUNNING", lambda row: ",".join(row.running)),
]

LOST = [Column("NODE", lambda row: row.node), Column("LOST-WORKERS", lambda row: ",".join(row.told) or "none")]

Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Node ids.")]


async def _ask(client: Client, names: tuple[str, ...] = ()) -> list[NodeInfo]:
    answer = await client.query_nodes("nodes", NodesQuery(names), NodesAnswer)
    return sorted(answer.nodes, key=lambda node: (len(node.node), node.node))


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Nodes: which there are, excluding them.", no_args_is_help=True)
    app.add_typer(group, name="node")

    @command(group, "ls", "list", watch=True)
    def ls(
        env: Env,
        *,
        excluded: Annotated[bool, typer.Option("--excluded", help="Only excluded nodes.")] = False,
        bad: Annotated[bool, typer.Option("--bad", help="Only nodes that cannot take work.")] = False,
        job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only nodes of this job.")] = "",
    ) -> None:
        """The nodes, and what keeps one from taking work."""

        def wanted(node: NodeInfo) -> bool:
            return (not excluded or node.excluded) and (not bad or node.health != "ok") and (not job or job in node.jobs)

        async def work() -> None:
            async with Client.of(env) as client:
                nodes = [node for node in await _ask(client) if wanted(node)]
                if not env.watch:
                    env.out.listing("NodeList", nodes, LIST, lambda node: node.node, "no nodes")
                    return
                seen: dict[str, NodeInfo] = {}
                while True:
                    for node in nodes:
                        now = msgspec.structs.replace(node, seenAgo=-1.0)
                        if seen.get(node.node) != now:
                            seen[node.node] = now
                            text = f"{node.node}  {node.health}  {','.join(node.jobs) or '-'}  free {node.free}/{len(node.slots)}"
                            env.out.line("Node", node, text)
                    await asyncio.sleep(1.0)
                    nodes = [node for node in await _ask(client) if wanted(node)]

        run_async(work())

    @command(group, "show", "describe")
    def show(env: Env, nodes: Nodes) -> None:
        """Everything about nodes: health, slots, exclusion."""

        async def work() -> list[NodeInfo]:
            async with Client.of(env) as client:
                found = await _ask(client, tuple(nodes))
            missing = set(nodes) - {node.node for node in found}
            if missing:
                raise CliError("E109", f'no node "{sorted(missing)[0]}" here', hint="aegis node ls")
            return found

        for node in run_async(work()):
            lines = [f"Node {node.node}   {node.health}   {node.host} {node.addr}" + ("   virtual" if node.virtual else "")]
            if node.seenAgo >= 0:
                lines[0] += f"   seen {age(node.seenAgo)} ago"
            if node.excluded:
                lines.append(f"Excluded until {until(node.until)} by {node.by or 'unknown'}: {node.reason or 'no reason given'}")
            if node.gpus:
                lines.append(f"GPUs {node.gpus} {node.gpuType}")
            if node.labels:
                lines.append("Labels " + " ".join(f"{key}={value}" for key, value in sorted(node.labels.items())))
            if node.slots:
                lines.append(table(list(node.slots), SLOTS))
            env.out.document("Node", node, "\n".join(lines), node.node)

    @command(group, "taint", acting=True)
    def taint(
        env: Env, nodes: Nodes, span: Annotated[str, typer.Option("--for", metavar="TIME", help="How long (24h; 0 = until lifted).")] = "24h"
    ) -> None:
        """Exclude nodes for all jobs; what runs there stays."""
        try:
            seconds = duration(span, "--for")
        except ValueError as error:
            raise CliError("E116", str(error).removeprefix("E117 ")) from None
        _act(env, "taint", nodes, seconds)

    @command(group, "lost", acting=True)
    def lost(env: Env, nodes: Nodes) -> None:
        """Declare nodes lost (the machine is off): their workers are placed elsewhere at once. One that lives on would train twice."""
        if not env.reason:
            raise CliError("E107", "a lost node needs --reason TEXT: it stands in the story of every job there", exit=2)

        async def work() -> list[NodeLostAnswer]:
            async with Client.of(env) as client:
                rows = []
                for node in nodes:
                    request = NodeLostRequest(client.who, env.reason, dryRun=env.dry_run)
                    rows.append(await client.act_nodes("node-lost", node, request, NodeLostAnswer))
                return rows

        env.out.listing("ActionList", run_async(work()), LOST, lambda row: row.node)

    @command(group, "untaint", acting=True)
    def untaint(env: Env, nodes: Nodes) -> None:
        """Let nodes take work again."""
        _act(env, "untaint", nodes, 0.0)


def _act(env: Env, verb: str, nodes: list[str], seconds: float) -> None:
    async def work() -> list[TaintAnswer]:
        async with Client.of(env) as client:
            rows = []
            for node in nodes:
                request = TaintRequest(node, client.who, env.reason, seconds, dryRun=env.dry_run)
                rows.append(await client.act_nodes(verb, client.namespace, request, TaintAnswer))
            return rows

    env.out.listing("ActionList", run_async(work()), ACTED, lambda row: row.node)
