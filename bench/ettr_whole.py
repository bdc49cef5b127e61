"""What the whole product gives: ETTR of 30 days of large jobs, with Aegis and with whole-job restart, with and without lemon removal.

    python bench/ettr_whole.py [--days 30] [--failures 300] [--seed 1] [--recovery FILE --order FILE] [--json FILE] [--processes N]

Every recovery of the rows "aegis" goes through the real phase machine (`aegis_master.machine.step`), report by report, and its ETTR is read from
the job's own ledger. Failures are Poisson by node: a fleet of 2,000 nodes, 1.2 % of them lemons (Kokolis et al., HPCA 2025) that fail `--ratio`
times as often, the mean over the fleet at r_f = 2.34 and 6.50 per 1000 node-days (their two clusters). On both sides the node that failed is
replaced, and comes back after a day; with Aegis not into a job whose errorNodes name it. Lemon removal: the default detector on 28 days of history
before the job; the nodes it flags are not used. Each cell repeats 30 days until about `--failures` failures are seen; intervals are 95 %, over the
stretches between failures. Beside each: the expected ETTR in closed form, at the mean rate of the nodes that may be used (the nodes of a job get
better than that, as those that fail leave it).

What a recovery takes with Aegis comes from our own benches (`recovery.py --json`, `order_scale.py --json`; run first when no files are named):
notice and respawn, a fresh start of agent and services for the re-placed worker (an upper bound of its placing), and the round of checks at 1,536
agents (p99). `--own` seconds more are the training's own (imports, communicators, reading the checkpoint): both sides pay them. A node that falls
silent (`--silent` of the failures) is waited for: with Aegis the fence of the master, else the collective's timeout of 600 s (torch's default).
Whole-job restart takes `--restart` seconds (the paper's 5 minutes, the training's own included) and `--queue`. Both save every Young interval
(`aegis ettr plan`); a save stops training for `--write` seconds.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from aegis_lemon.detect.rank import rank
from aegis_lemon.ettr.expected import exact
from aegis_lemon.ettr.intervals import interval_of
from aegis_lemon.ettr.measured import Interval, ratio_interval
from aegis_lemon.ettr.setting import DAY, RSC1, RSC2, Setting
from aegis_lemon.history.observe import Observed
from aegis_master import events as ev
from aegis_master import ledger, machine
from aegis_master.judge import JudgeTimes
from aegis_proto.phases import LedgerState, LostReason, Phase
from aegis_proto.state import JobSpec, JobState

HERE = Path(__file__).resolve().parent
SIZES = (1024, 4096, 12_288)
FLEET, LEMONS, HISTORY_DAYS = 2000, 0.012, 28.0
COLLECTIVE_TIMEOUT = 600.0
REPAIR = DAY
"""Seconds until a failed node is back in the pool."""

Rng = np.random.Generator


@dataclass(frozen=True)
class Times:
    """Seconds of one recovery. `told`: the failure is reported, `silent`: the node says nothing more."""

    told: float
    silent: float
    replace: float = 0.0
    checks: float = 0.0
    own: float = 0.0

    def mean(self, share_silent: float) -> float:
        return (1 - share_silent) * self.told + share_silent * self.silent + self.replace + self.checks + self.own


@dataclass(frozen=True)
class World:
    """Failures per second of each node of the fleet, and the nodes a job may use."""

    rate: np.ndarray[Any, np.dtype[np.float64]]
    usable: np.ndarray[Any, np.dtype[np.int64]]

    @property
    def mean_rf(self) -> float:
        """Of the usable nodes, per 1000 node-days."""
        return float(self.rate[self.usable].mean()) * DAY * 1000


@dataclass
class Cycle:
    """From one failure to the next, seconds."""

    productive: float
    whole: float


@dataclass
class Outcome:
    cycles: list[Cycle] = field(default_factory=list)
    rf: list[float] = field(default_factory=list)

    @property
    def ettr(self) -> Interval:
        return ratio_interval([c.productive for c in self.cycles], [c.whole for c in self.cycles])


def world(rf: float, ratio: float, remove: bool, rng: Rng) -> World:
    """A fleet; with `remove`, without the nodes that the default detector flags on the days before."""
    lemon = np.zeros(FLEET, bool)
    lemon[rng.choice(FLEET, round(FLEET * LEMONS), replace=False)] = True
    healthy = rf / 1000 / (1 - LEMONS + LEMONS * ratio)  # per node-day
    per_day = np.where(lemon, healthy * ratio, healthy)
    usable = np.arange(FLEET)
    if remove:
        history = Observed.of_counts(rng.poisson(per_day * HISTORY_DAYS), np.full(FLEET, HISTORY_DAYS))
        flagged = {int(node.node[1:]) for node in rank(history).flagged}
        usable = np.array([node for node in usable if node not in flagged])
    return World(per_day / DAY, usable)


@dataclass(frozen=True)
class Case:
    """One job of `options.days` days on a fleet."""

    fleet: World
    workers: int
    times: Times
    options: argparse.Namespace
    rng: Rng

    @property
    def end(self) -> float:
        return float(self.options.days) * DAY

    def setting(self, queue: float = 0.0) -> Setting:
        return Setting(self.workers, self.fleet.mean_rf, self.options.write, self.times.mean(self.options.silent), queue)


class Pool:
    """Which nodes the job holds, which stand ready, which are being repaired."""

    def __init__(self, fleet: World, workers: int, rng: Rng) -> None:
        order = rng.permutation(fleet.usable)
        self.held: list[int] = [int(node) for node in order[:workers]]
        self.ready: list[int] = [int(node) for node in order[workers:]]
        self._repairs: list[tuple[float, int]] = []

    def replace(self, index: int, now: float, avoid: frozenset[str] = frozenset()) -> int:
        """Another node for a place: the first that stands ready and is not to be avoided; if all are, the first of all."""
        while self._repairs and self._repairs[0][0] <= now:
            self.ready.append(heapq.heappop(self._repairs)[1])
        heapq.heappush(self._repairs, (now + REPAIR, self.held[index]))
        node = next((node for node in self.ready if f"n{node}" not in avoid), self.ready[0] if self.ready else self.held[index])
        if node in self.ready:
            self.ready.remove(node)
        self.held[index] = node
        return node


def next_failure(fleet: World, held: list[int], now: float, rng: Rng) -> tuple[float, int]:
    """When the next of the held nodes fails, and at which place. Memoryless: drawn anew whenever the nodes change."""
    rates = fleet.rate[held]
    total = float(rates.sum())
    return now + rng.exponential(1 / total), int(rng.choice(len(held), p=rates / total))


# --- with Aegis: the phase machine decides, its ledger counts -------------------------------------------------------------------------------------


class AegisJob:
    """One job under the phase machine, in virtual time (seconds outside, ms inside)."""

    def __init__(self, workers: int, pool: Pool) -> None:
        self.pool = pool
        self.boots = [f"b{i}" for i in range(workers)]
        spec = JobSpec("whole", workers=workers, maxRetry=1_000_000, command=("train",))
        self.state: JobState = machine.create("whole-1", spec, "uid", "era", 0)

    def step(self, event: ev.Event, now: float) -> None:
        self.state, _ = machine.step(self.state, event, round(now * 1000))

    def here(self, index: int, now: float) -> None:
        attempt = self.state.pod(index).attempt
        self.boots[index] = f"b{index}.{attempt}"
        self.step(ev.PodReady(index, attempt, self.boots[index], "10.0.0.1", f"n{self.pool.held[index]}"), now)

    def all_finish(self, now: float) -> None:
        """Every worker answers the present round."""
        head = self.state.head
        for index, boot in enumerate(self.boots):
            self.step(ev.Finished(index, self.state.pod(index).attempt, boot, head.incarnation, head.seqNum), now)

    @property
    def phase(self) -> Phase:
        return self.state.head.phase

    def seconds(self, now: float) -> dict[str, float]:
        """Totals of the ledger, the state that runs included."""
        booked = ledger.book(self.state.head.ledger, self.state.head.ledger.state, "", round(now * 1000))
        return {name: ms / 1000 for name, ms in booked.totals.items()}


def with_aegis(case: Case) -> Iterator[Cycle]:
    """Cycles of one job. A failure may strike in training, restart and checks alike."""
    fleet, workers, times, options, rng = case.fleet, case.workers, case.times, case.options, case.rng
    every = interval_of(case.setting())
    pool = Pool(fleet, workers, rng)
    job = AegisJob(workers, pool)
    now = 0.0
    for index in range(workers):
        job.here(index, now)
    end, saves = case.end, 0
    begun, before = now, 0.0
    strikes, place = next_failure(fleet, pool.held, now, rng)
    waiting: list[tuple[float, Callable[[float], None]]] = []

    def run(at: float) -> None:
        job.all_finish(at)  # the round of checks; the run is ordered
        waiting[:] = [(at + times.own, trains)]

    def trains(at: float) -> None:
        nonlocal saves
        job.step(ev.Progressed(job.state.head.incarnation, job.state.head.incarnation), at)
        saves = 0
        waiting[:] = [(at + every + options.write, saved)]

    def saved(at: float) -> None:
        nonlocal saves
        saves += 1
        job.step(ev.Checkpointed(job.state.head.incarnation, saves), at)
        waiting[:] = [(at + every + options.write, saved)]

    def replaced(at: float) -> None:
        job.here(place_lost[0], at)
        waiting[:] = [(at + times.checks, run)]

    place_lost = [0]
    waiting[:] = [(now + times.checks, run)]
    while True:
        at, act = waiting[0]
        if min(at, strikes) >= end:
            break
        if at <= strikes:
            act(at)
            continue
        now, index = strikes, place
        silent = rng.random() < options.silent
        told = now + (times.silent if silent else times.told)
        pod = job.state.pod(index)
        if not pod.present:  # its place is being filled: the node to come failed, the next one is taken
            pool.replace(index, told, _avoid(job))
            waiting[:] = [(told + times.replace, replaced)]
        else:
            trained, count = job.phase is Phase.RUN_COMMAND, saves
            node = f"n{pool.held[index]}"
            reason = LostReason.NODE_LOST if silent else LostReason.GPU_LOST
            job.step(ev.PodLost(index, pod.attempt, reason, round(now * 1000), node=node, gone=True, blame=reason.value), now)
            place_lost[0] = index
            pool.replace(index, told, _avoid(job))
            if trained:
                useful = job.seconds(now).get(LedgerState.PRODUCTIVE.value, 0.0)
                yield Cycle(useful - before - count * options.write, now - begun)
                begun, before, saves = now, useful, 0
            waiting[:] = [(told + times.replace, replaced)]
        strikes, place = next_failure(fleet, pool.held, told, rng)
    useful = job.seconds(end).get(LedgerState.PRODUCTIVE.value, 0.0)
    assert abs(sum(job.seconds(end).values()) - end) < 1.0, "the ledger is not whole"
    yield Cycle(max(0.0, useful - before - saves * options.write), end - begun)


def _avoid(job: AegisJob) -> frozenset[str]:
    return frozenset(node.name for node in job.state.head.errorNodes)


# --- without: the whole job starts again ------------------------------------------------------------------------------------------------------------


def whole_job(case: Case) -> Iterator[Cycle]:
    """Cycles of one job that is submitted again after each failure, on whatever nodes stand ready."""
    fleet, times, options, rng = case.fleet, case.times, case.options, case.rng
    every = interval_of(case.setting(options.queue))
    pool = Pool(fleet, case.workers, rng)
    now, end = 0.0, case.end
    begun, trains = 0.0, times.own
    while True:
        strikes, place = next_failure(fleet, pool.held, now, rng)
        if strikes >= end:
            yield Cycle(_saved(max(0.0, end - trains), every, options.write, over=True), end - begun)
            return
        yield Cycle(_saved(strikes - trains, every, options.write, over=False), strikes - begun)
        silent = rng.random() < options.silent
        begun = strikes
        now = strikes + (times.silent if silent else times.told) + options.queue
        pool.replace(place, now)
        trains = now + times.own


def _saved(trained: float, every: float, write: float, *, over: bool) -> float:
    """Productive seconds of `trained` that are kept: whole intervals before a failure, all but the saves when the time is simply over."""
    if trained <= 0:
        return 0.0
    whole, rest = divmod(trained, every + write)
    return whole * every + (min(rest, every) if over else 0.0)


# --- the table ------------------------------------------------------------------------------------------------------------------------------------


def measured_times(options: argparse.Namespace) -> tuple[Times, dict[str, float]]:
    """Aegis's seconds out of the benches' own figures (medians; the round at its 99th percentile)."""
    with tempfile.TemporaryDirectory() as folder:
        recovery, order = options.recovery, options.order
        if recovery is None:
            recovery = Path(folder) / "recovery.json"
            subprocess.run([sys.executable, HERE / "recovery.py", "--only", "aegis", "--rounds", "3", "--json", recovery], check=True, stdout=2)
        if order is None:
            order = Path(folder) / "order.json"
            order.write_bytes(subprocess.run([sys.executable, HERE / "order_scale.py", "--json"], check=True, stdout=-1).stdout)
        rows = [row for row in json.loads(recovery.read_text()) if row["name"] == "aegis" and "total" in row]
        round_p99 = float(json.loads(order.read_text())["report_p99_s"])
    respawn = statistics.median(row["respawn"] - row["checks"] for row in rows)
    checks = statistics.median(row["checks"] for row in rows)
    fresh = statistics.median(row["start"] - row["imports"] - row["pg"] - row["step"] for row in rows)
    fence = JudgeTimes().fence + JobSpec("x").stopGrace
    parts = {"respawn_s": respawn, "checks_s": checks, "round_p99_s": round_p99, "replace_s": fresh, "fence_s": fence}
    return Times(respawn, respawn + fence, fresh, checks + round_p99, options.own), parts


SIDES: dict[str, Callable[..., Iterator[Cycle]]] = {"aegis": with_aegis, "whole-job": whole_job}


def cell(side: str, gpus: int, rf: float, times: Times, options: argparse.Namespace, *, remove: bool) -> dict[str, Any]:
    workers = gpus // 8
    months = max(1, math.ceil(options.failures / (workers * rf / 1000 * options.days)))
    found = Outcome()
    for month in range(months):
        rng = np.random.default_rng([options.seed, gpus, round(rf * 100), month])  # the same fleets for every side
        fleet = world(rf, options.ratio, remove, rng)
        found.rf.append(fleet.mean_rf)
        found.cycles += SIDES[side](Case(fleet, workers, times, options, rng))
    used = statistics.mean(found.rf)
    setting = Setting(workers, used, options.write, times.mean(options.silent), options.queue if side == "whole-job" else 0.0)
    ettr = found.ettr
    return {
        "side": side,
        "lemons_removed": remove,
        "gpus": gpus,
        "rf": rf,
        "rf_used": round(used, 2),
        "months": months,
        "failures": len(found.cycles) - months,
        "recovery_s": round(times.mean(options.silent), 1),
        "interval_s": round(interval_of(setting)),
        "ettr": round(ettr.value, 4),
        "low": round(ettr.low or 0.0, 4),
        "high": round(ettr.high or 1.0, 4),
        "expected": round(exact(setting, interval_of(setting)), 4),
    }


def cells(options: argparse.Namespace, sides: dict[str, Times]) -> Iterator[dict[str, Any]]:
    """All rows in order, several at a time: each is drawn from its own seeds."""
    with ProcessPoolExecutor(options.processes) as pool:
        rows = [
            pool.submit(cell, side, gpus, rf, times, options, remove=remove)
            for gpus in options.gpus
            for rf in (RSC2, RSC1)
            for side, times in sides.items()
            for remove in (False, True)
        ]
        for row in rows:
            yield row.result()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--failures", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ratio", type=float, default=50.0)
    parser.add_argument("--silent", type=float, default=0.1)
    parser.add_argument("--write", type=float, default=30.0)
    parser.add_argument("--own", type=float, default=60.0)
    parser.add_argument("--restart", type=float, default=300.0)
    parser.add_argument("--queue", type=float, default=0.0)
    parser.add_argument("--gpus", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    for name in ("recovery", "order", "json"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    options = parser.parse_args()
    aegis, parts = measured_times(options)
    whole = Times(0.0, COLLECTIVE_TIMEOUT, own=options.restart)
    print(", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
    names = f"{'GPUs':>7} {'r_f':>5}  {'side':<10} {'lemons':<8} {'recovery':>9} {'interval':>9} {'failures':>9}"
    print(f"{names} {'ETTR':>7} {'95 % interval':>16} {'expected':>9}")
    rows, began = [], time.monotonic()
    for row in cells(options, {"whole-job": whole, "aegis": aegis}):
        rows.append(row)
        print(
            f"{row['gpus']:>7} {row['rf']:>5.2f}  {row['side']:<10} {'removed' if row['lemons_removed'] else 'stay':<8} {row['recovery_s']:>7.1f} s "
            f"{row['interval_s']:>7} s {row['failures']:>9} {row['ettr']:>7.4f} {row['low']:>8.4f}-{row['high']:.4f} {row['expected']:>9.4f}",
            flush=True,
        )
    print(f"simulated in {time.monotonic() - began:.0f} s by {options.processes} processes")
    if options.json:
        options.json.write_text(json.dumps({"parts": parts, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
