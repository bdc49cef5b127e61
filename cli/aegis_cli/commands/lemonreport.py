"""`aegis lemon report`: what a history says of the whole fleet, as a table and as pictures: causes, signals, days, time to failure, losses.
Adds to the group of `lemon.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from aegis_proto.lemon import RankingAnswer, RankingQuery

from aegis_cli import pictures
from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.offline import core, refusals, seconds
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table

COMMAND = "aegis lemon report"


@dataclass(frozen=True)
class Report:
    """Rows for programs and the table of them, and the figures."""

    kind: str
    body: dict[str, Any]
    text: str
    figures: list[Any]


def _hours(row: dict[str, Any]) -> str:
    if row["mttf"] is None:
        return f"more than {row['mttf_low'] / 3600:.3g}"
    high = f" to {row['mttf_high'] / 3600:.3g}" if row["mttf_high"] is not None else " and more"
    return f"{row['mttf'] / 3600:.3g} ({row['mttf_low'] / 3600:.3g}{high})"


def _quantile(share: str) -> Callable[[dict[str, Any]], str]:
    return lambda row: f"{row['quantiles'][share]:.4g}"


SHARES = (50, 90, 99, 100)
"""Percentiles that are shown."""
CAUSES = [
    Column("GROUP", lambda row: row["name"]),
    Column("FAILURES", lambda row: f"{row['failures']:.4g}"),
    Column("SHARE", lambda row: f"{row['share']:.1%}"),
    Column("MOSTLY", lambda row: ", ".join(f"{cause} {count:.4g}" for cause, count in row["causes"][:3])),
]
SIGNALS = [
    Column("SIGNAL", lambda row: row["signal"]),
    *(Column(f"P{share}", _quantile(str(share))) for share in SHARES),
    Column("FLAGGED-NODES", lambda row: f"{row['flagged']:.4g}"),
]
SIZES = [
    Column("NODES", lambda row: f"{row['low']}-{row['high']}"),
    Column("JOBS", lambda row: row["jobs"]),
    Column("FAILURES", lambda row: row["failures"]),
    Column("HOURS-TO-FAILURE", _hours),
]
LOSSES = [
    Column("NODES", lambda row: f"{row['low']}-{row['high']}"),
    Column("FAILED", lambda row: row["failed"]),
    Column("GPU-HOURS", lambda row: f"{row['first']:.4g}"),
    Column("PREEMPTED", lambda row: row["preempted"]),
    Column("THEIR-GPU-HOURS", lambda row: f"{row['second']:.4g}"),
]


def _causes(groups: Any) -> Report:
    causes = core("aegis_lemon.history.causes", COMMAND)
    rows = [
        {
            "group": group.group,
            "name": causes.GROUPS[group.group][0],
            "nameZh": causes.GROUPS[group.group][1],
            "failures": group.failures,
            "share": group.share,
            "causes": [list(cause) for cause in group.causes],
        }
        for group in groups
    ]
    return Report("LemonCauses", {"groups": rows}, table(rows, CAUSES), [core("aegis_lemon.pictures.shows", COMMAND).causes_figure(groups)])


def _of_observed(history: Any, observed: Any, ranking: Any) -> Report:
    return _causes(core("aegis_lemon.history.causes", COMMAND).causes(observed))


def _signals(history: Any, observed: Any, ranking: Any) -> Report:
    import numpy as np

    marked = np.array([name in {node.node for node in ranking.flagged} for name in observed.names])
    rows = [
        {
            "signal": name,
            "quantiles": {str(share): float(np.percentile(values, share)) for share in SHARES},
            "flagged": float(values[marked].mean()) if marked.any() else 0.0,
        }
        for name, values in observed.signals.items()
    ]
    figures = core("aegis_lemon.pictures.shows", COMMAND).signal_cdfs(observed, ranking)
    return Report("LemonSignals", {"signals": rows}, table(rows, SIGNALS), figures)


def _days(history: Any, observed: Any, ranking: Any) -> Report:
    names, counts = core("aegis_lemon.detect.daymap", COMMAND).failure_days(observed, ranking, 60)
    body = {"nodes": [{"node": name, "failures": [int(count) for count in row]} for name, row in zip(names, counts, strict=True)]}
    text = core("aegis_lemon.detect.daymap", COMMAND).text_map(observed, ranking, 60)
    return Report("LemonDays", body, text, [core("aegis_lemon.pictures.shows", COMMAND).failure_map(observed, ranking)])


def _mttf(history: Any, observed: Any, ranking: Any) -> Report:
    sizes = core("aegis_lemon.history.sizes", COMMAND)
    found, (rf, low, high) = sizes.by_size(history), sizes.settled_rate(history)
    rows = [asdict(size) for size in found]
    text = f"{table(rows, SIZES)}\nr_f {rf:.2f} ({low:.2f} to {high:.2f}) failures per 1000 node-days"
    figures = [core("aegis_lemon.pictures.shows", COMMAND).mttf_by_size(found, rf)]
    return Report("LemonMTTF", {"sizes": rows, "rf": rf, "rf_low": low, "rf_high": high}, text, figures)


def _loss(history: Any, observed: Any, ranking: Any) -> Report:
    loss = core("aegis_lemon.history.loss", COMMAND)
    found = loss.goodput_loss(history)
    rows, share = [asdict(row) for row in found], loss.second_share(found)
    text = f"{table(rows, LOSSES)}\n{share:.1%} of the loss is of second order: jobs that made room for one that came back"
    return Report("LemonLoss", {"sizes": rows, "second_share": share}, text, [core("aegis_lemon.pictures.shows", COMMAND).loss_figure(found)])


REPORTS: dict[str, Callable[[Any, Any, Any], Report]] = {
    "causes": _of_observed,
    "signals": _signals,
    "days": _days,
    "mttf": _mttf,
    "loss": _loss,
}
"""By name; each takes the history, what was observed of its window, and the ranking."""


def all_figures(history: Any, observed: Any, ranking: Any) -> list[Any]:
    """Of every report that the history can give."""
    wanted = REPORTS if history.rows["jobs"] else {name: REPORTS[name] for name in ("causes", "signals", "days")}
    return [figure for made in wanted.values() for figure in made(history, observed, ranking).figures]


def _asked(env: Env) -> Report:
    """Causes, of the service."""

    async def work() -> RankingAnswer:
        async with Client.of(env) as client:
            return await client.query_lemon("ranking", RankingQuery(limit=1), RankingAnswer)

    answer = run_async(work())
    if not answer.causes:
        raise CliError("E104", f"no failure is known yet{f': {answer.history.note}' if answer.history.note else ''}")
    return _causes(answer.causes)


def register(group: typer.Typer, load: Callable[[Env, Path, str], Any], when: Callable[[str], float | None]) -> None:
    """Add `report`. `load` reads a history and says what is left out; `when` reads `--now`."""

    @command(group, "report")
    def report(
        env: Env,
        *,
        what: Annotated[str, typer.Argument(metavar="|".join(REPORTS), help="Which.")],
        history: Annotated[
            Path | None,
            typer.Option("--history", metavar="DIR|FILE", help="As CSV or Parquet (docs/history.md); without it causes are those of the service."),
        ] = None,
        window: Annotated[str, typer.Option("--window", metavar="TIME", help="How far back: causes, signals, days.")] = "28d",
        now: Annotated[str, typer.Option("--now", metavar="TIME", help="End of the window; default: the last thing that began.")] = "",
        draw: pictures.Draw = False,
        html: pictures.Html = None,
        png: pictures.Png = None,
    ) -> None:
        """The whole fleet: causes of failures in four groups, the seven signals, failures by day, time to failure by size, goodput lost."""
        if what not in REPORTS:
            raise CliError("E107", f'report "{what}": expected one of {", ".join(REPORTS)}', exit=2)
        if history is None:
            if what != "causes":
                raise CliError("E107", f"report {what} is made from files: --history DIR", exit=2)
            made = _asked(env)
        else:
            detect, observing = core("aegis_lemon.detect", COMMAND), core("aegis_lemon.history", COMMAND)
            with refusals():
                loaded = load(env, history, "report")
                observed = observing.observe(loaded, seconds(window, "--window"), when(now))
                made = REPORTS[what](loaded, observed, detect.rank(observed))
        pictures.write(env, f"aegis lemon report {what}", made.figures, COMMAND, html=html, png=png)
        text = made.text + ("\n\n" + pictures.drawn(made.figures, COMMAND) if draw else "")
        env.out.document(made.kind, made.body, text, what)
