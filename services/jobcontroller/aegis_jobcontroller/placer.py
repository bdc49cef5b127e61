"""Writes what was planned: place and slot of a worker in one atomic batch, each expected as it was read. A refusal means that the world has moved on.

Writes `aegis.place.<j>.<pod>` and `aegis.node.<n>.slot.<i>`; asks the credentials service for join tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec
from aegis_bus.connection import Bus
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import Rejected, Unreachable, WrongLastSequence
from aegis_proto import subjects
from aegis_proto.credapi import JoinReply, JoinRequest
from aegis_proto.messages import Place, Slot, encode, raw

from aegis_jobcontroller import metrics, tokens
from aegis_jobcontroller.plan import Action, Assign, Release, Retire, Stop
from aegis_jobcontroller.world import NOBODY, Job, World, plain_port

log = logging.getLogger(__name__)

BATCH_MESSAGES, BATCH_BYTES = 300, 2 << 20
BATCHES = 4
"""Batches side by side: the server allows 50 open ones per stream, for everybody."""
TOKEN_WAIT = 15.0
"""Seconds that a job's first attempts wait for join tokens where a credentials service is configured: longer than its restart takes, far shorter than
an agent tries (`start_wait`, 120 s) before it runs its command plain."""
RETIRED_FOR = 7 * 86400.0
"""Seconds that the place of an ended job stays readable."""

Write = tuple[str, bytes, int | None]


class Placer:
    """`credentials`: host:port of the gRPC service, passed on to the agents."""

    def __init__(self, bus: Bus, credentials: str) -> None:
        self._bus = bus
        self._credentials = credentials
        self._without: dict[str, int] = {}
        """job -> when a first attempt of it was first without a token, ms since 1970"""

    async def apply(self, actions: Sequence[Action], world: World) -> int:
        """Write all of them, job by job; returns the last sequence of NODES written (0: none). BusError when the bus is away: plan again later."""
        last = 0
        assigns = [action for action in actions if isinstance(action, Assign)]
        for action in actions:
            if not isinstance(action, Assign):
                last = max(last, await self._end(action))
        if assigns:
            wanted = ((world.jobs[a.job].head.namespace, JoinRequest(a.job, a.pod, a.attempt)) for a in assigns)
            joins = await tokens.joins(self._bus, wanted)  # where there is none, a first attempt goes plain in time; a later one waits
            late = self._late(assigns, joins, world)
            assigns = [assign for assign in assigns if assign not in late]
            homes = {assign.job: assign.node for assign in assigns if assign.pod == "w0"}
            groups = self._groups([(assign, self._writes(assign, world, joins, homes)) for assign in assigns])
            limit = asyncio.Semaphore(BATCHES)

            async def place(group: list[tuple[Assign, list[Write]]]) -> int:
                async with limit:
                    return await self._place(group)

            results = await asyncio.gather(*map(place, groups), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
                last = max(last, result)
            if late:
                raise Unreachable(f"E101 {len(late)} workers, first {late[0].job}/{late[0].pod}, wait for the credentials service")
        return last

    # --- endings -------------------------------------------------------------------------------------------------------------------

    async def _end(self, action: Stop | Release | Retire) -> int:
        try:
            if isinstance(action, Stop):
                log.info("stop %s/%s on %s", action.content.job, action.content.pod, action.node)
                stopped = msgspec.structs.replace(action.content, stop=True)
                return (await self._bus.publish(subjects.node_slot(action.node, action.slot), encode(stopped), expect=action.slot_seq)).seq
            if isinstance(action, Release):
                crashpoint("jobcontroller.before-release")
                seq = (await self._bus.publish(subjects.node_slot(action.node, action.slot), encode(NOBODY), expect=action.slot_seq)).seq
                crashpoint("jobcontroller.after-release")
                return seq
            place = msgspec.structs.replace(action.place, released=True)
            subject = subjects.place(action.job, place.pod)
            return (await self._bus.batch([(subject, encode(place), action.place_seq)], ttl=RETIRED_FOR, rollup=True)).seq
        except WrongLastSequence:
            metrics.REFUSED.inc()
            return 0

    # --- beginnings ------------------------------------------------------------------------------------------------------------------

    def _late(self, assigns: list[Assign], joins: Mapping[tuple[str, str], JoinReply], world: World) -> list[Assign]:
        """Those that wait for a token. Only a first attempt can run without one (plain, and then the whole job is plain): it waits TOKEN_WAIT
        seconds, with all first attempts of its job. A later one would wait for nothing without a token, while its job stands still."""
        lacking = [assign for assign in assigns if (assign.job, assign.pod) not in joins]
        first = {assign.job for assign in lacking if assign.attempt == 1} if self._credentials else set()
        served = {assign.job for assign in assigns} - first
        self._without = {job: at for job, at in self._without.items() if job in world.jobs and job not in served}
        waits = {job for job in first if world.now - self._without.setdefault(job, world.now) < TOKEN_WAIT * 1000}
        return [assign for assign in assigns if (assign.job in waits if assign.attempt == 1 else assign in lacking)]

    def _writes(self, assign: Assign, world: World, joins: dict[tuple[str, str], JoinReply], homes: dict[str, str]) -> list[Write]:
        """Slot before place: whoever reads the place has read the slot. The slot that is left comes last."""
        job = world.jobs[assign.job]
        head = job.head
        addr, port = plain_address(job, homes.get(assign.job, ""), world)
        join = joins.get((assign.job, assign.pod))
        slot = Slot(
            assign.job,
            head.uid,
            head.namespace,
            assign.pod,
            assign.attempt,
            head.workerNum,
            raw(job.spec),
            join.token if join is not None else "",
            self._credentials,
            addr,
            port,
            era=join.era if join is not None else "",
            deed=join.deed if join is not None else "",
        )
        place = Place(head.uid, assign.pod, assign.attempt, assign.node, assign.slot, world.now)
        writes: list[Write] = [
            (subjects.node_slot(assign.node, assign.slot), encode(slot), assign.slot_seq),
            (subjects.place(assign.job, assign.pod), encode(place), assign.place_seq),
        ]
        if assign.clear is not None:
            node, name, seq = assign.clear
            writes.append((subjects.node_slot(node, name), encode(NOBODY), seq))
        return writes

    def _groups(self, items: list[tuple[Assign, list[Write]]]) -> list[list[tuple[Assign, list[Write]]]]:
        """Placements of one job share a batch, within what one batch may hold."""
        groups: list[list[tuple[Assign, list[Write]]]] = []
        job, messages, size = "", 0, 0
        for assign, writes in items:
            weight = sum(len(data) for _, data, _ in writes)
            if assign.job != job or messages + len(writes) > BATCH_MESSAGES or size + weight > BATCH_BYTES:
                groups.append([])
                job, messages, size = assign.job, 0, 0
            groups[-1].append((assign, writes))
            messages, size = messages + len(writes), size + weight
        return groups

    async def _place(self, group: list[tuple[Assign, list[Write]]]) -> int:
        crashpoint("jobcontroller.before-place")
        try:
            seq = (await self._bus.batch([write for _, writes in group for write in writes], timeout=10.0)).seq
        except WrongLastSequence as error:
            metrics.REFUSED.inc()
            log.info("placement of %s refused, planned again: %s", group[0][0].job, error)
            return 0
        except Rejected as error:
            if not error.retryable:
                log.error("placement of %s refused: %s", group[0][0].job, error)
            raise
        crashpoint("jobcontroller.after-place")
        for assign, _ in group:
            metrics.PLACEMENTS.labels("yes" if assign.attempt > 1 else "no").inc()
            log.info("placed %s/%s attempt %d on %s slot %s", assign.job, assign.pod, assign.attempt, assign.node, assign.slot)
        return seq


def plain_address(job: Job, home: str, world: World) -> tuple[str, int]:
    """Where w0 would listen if the job ran without Aegis: known to the platform alone, and equal for all first attempts of a job.

    `home`: w0's node in this plan, "" when it has its place already. ("", 0) when it is not known: such a worker can only be managed.
    """
    first = world.places.get((job.head.job, "w0"))
    node = world.nodes.get(home or (first.place.node if first is not None else ""))
    if node is None:
        return "", 0
    return node.spec.addr or node.spec.host, plain_port(job)
