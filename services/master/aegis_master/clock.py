"""The server's clock, as far as it can be known here. Deadlines are measured on it, so that a takeover neither shortens nor lengthens them."""

from __future__ import annotations

import time
from collections.abc import Callable


class ServerClock:
    """Offset between this machine's clock and the server's, from timestamps of messages as they arrive.

    A message stamped `s` by the server and seen here at `r` says: offset >= s - r, and close to it if it came at once. So the highest of the
    recent samples is the best one. Two windows of a minute forget a clock of the server that was stepped back; between the samples time passes by the
    monotonic clock, so that a step of this machine's own clock fires no deadline and lets no lost worker count as gone.
    """

    WINDOW = 60.0

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._unseen = (wall() - monotonic()) * 1000
        """Offset before any fresh message was seen: this machine's own clock."""
        self._best: list[float | None] = [None, None]
        self._turn = monotonic() + self.WINDOW

    def saw(self, server_ms: int) -> None:
        """A message stamped `server_ms` by the server arrived just now. Feed live messages only (views), never a backlog."""
        if server_ms <= 0:
            return
        if self._monotonic() >= self._turn:
            self._best = [None, self._best[0]]
            self._turn = self._monotonic() + self.WINDOW
        sample = server_ms - self._monotonic() * 1000
        if self._best[0] is None or sample > self._best[0]:
            self._best[0] = sample

    @property
    def offset_ms(self) -> float:
        """Milliseconds to add to this machine's monotonic clock."""
        return max((sample for sample in self._best if sample is not None), default=self._unseen)

    def now_ms(self) -> int:
        """Milliseconds since 1970 by the server's clock."""
        return round(self._monotonic() * 1000 + self.offset_ms)
