"""How far a run is, by its own word and by what it prints: the last step, when it came, the pauses between steps, how long it may be quiet.

Of one incarnation, so nothing of an earlier one can look like a hang of this one; time is an argument (monotonic seconds).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from aegis_agent import steplines

LEARNED = 20
"""Pauses between steps after which their median says something."""


@dataclass(slots=True)
class Progress:
    """`step` -1 = not told yet. `began`: start of the run, where it is known."""

    step: int = -1
    at: float | None = None
    longest_gap: float | None = None
    long_until: float = 0.0
    """Until when the run may be quiet: it asked for patience (`expect-long`), or said that it evaluates or saves."""
    checkpoint: int = -1
    stall: float = -1.0
    """Seconds by which the longest pause between two steps around the last save exceeded a usual one; -1: not known."""
    began: float | None = None
    line_at: float | None = None
    """When anything was printed last."""
    gpu: float = -1.0
    """Percent of the machine's GPU that was used least at the last look; -1: not known."""
    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=101))
    _said: dict[int, bytes] = field(default_factory=dict)
    _asked_until: float = 0.0
    _pause: float = 0.0
    """The longest pause since the save before."""
    _saved: bool = False

    def advance(self, step: int, now: float) -> None:
        """A step was told. One that does not rise is no progress (several ranks tell the same)."""
        if step <= self.step:
            return
        self.step = step
        self.moved(now)

    def moved(self, now: float) -> None:
        """Something of the training went on: a step, a bar, a lower number of a new epoch. What was printed about a long phase is over."""
        if self.at is not None:
            self.longest_gap = max(self.longest_gap or 0.0, now - self.at)
            self._gaps.append(now - self.at)
            self._pause = max(self._pause, now - self.at)
            if self._saved:
                self.stall = max(0.0, self._pause - self.usual_gap) if self.usual_gap else -1.0
                self._pause, self._saved = 0.0, False
        self.at = now
        self.long_until = self._asked_until

    def saved(self, step: int) -> None:
        """A checkpoint is complete. Steps may go on already or only now: what it cost is known with the next one."""
        if step > self.checkpoint:
            self.checkpoint, self._saved = step, True

    def expect_long(self, seconds: float, now: float) -> None:
        """The training asked for patience."""
        self._asked_until = max(self._asked_until, now + seconds)
        self.long_until = max(self.long_until, self._asked_until)

    def printed(self, lines: bytes, now: float) -> None:
        """Whole lines of a rank, as they were printed."""
        self.line_at = now
        for found in steplines.find(lines):
            if found.patience:
                self.long_until = max(self.long_until, now + found.patience)
            elif self._said.get(found.row) != found.value:
                self._said[found.row] = found.value
                if found.step > self.step:
                    self.advance(found.step, now)
                else:
                    self.moved(now)

    def silence(self, now: float) -> float | None:
        """Seconds since the last step, None when none was told."""
        return None if self.at is None else now - self.at

    @property
    def usual_gap(self) -> float:
        """Median pause between two steps, seconds; 0 until `LEARNED` of them were seen."""
        return median(self._gaps) if len(self._gaps) >= LEARNED else 0.0
