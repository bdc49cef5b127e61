"""Questions about nodes (`aegis.rpc.lemon.query.{ranking,node}[.<ns>]`) and ledgers (`query.ledgers`). Who holds the lease answers, nobody else."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from aegis_bus.connection import Bus, Msg, Stored
from aegis_bus.errors import BusError
from aegis_bus.ordered import OrderedReader
from aegis_proto import subjects
from aegis_proto.api import ErrorBody, ErrorReply, RequestRefused, read_request
from aegis_proto.lemon import (
    SERVICE,
    CauseShare,
    HistoryInfo,
    JobLedger,
    LedgersAnswer,
    LedgerSpan,
    LedgersQuery,
    LemonAnswer,
    LemonChange,
    LemonFailure,
    LemonNode,
    LemonQuery,
    RankingAnswer,
    RankingQuery,
)
from aegis_proto.messages import BadMessage, Verdict, decode, encode

from aegis_lemon.detect import Ranked
from aegis_lemon.detect.story import NodeStory, story
from aegis_lemon.history.causes import causes
from aegis_lemon.watch.rounds import Picture, Rounds
from aegis_lemon.watch.stories import Stories
from aegis_lemon.watch.tickets import Tickets

log = logging.getLogger(__name__)

SUBJECT = f"aegis.rpc.{SERVICE}.>"
MAX_REQUEST = 8192
MOST = 500
MOST_PROBLEMS = 20
MOST_VERDICTS = 100
MOST_SPANS = 8_000
PATIENCE = 10.0
"""Seconds in which the verdicts on a node are read."""


class Api:
    """`start` subscribes. `active`: whether this replica answers now."""

    def __init__(self, bus: Bus, rounds: Rounds, tickets: Tickets, stories: Stories, replica: str) -> None:
        self._bus, self._rounds, self._tickets, self._stories, self._replica = bus, rounds, tickets, stories, replica
        self.active: Callable[[], bool] = lambda: False

    async def start(self) -> None:
        await self._bus.subscribe(SUBJECT, self.on_request, timeout=30.0)

    async def on_request(self, msg: Msg) -> None:
        if self.active():
            await msg.respond(encode(await self.answer(msg.subject, msg.data)))

    async def answer(self, subject: str, data: bytes) -> msgspec.Struct:
        """The reply to a request, an error included."""
        try:
            kind, verb = subjects.token(subject, 3), subjects.token(subject, 4)
            if len(data) > MAX_REQUEST:
                raise RequestRefused("E107", f"E107 the request has {len(data)} bytes, at most {MAX_REQUEST}")
            if (kind, verb) == ("query", "ranking"):
                return narrowed(self.ranking(read_request(RankingQuery, data)), subjects.token(subject, 5))
            if (kind, verb) == ("query", "node"):
                return narrowed(await self.node(read_request(LemonQuery, data)), subjects.token(subject, 5))
            if (kind, verb) == ("query", "ledgers"):
                if subjects.token(subject, 5):
                    raise RequestRefused("E103", "E103 ledgers are of all namespaces: role reader without a namespace may ask")
                return self.ledgers(read_request(LedgersQuery, data), time.time())
            raise RequestRefused("E107", f"E107 {subject}: no such request; there are query.ranking, query.node, query.ledgers")
        except RequestRefused as error:
            return ErrorReply(ErrorBody(error.code, str(error)[:2000]))
        except BusError as error:
            return ErrorReply(ErrorBody("E108", f"E108 {error}"[:2000]))
        except TimeoutError:
            return ErrorReply(ErrorBody("E108", f"E108 the verdicts could not be read from EVENTS within {PATIENCE:g} s: ask again"))

    def ledgers(self, query: LedgersQuery, now: float) -> LedgersAnswer:
        """At most so many spans in one answer; of one job never less than all."""
        found: list[JobLedger] = []
        spans = 0
        for job in sorted(self._stories.jobs):
            if job <= query.after or (query.jobs and job not in query.jobs):
                continue
            run = self._stories.jobs[job].run(now)
            if run is None:
                continue
            if found and spans + len(run.spans) > MOST_SPANS:
                return LedgersAnswer(tuple(found), True)
            spans += len(run.spans)
            told = tuple(LedgerSpan(span.state.value, round(span.start * 1000), round(span.end * 1000), span.stopped) for span in run.spans)
            gpus, priority, cluster = self._rounds.sizes.get(job, (0, 0, ""))
            story = self._stories.jobs[job]
            found.append(JobLedger(job, run.gpus, run.gpus * gpus, priority, cluster, told, story.save, round(story.every, 1)))
        return LedgersAnswer(tuple(found))

    def ranking(self, query: RankingQuery) -> RankingAnswer:
        picture = self._rounds.picture
        ranked = {node.node: node for node in picture.ranking.nodes} if picture.ranking is not None else {}
        names = [*ranked, *(name for name in sorted({*picture.fleet.verdicts, *picture.fleet.specs}) if name not in ranked)]
        nodes = [self._node(name, ranked.get(name), picture) for name in names]
        nodes.sort(key=lambda node: (not node.flagged, node.state in ("", "clear"), -node.risk, -node.score, -node.failures))
        shown = nodes if query.all else [node for node in nodes if node.failures or node.flagged or node.state not in ("", "clear") or node.risk]
        total, flagged = len(nodes), sum(node.flagged for node in nodes)
        groups = causes(picture.observed) if picture.observed is not None else []
        shares = tuple(CauseShare(group.group, group.failures, round(group.share, 4), group.causes) for group in groups)
        return RankingAnswer(tuple(shown[: max(1, min(query.limit, MOST))]), total, flagged, self._history(picture), shares)

    async def node(self, query: LemonQuery) -> LemonAnswer:
        picture, name = self._rounds.picture, query.node
        ranked = next((node for node in picture.ranking.nodes if node.node == name), None) if picture.ranking is not None else None
        if ranked is None and name not in picture.fleet.verdicts and name not in picture.fleet.specs:
            raise RequestRefused("E109", f'E109 no node "{name[:64]}" is known here')
        told = await asyncio.to_thread(_story, picture, name) if ranked is not None else None
        verdicts = await self._verdicts(name)
        if not verdicts and name in picture.fleet.verdicts:
            verdicts = (picture.fleet.verdicts[name],)  # older than EVENTS
        path = self._tickets.path(verdicts[-1].id) if verdicts else None
        return LemonAnswer(
            self._node(name, ranked, picture),
            told.below if told is not None else {},
            tuple(LemonFailure(int(f.time * 1000), f.kind, f.user, f.family) for f in told.failures[-100:]) if told is not None else (),
            tuple(
                LemonChange(int(c.onset * 1000), int(c.alarm * 1000), int(c.recovered * 1000) if c.recovered is not None else 0) for c in told.changes
            )
            if told is not None
            else (),
            verdicts,
            picture.fleet.taints.get(name),
            picture.fleet.orders.get(name),
            picture.fleet.results.get(name),
            str(path) if path is not None and path.exists() else "",
            self._history(picture),
        )

    async def _verdicts(self, node: str) -> tuple[Verdict, ...]:
        """All that the stream still has, oldest first."""
        subject = subjects.verdict(SERVICE, "node", node)
        last = await self._bus.get("EVENTS", subject)
        if last is None:
            return ()
        found: list[Verdict] = []
        async with OrderedReader(self._bus, "EVENTS", [subject]) as reader, asyncio.timeout(PATIENCE):
            async for item in reader:
                if isinstance(item, Stored):
                    try:
                        found.append(decode(Verdict, item.data))
                    except BadMessage as error:
                        log.warning("%s: %s", item.subject, error)
                    if item.seq >= last.seq:
                        break
        return tuple(found[-MOST_VERDICTS:])

    def _node(self, name: str, ranked: Ranked | None, picture: Picture) -> LemonNode:
        verdict, risk = picture.fleet.verdicts.get(name), picture.fleet.risks.get(name)
        state, since = (verdict.state, verdict.at) if verdict is not None else ("", 0)
        level = risk.risk if risk is not None else 0.0
        if ranked is None:
            return LemonNode(name, risk=level, state=state, since=since)
        return LemonNode(
            name,
            round(ranked.score, 4),
            ranked.flagged,
            level,
            state,
            since,
            round(ranked.failures, 3),
            round(ranked.exposure, 3),
            round(ranked.times_fleet, 1),
            ranked.reason,
            ranked.withheld,
            ranked.probation,
            ranked.signals,
        )

    def _history(self, picture: Picture) -> HistoryInfo:
        how, history = self._rounds.how, picture.history
        return HistoryInfo(
            self._replica,
            history.rows.get("jobs", 0) if history is not None else 0,
            history.rows.get("events", 0) if history is not None else 0,
            int(history.first * 1000) if history is not None else 0,
            int(picture.at * 1000),
            history.left_out if history is not None else 0,
            tuple(str(problem) for problem in history.problems[:MOST_PROBLEMS]) if history is not None else (),
            how.detector,
            how.window,
            round(picture.ranking.fleet_rate, 3) if picture.ranking is not None else 0.0,
            self._rounds.policy.mode,
            picture.note,
        )


A = TypeVar("A", RankingAnswer, LemonAnswer)


def narrowed(answer: A, namespace: str) -> A:
    """What one who asks for a namespace may see: nodes are everybody's, whose jobs failed on them and what lies on this machine is not.

    The history does not know the namespace of a run, so nobody's names are shown.
    """
    if not namespace:
        return answer
    history = msgspec.structs.replace(answer.history, problems=())
    if isinstance(answer, RankingAnswer):
        shares = tuple(msgspec.structs.replace(share, causes=()) for share in answer.causes)
        return msgspec.structs.replace(answer, history=history, causes=shares)
    failures = tuple(msgspec.structs.replace(one, user="", family="") for one in answer.failures)
    return msgspec.structs.replace(answer, failures=failures, ticket="", history=history)


def _story(picture: Picture, name: str) -> NodeStory | None:
    if picture.history is None or picture.observed is None or picture.ranking is None or name not in picture.history.names:
        return None
    return story(picture.history, picture.observed, picture.ranking, name)
