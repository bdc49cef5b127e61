"""Requests of people and tools about nodes (`aegis.rpc.jobcontroller.>`). Any replica answers; who may ask is the bus's to enforce (`roles`).

Writes `aegis.node.<n>.taint` (by compare-and-set), `aegis.node.<n>.test` and, for `node-lost`, facts. Reads the cache.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec
from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError, WrongLastSequence
from aegis_proto import subjects
from aegis_proto.api import RequestRefused, read_request
from aegis_proto.api_nodes import (
    SERVICE,
    NodeLostAnswer,
    NodeLostRequest,
    NodesAnswer,
    NodesQuery,
    NodeTestAnswer,
    NodeTestRequest,
    PendingAnswer,
    PendingQuery,
    RecordAnswer,
    RecordQuery,
    TaintAnswer,
    TaintRequest,
)
from aegis_proto.deeptest import LEAST_SECONDS, MOST_SECONDS, DeepTest
from aegis_proto.ids import pod_index
from aegis_proto.messages import BadMessage, Fact, Taint, decode, encode
from aegis_proto.phases import FactKind

from aegis_jobcontroller.cache import Cache
from aegis_jobcontroller.facts import News
from aegis_jobcontroller.pending import describe
from aegis_jobcontroller.plan import natural
from aegis_jobcontroller.platform import Platform
from aegis_jobcontroller.world import World, excluded

log = logging.getLogger(__name__)

SUBJECT = f"aegis.rpc.{SERVICE}.>"
MAX_REQUEST = 16384
MAX_PAGE = 500
MAX_RECORD = 1024
MAX_TAINT = 366 * 86400.0
MAX_WAIT = 7 * 86400.0
TRIES = 5

Verb = Callable[[str, bytes], Awaitable[msgspec.Struct]]


class Api:
    """`tell` stores a fact."""

    def __init__(self, bus: Bus, cache: Cache, tell: Callable[[News], Awaitable[None]], platform: Platform) -> None:
        self._bus = bus
        self._platform = platform
        self._cache = cache
        self._tell = tell
        self._queries: dict[str, Verb] = {"nodes": self._nodes, "pending": self._pending, "record": self._record}
        self._acts: dict[str, Verb] = {"taint": self._taint, "untaint": self._untaint, "test": self._test, "node-lost": self._node_lost}

    async def start(self) -> None:
        await self._bus.subscribe(SUBJECT, self.on_request, queue=SERVICE, workers=4, timeout=30.0)

    async def on_request(self, msg: Msg) -> None:
        await msg.respond(encode(await self._answer(msg.subject, msg.data)))

    async def _answer(self, subject: str, data: bytes) -> msgspec.Struct:
        kind, verb, scope = (subjects.token(subject, i) for i in (3, 4, 5))
        work = {"query": self._queries, "do": self._acts}.get(kind, {}).get(verb)
        try:
            if work is None or (kind == "do" and not scope):
                raise RequestRefused(
                    "E107", f"E107 {subject}: no such request", f"queries: {', '.join(self._queries)}; acts: {', '.join(self._acts)}"
                )
            if len(data) > MAX_REQUEST:
                raise RequestRefused("E107", f"E107 the request has {len(data)} bytes, at most {MAX_REQUEST}")
            if not self._cache.ready:
                raise RequestRefused("E108", "E108 the job controller has not read everything yet", "try again")
            async with asyncio.timeout(10.0):
                return await work(scope, data)
        except RequestRefused as refused:
            return refused.reply()
        except (BusError, TimeoutError) as error:
            return RequestRefused("E108", f"E108 {subject}: {error}", "try again").reply()
        except Exception:
            log.exception("request %s failed", subject)
            return RequestRefused("E108", f"E108 {subject}: the job controller failed; its log says why").reply()

    # --- queries -----------------------------------------------------------------------------------------------------------------

    async def _nodes(self, namespace: str, data: bytes) -> NodesAnswer:
        query = read_request(NodesQuery, data)
        world = self._cache.world()
        for name in query.nodes:
            self._known(name, world)
        names = sorted(query.nodes or world.nodes, key=natural)
        rest = [name for name in names if not query.after or natural(name) > natural(query.after)]
        page = rest[: max(1, min(query.limit, MAX_PAGE))]
        seq = self._cache.sequence["NODES"]
        return NodesAnswer(tuple(describe(world.nodes[name], world, namespace) for name in page), len(names), len(rest) > len(page), seq)

    async def _pending(self, namespace: str, data: bytes) -> PendingAnswer:
        query = read_request(PendingQuery, data)
        world = self._cache.world()
        jobs = [job for job in world.jobs.values() if not namespace or job.head.namespace == namespace]
        if query.job:
            jobs = [job for job in jobs if job.head.job == query.job]
            if not jobs:
                raise RequestRefused("E104", f"E104 no job {query.job[:64]}" + (f" in namespace {namespace}" if namespace else ""))
        found = (self._platform.pending(job, world) for job in sorted(jobs, key=lambda job: job.head.createdAt))
        return PendingAnswer(tuple(item for item in found if item is not None)[:MAX_PAGE])

    async def _record(self, namespace: str, data: bytes) -> RecordAnswer:
        query = read_request(RecordQuery, data)
        world = self._cache.world()
        job = world.jobs.get(query.job)
        if job is None or (namespace and job.head.namespace != namespace):
            raise RequestRefused("E104", f"E104 no job {query.job[:64]}" + (f" in namespace {namespace}" if namespace else ""))
        return RecordAnswer(self._platform.name, tuple(islice(self._platform.record(job, world), MAX_RECORD)))

    # --- acts --------------------------------------------------------------------------------------------------------------------

    async def _taint(self, scope: str, data: bytes) -> TaintAnswer:
        request = read_request(TaintRequest, data)
        if not math.isfinite(request.seconds) or not 0 <= request.seconds <= MAX_TAINT:
            raise RequestRefused("E107", f"E107 seconds {request.seconds:g} is out of range: 0 (until lifted) to {MAX_TAINT:.0f}")
        now = int(time.time() * 1000)
        until = now + int(request.seconds * 1000) if request.seconds else 0
        return await self._set_taint(request, Taint(request.node, True, request.reason[:200], request.by[:64], request.verdict[:64], now, until))

    async def _untaint(self, scope: str, data: bytes) -> TaintAnswer:
        request = read_request(TaintRequest, data)
        now = int(time.time() * 1000)
        return await self._set_taint(request, Taint(request.node, False, request.reason[:200], request.by[:64], request.verdict[:64], now))

    async def _set_taint(self, request: TaintRequest, wanted: Taint) -> TaintAnswer:
        """By compare-and-set on what is stored now: who changes it at the same time loses, and is asked again with what the other wrote."""
        if not request.by:
            raise RequestRefused("E107", "E107 a taint names who set it: by is empty")
        world = self._cache.world()
        if not self._platform.has_node(request.node):
            self._known(request.node, world)
        running = _running(request.node, world)
        subject = subjects.node_taint(request.node)
        for _ in range(TRIES):
            stored = await self._bus.get("NODES", subject, leader=True)
            try:
                before = decode(Taint, stored.data) if stored is not None and not stored.marker else None
            except BadMessage as error:
                raise RequestRefused("E105", f"E105 the taint of {request.node} is left alone: {error}") from None
            answer = TaintAnswer(request.node, _shown(before, wanted.at), _shown(wanted, wanted.at), wanted.until, running)
            if request.dryRun:
                return answer
            try:
                ack = await self._bus.publish(subject, encode(wanted), expect=stored.seq if stored is not None else 0)
            except WrongLastSequence:
                continue
            await self._cache.seen(ack.seq)
            return answer
        raise RequestRefused("E105", f"E105 the taint of {request.node} is being changed by others; look again", "aegis node ls")

    async def _test(self, scope: str, data: bytes) -> NodeTestAnswer:
        """What a node owes is one order: a later one takes the place of the one before."""
        request = read_request(NodeTestRequest, data)
        if not request.by:
            raise RequestRefused("E107", "E107 a test names who asked for it: by is empty")
        if not math.isfinite(request.seconds) or not LEAST_SECONDS <= request.seconds <= MOST_SECONDS:
            raise RequestRefused("E107", f"E107 seconds {request.seconds:g} is out of range: {LEAST_SECONDS:g} to {MOST_SECONDS:g} for each test")
        if not math.isfinite(request.waits) or not 0 <= request.waits <= MAX_WAIT:
            raise RequestRefused("E107", f"E107 waits {request.waits:g} is out of range: 0 to {MAX_WAIT:.0f}")
        world = self._cache.world()
        self._known(request.node, world)
        now = int(time.time() * 1000)
        until = now + int(request.waits * 1000) if request.waits else 0
        order = DeepTest(secrets.token_hex(6), request.by[:64], request.reason[:200], request.seconds, until, now)
        if not request.dryRun:
            await self._bus.publish(subjects.node_test(request.node), encode(order), msg_id="auto")
        return NodeTestAnswer(request.node, order.id, _running(request.node, world))

    async def _node_lost(self, node: str, data: bytes) -> NodeLostAnswer:
        """A person's word that the machine is off: every worker placed there is lost, and verified so."""
        request = read_request(NodeLostRequest, data)
        if not request.by:
            raise RequestRefused("E107", "E107 a node is declared lost by somebody: by is empty")
        await self._cache.caught_up()
        world = self._cache.world()
        self._known(node, world)
        told = []
        now = int(time.time() * 1000)
        for (job_id, pod), placed in world.places.items():
            job = world.jobs.get(job_id)
            if placed.place.node != node or job is None or job.head.phase.terminal or pod_index(pod) >= len(job.pods):
                continue
            text = ", ".join(filter(None, (f"{node} declared lost by {request.by}", request.reason)))[:300]
            newest = job.pods[pod_index(pod)].attempt == placed.place.attempt
            kind = FactKind.NODE_LOST if newest else FactKind.GONE
            fact = Fact(kind, placed.place.uid, placed.place.attempt, node, at=now, message=text, who=request.by[:64])
            if not request.dryRun:
                await self._tell(News(job_id, pod, fact, era=job.head.era))
            told.append(f"{job_id}/{pod}/{placed.place.attempt}")
        return NodeLostAnswer(node, tuple(told[:MAX_PAGE]))

    def _known(self, node: str, world: World) -> None:
        if node not in world.nodes:
            raise RequestRefused("E109", f"E109 no node {node[:64]} has registered", "aegis node ls")


def _running(name: str, world: World) -> tuple[str, ...]:
    """job/pod of what the slots of a node hold."""
    node = world.nodes.get(name)
    return tuple(f"{slot.slot.job}/{slot.slot.pod}" for slot in (node.slots.values() if node is not None else ()) if slot.key is not None)


def _shown(taint: Taint | None, now: int) -> str:
    return f"excluded ({taint.reason})" if taint is not None and excluded(taint, now) else "ok"
