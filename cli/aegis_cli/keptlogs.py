"""Lines of a job from the store of lognexus, asked over the bus."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import msgspec
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.api import RequestRefused, read_reply
from aegis_proto.logs import LogKind, LogsAnswer, LogsQuery, StoredLine
from aegis_proto.messages import AegisLog, BadMessage, decode, encode

from aegis_cli.client import Client
from aegis_cli.stack.output import LogLine, cleaned, in_time_order

PAGE = 5_000
MOST_TAIL = 9_999
PROBE = 2.0
"""Seconds for which lognexus is waited for where the lines lie elsewhere too."""


@dataclass(frozen=True)
class Wanted:
    """Which lines. `agent`: the agents' own words too."""

    worker: str = ""
    rank: int | None = None
    incarnation: int | None = None
    grep: str = ""
    agent: bool = False
    level: str = ""
    since: int = 0  # ms

    def query(self, job: str) -> LogsQuery:
        kinds: tuple[LogKind, ...] = () if self.agent else ("out", "err")
        return LogsQuery(job, self.worker, self.rank, self.incarnation, kinds, since=self.since, grep=self.grep, tail=0, limit=PAGE, level=self.level)


@dataclass(frozen=True)
class Last:
    """The last lines, in the order of time. `cursor`: where they end; `cut`: older ones were left out for lack of time; `lost`: lines of the job
    that never reached the store."""

    lines: list[LogLine]
    cursor: str
    cut: bool
    lost: int


async def last(client: Client, job: str, wanted: Wanted, tail: int) -> Last:
    """The last `tail` lines, 0 = all."""
    query = wanted.query(job)
    if 0 < tail <= MOST_TAIL:
        answer = await client.query_logs(msgspec.structs.replace(query, tail=tail))
        lines, cursor, before = list(answer.lines), answer.cursor, ""
        while answer.more and answer.start not in ("", before):  # one answer had no room, or no time, for all
            before = answer.start
            answer = await client.query_logs(msgspec.structs.replace(query, tail=tail - len(lines), before=before))
            lines[:0] = answer.lines
        return Last(in_order(lines), cursor, answer.more, answer.dropped)
    kept: deque[StoredLine] = deque(maxlen=tail or None)
    cursor, lost = "", 0
    async for answer in pages(client, query, ""):
        kept += answer.lines
        cursor, lost = answer.cursor, answer.dropped
    return Last(in_order(kept), cursor, False, lost)


async def answers(client: Client, job: str) -> bool:
    """Does lognexus run here, and keep lines of this job?"""
    try:
        data = await client.bus.request(subjects.rpc_query("lognexus", "logs", client.scope), encode(LogsQuery(job, tail=1)), timeout=PROBE)
        return bool(read_reply(LogsAnswer, data).lines)
    except (BusError, RequestRefused):
        return False


async def pages(client: Client, query: LogsQuery, cursor: str) -> AsyncIterator[LogsAnswer]:
    """What there is behind a place, page by page; at least one."""
    while True:
        answer = await client.query_logs(msgspec.structs.replace(query, cursor=cursor))
        yield answer
        cursor = answer.cursor
        if not answer.more:
            return


async def follow(client: Client, job: str, wanted: Wanted, cursor: str, every: float) -> AsyncIterator[list[LogLine]]:
    """Lines behind a place as they come, for ever; an empty list when there was nothing new."""
    query = wanted.query(job)
    while True:
        async for answer in pages(client, query, cursor):
            cursor = answer.cursor
            yield in_order(answer.lines)
        await asyncio.sleep(every)


def said(line: StoredLine) -> str:
    """The words of a line: of an AegisLog, its message."""
    if line.kind != "aegis":
        return line.message
    try:
        return decode(AegisLog, line.message.encode()).Message
    except BadMessage:
        return line.message


def in_order(lines: Iterable[StoredLine]) -> list[LogLine]:
    """As they are shown: by time, and those of a worker in their own order."""
    workers: dict[str, list[LogLine]] = defaultdict(list)
    for line in lines:
        incarnation = line.incarnation if line.kind in ("out", "err") else -1
        at = max(line.at, workers[line.worker][-1].at if workers[line.worker] else 0)
        workers[line.worker].append(LogLine(line.worker, line.rank, incarnation, cleaned(said(line)), at))
    return in_time_order(workers.values())
