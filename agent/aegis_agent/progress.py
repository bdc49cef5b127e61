"""How far a run is, by its own word: the last step, when it came, the longest pause between steps. Of one incarnation; time is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """`step` -1 = not told yet. Times are monotonic seconds."""

    step: int = -1
    at: float | None = None
    longest_gap: float | None = None
    long_until: float = 0.0
    """Until when the run asked for patience (`expect-long`: an evaluation, a large checkpoint)."""
    checkpoint: int = -1

    def advance(self, step: int, now: float) -> None:
        """A step was told. One that does not rise is no progress (several ranks tell the same)."""
        if step <= self.step:
            return
        if self.at is not None:
            self.longest_gap = max(self.longest_gap or 0.0, now - self.at)
        self.step, self.at = step, now

    def expect_long(self, seconds: float, now: float) -> None:
        self.long_until = max(self.long_until, now + seconds)

    def silence(self, now: float) -> float | None:
        """Seconds since the last step, None when none was told."""
        return None if self.at is None else now - self.at
