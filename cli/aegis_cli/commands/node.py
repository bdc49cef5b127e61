"""`aegis node ...`: which nodes there are, and excluding them."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
import typer
from aegis_proto.api_nodes import NodeInfo, NodeLostAnswer, NodeLostRequest, TaintAnswer, TaintRequest
from aegis_proto.job import duration

from aegis_cli import several, times
from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.commands import nodetest
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.units import age


def until(ms: int) -> str:
    """End of an exclusion; `until lifted` for 0."""
    return times.moment(ms / 1000) if ms else "until lifted"


LIST = [
    Column("NODE", lambda node: node.node),
    Column("HEALTH", lambda node: node.health),
    Column("RISK", lambda node: f"{node.risk:.2f}" if node.risk else ""),
    Column("JOB", lambda node: ",".join(node.jobs)),
    Column("FREE-SLOTS", lambda node: f"{node.free} of {len(node.slots)}"),
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

NO_REASON = "no reason given"
Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Node ids.")]


async def _ask(client: Client, names: tuple[str, ...] = ()) -> list[NodeInfo]:
    return sorted(await client.nodes(names), key=lambda node: (len(node.node), node.node))


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Nodes: which there are, excluding them.", no_args_is_help=True)
    app.add_typer(group, name="node")
    nodetest.register(group)

    @command(group, "ls", "list", watch=True)
    def ls(
        env: Env,
        *,
        excluded: Annotated[bool, typer.Option("--excluded", help="Only excluded nodes.")] = False,
        bad: Annotated[bool, typer.Option("--bad", help="Only nodes that cannot take work.")] = False,
        job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only nodes of this job.")] = "",
    ) -> None:
        """The nodes, and what keeps one from taking work. A slot takes one worker; FREE-SLOTS: how many could come, of how many."""

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
                            text = f"{node.node}  {node.health}  {','.join(node.jobs) or '-'}  {node.free} of {len(node.slots)} slots free"
                            env.out.line("Node", node, text)
                    await asyncio.sleep(1.0)
                    nodes = [node for node in await _ask(client) if wanted(node)]

        run_async(work())

    @command(group, "show", "describe")
    def show(env: Env, nodes: Nodes) -> int:
        """Everything about nodes: health, slots, exclusion."""

        async def work() -> tuple[list[NodeInfo], list[CliError]]:
            async with Client.of(env) as client:
                found = await _ask(client, tuple(nodes))
            missing = [node for node in dict.fromkeys(nodes) if node not in {node.node for node in found}]
            return found, [CliError("E109", f'no node "{node}" here', hint="aegis node ls") for node in missing]

        found, errors = run_async(work())

        for node in found:
            lines = [f"Node {node.node}   {node.health}   {node.host} {node.addr}" + ("   virtual" if node.virtual else "")]
            if node.seenAgo >= 0:
                lines[0] += f"   seen {age(node.seenAgo)} ago"
            if node.excluded:
                lines.append(f"Excluded until {until(node.until)} by {node.by or 'unknown'}: {node.reason or NO_REASON}")
            if node.risk:
                lines.append(f"Risk {node.risk:.2f}: {node.doubt}   (aegis lemon why {node.node})")
            if node.gpus:
                lines.append(f"GPUs {node.gpus} {node.gpuType}")
            if node.labels:
                lines.append("Labels " + " ".join(f"{key}={value}" for key, value in sorted(node.labels.items())))
            if node.slots:
                lines.append(table(list(node.slots), SLOTS))
            env.out.document("Node", node, "\n".join(lines), node.node)
        return several.report(env.out, errors)

    @command(group, "taint", acting=True, reason=True)
    def taint(
        env: Env, nodes: Nodes, span: Annotated[str, typer.Option("--for", metavar="TIME", help="How long (24h; 0 = until lifted).")] = "24h"
    ) -> int:
        """Exclude nodes for all jobs; what runs there stays."""
        try:
            seconds = duration(span, "--for")
        except ValueError as error:
            raise CliError("E116", str(error).removeprefix("E117 ")) from None
        return _act(env, "taint", nodes, seconds, NO_REASON)

    @command(group, "lost", acting=True, reason=True)
    def lost(env: Env, nodes: Nodes) -> int:
        """Declare nodes lost (the machine is off): their workers are placed elsewhere at once. One that lives on would train twice."""
        if not env.reason:
            raise CliError("E107", "a lost node needs --reason TEXT: it stands in the story of every job there", exit=2)

        async def work() -> tuple[list[NodeLostAnswer], list[CliError]]:
            async with Client.of(env) as client:

                async def one(node: str) -> NodeLostAnswer:
                    return await client.act_nodes("node-lost", node, NodeLostRequest(client.who, env.reason, dryRun=env.dry_run), NodeLostAnswer)

                return await several.each(list(dict.fromkeys(nodes)), one)

        rows, errors = run_async(work())
        env.out.listing("ActionList", rows, LOST, lambda row: row.node)
        return several.report(env.out, errors)

    @command(group, "untaint", acting=True, reason=True)
    def untaint(env: Env, nodes: Nodes) -> int:
        """Let nodes take work again."""
        return _act(env, "untaint", nodes, 0.0)


def _act(env: Env, verb: str, nodes: list[str], seconds: float, reason: str = "") -> int:
    async def work() -> tuple[list[TaintAnswer], list[CliError]]:
        async with Client.of(env) as client:

            async def one(node: str) -> TaintAnswer:
                request = TaintRequest(node, client.who, env.reason or reason, seconds, dryRun=env.dry_run)
                return await client.act_nodes(verb, client.namespace, request, TaintAnswer)

            return await several.each(list(dict.fromkeys(nodes)), one)

    rows, errors = run_async(work())
    env.out.listing("ActionList", rows, ACTED, lambda row: row.node)
    return several.report(env.out, errors)
