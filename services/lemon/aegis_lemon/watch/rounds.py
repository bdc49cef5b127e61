"""Round after round: the history as it is, a ranking of all nodes, what follows from it; told first, done after.

Every replica keeps the history. The one that holds the lease decides: writes `aegis.verdict.lemon.node.<n>` (EVENTS), `aegis.kept.lemon.<n>` (KEPT),
`aegis.node.<n>.{risk,taint,test}` (NODES, taints and tests by compare-and-set) and tickets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb
import msgspec
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError, WrongLastSequence
from aegis_bus.metrics import VERDICTS
from aegis_bus.settings import LemonSettings
from aegis_proto import subjects
from aegis_proto.lemon import SERVICE, Risk
from aegis_proto.messages import Taint, Verdict, encode

from aegis_lemon import metrics
from aegis_lemon.detect import Guards, Ranking, Thresholds, rank
from aegis_lemon.history import History, HistoryError, Observed, observe, read
from aegis_lemon.history.schema import TABLES

from . import cases, fleet, risk
from .cases import Book, Known, Policy
from .kept import Files
from .reading import Reading
from .slurm import SlurmSide
from .tickets import Tickets

log = logging.getLogger(__name__)

SHOWN = 50
WORST = 20
FORGET_EVERY = 3600.0


SOONEST, SHARE = 5.0, 10.0
"""News makes a round at most so soon (seconds), and so rarely that rounds take a tenth of the time."""


def pause(took: float, every: float) -> float:
    """Seconds for which news is gathered after a round that took `took`."""
    return min(every, max(SOONEST, SHARE * took))


@dataclass
class Picture:
    """What the last round found. `note` says why there is no ranking."""

    history: History | None = None
    observed: Observed | None = None
    ranking: Ranking | None = None
    fleet: fleet.Fleet = field(default_factory=fleet.Fleet)
    risks: dict[str, Risk] = field(default_factory=dict)
    note: str = "no round was made yet"
    at: float = 0.0


@dataclass(frozen=True)
class How:
    """How a ranking is made; seconds."""

    detector: str
    window: float
    recent: float
    gap: float
    guards: Guards
    thresholds: Thresholds
    extra: tuple[Path, ...] = ()

    @classmethod
    def of(cls, settings: LemonSettings, thresholds: Thresholds) -> How:
        extra = tuple(Path(folder) for folder in settings.history)
        return cls(settings.detector, settings.window, settings.recent, settings.gap, Guards(), thresholds, extra)


def judge(folder: Path, running: list[dict[str, object]], how: How, now: float) -> Picture:
    """History, then ranking; in a thread. Files of the site (`lemon.history`) count beside what was heard."""
    found = Picture(at=now)
    try:
        history = read(folder, *how.extra, more={"jobs": running})
        observed = observe(history, how.window, now, recent=how.recent, gap=how.gap)
        ranking = rank(observed, how.detector, how.guards, how.thresholds)
    except HistoryError as error:
        found.note = str(error)
        return found
    except duckdb.Error as error:  # a file that is replaced while it is read, no memory, a full disk
        log.error("the history could not be ranked: %s", error)
        found.note = f"the history could not be ranked: {error}"[:500]
        return found
    found.history, found.observed, found.ranking, found.note = history, observed, ranking, ""
    return found


class Rounds:
    """`run` until cancelled. `ready`: whether this replica decides now."""

    def __init__(
        self, bus: Bus, reading: Reading, files: Files, tickets: Tickets, *, settings: LemonSettings, mode: str, slurm: SlurmSide | None
    ) -> None:
        self._bus, self._files, self._reading = bus, files, reading
        self._collector = reading.collector
        self._settings, self._tickets, self._slurm = settings, tickets, slurm
        self.policy = Policy(mode, settings.probation, settings.test_seconds, settings.drains_per_day, settings.max_excluded)
        self.how = How.of(settings, Thresholds.of(settings))
        self.ready: Callable[[], bool] = lambda: False
        self.picture = Picture()
        self._forgot = time.monotonic()
        self._gathered = float("-inf")

    async def run(self) -> None:
        while True:
            self._reading.news.clear()
            begun = time.monotonic()
            try:
                await self.round(time.time())
            except BusError as error:
                log.warning("round not finished: %s", error)
            except OSError as error:
                log.error("the history could not be written: %s", error)
            least = pause(time.monotonic() - begun, self._settings.round)
            try:
                async with asyncio.timeout(self._settings.round - least):
                    await self._reading.news.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(least)  # what comes together is judged together

    async def round(self, now: float) -> None:
        """BusError, OSError: what was not done is done in the next one."""
        metrics.ACTIVE.set(self.ready())
        seen = await fleet.read(self._bus)
        await self._reading.look(now)
        for taint in seen.taints.values():
            self._collector.see_taint(taint, now)
        for name, spec in seen.specs.items():
            self._collector.see_serial(name, spec.labels.get("serial", ""), now)
        await self._keep(seen, now)
        running = list(self._collector.running(now))
        how = self.how
        if self._slurm is not None:
            if time.monotonic() - self._gathered >= self._settings.round:
                self._gathered = time.monotonic()
                await asyncio.to_thread(self._slurm.gather, now)
            how = replace(how, extra=(*how.extra, *self._slurm.history))
        with metrics.ROUND.time():
            picture = await asyncio.to_thread(judge, self._files.folder, running, how, now)
        self.picture = replace(picture, fleet=seen, risks=self.picture.risks)
        if self.picture.note:
            log.info("no ranking: %s", self.picture.note)
        if self.ready():
            await self._decide(int(now * 1000))
        self._measure()

    async def _keep(self, seen: fleet.Fleet, now: float) -> None:
        jobs, events = self._collector.take(now)
        seq, memory = self._reading.seq, msgspec.json.encode(self._collector.memory)  # here: while it is written, more is heard
        try:
            await asyncio.to_thread(self._files.add, seq, memory, jobs, events)
        except OSError:
            self._collector.jobs[:0], self._collector.events[:0] = jobs, events
            raise
        await asyncio.to_thread(self._files.nodes, seen.rows())
        if time.monotonic() - self._forgot > FORGET_EVERY:
            self._forgot = time.monotonic()
            await asyncio.to_thread(self._files.forget, now - self._settings.keep)

    @property
    def sizes(self) -> Mapping[str, tuple[int, int, str]]:
        """Job -> processes per node, priority, cluster."""
        return self._collector.memory.sizes

    # --- deciding ----------------------------------------------------------------------------------------------------------------

    def book(self) -> Book:
        """All cases as they stand."""
        seen = self.picture.fleet
        ranked = {node.node: node for node in self.picture.ranking.nodes} if self.picture.ranking is not None else {}
        flagged = {name for name, node in ranked.items() if node.flagged}
        names = {*seen.verdicts, *flagged, *(name for name, taint in seen.taints.items() if taint.excluded), *seen.orders}
        return Book(
            {
                name: Known(name, ranked.get(name), seen.verdicts.get(name), seen.taints.get(name), seen.orders.get(name), seen.results.get(name))
                for name in sorted(names)
            }
        )

    async def _decide(self, now: int) -> None:
        book = self.book()
        ranked = self.picture.ranking
        nodes = len({*self.picture.fleet.specs, *((node.node for node in ranked.nodes) if ranked is not None else ())})
        for known, next_ in book.steps(self.policy, nodes, now):
            if ranked is None and next_.state == "clear":
                continue  # a history that cannot be read clears nobody
            verdict = cases.told(known, next_, self.policy, now)
            await self._bus.publish(
                subjects.verdict(SERVICE, "node", known.node), encode(verdict), msg_id=f"{verdict.id}-{verdict.state}-{verdict.at}"
            )
            VERDICTS.labels(SERVICE, verdict.cause).inc()
            log.info("%s", verdict.sentence)
            self.picture.fleet.verdicts[known.node] = verdict
            book.known[known.node] = replace(known, verdict=verdict)
        await self._remember()
        for known in book.known.values():
            await self._do(known, now)
        if self._slurm is not None and self.policy.mode == "act":
            told = {name: one.verdict for name, one in book.known.items() if one.verdict is not None}
            out = {name: cases.reason(verdict) for name, verdict in told.items() if verdict.state in cases.OUT}
            back = {name for name, verdict in told.items() if verdict.state in cases.BACK}
            await asyncio.to_thread(self._slurm.apply, out, back)
        await self._risks(now)
        if self._slurm is not None and self.policy.mode == "act" and ranked is not None:
            await asyncio.to_thread(self._slurm.weigh, {name: one.risk for name, one in self.picture.fleet.risks.items()})

    async def _remember(self) -> None:
        """In KEPT each case as it stands: a node may wait for its repair longer than EVENTS remembers."""
        seen = self.picture.fleet
        for name, verdict in seen.verdicts.items():
            wish = cases.kept(verdict)
            if seen.kept.get(name, wish if wish.state == "clear" else None) != wish:
                await self._bus.publish(subjects.kept(SERVICE, name), encode(wish))
                seen.kept[name] = wish

    async def _do(self, known: Known, now: int) -> None:
        wish = cases.wanted(known, self.policy, now)
        if wish.taint is not None and await self._put(subjects.node_taint(known.node), wish.taint):
            self.picture.fleet.taints[known.node] = wish.taint
            log.info("%s is %s: %s", known.node, "taken out" if wish.taint.excluded else "given back", wish.taint.reason)
        if wish.order is not None and await self._put(subjects.node_test(known.node), wish.order):
            self.picture.fleet.orders[known.node] = wish.order
            log.info("%s: deep tests ordered, %s", known.node, wish.order.id)
        if wish.ticket and known.verdict is not None:
            await asyncio.to_thread(self._tickets.open, known.verdict.id, ticket(known, known.verdict))

    async def _put(self, subject: str, content: Taint | msgspec.Struct) -> bool:
        """By compare-and-set on what this round read: who changed it meanwhile is heard in the next one."""
        try:
            ack = await self._bus.publish(subject, encode(content), expect=self.picture.fleet.seqs.get(subject, 0))
        except WrongLastSequence:
            log.info("%s was changed by somebody else: looked at again", subject)
            return False
        self.picture.fleet.seqs[subject] = ack.seq
        return True

    async def _risks(self, now: int) -> None:
        seen = self.picture.fleet
        probation = [name for name, verdict in seen.verdicts.items() if verdict.state == "probation"]
        self.picture.risks = risk.risks(self.picture.ranking, risk.of_links(seen.links.values()), probation, now)
        for changed in risk.news(self.picture.risks, seen.risks, now):
            if self.picture.ranking is None and changed.node in seen.risks and changed.risk < seen.risks[changed.node].risk:
                continue
            await self._bus.publish(subjects.node_risk(changed.node), encode(changed))
            seen.risks[changed.node] = changed

    def _measure(self) -> None:
        picture = self.picture
        if picture.history is not None:
            for table in TABLES:
                metrics.ROWS.labels(table).set(picture.history.rows.get(table, 0))
            metrics.LEFT_OUT.set(picture.history.left_out)
        if picture.ranking is not None:
            metrics.FLAGGED.set(len(picture.ranking.flagged))
            metrics.FLEET.set(picture.ranking.fleet_rate)
        counts = Counter(verdict.state for verdict in picture.fleet.verdicts.values())
        for state in cases.STATES:
            metrics.CASES.labels(state).set(counts[state])
        metrics.RISK.clear()
        for worst in sorted(picture.risks.values(), key=lambda one: -one.risk)[:WORST]:
            if worst.risk > 0:
                metrics.RISK.labels(worst.node).set(worst.risk)


def ticket(known: Known, verdict: Verdict) -> dict[str, object]:
    """Node, signals and results, for whoever repairs it."""
    ranked, result = known.ranked, known.result
    return {
        "id": verdict.id,
        "node": known.node,
        "state": verdict.state,
        "at": verdict.at,
        "sentence": verdict.sentence,
        "sentenceZh": verdict.sentenceZh,
        "evidence": list(verdict.evidence),
        "signals": ranked.signals if ranked is not None else {},
        "score": ranked.score if ranked is not None else None,
        "results": msgspec.to_builtins(result.results) if result is not None else [],
        "tested": result.at if result is not None else 0,
        "then": f"after the repair: aegis node test {known.node}; a passed test gives the node back on probation",
    }
