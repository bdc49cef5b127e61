"""The master's requests: `aegis.rpc.master.do.<verb>.<namespace>`, `aegis.rpc.master.query.<verb>[.<namespace>]` and `aegis.rpc.master.adopt`
(`adoption`), queue group `master`.

Any replica answers. `do.submit` writes the first state of a job (one batch, expected: none; a repeat with the same uid is the same job). The other
acting verbs change nothing themselves: they write a Fact to REPORTS, which the owner applies in stream order, so a verb happens exactly once, whoever
answered and however often it was asked. The namespace is a token of the subject, so the server proved it by the caller's rights.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from aegis_bus.connection import Bus, Msg
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import BusError, Unreadable, WrongLastSequence
from aegis_bus.jobstore import JobStore, Loaded
from aegis_proto import subjects
from aegis_proto.api import (
    ACTIONS,
    FAULTS,
    ActionReply,
    ActionRequest,
    EventsRequest,
    JobRequest,
    JobsRequest,
    RequestRefused,
    Submit,
    SubmitReply,
    read_request,
)
from aegis_proto.ids import is_id, job_id
from aegis_proto.job import ACTIONS as JOB_ACTIONS
from aegis_proto.job import MAX_RETRY, validate
from aegis_proto.messages import Fact, encode
from aegis_proto.phases import FactKind, Mode, Phase
from aegis_proto.state import Head, Owner

from aegis_master import events, machine, metrics
from aegis_master.adoption import UID, Adoption
from aegis_master.batch import last_sequence
from aegis_master.intake import MAX_GRACE
from aegis_master.ownership import Ownership
from aegis_master.queries import Queries
from aegis_master.settings import MasterSettings

log = structlog.get_logger("aegis.master.api")
ANSWER_WITHIN = 20.0
"""Seconds: the right to answer lasts 30 s (`roles.RESPOND`)."""
SIDE_BY_SIDE = 16
"""Requests handled at once per subscription."""


class Api:
    """Answers requests until the bus closes."""

    def __init__(self, bus: Bus, store: JobStore, ownership: Ownership, queries: Queries, settings: MasterSettings) -> None:
        self.bus = bus
        self.store = store
        self.ownership = ownership
        self.queries = queries
        self.settings = settings
        self.adoption = Adoption(bus, store, ownership)
        self._used = (0.0, -1e9)  # share of the store in use, when it was read

    async def start(self) -> None:
        """Listen. After this a submitted job is taken care of."""
        for subject, handler in (
            ("aegis.rpc.master.do.*.*", self._on_do),
            ("aegis.rpc.master.query.*", self._on_query),
            ("aegis.rpc.master.query.*.*", self._on_query),
            (subjects.ADOPT, self._on_adopt),
        ):
            await self.bus.subscribe(subject, handler, queue="master", workers=SIDE_BY_SIDE)

    # --- the frame of every request ------------------------------------------------------------------------------------------------

    async def _answer(self, msg: Msg, verb: str, work: Callable[[], Awaitable[msgspec.Struct]]) -> None:
        code = "ok"
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                reply: msgspec.Struct = await work()
        except TimeoutError:
            code = "E108"
            reply = RequestRefused(
                code, f"{code} the master had no answer to {verb} within {ANSWER_WITHIN:g} s", "ask again; a repeat is safe"
            ).reply()
        except RequestRefused as refused:
            code, reply = refused.code, refused.reply()
        except BusError as error:
            log.warning("request not answered", verb=verb, error=str(error))
            code = "E108"
            reply = RequestRefused(code, f"{code} the master could not reach its store just now: {error}", "ask again; a repeat is safe").reply()
        except Exception:
            log.exception("request failed", verb=verb)
            code = "E108"
            reply = RequestRefused(code, f"{code} the master failed to answer {verb}; its log says why", "see the log of the master").reply()
        metrics.REQUESTS.labels(verb, code).inc()
        await msg.respond(encode(reply))

    async def _on_do(self, msg: Msg) -> None:
        *_, verb, namespace = msg.subject.split(".")
        if verb == "submit":
            await self._answer(msg, verb, lambda: self._submit(namespace, msg.data))
        elif verb in ACTIONS:
            await self._answer(msg, verb, lambda: self._act(verb, namespace, msg.data))
        else:
            await self._answer(msg, "unknown", lambda: _unknown(verb, ("submit", *ACTIONS)))

    async def _on_adopt(self, msg: Msg) -> None:
        await self._answer(msg, "adopt", lambda: self.adoption.adopt(msg.data))

    async def _on_query(self, msg: Msg) -> None:
        parts = msg.subject.split(".")
        verb, namespace = parts[4], parts[5] if len(parts) > 5 else ""
        queries, data = self.queries, msg.data
        known: dict[str, Callable[[], Awaitable[msgspec.Struct]]] = {
            "jobs": lambda: queries.jobs(namespace, read_request(JobsRequest, data)),
            "job": lambda: queries.job(namespace, read_request(JobRequest, data)),
            "events": lambda: queries.events(namespace, read_request(EventsRequest, data)),
            "status": lambda: self._status(namespace),
        }
        if verb in known:
            await self._answer(msg, verb, known[verb])
        else:
            await self._answer(msg, "unknown", lambda: _unknown(verb, tuple(known)))

    async def _status(self, namespace: str) -> msgspec.Struct:
        return self.queries.status(namespace, await self.store_used())

    # --- submit ----------------------------------------------------------------------------------------------------------------------

    async def _submit(self, namespace: str, data: bytes) -> SubmitReply:
        request = read_request(Submit, data)
        spec = request.spec
        if spec.namespace != namespace:
            raise RequestRefused(
                "E103",
                f'E103 a job of namespace "{spec.namespace}" cannot be submitted to "{namespace}"',
                "submit with credentials of the job's namespace",
            )
        if UID.match(request.uid) is None:
            raise RequestRefused("E107", "E107 uid: 8 to 64 letters, digits and -, unguessable (a UUID)", "update the command line")
        if problems := validate(spec):
            raise RequestRefused(problems[0].code, problems[0].message, details=tuple(problem.message for problem in problems))
        strictest = min((spec.actions, self.settings.actions), key=JOB_ACTIONS.index)
        if spec.actions != strictest:
            request = msgspec.structs.replace(request, spec=msgspec.structs.replace(spec, actions=strictest))
        job = job_id(spec.name, request.uid)
        if (known := await self._known(job, request.uid)) is not None:
            return known
        used = await self.store_used()
        if used >= self.settings.store_full:
            raise RequestRefused(
                "E106",
                f"E106 the state store is {used:.0%} full: no new jobs from {self.settings.store_full:.0%} on, so that running ones can commit",
                "raise max_bytes of stream CTL (aegis setup), or wait until ended jobs expire",
            )
        crashpoint("master.submit-before-create")
        try:
            loaded = await self._create(job, request)
        except WrongLastSequence:
            if (known := await self._known(job, request.uid)) is not None:
                return known
            raise
        crashpoint("master.submit-after-create")
        metrics.CREATED.labels(spec.gpuType or "none", metrics.worker_num(spec.workers)).inc()
        log.info("job created", job=job, namespace=namespace, workers=spec.workers, max_retry=spec.maxRetry)
        self.ownership.own(loaded)
        return SubmitReply(job, namespace, request.uid, loaded.seq)

    async def _create(self, job: str, request: Submit) -> Loaded:
        shared = self.ownership.shared
        now = shared.clock.now_ms()
        state = machine.create(job, request.spec, request.uid, shared.era(), now)
        if request.suspended:
            state, _ = machine.step(state, events.SuspendAsked(), now)
        # The reports of this job are yet to come: its owner begins reading where the stream ends now.
        state = state.with_head(owner=Owner(shared.replica, 1), cursor=await last_sequence(self.bus, "REPORTS"))
        return await self.store.create(state)

    async def _known(self, job: str, uid: str) -> SubmitReply | None:
        """The reply to a repeated submit; E105 when somebody else's job has this id."""
        found = await self.store.head(job)
        if found is None:
            return None
        head, seq, _ = found
        if head.uid != uid:
            raise RequestRefused("E105", f"E105 job id {job} is taken by another submission", "submit again (a new uid gives a new id)")
        return SubmitReply(job, head.namespace, uid, seq, existed=True)

    # --- acting verbs ------------------------------------------------------------------------------------------------------------------

    async def _act(self, verb: str, namespace: str, data: bytes) -> ActionReply:
        request = read_request(ActionRequest, data)
        head, seq = await self.find(namespace, request.job)
        if UID.match(request.requestId) is None:
            raise RequestRefused("E107", "E107 requestId: 8 to 64 letters, digits and - (a UUID)", "update the command line")
        if request.grace is not None and not 0 <= request.grace <= MAX_GRACE:
            raise RequestRefused("E116", f"E116 grace {request.grace:g} s is out of range: 0 to {MAX_GRACE:g} s")
        if head.phase.terminal:
            raise RequestRefused(
                "E105", f"E105 job {head.job} has ended ({head.phase.value}): it cannot {verb} any more", "submit it again: aegis job submit"
            )
        if head.mode is Mode.PLAIN and verb not in ("stop", "set"):
            raise RequestRefused("E105", f"E105 job {head.job} runs as a plain job, without Aegis: it can only stop", f"aegis job stop {head.job}")
        fact = Fact(
            kind=FactKind(verb),
            uid=head.uid,
            at=self.ownership.shared.clock.now_ms(),
            message=request.reason[:500],
            who=request.who[:100],
            grace=request.grace,
            settings=await self._inject(head, request) if verb == "inject" else _settings(verb, request.settings),
        )
        crashpoint("master.api-before-fact")
        msg_id = "act-" + hashlib.sha256(f"{head.uid}|{verb}|{request.requestId}".encode()).hexdigest()[:40]
        ack = await self.bus.publish(subjects.fact(head.job, "job"), encode(fact), msg_id=msg_id, timeout=4.0)
        crashpoint("master.api-after-fact")
        log.info("asked", job=head.job, verb=verb, who=request.who, reason=request.reason, seq=ack.seq)
        return ActionReply(head.job, ack.seq, head.phase.value, seq, duplicate=ack.duplicate)

    async def _inject(self, head: Head, request: ActionRequest) -> dict[str, str]:
        """What a fault is asked of; refused unless the job itself allows it."""
        worker, fault = request.settings.get("worker", ""), request.settings.get("fault", "")
        if fault not in FAULTS or not re.fullmatch(r"w\d{1,5}", worker) or int(worker[1:]) >= head.workerNum:
            known = f"a worker w0..w{head.workerNum - 1} and one of {', '.join(FAULTS)}"
            raise RequestRefused("E107", f"E107 inject {fault[:20]} into {worker[:20]}: expected {known}")
        loaded = await self.store.load(head.job)
        if loaded is None or not loaded.state.spec.allowInject:
            hint = "submit it with allowInject: true"
            raise RequestRefused("E103", f"E103 job {head.job} does not allow faults to be injected", hint)
        if head.phase is not Phase.RUN_COMMAND:
            raise RequestRefused("E105", f"E105 job {head.job} does not run its command now ({head.phase.value})", "wait for RunCommand")
        return {"worker": worker, "fault": fault, "id": request.requestId}

    async def find(self, namespace: str, job: str) -> tuple[Head, int]:
        """The head of a job of this namespace ("" = any). E104 also for a job of another namespace: its existence is not told."""
        try:
            found = await self.store.head(job) if is_id(job) else None
        except Unreadable as error:
            raise RequestRefused("E108", f"E108 job {job} was written by a newer version: {error}", "upgrade the master replicas") from None
        if found is None or (namespace and found[0].namespace != namespace):
            where = f' in namespace "{namespace}"' if namespace else ""
            raise RequestRefused("E104", f'E104 no job "{job[:60]}"{where}', "aegis job ls --all")
        return found[0], found[1]

    # --- how full the store is -----------------------------------------------------------------------------------------------------

    async def store_used(self) -> float:
        """Share of CTL's max_bytes in use; read at most every 5 s."""
        used, at = self._used
        if time.monotonic() - at > 5.0:
            info: dict[str, Any] = msgspec.json.decode(await self.bus.request("$JS.API.STREAM.INFO.CTL", b"", timeout=2.0))
            limit = int(info["config"].get("max_bytes", 0))
            used = int(info["state"]["bytes"]) / limit if limit > 0 else 0.0
            self._used = (used, time.monotonic())
            metrics.STORE_USED.set(used)
            if used >= self.settings.store_alarm:
                log.error("the state store is filling", used=round(used, 3), refused_from=self.settings.store_full)
        return used


def _settings(verb: str, settings: dict[str, str]) -> dict[str, str]:
    if verb != "set":
        return {}
    if not settings:
        raise RequestRefused("E107", "E107 nothing to set", "aegis job set JOB max-retry=5")
    for key, text in settings.items():
        if key != "max-retry":
            raise RequestRefused("E117", f'E117 "{key}" cannot be set on a running job', "settable: max-retry")
        if not text.isdecimal() or len(text) > 9 or int(text) > MAX_RETRY:
            raise RequestRefused("E116", f"E116 max-retry {text[:40]} is out of range: 0 to {MAX_RETRY}")
    return {"max-retry": str(int(settings["max-retry"]))}


async def _unknown(verb: str, known: tuple[str, ...]) -> msgspec.Struct:
    raise RequestRefused("E107", f'E107 unknown request "{verb[:40]}"', f"known: {', '.join(known)}")
