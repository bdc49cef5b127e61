"""`aegis lemon rank|show|tune|import|generate`: which nodes are bad, from files of history, without a bus; `rank` and `show` without files ask the
service (`lemoncases`)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from aegis_cli import pictures
from aegis_cli.commands import lemoncases, lemonreport
from aegis_cli.commands.settings import configuration
from aegis_cli.errors import CliError
from aegis_cli.offline import core, refusals, seconds
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table

SHOWN = 10
"""Rows left out that are printed; all are counted, and -o json has the first 1,000."""
HistoryPath = Annotated[Path, typer.Option("--history", metavar="DIR|FILE", help="jobs, events and nodes as CSV or Parquet (docs/history.md).")]
AnyHistory = Annotated[
    Path | None,
    typer.Option("--history", metavar="DIR|FILE", help="jobs, events and nodes as CSV or Parquet (docs/history.md); without it the service."),
]
Detector = Annotated[str, typer.Option("--detector", metavar="NAME", help="blame, mixture, shrinkage, count, cusum or rules.")]
Window = Annotated[str, typer.Option("--window", metavar="TIME", help="How far back.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to write.")]

RANKED = [
    Column("NODE", lambda node: node.node),
    Column("SCORE", lambda node: f"{node.score:.3f}"),
    Column("FLAGGED", lambda node: "yes" if node.flagged else "withheld" if node.withheld else ""),
    Column("WHY", lambda node: "; ".join(part for part in (node.reason, node.withheld, "on probation" if node.probation else "") if part)),
    Column("SIGNALS", lambda node: " ".join(f"{name}={value:.3g}" for name, value in node.signals.items() if value), wide=True),
]


def load(env: Env, path: Path, verb: str) -> Any:
    """The history; what was left out is said on stderr."""
    history = core("aegis_lemon.history", f"aegis lemon {verb}").read(path)
    for problem in history.problems[: SHOWN if not env.out.verbose else None]:
        env.out.note(f"{problem}; left out")
    if history.left_out:
        env.out.note(f"{history.left_out} of {history.left_out + sum(history.rows.values())} rows left out")
    for note in history.notes:
        env.out.note(note)
    return history


def left_out(history: Any) -> dict[str, Any]:
    """For scripts."""
    return {"count": history.left_out, "rows": [asdict(problem) for problem in history.problems]}


def when(text: str) -> float | None:
    """`--now`: ISO 8601 or seconds."""
    from datetime import UTC, datetime

    if not text:
        return None
    try:
        if math.isfinite(float(text)):
            return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise CliError("E107", f'--now "{text}": expected ISO 8601 or seconds since 1970', exit=2) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Nodes that keep failing jobs.", no_args_is_help=True)
    app.add_typer(group, name="lemon")
    lemoncases.register(group)
    lemonreport.register(group, load, when)
    _register_rank(group)
    _register_show(group)
    _register_tune(group)
    _register_import(group)
    _register_generate(group)


def _register_rank(group: typer.Typer) -> None:
    @command(group, "rank")
    def rank(
        env: Env,
        *,
        history: AnyHistory = None,
        detector: Detector = "blame",
        window: Window = "28d",
        now: Annotated[str, typer.Option("--now", metavar="TIME", help="End of the window; default: the last thing that began.")] = "",
        cap: Annotated[float, typer.Option("--cap", metavar="SHARE", help="Flag at most this share of all nodes (0: no cap).", min=0, max=1)] = 0.0,
        guards: Annotated[bool, typer.Option("--guards/--no-guards", help="Roles, common causes, distinct users.")] = True,
        html: pictures.Html = None,
        png: pictures.Png = None,
        show_map: Annotated[bool, typer.Option("--map", help="Add a map of failures by day.")] = False,
        all_nodes: Annotated[bool, typer.Option("--all", help="Every node, not only those with a failure.")] = False,
    ) -> None:
        """All nodes, worst first, with what speaks against each. Options other than --all are for files; thresholds are those of [lemon]."""
        if history is None:
            lemoncases.ranking(env, everything=True)
            return
        detect = core("aegis_lemon.detect", "aegis lemon rank")
        observing = core("aegis_lemon.history", "aegis lemon rank")
        with refusals():
            loaded = load(env, history, "rank")
            settings = configuration(env).lemon
            observed = observing.observe(loaded, seconds(window, "--window"), when(now), settings.recent, settings.gap)
            chosen = detect.Guards(cap=cap) if guards else detect.Guards(roles=False, groups=False, users=0, cap=cap)
            ranking = detect.rank(observed, detector, chosen, detect.Thresholds.of(settings))
        body = {
            "detector": detector,
            "now": observed.now,
            "window": observed.window,
            "fleet_rate": ranking.fleet_rate,
            "exposure": "calendar" if observed.by_calendar else "jobs",
            "nodes": [asdict(node) for node in ranking.nodes],
            "left_out": left_out(loaded),
            "notes": loaded.notes,
        }
        shown = ranking.nodes if all_nodes else [node for node in ranking.nodes if node.failures or node.flagged][: 20 + len(ranking.flagged)]
        summary = f"{len(ranking.flagged)} of {len(ranking.nodes)} nodes flagged; the fleet fails {ranking.fleet_rate:.2f} times per 1000 node-days"
        text = (table(shown, RANKED, env.out.form == "wide") + "\n" if shown else "") + summary
        if show_map:
            text += "\n" + core("aegis_lemon.detect.daymap", "aegis lemon rank --map").text_map(observed, ranking)
        if html is not None or png is not None:
            figures = lemonreport.all_figures(loaded, observed, ranking)
            pictures.write(env, "Nodes that keep failing jobs", figures, "aegis lemon rank", html=html, png=png)
        env.out.document("LemonRanking", body, text, "\n".join(node.node for node in ranking.flagged))


def _register_show(group: typer.Typer) -> None:
    @command(group, "show")
    def show(
        env: Env,
        *,
        node: Annotated[str, typer.Argument(metavar="NODE")],
        history: AnyHistory = None,
        detector: Detector = "blame",
        window: Window = "28d",
        now: Annotated[str, typer.Option("--now", metavar="TIME", help="End of the window; default: the last thing that began.")] = "",
    ) -> None:
        """One node: its place in the fleet, its failures, and when it turned bad."""
        if history is None:
            lemoncases.show(env, node)
            return
        detect, observing = core("aegis_lemon.detect", "aegis lemon show"), core("aegis_lemon.history", "aegis lemon show")
        with refusals():
            loaded = load(env, history, "show")
            observed = observing.observe(loaded, seconds(window, "--window"), when(now))
            told = core("aegis_lemon.detect.story", "aegis lemon show").story(loaded, observed, detect.rank(observed, detector), node)
        body = {
            **asdict(told.node),
            "below": told.below,
            "failures_seen": [{"time": f.time, "kind": f.kind, "user": f.user, "family": f.family} for f in told.failures],
            "changes": [asdict(change) for change in told.changes],
        }
        verdict = "flagged" if told.node.flagged else f"withheld: {told.node.withheld}" if told.node.withheld else "not flagged"
        lines = [
            f"{node}  {verdict}, score {told.node.score:.3f}" + (", on probation" if told.node.probation else ""),
            told.node.reason or "no failure",
        ]
        lines += [f"  {name:<30} {value:<8.3g} more than {told.below[name]:.1%} of nodes" for name, value in told.node.signals.items()]
        lines += [f"{utc(f.time)}  {lemoncases.KIND_TEXT[f.kind]}" + (f", {f.user}" if f.user else "") for f in told.failures]
        for change in told.changes:
            ended = f", recovered {utc(change.recovered)}" if change.recovered else ""
            lines.append(f"turned bad about {utc(change.onset)}, noticed {utc(change.alarm)}{ended}")
        env.out.document("LemonNode", body, "\n".join(lines), node)


def utc(moment: float) -> str:
    """Seconds since 1970 as `2026-01-05 13:20`."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M")


POINTS = [
    Column("THRESHOLD", lambda point: f"{point.threshold:.4g}"),
    Column("FLAGGED", lambda point: point.flagged),
    Column("PRECISION", lambda point: f"{point.precision:.2f} ({point.precision_low:.2f} to {point.precision_high:.2f})"),
    Column("RECALL", lambda point: f"{point.recall:.2f} ({point.recall_low:.2f} to {point.recall_high:.2f})"),
    Column("FALSE-POSITIVE-RATE", lambda point: f"{point.false_positive_rate:.2e}"),
    Column("COST", lambda point: f"{point.cost:g}"),
]


def _register_tune(group: typer.Typer) -> None:
    @command(group, "tune")
    def tune(
        env: Env,
        *,
        history: HistoryPath,
        detector: Detector = "blame",
        window: Window = "28d",
        truth: Annotated[Path | None, typer.Option("--truth", metavar="FILE", help="JSON with lemons[]: names of nodes known to be bad.")] = None,
        miss: Annotated[float, typer.Option("--miss", metavar="COST", help="Cost of a lemon that is kept.", min=0)] = 10.0,
        alarm: Annotated[float, typer.Option("--alarm", metavar="COST", help="Cost of a good node that is drained.", min=0)] = 1.0,
    ) -> None:
        """ROC and precision-recall with intervals, the cheapest threshold, and whether flagged nodes go on failing."""
        tuning = core("aegis_lemon.detect.tune", "aegis lemon tune")
        with refusals():
            loaded = load(env, history, "tune")
            made = tuning.tune(loaded, detector, None if truth is None else read_truth(truth), (miss, alarm), seconds(window, "--window"))
        body = {
            "detector": detector,
            "curve": [asdict(point) for point in made.points],
            "best": asdict(made.best) if made.best else None,
            "prediction": asdict(made.prediction) if made.prediction else None,
            "flagged": [node.node for node in made.ranking.flagged],
            "left_out": left_out(loaded),
        }
        lines = []
        if made.best:
            index = made.points.index(made.best)
            lines += [
                table(made.points[max(0, index - 6) : index + 7], POINTS),
                f"cheapest at {made.best.threshold:.4g}: {made.best.flagged} flagged",
            ]
        else:
            lines.append("no truth was given (--truth): precision and recall are not known")
        if made.prediction:
            found = made.prediction
            share = f"{found.caught:.1%} of all failures"
            lines.append(f"flagged nodes ({found.flagged:.1f} a window) then fail {found.ratio:.1f} times as often as the fleet: {share}")
        else:
            lines.append("too short to predict from: a history of two windows is needed")
        env.out.document("LemonTuning", body, "\n".join(lines), f"{made.best.threshold:.6g}" if made.best else "")


def read_truth(path: Path) -> list[str]:
    """`lemons` of a JSON file."""
    try:
        lemons = json.loads(path.read_text())["lemons"]
        if isinstance(lemons, list) and all(isinstance(name, str) for name in lemons):
            return lemons
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CliError("E141", f"--truth {path}: expected JSON with a list lemons ({type(error).__name__})", exit=2) from None
    raise CliError("E141", f"--truth {path}: lemons is not a list of names", exit=2)


def _register_import(group: typer.Typer) -> None:
    @command(group, "import")
    def import_(
        env: Env,
        *,
        out: Out,
        sacct: Annotated[
            Path | None, typer.Option("--sacct", metavar="FILE", help="sacct -aPXD -o jobid,jobname,user,state,nodelist,start,end")
        ] = None,
        events: Annotated[Path | None, typer.Option("--events", metavar="FILE", help="sacctmgr -P list event start=...")] = None,
        reasons: Annotated[Path | None, typer.Option("--reasons", metavar="FILE", help="sinfo -R -o '%E|%u|%H|%N'")] = None,
        excluded: Annotated[Path | None, typer.Option("--excluded", metavar="FILE", help="scontrol show job")] = None,
        lanl: Annotated[Path | None, typer.Option("--lanl", metavar="FILE", help="LANL's failure data, CSV or .xz.")] = None,
        system: Annotated[str, typer.Option("--system", metavar="N", help="Which of LANL's systems.")] = "20",
    ) -> None:
        """History files from Slurm's accounting, or from LANL's failure data."""
        slurm_files = (sacct, events, reasons, excluded)
        if (lanl is None) == (not any(slurm_files)):
            raise CliError("E107", "give files of Slurm (--sacct, --events, --reasons, --excluded) or --lanl", exit=2)
        with refusals():
            if lanl is not None:
                if not lanl.is_file():
                    raise CliError("E141", f"there is no file {lanl}", exit=2)
                found = core("aegis_lemon.history.lanl", "aegis lemon import").convert(lanl, system)
            else:
                found = core("aegis_lemon.history.slurm", "aegis lemon import").convert(*slurm_files)
            written = found.write(out)
        for problem in found.problems[: SHOWN if not env.out.verbose else None]:
            env.out.note(f"{problem}; left out")
        for note in found.notes:
            env.out.note(note)
        body = {"out": str(out), "rows": written, "left_out": {"count": len(found.problems), "rows": [asdict(p) for p in found.problems[:1000]]}}
        counts = ", ".join(f"{count} {name}" for name, count in written.items())
        env.out.document("LemonImport", body, f"{counts} in {out}; {len(found.problems)} rows left out", str(out))


def _register_generate(group: typer.Typer) -> None:
    @command(group, "generate")
    def generate(
        env: Env,
        *,
        ratio: Annotated[float, typer.Option("--ratio", metavar="R", help="How many times as often as a healthy node a lemon fails.")],
        attributed: Annotated[float, typer.Option("--attributed", metavar="P", help="Share of failures that name their node.")],
        seed: Annotated[int, typer.Option("--seed", metavar="S")],
        out: Out,
        nodes: Annotated[int, typer.Option("--nodes", metavar="N")] = 2000,
        lemons: Annotated[int, typer.Option("--lemons", metavar="L")] = 24,
        days: Annotated[int, typer.Option("--days", metavar="D")] = 28,
        onset: Annotated[float, typer.Option("--onset", metavar="SHARE", help="Lemons turn bad within this share of the time.")] = 0.0,
        black_hole: Annotated[bool, typer.Option("--black-hole", help="A node that kills jobs is free again and gets new ones.")] = False,
        bursts: Annotated[bool, typer.Option("--bursts", help="Racks whose nodes fail together.")] = False,
        roles: Annotated[bool, typer.Option("--roles", help="Every 32nd node fails more for what it does.")] = False,
    ) -> None:
        """A fleet with lemons as history files, and truth.json with who they are."""
        generating = core("aegis_lemon.generate", "aegis lemon generate")
        with refusals():
            spec = generating.WorldSpec(
                ratio=ratio, attributed=attributed, seed=seed, nodes=nodes, lemons=lemons, days=days, onset=onset,
                black_hole=black_hole, bursts=bursts, roles=roles,
            )  # fmt: skip
            world = generating.generate(spec)
            paths = generating.write_world(world, out)
        before, after = world.large_failures()
        body = {"out": str(out), "files": [path.name for path in paths.values()], "jobs": len(world.jobs), "events": len(world.events)}
        rates = f"jobs of 512 and more GPUs fail in {before:.1%}, without lemons in {after:.1%}"
        text = f"{len(world.jobs)} jobs, {len(world.events)} events in {out}; {rates}"
        env.out.document("LemonWorld", body, text, str(out))
