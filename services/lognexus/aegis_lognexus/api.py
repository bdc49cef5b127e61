"""Questions for lines and verdicts (`aegis.rpc.lognexus.query.{logs,verdicts,snapshots}[.<ns>]`). Every replica hears them;
the one that keeps the job answers.

Whose lines a caller may read is the bus's to enforce by the namespace in the subject (`roles`); that the job lies in it is looked up here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError, Unreadable
from aegis_bus.jobstore import JobStore
from aegis_proto import subjects
from aegis_proto.api import ErrorBody, ErrorReply, RequestRefused
from aegis_proto.ids import is_id
from aegis_proto.logs import SERVICE, LogsAnswer, LogsQuery, VerdictsAnswer, VerdictsQuery
from aegis_proto.messages import BadMessage, decode, encode
from aegis_proto.snapshots import SnapshotsAnswer, SnapshotsQuery

from aegis_lognexus import metrics
from aegis_lognexus.firstlayer import snapshots
from aegis_lognexus.gathering import verdicts_of
from aegis_lognexus.intake import Intake
from aegis_lognexus.share import Shares
from aegis_lognexus.store import LONGEST, MAX_BYTES, Asked, LogStore, ask, workers_of
from aegis_lognexus.store.matching import BadPattern, Question
from aegis_lognexus.where import places

log = logging.getLogger(__name__)

SUBJECT = f"aegis.rpc.{SERVICE}.>"
MAX_REQUEST = 16384
Query = LogsQuery | VerdictsQuery | SnapshotsQuery
QUERIES: dict[str, type[LogsQuery] | type[VerdictsQuery] | type[SnapshotsQuery]] = {
    "logs": LogsQuery,
    "verdicts": VerdictsQuery,
    "snapshots": SnapshotsQuery,
}
CATCH_UP = 1.0
"""Seconds for which an answer waits for lines that are in the stream already."""
AT_ONCE = 2
"""Questions that are worked on at a time: each may read gigabytes."""
T = TypeVar("T", bound=msgspec.Struct)


class Api:
    def __init__(self, bus: Bus, store: LogStore, shares: Shares, intake: Intake) -> None:
        self._bus, self._store, self._shares, self._intake = bus, store, shares, intake
        self._jobs = JobStore(bus)
        self._namespaces: dict[str, str] = {}

    async def start(self) -> None:
        await self._bus.subscribe(SUBJECT, self.on_request, workers=AT_ONCE, timeout=30.0)

    async def on_request(self, msg: Msg) -> None:
        answer = await self.answer(msg.subject, msg.data)
        if answer is not None:
            await msg.respond(encode(answer))

    async def answer(self, subject: str, data: bytes) -> msgspec.Struct | None:
        """None: another replica answers."""
        try:
            kind, verb, namespace = (subjects.token(subject, i) for i in (3, 4, 5))
            wanted = QUERIES.get(verb) if kind == "query" else None
            if wanted is None:
                if self._shares.mine(subject):  # one of us says so
                    raise RequestRefused("E107", f"E107 {subject}: no such request; there are query.{', query.'.join(QUERIES)}")
                return None
            if len(data) > MAX_REQUEST:
                raise RequestRefused("E107", f"E107 the request has {len(data)} bytes, at most {MAX_REQUEST}")
            query = decode(wanted, data)
            if not is_id(query.job):
                raise RequestRefused("E107", f"E107 job {query.job[:80]!r}: no id of a job")
            if not self._shares.mine(query.job):
                return None
            if namespace and await self._namespace(query.job) != namespace:
                raise RequestRefused("E104", f"E104 no job {query.job} in namespace {namespace}")
            with metrics.QUERIES.time():
                return await self._ask(query)
        except (BadMessage, BadPattern, ValueError) as error:
            return _error("E107", f"E107 {error}")
        except RequestRefused as error:
            return _error(error.code, str(error))
        except (BusError, Unreadable, OSError) as error:
            log.warning("%s: %s", subject, error)
            return _error("E108", f"E108 {error}")

    async def _ask(self, query: Query) -> msgspec.Struct:
        if isinstance(query, LogsQuery):
            return await self._lines(query)
        if isinstance(query, VerdictsQuery):
            return await self._verdicts(query.job)
        there = await places(self._bus, query.job)
        found = await snapshots(self._bus, query.job, there.nodes if there is not None else ())
        speaking = [item for item in found if item.snapshot.kernel]
        kept = newest([*(item for item in found if not item.snapshot.kernel), *speaking])  # of machines that say nothing the oldest go first
        return SnapshotsAnswer(tuple(item for item in found if item in kept))

    async def _namespace(self, job: str) -> str:
        """Namespace of a job, "" when nothing of it is known any more."""
        found = self._namespaces.get(job)
        if found is None:
            head = await self._jobs.head(job)
            if head is None:
                return ""
            if len(self._namespaces) > 10_000:
                self._namespaces.clear()
            found = self._namespaces[job] = head[0].namespace
        return found

    async def _verdicts(self, job: str) -> VerdictsAnswer:
        head = await self._jobs.head(job)
        last = head[0].incarnation if head is not None else 0
        return VerdictsAnswer(newest(await verdicts_of(self._bus, job, last)))

    async def _lines(self, query: LogsQuery) -> LogsAnswer:
        if not query.cursor:  # what was stored before the question is in the answer
            with contextlib.suppress(BusError):
                await self._intake.caught_up(CATCH_UP)
        question = Question(
            worker=query.worker,
            rank=query.rank,
            incarnation=query.incarnation,
            kinds=query.kinds,
            since=max(0, query.since),
            until=max(0, query.until),
            grep=query.grep,
            level=query.level,
        )
        folder: Path = self._store.folder / "jobs" / query.job
        asked = Asked(question, max(0, query.tail), query.cursor, max(1, query.limit), before=query.before, longest=LONGEST)
        page = await asyncio.to_thread(ask, folder, asked)
        dropped = await asyncio.to_thread(self._store.given_up, query.job)
        others = await asyncio.to_thread(workers_of, folder) if query.worker and not page.lines else ()
        workers = () if query.worker in others else others
        return LogsAnswer(page.lines, page.cursor, page.more, dropped, self._shares.me, workers=workers, start=page.start)


def newest(items: Sequence[T], room: int = MAX_BYTES) -> tuple[T, ...]:
    """The last ones that one answer has room for, in their order."""
    for at in range(len(items) - 1, -1, -1):
        room -= len(encode(items[at])) + 1
        if room < 0:
            return tuple(items[at + 1 :])
    return tuple(items)


def _error(code: str, message: str) -> ErrorReply:
    return ErrorReply(ErrorBody(code, message[:2000]))
