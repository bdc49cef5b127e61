"""A job that runs and that the store has lost is brought back: `aegis.rpc.master.adopt`, asked by the job controller, served by any replica.

What daemons hold is a claim; what counts is the deed, which the credentials service gave with the join token and now vouches for. Then the job is
created anew, once (expected: none), as one that asks what runs; the rest is the road of a restored store (`asked.era`). Reads the era, writes the
first state of the job. Nothing is trusted of what a replica still remembers of the store before: it is as lost to the next one.
"""

from __future__ import annotations

import re

import msgspec
import structlog
from aegis_bus.connection import Bus
from aegis_bus.errors import WrongLastSequence
from aegis_bus.jobstore import JobStore
from aegis_proto import subjects
from aegis_proto.api import AdoptReply, AdoptRequest, RequestRefused, read_reply, read_request
from aegis_proto.credapi import MAX_CLAIMS, Given, VouchReply, VouchRequest, spec_digest
from aegis_proto.ids import is_id, pod_index
from aegis_proto.job import validate
from aegis_proto.messages import BadMessage, Era, decode, encode
from aegis_proto.state import JobSpec, Owner

from aegis_master import machine, metrics
from aegis_master.batch import last_sequence
from aegis_master.ownership import Ownership

log = structlog.get_logger("aegis.master.adoption")
UID = re.compile(r"[A-Za-z0-9-]{8,64}\Z")
VOUCH_TIMEOUT = 5.0
ENOUGH = 64
"""Deeds of more than half of the places are needed, at most so many: one daemon that kept an old deed is no job that runs."""


def enough(workers: int) -> int:
    """Places whose deeds a job of `workers` needs to be brought back."""
    return min(workers // 2 + 1, ENOUGH)


class Adoption:
    """Serves the one request."""

    def __init__(self, bus: Bus, store: JobStore, ownership: Ownership) -> None:
        self.bus = bus
        self.store = store
        self.ownership = ownership

    async def adopt(self, data: bytes) -> AdoptReply:
        """RequestRefused: E105 and E107, what is said is not believed; E108, later. BusError when the bus or the credentials service is away."""
        request = read_request(AdoptRequest, data)
        spec = checked(request)
        await self._check_era(request)
        if (known := await self._known(request)) is not None:
            return known
        attempts = await self._vouched(request)
        if len(attempts) < enough(request.workers):
            text = f"right deeds of {len(attempts)} of {request.workers} places; {enough(request.workers)} are needed to bring it back"
            raise RequestRefused("E107", f"E107 {request.job}: {text}")
        shared = self.ownership.shared
        state = machine.found(request.job, spec, request.uid, request.present, shared.clock.now_ms(), attempts=attempts)
        state = state.with_head(owner=Owner(shared.replica, 1), cursor=await last_sequence(self.bus, "REPORTS"))
        try:
            loaded = await self.store.create(state)
        except WrongLastSequence:
            if (known := await self._known(request)) is not None:
                return known
            raise
        metrics.CREATED.labels(spec.gpuType or "none", metrics.worker_num(spec.workers)).inc()
        log.warning("job found running, and brought back", job=request.job, workers=request.workers, held=len(attempts), lost=request.era)
        self.ownership.own(loaded)
        return AdoptReply(request.job, loaded.seq)

    async def _check_era(self, request: AdoptRequest) -> None:
        """The store, the asker and this replica must mean the same store; and it must be another than the one of the deeds."""
        stored = await self.bus.get("CTL", subjects.ERA, leader=True)
        try:
            era = decode(Era, stored.data).era if stored is not None else ""
        except BadMessage as error:
            raise RequestRefused("E108", f"E108 the era of the store is not readable: {error}") from None
        if not era or not era == request.present == self.ownership.shared.era():
            raise RequestRefused("E108", "E108 another store than the one asked for, or not known here yet", "ask again")
        if request.era == era:
            raise RequestRefused("E107", f"E107 {request.job} was given out by this store, which does not know it any more: it has ended")

    async def _known(self, request: AdoptRequest) -> AdoptReply | None:
        found = await self.store.head(request.job)
        if found is None:
            return None
        head, seq, _ = found
        if head.uid != request.uid:
            raise RequestRefused("E105", f"E105 job id {request.job} is taken by another submission")
        return AdoptReply(request.job, seq, existed=True)

    async def _vouched(self, request: AdoptRequest) -> dict[str, int]:
        """Places of the job with a right deed, and their attempts."""
        digest = spec_digest(bytes(request.spec))
        wanted = VouchRequest(Given(request.job, request.uid, request.namespace, request.workers, request.era, digest), request.claims)
        subject = subjects.rpc_do("credentials", "vouch", request.namespace)
        try:
            reply = read_reply(VouchReply, await self.bus.request(subject, encode(wanted), timeout=VOUCH_TIMEOUT))
        except BadMessage as error:
            raise RequestRefused("E108", f"E108 the answer of the credentials service is not readable: {error}") from None
        return {pod: attempt for pod, attempt in reply.held.items() if pod_index(pod) < request.workers}


def checked(request: AdoptRequest) -> JobSpec:
    """The specification, when the request holds together by itself. RequestRefused."""

    def refuse(text: str) -> RequestRefused:
        return RequestRefused("E107", f"E107 adopt {request.job[:60]}: {text}")

    if not is_id(request.job) or not is_id(request.namespace) or UID.match(request.uid) is None:
        raise refuse("no job, namespace or uid")
    try:
        spec = msgspec.json.decode(request.spec, type=JobSpec)
        for claim in request.claims:
            pod_index(claim.pod)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise refuse(str(error)[:200]) from None
    if (spec.workers, spec.namespace) != (request.workers, request.namespace) or len(request.claims) > MAX_CLAIMS:
        raise refuse("its specification says otherwise")
    if problems := validate(spec):
        raise refuse(problems[0].message)
    return spec
