""" "I am here": when a worker says it, and since when the rounds of its job count on it.

Level, not edge: it is said again while no new order has named us. Writes the report `pending`.
"""

from __future__ import annotations

import time

from aegis_agent import ports
from aegis_agent.executor import Executor
from aegis_agent.link import Uplink
from aegis_agent.orders import Rank
from aegis_agent.writer import ReportWriter

PENDING_AGAIN = 30.0
"""Seconds until "I am here" is said again while no new order has named us; doubled each time, at most ten times as long."""


class Presence:
    """`settled`: we have said that we are here; rounds that begin from now on count on this boot."""

    def __init__(self, executor: Executor, uplink: Uplink, write: ReportWriter) -> None:
        self.exec, self.uplink, self.write = executor, uplink, write
        self.settled = False
        self._first = Rank()
        self._at = 0.0
        self._gap = PENDING_AGAIN
        self._said = Rank()

    @property
    def born(self) -> Rank | None:
        """The highest order seen before we said that we are here; None while we have not."""
        return self._first if self.settled else None

    def saw(self, rank: Rank) -> None:
        if not self.settled:
            self._first = max(self._first, rank)

    def settle(self) -> None:
        self.settled = True
        self.say()

    def say(self) -> None:
        self._at, self._said = time.monotonic(), self.write.rank
        port = ports.free_port(self.exec.task.spec.masterPortRange) if self.exec.index == 0 else 0
        self.write.pending(self.exec.run, self.address(), port)

    def say_again(self, now: float) -> None:
        """Say it again when nothing has named us for a while."""
        if self.settled and self.write.rank == self._said and now - self._at >= self._gap:
            self._gap = min(2 * self._gap, 10 * PENDING_AGAIN)
            self.say()

    def address(self) -> str:
        """Where the other workers reach this one."""
        task = self.exec.task
        if task.address:
            return task.address
        servers = self.uplink.servers or [task.credentials]
        return ports.route_address(servers[0])
