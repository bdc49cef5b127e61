"""`aegis ettr expected|measured|plan|contour`: what unreliability costs. Needs no bus, but `measured` of real jobs; the contour needs numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.offline import core, refusals, seconds, write_page
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.units import age

Gpus = Annotated[float, typer.Option("--gpus", metavar="G", help="GPUs of the job, 8 to a node.")]
Rf = Annotated[float, typer.Option("--rf", metavar="RATE", help="Failures per 1000 node-days (RSC-1 6.50, RSC-2 2.34).")]
Write = Annotated[str, typer.Option("--write", metavar="TIME", help="How long a save stops training: seconds, or 5min.")]
Restart = Annotated[str, typer.Option("--restart", metavar="TIME", help="From nodes held to training again.")]
Queue = Annotated[str, typer.Option("--queue", metavar="TIME", help="Mean wait for nodes, at the start and after each stop.")]
Persist = Annotated[str, typer.Option("--persist", metavar="TIME", help="Async saves: until a snapshot is durable.")]
Slowdown = Annotated[float, typer.Option("--slowdown", metavar="SHARE", help="Async saves: share of speed lost while persisting.")]
Target = Annotated[float, typer.Option("--target", metavar="RATIO", help="The ratio that is wanted.")]


def finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None


def setting_of(ettr: Any, *, gpus: float, rf: float, **times: str | float) -> Any:
    """The core's Setting; times may carry units."""
    return ettr.Setting.of_gpus(gpus, rf, **{name: seconds(value, f"--{name}") if isinstance(value, str) else value for name, value in times.items()})


def interval(value: float) -> str:
    """Seconds as `38 min`, or as they are when short."""
    if math.isinf(value):
        return "none needed"
    return f"{value / 60:.1f} min" if value >= 120 else f"{value:.1f} s"


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="What failures cost: the share of time that is training.", no_args_is_help=True)
    app.add_typer(group, name="ettr")
    _register_measured(group)

    @command(group, "expected")
    def expected(
        env: Env,
        *,
        gpus: Gpus,
        rf: Rf,
        write: Write = "0",
        restart: Restart = "300",
        queue: Queue = "0",
        interval_option: Annotated[
            str, typer.Option("--interval", metavar="auto|TIME", help="Training between two saves; auto: Daly-Young.")
        ] = "auto",
        method: Annotated[str, typer.Option("--method", metavar="young|daly|exact", help="What auto picks.")] = "young",
        run: Annotated[str, typer.Option("--run", metavar="TIME", help="Productive time of the run; 0: very long.")] = "0",
        persist: Persist = "0",
        slowdown: Slowdown = 0.0,
    ) -> None:
        """Expected ETTR of a job: exact, in first order, and the ceiling."""
        ettr = core("aegis_lemon.ettr", "aegis ettr expected")
        with refusals():
            setting = setting_of(ettr, gpus=gpus, rf=rf, write=write, restart=restart, queue=queue, run=run, persist=persist, slowdown=slowdown)
            chosen = ettr.interval_of(setting, method) if interval_option == "auto" else seconds(interval_option, "--interval")
            best = ettr.interval_of(setting, "exact")
            body: dict[str, Any] = {
                "exact": ettr.exact(setting, chosen),
                "first_order": ettr.first_order(setting, chosen),
                "ceiling": ettr.ceiling(setting),
                "interval": finite(chosen),
                "interval_exact": finite(best),
                "exact_at_interval_exact": ettr.exact(setting, best),
                "mttf": finite(setting.mttf),
                "nodes": setting.nodes,
                "rf": rf,
            }
        mttf = "never" if math.isinf(setting.mttf) else age(setting.mttf)
        text = (
            f"ETTR {body['exact']:.3f} expected (first order {body['first_order']:.3f}, ceiling {body['ceiling']:.3f})\n"
            f"saving every {interval(chosen)}; the best interval is {interval(best)}, {body['exact_at_interval_exact']:.3f}\n"
            f"{gpus:g} GPUs at {rf:g} failures per 1000 node-days fail every {mttf}"
        )
        env.out.document("ExpectedETTR", body, text, f"{body['exact']:.4f}")

    @command(group, "plan")
    def make_plan(
        env: Env,
        *,
        gpus: Gpus,
        write: Write,
        restart: Restart,
        rf: Annotated[float | None, typer.Option("--rf", metavar="RATE", help="Failures per 1000 node-days; or --failures and --days.")] = None,
        failures: Annotated[int | None, typer.Option("--failures", metavar="N", help="Failures that the job has had.")] = None,
        days: Annotated[float | None, typer.Option("--days", metavar="D", help="Days it has run.")] = None,
        queue: Queue = "0",
        persist: Persist = "0",
        slowdown: Slowdown = 0.0,
        now: Annotated[str, typer.Option("--interval", metavar="TIME", help="Training between two saves at present.")] = "",
        latency: Annotated[str, typer.Option("--latency", metavar="TIME", help="Until a hang or corruption is noticed.")] = "0",
        target: Target = 0.9,
    ) -> None:
        """The interval to use now, and what a target still needs."""
        counted = failures is not None and days is not None
        if (rf is None) != counted or (failures is None) != (days is None):
            raise CliError("E107", "give --rf, or --failures with --days", exit=2)
        ettr = core("aegis_lemon.ettr", "aegis ettr plan")
        with refusals():
            found = None
            if counted:
                assert failures is not None and days is not None
                found = ettr.rate_interval(failures, days * gpus / 8)
            setting = setting_of(
                ettr, gpus=gpus, rf=found[0] if found else rf or 0.0, write=write, restart=restart, queue=queue, persist=persist, slowdown=slowdown
            )  # fmt: skip
            present = seconds(now, "--interval") if now else None
            made = ettr.plan(setting, target, present, found[1:] if found else None, seconds(latency, "--latency"))
        body = {
            "interval": made.interval,
            "interval_low": made.low,
            "interval_high": made.high,
            "expected": made.expected,
            "first_order": made.first_order,
            "now": made.now,
            "ceiling": made.ceiling,
            "mttf": finite(made.mttf),
            "rf": made.rf,
            "rf_low": made.rf_low,
            "rf_high": made.rf_high,
            "target": target,
            "need_rf": made.need_rf,
            "need_write": made.need_write,
            "notes": list(made.notes),
        }
        lines = [f"save every {interval(made.interval)}: ETTR {made.expected:.3f} expected, ceiling {made.ceiling:.3f}"]
        if made.low < made.high:
            rates = f"{made.rf_low:.2f} to {made.rf_high:.2f} per 1000 node-days"
            lines.append(f"{failures} failures leave {rates} open, so {interval(made.low)} to {interval(made.high)}")
        if made.now is not None:
            lines.append(f"at present, every {interval(seconds(now, '--interval'))}: {made.now:.3f}")
        write_text = f"saves of at most {made.need_write:.1f} s" if made.need_write else "no save is fast enough"
        lines.append(f"{target:g} needs {write_text}, or at most {made.need_rf:.2f} failures per 1000 node-days")
        env.out.document("ETTRPlan", body, "\n".join([*lines, *made.notes]), f"{made.interval:.0f}")

    @command(group, "contour")
    def contour(
        env: Env,
        *,
        gpus: Gpus,
        restart: Restart = "300",
        queue: Queue = "0",
        rf_range: Annotated[str, typer.Option("--rf", metavar="LOW..HIGH", help="Failures per 1000 node-days.")] = "0.5..20",
        write_range: Annotated[str, typer.Option("--write", metavar="LOW..HIGH", help="Seconds that a save takes.")] = "1..1200",
        points: Annotated[int, typer.Option("--points", metavar="N", help="N x N points.", min=2, max=1000)] = 100,
        method: Annotated[str, typer.Option("--method", metavar="young|exact", help="Which interval.")] = "exact",
        target: Target = 0.9,
        html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the picture.")] = None,
    ) -> None:
        """Expected ETTR over failure rate and save time."""
        ettr, grids = core("aegis_lemon.ettr", "aegis ettr contour"), core("aegis_lemon.ettr.contour", "aegis ettr contour")
        with refusals():
            base = setting_of(ettr, gpus=gpus, rf=1.0, restart=restart, queue=queue)
            rf_axis, write_axis = grids.axis(*span(rf_range, "--rf"), points), grids.axis(*span(write_range, "--write"), points)
            grid = grids.contour(base, rf_axis, write_axis, method)
            shown = grids.contour(base, grids.axis(*span(rf_range, "--rf"), 12), grids.axis(*span(write_range, "--write"), 10), method)
        body = {
            "gpus": gpus,
            "rf": grid.rf.tolist(),
            "write": grid.write.tolist(),
            "ettr": grid.ettr.tolist(),
            "interval": grid.interval.tolist(),
            "target": target,
            "boundary": [{"rf": rate, "write": longest} for rate, longest in grid.boundary(target)],
        }
        lines = ["r_f \\ save  " + "".join(f"{write:>8.3g}s" for write in shown.write)]
        lines += [
            f"{rate:>10.2f}  " + "".join(f"{v:>8.3f}{'*' if v >= target else ' '}" for v in row)
            for rate, row in zip(shown.rf, shown.ettr, strict=True)
        ]
        if html is not None:
            pictures, title = core("aegis_lemon.pictures", "aegis ettr contour --html"), f"Expected ETTR of {gpus:g} GPUs"
            write_page(html, pictures.page(title, [pictures.contour_figure(grid, target, title)]), "--html")
            env.out.note(f"picture in {html}")
        env.out.document("ETTRContour", body, "\n".join([*lines, f"* at least {target:g}"]))


MEASURED = [
    Column("GROUP", lambda row: row["group"]),
    Column("RUNS", lambda row: row["runs"]),
    Column("ETTR", lambda row: ratio(row["ettr"])),
    Column("CUMULATIVE", lambda row: ratio(row["cumulative"]), wide=True),
    Column("NO-QUEUE", lambda row: ratio(row["no_queue"])),
    Column("RUNTIME-GOODPUT", lambda row: ratio(row["runtime_goodput"])),
    Column("1-WASTE", lambda row: ratio(row["one_minus_waste"]), wide=True),
    Column("WORST-HOUR", lambda row: f"{row['worst_window']:.2f}"),
    Column("LONGEST-STANDSTILL", lambda row: age(row["worst_stretch"])),
    Column("LOST", lambda row: age(row["seconds"]["lost"])),
    Column("QUEUED", lambda row: age(row["seconds"]["queued"])),
]


def ratio(value: dict[str, float | None]) -> str:
    """`0.931 (0.912 to 0.950)`."""
    shown = f"{value['value']:.3f}"
    return shown if value["low"] is None else f"{shown} ({value['low']:.3f} to {value['high']:.3f})"


def group_row(name: str, measured: Any) -> dict[str, Any]:
    """One group as a flat object: scripts read `ettr.value`, `ettr.low`."""
    ratios = {key: {"value": found.value, "low": found.low, "high": found.high} for key, found in measured.ratios.items()}
    rest = {key: getattr(measured, key) for key in ("runs", "cycles", "worst_window", "worst_stretch")}
    return {"group": name, **ratios, **rest, "seconds": dict(measured.seconds), **measured.parts}


def _register_measured(group: typer.Typer) -> None:
    @command(group, "measured")
    def measured(
        env: Env,
        *,
        jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB...]", help="Job ids; none: all that the bus still knows.")] = None,
        ledger: Annotated[
            Path | None, typer.Option("--ledger", metavar="FILE", help="CSV: job, state, start, end, ... (docs/history.md); without it the service.")
        ] = None,
        by: Annotated[str, typer.Option("--by", metavar="size|priority|cluster", help="Groups beside the whole.")] = "size",
        level: Annotated[float, typer.Option("--level", metavar="P", help="Of the confidence intervals.", min=0.5, max=0.999)] = 0.95,
    ) -> None:
        """Every definition of ETTR in use, over the same ledgers, with intervals."""
        ettr = core("aegis_lemon.ettr", "aegis ettr measured")
        with refusals():
            found = ettr.read_ledgers(ledger) if ledger is not None else ledgers(env, tuple(jobs or ()), ettr)
            rows = [group_row("all", ettr.measure(found.runs, level))]
            rows += [group_row(name, part) for name, part in ettr.by(found.runs, by, level).items()]
        for line, text in found.problems[:10]:
            env.out.note(f"{ledger.name if ledger else 'ledger'} line {line}: {text}; left out" if line else text)
        if len(found.problems) > 10:
            env.out.note(f"and {len(found.problems) - 10} more")
        body = {"by": by, "groups": rows, "left_out": [{"line": line, "text": text} for line, text in found.problems]}
        env.out.document("MeasuredETTR", body, table(rows, MEASURED, env.out.form == "wide"), f"{rows[0]['ettr']['value']:.4f}")


def ledgers(env: Env, jobs: tuple[str, ...], ettr: Any) -> Any:
    """Ledgers of real jobs, of lemon. E104 when there is none of them."""
    from aegis_proto.lemon import JobLedger, LedgersAnswer, LedgersQuery
    from aegis_proto.phases import LedgerState

    async def work() -> list[JobLedger]:
        async with Client.of(env) as client:
            names = tuple([(await client.job(job, workers=False)).summary.job for job in jobs])
            items: list[JobLedger] = []
            while True:
                page = await client.query_lemon("ledgers", LedgersQuery(names, items[-1].job if items else ""), LedgersAnswer)
                items += page.items
                if not page.more or not page.items:
                    return items

    items = run_async(work())
    if not items:
        raise CliError("E104", "no job whose ledger is known here", hint="aegis job ls --all")

    def run(item: JobLedger) -> Any:
        spans = tuple(ettr.Span(LedgerState(one.state), one.start / 1000, one.end / 1000, one.stopped) for one in item.spans)
        return ettr.Run(item.job, spans, item.gpus or item.workers, str(item.priority), item.cluster)

    return ettr.Ledgers([run(item) for item in items], [])


def span(text: str, option: str) -> tuple[float, float]:
    """`0.5..20` -> (0.5, 20.0)."""
    low, dots, high = text.partition("..")
    try:
        if dots:
            return float(low), float(high)
    except ValueError:
        pass
    raise CliError("E107", f'{option} "{text}": expected two numbers, LOW..HIGH', exit=2)
