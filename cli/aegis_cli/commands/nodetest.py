"""`aegis node test`: deep tests of nodes by their daemons, and what came out."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from aegis_bus.connection import Msg
from aegis_proto import subjects
from aegis_proto.api_nodes import NodeTestAnswer, NodeTestRequest
from aegis_proto.deeptest import DeepTestDone
from aegis_proto.job import duration
from aegis_proto.messages import BadMessage, decode

from aegis_cli import several
from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column

LONGEST = 900.0
"""Seconds a test may take beyond what its parts were given (the daemon's own limit)."""
PARTS = 12
ORDERED = [
    Column("NODE", lambda row: row.node),
    Column("TEST", lambda row: row.id),
    Column("RUNNING", lambda row: ",".join(row.running)),
]
DONE = [
    Column("NODE", lambda row: row.node),
    Column("STATE", lambda row: row.state),
    Column("TOOK", lambda row: f"{row.seconds:.0f}s"),
    Column("MESSAGE", lambda row: row.message),
]


def register(group: typer.Typer) -> None:
    """Add the verb to the group of nodes."""

    @command(group, "test", acting=True, reason=True)
    def test(
        env: Env,
        nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Node ids.")],
        *,
        each: Annotated[str, typer.Option("--each", metavar="TIME", help="For each single test (10s); minutes are a burn.")] = "10s",
        free: Annotated[str, typer.Option("--when-free", metavar="TIME", help="How long to wait for workers to leave (0 = refuse at once).")] = "0",
        detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for the result.")] = False,
    ) -> int:
        """Test nodes in depth: memory, computation, copies, a long collective. Nothing deep runs beside a worker or on a busy GPU."""
        try:
            seconds, waits = duration(each, "--each"), duration(free, "--when-free")
        except ValueError as error:
            raise CliError("E116", str(error).removeprefix("E117 ")) from None
        if detach or env.dry_run:
            rows, errors = run_async(_order(env, nodes, seconds, waits))
            env.out.listing("ActionList", rows, ORDERED, lambda row: row.node)
            return several.report(env.out, errors)
        done, errors = run_async(_follow(env, nodes, seconds, waits))
        env.out.listing("DeepTestList", done, DONE, lambda row: row.node)
        return several.report(env.out, errors) or (0 if all(row.state == "passed" for row in done) else 1)


async def _order(env: Env, nodes: list[str], seconds: float, waits: float) -> tuple[list[NodeTestAnswer], list[CliError]]:
    async with Client.of(env) as client:
        return await several.each(list(dict.fromkeys(nodes)), lambda node: _ask(client, env, node, seconds, waits))


async def _ask(client: Client, env: Env, node: str, seconds: float, waits: float) -> NodeTestAnswer:
    request = NodeTestRequest(node, client.who, env.reason, seconds, waits, env.dry_run)
    return await client.act_nodes("test", client.namespace, request, NodeTestAnswer)


async def _follow(env: Env, nodes: list[str], seconds: float, waits: float) -> tuple[list[DeepTestDone], list[CliError]]:
    """Order, and wait for each answer. What a daemon says before the order's id is known is kept until it is."""
    async with Client.of(env) as client:

        async def one(node: str) -> DeepTestDone:
            heard: asyncio.Queue[DeepTestDone] = asyncio.Queue()

            async def said(msg: Msg) -> None:
                try:
                    heard.put_nowait(decode(DeepTestDone, msg.data))
                except BadMessage:
                    pass

            await client.bus.subscribe(subjects.view(subjects.node_event(node, "test")), said)
            ordered = await _ask(client, env, node, seconds, waits)
            limit = LONGEST + PARTS * seconds + waits
            try:
                async with asyncio.timeout(limit):
                    while (answer := await heard.get()).id != ordered.id or answer.state == "waiting":
                        if answer.id == ordered.id:
                            env.out.note(f"{node}: {answer.message}; waiting")
            except TimeoutError:
                raise CliError("E108", f"{node}: no answer to test {ordered.id} within {limit:.0f} s", hint="aegis node show " + node) from None
            return answer

        return await several.each(list(dict.fromkeys(nodes)), one)
