"""`aegis net sample` and `aegis net rollout`: turning adaptive routing on, one pod first, by what was counted before and after.

`sample` asks netmon and adds what was measured by hand; `rollout` orders pods, or compares two such files, and needs no service.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from aegis_proto.net import SampleAnswer, SampleQuery

from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.offline import core
from aegis_cli.options import Env, command
from aegis_cli.output import Column, builtins, table

ROWS = [
    Column("QUANTITY", lambda row: row.name),
    Column("BEFORE", lambda row: None if row.before is None else f"{row.before:.3g}"),
    Column("AFTER", lambda row: None if row.after is None else f"{row.after:.3g}"),
    Column("UNIT", lambda row: row.unit),
    Column("VERDICT", lambda row: row.verdict),
]
MEANS = {"go": "go on to the next pod", "back": "turn it off again", "wait": "wait"}


def register(group: typer.Typer) -> None:
    """Add the commands."""

    @command(group, "sample")
    def sample(
        env: Env,
        *,
        nodes: Annotated[str, typer.Option("--nodes", metavar="N1,N2", help="Nodes of the pod (all).")] = "",
        bandwidth: Annotated[
            float | None,
            typer.Option("--bandwidth", metavar="GBPS", help="Measured, in Gbit/s: 8 times the GB/s of all_reduce_perf.", show_default=False),
        ] = None,
        latency: Annotated[
            float | None, typer.Option("--latency", metavar="US", help="Of small messages, measured, in microseconds.", show_default=False)
        ] = None,
    ) -> None:
        """What the ports of a pod counted in the last minutes, to be compared by `aegis net rollout`: `aegis net sample --json > before.json`."""
        wanted = tuple(filter(None, (name.strip() for name in nodes.split(","))))

        async def work() -> SampleAnswer:
            async with Client.of(env) as client:
                return await client.query_net("sample", SampleQuery(wanted), SampleAnswer)

        answer = run_async(work())
        if answer.silent:
            env.out.note(f"nothing is told by {', '.join(answer.silent)}")
        body = {**builtins(answer), "bandwidthGbps": bandwidth, "latencyUs": latency}
        text = f"{answer.ports} ports, {answer.seconds:.0f} s: {answer.packets} packets, {answer.retransmits} retransmits, {answer.drops} drops"
        env.out.document("NetSample", body, f"{text}, {answer.bitErrors} errors in {answer.bits:.2g} bits")

    @command(group, "rollout")
    def rollout(
        env: Env,
        *,
        before: Annotated[Path | None, typer.Argument(metavar="BEFORE", help="A sample from before the change.", show_default=False)] = None,
        after: Annotated[Path | None, typer.Argument(metavar="AFTER", help="A sample from after it.", show_default=False)] = None,
        pods: Annotated[
            Path | None,
            typer.Option("--pods", metavar="FILE", help="Pods as JSON, [{name, busy_gpus, core}]: in which order they go.", show_default=False),
        ] = None,
    ) -> None:
        """Whether to go on with adaptive routing after one pod: retransmits, drops, bit errors, bandwidth and latency before and after."""
        model = core("aegis_netmon.rollout", "aegis net rollout")
        if pods is not None and before is None:
            order = model.order(of_file(model, pods))
            text = "\n".join((f"{order[0]} goes first; then, each only when the one before is better or the same:", *order[1:]))
            env.out.document("RolloutOrder", {"pods": order}, text, order[0])
            return
        if before is None or after is None or pods is not None:
            raise CliError("E107", "two samples are needed, or --pods FILE", hint="aegis net sample --json > before.json", exit=2)
        decision = model.judge(read(model, before), read(model, after))
        text = f"{table(list(decision.rows), ROWS)}\n\n{MEANS[decision.step]}: {decision.reason}"
        env.out.document("Rollout", decision, text, decision.step)


def of_file(model: Any, path: Path) -> Any:
    """Pods of a file, each name once."""
    try:
        pods = msgspec.json.decode(path.read_bytes(), type=list[model.Pod])
    except (OSError, msgspec.MsgspecError) as error:
        raise CliError("E107", f"{path}: {error}", hint='[{"name": "pod1", "busy_gpus": 64, "core": false}, ...]', exit=2) from None
    if not pods or len({pod.name for pod in pods}) != len(pods):
        raise CliError("E107", f"{path}: no pod, or one twice", exit=2)
    return pods


def read(model: Any, path: Path) -> Any:
    """A sample as `aegis net sample --json` wrote it. Counts that stand at their default are not in it."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError("E107", f"{path}: {error.strerror}", exit=2) from None
    except ValueError:
        body = None
    if not isinstance(body, dict) or body.get("kind") != "NetSample":
        raise CliError("E107", f"{path}: no sample", hint="aegis net sample --json > before.json", exit=2)
    counts = {key: body.get(key, 0) for key in ("packets", "retransmits", "drops", "bits", "bitErrors")}
    measured = [body.get(key) for key in ("bandwidthGbps", "latencyUs")]
    for value in (*counts.values(), *(n for n in measured if n is not None)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise CliError("E107", f"{path}: a count is no number from 0 up: {value!r}", exit=2)
    return model.Sample(*counts.values(), *measured)
