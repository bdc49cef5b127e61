"""`aegis ettr plan`: what interval to use now, of a job as it was measured or as it is described; and what the commands of `ettr.py` share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.offline import core, refusals, seconds
from aegis_cli.options import Env, command

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


@dataclass(frozen=True)
class Told:
    """The ledger of a job, and what it says of its saves: seconds, -1 and 0 where that is not known."""

    run: Any
    save: float = -1.0
    every: float = 0.0


def ledgers(env: Env, jobs: tuple[str, ...], ettr: Any) -> list[Told]:
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

    return [Told(run(item), item.save, item.every) for item in items]


@dataclass
class Asked:
    """What a plan rests on: seconds, by the command's words or by the job's ledger; None is not known."""

    gpus: float | None
    write: float | None
    restart: float | None
    queue: float | None
    rf: float | None
    failures: int | None
    days: float | None
    every: float | None

    def fill(self, told: Told, ettr: Any) -> None:
        """What was not said, from the job."""
        found = ettr.seen([told.run])
        save, every = (told.save, told.every) if told.save >= 0 else (found.write, told.every or found.every)
        self.gpus = self.gpus or found.gpus
        self.write = self.write if self.write is not None else save if save >= 0 else None
        self.restart = found.restart if self.restart is None else self.restart
        self.queue = found.queue if self.queue is None else self.queue
        self.every = self.every or every or None
        if self.rf is None and self.failures is None and self.gpus:
            self.failures, self.days = found.failures, found.node_days / (self.gpus / 8)

    def complete(self) -> None:
        """CliError for what is missing."""
        counted = self.failures is not None and self.days is not None
        if (self.rf is None) != counted or (self.failures is None) != (self.days is None):
            raise CliError("E107", "give --rf, or --failures with --days, or a job", exit=2)
        for name in ("gpus", "write", "restart"):
            if getattr(self, name) is None:
                raise CliError("E107", f"--{name} is not said, and no job tells it", exit=2)


def register(group: typer.Typer) -> None:
    """Add `plan`."""

    @command(group, "plan")
    def make_plan(
        env: Env,
        *,
        job: Annotated[str, typer.Argument(metavar="[JOB]", help="What is not said is read from this job: its saves, restarts, failures.")] = "",
        ledger: Annotated[Path | None, typer.Option("--ledger", metavar="FILE", help="The job's ledger, CSV; without it the service.")] = None,
        gpus: Annotated[float | None, typer.Option("--gpus", metavar="G", help="GPUs of the job, 8 to a node.")] = None,
        write: Annotated[str, typer.Option("--write", metavar="TIME", help="How long a save stops training: seconds, or 5min.")] = "",
        restart: Annotated[str, typer.Option("--restart", metavar="TIME", help="From nodes held to training again.")] = "",
        rf: Annotated[float | None, typer.Option("--rf", metavar="RATE", help="Failures per 1000 node-days; or --failures and --days.")] = None,
        failures: Annotated[int | None, typer.Option("--failures", metavar="N", help="Failures that the job has had.")] = None,
        days: Annotated[float | None, typer.Option("--days", metavar="D", help="Days it has run.")] = None,
        queue: Annotated[str, typer.Option("--queue", metavar="TIME", help="Mean wait for nodes, at the start and after each stop.")] = "",
        persist: Persist = "0",
        slowdown: Slowdown = 0.0,
        now: Annotated[str, typer.Option("--interval", metavar="TIME", help="Training between two saves at present.")] = "",
        latency: Annotated[str, typer.Option("--latency", metavar="TIME", help="Until a hang or corruption is noticed.")] = "0",
        target: Target = 0.9,
    ) -> None:
        """The interval to use now, and what a target still needs."""
        ettr = core("aegis_lemon.ettr", "aegis ettr plan")
        options = {"write": write, "restart": restart, "queue": queue, "every": now}
        times = {name: seconds(text, f"--{'interval' if name == 'every' else name}") if text else None for name, text in options.items()}
        with refusals():
            asked = Asked(gpus, times["write"], times["restart"], times["queue"], rf, failures, days, times["every"])
            if job or ledger is not None:
                asked.fill(told_of(env, job, ledger, ettr), ettr)
            asked.complete()
            assert asked.gpus is not None
            found = ettr.rate_interval(asked.failures, asked.days * asked.gpus / 8) if asked.failures is not None and asked.days is not None else None
            setting = setting_of(
                ettr, gpus=asked.gpus, rf=found[0] if found else asked.rf or 0.0, write=asked.write or 0.0, restart=asked.restart or 0.0,
                queue=asked.queue or 0.0, persist=persist, slowdown=slowdown,
            )  # fmt: skip
            made = ettr.plan(setting, target, asked.every, found[1:] if found else None, seconds(latency, "--latency"))
        body = {
            "gpus": asked.gpus,
            "write": setting.write,
            "restart": setting.restart,
            "queue": setting.queue,
            "failures": asked.failures,
            "interval_now": asked.every,
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
        if job or ledger is not None:
            lines.append(f"measured: a save stops training for {setting.write:.1f} s, a restart takes {setting.restart:.1f} s")
        if made.low < made.high:
            rates = f"{made.rf_low:.2f} to {made.rf_high:.2f} per 1000 node-days"
            lines.append(f"{asked.failures} failures leave {rates} open, so {interval(made.low)} to {interval(made.high)}")
        if made.now is not None and asked.every is not None:
            lines.append(f"at present, every {interval(asked.every)}: {made.now:.3f}")
        write_text = f"saves of at most {made.need_write:.1f} s" if made.need_write else "no save is fast enough"
        lines.append(f"{target:g} needs {write_text}, or at most {made.need_rf:.2f} failures per 1000 node-days")
        env.out.document("ETTRPlan", body, "\n".join([*lines, *made.notes]), f"{made.interval:.0f}")


def told_of(env: Env, job: str, ledger: Path | None, ettr: Any) -> Told:
    """The one job; E107 when a file holds several and none is named."""
    if ledger is None:
        return ledgers(env, (job,), ettr)[0]
    runs = [run for run in ettr.read_ledgers(ledger).runs if not job or run.job == job]
    if len(runs) != 1:
        names = ", ".join(run.job for run in runs[:5]) or "none of that name"
        raise CliError("E107", f"{ledger.name}: which job? There are {names}" if not job else f"{ledger.name}: no job {job}", exit=2)
    return Told(runs[0])
