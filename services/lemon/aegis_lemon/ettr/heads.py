"""Ledgers of real jobs out of the history of their heads (stream STORY): spans of states, second-exact. Pure.

A head has what was booked so far and the state that runs. Between two heads of a job, what was booked is the difference; work that a failure threw
away is booked over from productive to lost, and was the last of the productive time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from aegis_proto.phases import LedgerState
from aegis_proto.state import Head, Ledger

from .measured import Run, Span

PRODUCTIVE, LOST = LedgerState.PRODUCTIVE.value, LedgerState.LOST.value


@dataclass
class Booked:
    """A span in milliseconds."""

    state: LedgerState
    start: int
    end: int
    stopped: bool = False


@dataclass
class Story:
    """One job. `add` takes its heads in order; a head that says nothing new adds nothing."""

    job: str
    workers: int = 0
    spans: list[Booked] = field(default_factory=list)
    ledger: Ledger | None = None
    failures: int = 0
    ended: bool = False
    save: float = -1.0
    """Seconds for which a save stops training, as the workers told last; -1: none did."""
    _saves: deque[int] = field(default_factory=lambda: deque(maxlen=101))
    _saved: tuple[int, int] = (-1, 0)
    """Incarnation and moment of the last checkpoint."""

    @property
    def every(self) -> float:
        """Seconds between two complete checkpoints, the median; 0: not known."""
        return median(self._saves) / 1000 if self._saves else 0.0

    def add(self, head: Head) -> None:
        if head.saveStall >= 0:
            self.save = head.saveStall / 1000
        if head.checkpointAt > self._saved[1]:
            if head.incarnation == self._saved[0]:
                self._saves.append(head.checkpointAt - self._saved[1])
            self._saved = (head.incarnation, head.checkpointAt)
        ledger, before = head.ledger, self.ledger
        self.workers, self.ended = head.workerNum, head.phase.terminal
        if before is not None and ledger.since >= before.since:
            self._booked(before, ledger)
        if head.failures > self.failures and self.spans:
            self.spans[-1].stopped = True
        self.failures = head.failures
        if before is None or ledger.since >= before.since:
            self.ledger = ledger

    def _booked(self, before: Ledger, now: Ledger) -> None:
        """What was booked between two heads: the state that ran first, then what came and went in one commit."""
        lost = now.totals.get(LOST, 0) - before.totals.get(LOST, 0)
        at = before.since
        for state in (before.state, *(state for state in LedgerState if state is not before.state)):
            if state is LedgerState.LOST:
                continue
            booked = now.totals.get(state.value, 0) - before.totals.get(state.value, 0) + (lost if state is LedgerState.PRODUCTIVE else 0)
            end = min(at + max(0, booked), now.since)
            if end > at:
                self._span(state, at, end)
                at = end
        if lost > 0:
            self._lose(lost)

    def _span(self, state: LedgerState, start: int, end: int) -> None:
        last = self.spans[-1] if self.spans else None
        if last is not None and last.state is state and not last.stopped and last.end == start:
            last.end = end
        else:
            self.spans.append(Booked(state, last.end if last is not None else start, end))

    def _lose(self, lost: int) -> None:
        """The last `lost` milliseconds of productive time become lost."""
        made: list[Booked] = []
        for span in reversed(self.spans):
            part = min(lost, span.end - span.start) if span.state is LedgerState.PRODUCTIVE else 0
            if not part:
                made.append(span)
                continue
            lost -= part
            made.append(Booked(LedgerState.LOST, span.end - part, span.end, span.stopped))
            if span.end - part > span.start:
                made.append(Booked(LedgerState.PRODUCTIVE, span.start, span.end - part))
        self.spans = made[::-1]

    def run(self, now: float = 0.0) -> Run | None:
        """As far as it is known; with `now` (seconds) up to then, for a job that goes on. None: nothing is known yet."""
        spans = list(self.spans)
        if self.ledger is not None and not self.ended:
            start, end = spans[-1].end if spans else self.ledger.since, int(now * 1000)
            if end > start:
                spans.append(Booked(self.ledger.state, start, end))
        told = tuple(Span(span.state, span.start / 1000, span.end / 1000, span.stopped) for span in spans)
        return Run(self.job, told, self.workers) if told else None
