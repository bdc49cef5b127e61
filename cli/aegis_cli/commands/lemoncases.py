"""`aegis lemon ls|why`, and `rank` and `show` without files: which nodes are bad now, by the service. Adds to the group of `lemon.py`."""

from __future__ import annotations

from typing import Annotated

import typer
from aegis_proto.lemon import HistoryInfo, LemonAnswer, LemonNode, LemonQuery, RankingAnswer, RankingQuery

from aegis_cli import times
from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.units import age

KIND_TEXT = {"multi": "failed a job of several nodes", "single": "failed a job of its own", "node": "failed"}


def why(node: LemonNode) -> str:
    return "; ".join(part for part in (node.reason, f"withheld: {node.withheld}" if node.withheld else "") if part)


LIST = [
    Column("NODE", lambda node: node.node),
    Column("STATE", lambda node: node.state or ("flagged" if node.flagged else "")),
    Column("SCORE", lambda node: f"{node.score:.2f}"),
    Column("RISK", lambda node: f"{node.risk:.2f}"),
    Column("FLAGGED", lambda node: "yes" if node.flagged else "withheld" if node.withheld else ""),
    Column("SINCE", lambda node: times.moment(node.since / 1000) if node.since else ""),
    Column("WHY", why),
    Column("SIGNALS", lambda node: " ".join(f"{name}={value:.3g}" for name, value in node.signals.items() if value), wide=True),
]


def summary(answer: RankingAnswer) -> str:
    history = answer.history
    if history.note:
        return f"No ranking yet: {history.note}"
    flagged = f"{answer.flagged} of {answer.total} nodes flagged; the fleet fails {history.fleetRate:.2f} times per 1000 node-days"
    return f"{flagged} ({basis(history)})"


def basis(history: HistoryInfo) -> str:
    left = f", {history.leftOut} rows left out" if history.leftOut else ""
    return f"{history.jobs} runs and {history.events} events in {age(history.window)}{left}; detector {history.detector}; actions.mode {history.mode}"


def ranking(env: Env, everything: bool) -> None:
    """`lemon ls`, and `lemon rank` without files."""

    async def work() -> RankingAnswer:
        async with Client.of(env) as client:
            return await client.query_lemon("ranking", RankingQuery(everything), RankingAnswer)

    answer = run_async(work())
    for problem in answer.history.problems if env.out.verbose else ():
        env.out.note(f"{problem}; left out")
    shown = list(answer.nodes)
    text = (table(shown, LIST, env.out.form == "wide") + "\n" if shown else "") + summary(answer)
    env.out.document("LemonRanking", answer, text, "\n".join(node.node for node in shown))


def one(env: Env, node: str) -> LemonAnswer:
    """`query.node`."""

    async def work() -> LemonAnswer:
        async with Client.of(env) as client:
            return await client.query_lemon("node", LemonQuery(node), LemonAnswer)

    return run_async(work())


def story(answer: LemonAnswer) -> list[str]:
    """What is known of a node."""
    node = answer.node
    verdict = "flagged" if node.flagged else f"withheld: {node.withheld}" if node.withheld else "not flagged"
    lines = [
        f"{node.node}  {node.state or 'no case'}  {verdict}, score {node.score:.3f}, risk {node.risk:.2f}"
        + (", on probation" if node.probation else ""),
        node.reason or (f"No ranking yet: {answer.history.note}" if answer.history.note else "no failure"),
    ]
    lines += [f"  {name:<30} {value:<8.3g} more than {answer.below.get(name, 0.0):.1%} of nodes" for name, value in node.signals.items()]
    for change in answer.changes:
        ended = f", recovered {times.moment(change.recovered / 1000)}" if change.recovered else ""
        lines.append(f"turned bad about {times.moment(change.onset / 1000)}, noticed {times.moment(change.alarm / 1000)}{ended}")
    return lines


def deeds(answer: LemonAnswer) -> list[str]:
    """What was decided, done and found, in the order of time."""
    rows = [
        (failure.at, f"{KIND_TEXT.get(failure.kind, failure.kind)}" + (f", {failure.user}" if failure.user else "")) for failure in answer.failures
    ]
    for verdict in answer.verdicts:
        rows.append((verdict.at, f"{verdict.sentence}" + "".join(f"\n    {line}" for line in verdict.evidence[1:])))
    if answer.test is not None:
        rows.append((answer.test.at, f"deep tests ordered by {answer.test.by} ({answer.test.seconds:g} s each): {answer.test.id}"))
    if answer.result is not None:
        rows.append((answer.result.at, f"deep tests {answer.result.state}: {answer.result.message}"))
    taint = answer.taint
    if taint is not None:
        rows.append((taint.at, f"{'taken out' if taint.excluded else 'given back'} by {taint.by}: {taint.reason}"))
    lines = [f"{times.moment(at / 1000)}  {text}" for at, text in sorted(rows, key=lambda row: row[0])]
    return lines + ([f"repair ticket: {answer.ticket}"] if answer.ticket else [])


def show(env: Env, node: str) -> None:
    """`lemon show` without files."""
    answer = one(env, node)
    env.out.document("LemonNode", answer, "\n".join([*story(answer), basis(answer.history)]), node)


def register(group: typer.Typer) -> None:
    """Add `ls` and `why`."""

    @command(group, "ls", "list")
    def ls(env: Env) -> None:
        """Nodes against which something is held: flagged, taken out, on probation, doubtful."""
        ranking(env, everything=False)

    @command(group, "why")
    def why_(
        env: Env,
        *,
        node: Annotated[str, typer.Argument(metavar="NODE")],
        lang: Annotated[str, typer.Option("--lang", metavar="en|zh", help="Language of the last verdict.")] = "en",
    ) -> None:
        """Why a node was taken out, or was not: failures, verdicts, tests and tickets in the order of time."""
        if lang not in ("en", "zh"):
            raise CliError("E107", f'--lang "{lang}": expected en or zh', exit=2)
        answer = one(env, node)
        last = answer.verdicts[-1] if answer.verdicts else None
        first = [last.sentenceZh if lang == "zh" else last.sentence] if last is not None else [f"nothing was ever held against {node}"]
        env.out.document("LemonCase", answer, "\n".join([*first, *deeds(answer)]), node)
