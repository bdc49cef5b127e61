"""Which replica keeps which job. Pure: the replicas that live decide it, the same for everybody who sees the same ones.

Highest random weight: when a replica comes or goes, only the jobs that become its own, or were, move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def owner(job: str, replicas: Iterable[str]) -> str:
    """The replica that keeps this job, "" when there is none."""
    return max(replicas, key=lambda replica: hashlib.blake2b(f"{replica}|{job}".encode(), digest_size=8).digest(), default="")


class Shares:
    """What one replica knows. It always counts itself as living: whether it can write is found out by writing."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.live: frozenset[str] = frozenset({me})
        self._owners: dict[str, str] = {}

    def update(self, live: Iterable[str]) -> frozenset[str] | None:
        """The replicas that live now; those that did before when something changed, else None."""
        now = frozenset({*live, self.me})
        if now == self.live:
            return None
        before, self.live = self.live, now
        self._owners.clear()
        return before

    def mine(self, job: str) -> bool:
        found = self._owners.get(job)
        if found is None:
            if len(self._owners) > 10_000:
                self._owners.clear()
            found = self._owners[job] = owner(job, self.live)
        return found == self.me

    def gained(self, job: str, before: Iterable[str], was: str = "") -> bool:
        """It is mine now, and was somebody else's among those. `was`: my own name among them, where it was another."""
        return self.mine(job) and owner(job, before) != (was or self.me)
