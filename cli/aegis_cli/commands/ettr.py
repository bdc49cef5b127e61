"""`aegis ettr expected|measured|plan|contour`: what unreliability costs. Needs no bus, but `measured` of real jobs; the contour needs numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from aegis_cli import pictures
from aegis_cli.commands import ettrplan
from aegis_cli.commands.ettrplan import Gpus, Persist, Queue, Restart, Rf, Slowdown, Target, Write, finite, interval, ledgers, setting_of
from aegis_cli.errors import CliError
from aegis_cli.offline import core, refusals, seconds
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.units import age


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="What failures cost: the share of time that is training.", no_args_is_help=True)
    app.add_typer(group, name="ettr")
    _register_measured(group)
    ettrplan.register(group)

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
        simulate: Annotated[int, typer.Option("--simulate", metavar="N", help="Draw N failures too: a second opinion.", min=0, max=10_000_000)] = 0,
        shape: Annotated[float, typer.Option("--shape", metavar="K", help="Of the simulated failures: 1 exponential, else Weibull.")] = 1.0,
        seed: Annotated[int, typer.Option("--seed", metavar="S", help="Of the simulation.", min=0)] = 1,
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
            if simulate:
                drawing = core("aegis_lemon.ettr.montecarlo", "aegis ettr expected --simulate")
                drawn = drawing.simulate(setting, chosen, drawing.generator(seed), simulate, shape)
                body["simulated"] = {"ettr": drawn.ettr, "error": drawn.error, "failures": simulate, "shape": shape}
        mttf = "never" if math.isinf(setting.mttf) else age(setting.mttf)
        text = (
            f"ETTR {body['exact']:.3f} expected (first order {body['first_order']:.3f}, ceiling {body['ceiling']:.3f})\n"
            f"saving every {interval(chosen)}; the best interval is {interval(best)}, {body['exact_at_interval_exact']:.3f}\n"
            f"{gpus:g} GPUs at {rf:g} failures per 1000 node-days fail every {mttf}"
        )
        if simulate:
            text += f"\n{simulate} failures drawn: {body['simulated']['ettr']:.4f}, standard error {body['simulated']['error']:.4f}"
        env.out.document("ExpectedETTR", body, text, f"{body['exact']:.4f}")

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
        draw: pictures.Draw = False,
        html: pictures.Html = None,
        png: pictures.Png = None,
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
        lines.append(f"* at least {target:g}")
        if draw or html is not None or png is not None:
            title = f"Expected ETTR of {gpus:g} GPUs"
            figures = [core("aegis_lemon.pictures.shows", "aegis ettr contour").contour_figure(grid, target, title)]
            pictures.write(env, title, figures, "aegis ettr contour", html=html, png=png)
            lines += ["", pictures.drawn(figures, "aegis ettr contour --draw")] if draw else []
        env.out.document("ETTRContour", body, "\n".join(lines))


MEASURED = [
    Column("GROUP", lambda row: row["group"]),
    Column("RUNS", lambda row: row["runs"]),
    Column("ETTR", lambda row: ratio(row["ettr"])),
    Column("EXPECTED", lambda row: "" if row["expected"] is None else f"{row['expected']:.3f}"),
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
        every: Annotated[
            str, typer.Option("--interval", metavar="TIME", help="Between two saves, for what is expected; 0: as the lost work says.")
        ] = "0",
        draw: pictures.Draw = False,
        html: pictures.Html = None,
        png: pictures.Png = None,
    ) -> None:
        """Every definition of ETTR in use, over the same ledgers, with intervals; and what one failure rate for all would give."""
        ettr = core("aegis_lemon.ettr", "aegis ettr measured")
        with refusals():
            found = ettr.read_ledgers(ledger) if ledger is not None else ettr.Ledgers([told.run for told in ledgers(env, tuple(jobs or ()), ettr)])
            rows = [group_row("all", ettr.measure(found.runs, level))]
            rows += [group_row(name, part) for name, part in ettr.by(found.runs, by, level).items()]
            rf, beside = ettr.against(found.runs, by, seconds(every, "--interval"), level)
        expected = {row.group: row.expected for row in beside}
        for row in rows:
            row["expected"] = expected.get(row["group"])
        for line, text in found.problems[:10]:
            env.out.note(f"{ledger.name if ledger else 'ledger'} line {line}: {text}; left out" if line else text)
        if len(found.problems) > 10:
            env.out.note(f"and {len(found.problems) - 10} more")
        body = {"by": by, "rf": rf, "groups": rows, "left_out": [{"line": line, "text": text} for line, text in found.problems]}
        text = table(rows, MEASURED, env.out.form == "wide")
        if draw or html is not None or png is not None:
            figures = [core("aegis_lemon.pictures.shows", "aegis ettr measured").ettr_by_size(beside, rf)]
            pictures.write(env, "Measured and expected ETTR", figures, "aegis ettr measured", html=html, png=png)
            text += "\n\n" + pictures.drawn(figures, "aegis ettr measured --draw") if draw else ""
        env.out.document("MeasuredETTR", body, text, f"{rows[0]['ettr']['value']:.4f}")


def span(text: str, option: str) -> tuple[float, float]:
    """`0.5..20` -> (0.5, 20.0)."""
    low, dots, high = text.partition("..")
    try:
        if dots:
            return float(low), float(high)
    except ValueError:
        pass
    raise CliError("E107", f'{option} "{text}": expected two numbers, LOW..HIGH', exit=2)
