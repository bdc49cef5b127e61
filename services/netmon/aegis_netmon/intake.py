"""From the stream METRICS into the picture: the polls of all nodes, in order. One reader per replica, which reads what it missed.

A message that is none goes to the dead letters and costs its node that poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aegis_bus.connection import Bus, Stored
from aegis_bus.metrics import DEAD_LETTERS
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import subjects
from aegis_proto.api import DeadLetter
from aegis_proto.ids import is_id
from aegis_proto.messages import BadMessage, decode, encode
from aegis_proto.net import SERVICE, NodePorts

from aegis_netmon import hostpoll, metrics
from aegis_netmon.hostpoll import NodePoll

log = logging.getLogger(__name__)

STREAM = "METRICS"
ALL = "aegis.net.*.counter"
AT_ONCE = 20
"""Polls taken before others may run: at 8 ports each some milliseconds."""
MAX_LETTER = 8192


class Intake:
    """`run` until cancelled; `take` is given each poll. `seq`: the last message taken; `ready` once all that was there has been read."""

    def __init__(self, bus: Bus, take: Callable[[NodePoll], object], seq: int = 0) -> None:
        self._bus, self._take = bus, take
        self.seq, self.ready = seq, False

    async def run(self) -> None:
        info = await self._bus.js_api(f"STREAM.INFO.{STREAM}")
        end = int(info["state"]["last_seq"])
        if self.seq > end:
            log.warning("METRICS begins anew at %d, %d was due", end, self.seq)
            self.seq = 0
        self.ready = self.seq >= end
        async with OrderedReader(self._bus, STREAM, [ALL], start=self.seq + 1) as reader:
            while True:
                for item in await reader.read_along(AT_ONCE, 0.02, self._caught_up):
                    self._one(item)
                metrics.BEHIND.set(reader.pending)
                self._caught_up(reader.at_end)
                await asyncio.sleep(0)

    def _caught_up(self, at_end: bool) -> None:
        self.ready = self.ready or at_end

    def _one(self, item: Stored | Gap) -> None:
        if isinstance(item, Gap):
            if item.first_seq > item.wanted:
                metrics.LOST.inc(item.first_seq - item.wanted)
            self.seq = item.first_seq - 1
            return
        self.seq = item.seq
        node = subjects.token(item.subject, 2)
        try:
            if not is_id(node):
                raise BadMessage(f"{item.subject}: names no node")
            self._take(hostpoll.read(node, item.time_ms / 1000, decode(NodePorts, item.data)))
        except BadMessage as error:
            self._refuse(item, node, str(error))
        except Exception as error:  # a defect of ours must not keep all other nodes from being read
            log.exception("%s", item.subject)
            self._refuse(item, node, f"{type(error).__name__}: {error}")
        else:
            metrics.POLLS.inc()

    def _refuse(self, item: Stored, node: str, reason: str) -> None:
        metrics.REFUSED.inc()
        DEAD_LETTERS.labels(SERVICE).inc()
        letter = DeadLetter(STREAM, item.seq, item.subject, reason[:300], item.data[:MAX_LETTER], item.time_ms)
        self._bus.core(subjects.dlq(SERVICE, STREAM, node if is_id(node) else "other"), encode(letter))
