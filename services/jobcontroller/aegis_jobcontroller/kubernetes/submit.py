"""AegisJobs and the masters: a new object is submitted, a changed wish is asked for, a deleted object is a job that stops.

The uid of the object is the uid of the job, so whatever is asked twice is asked once. Writes `status.suspend` (the wish granted last) and the status
of objects that cannot be a job.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.api import ActionReply, ActionRequest, RequestRefused, Submit, SubmitReply, read_reply
from aegis_proto.ids import job_id
from aegis_proto.job import CLUSTER_LABEL, SpecError, from_mapping
from aegis_proto.messages import BadMessage, encode
from aegis_proto.state import JobSpec

from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.plan import ours
from aegis_jobcontroller.kubernetes.resources import AEGISJOBS
from aegis_jobcontroller.kubernetes.seen import Cluster, JobSeen
from aegis_jobcontroller.kubernetes.status import ENDED, refused
from aegis_jobcontroller.world import World

log = logging.getLogger(__name__)

TIMEOUT = 5.0
AGAIN, REFUSED_FOR = 3.0, 60.0
"""Seconds before the same is asked again: when nobody answered or nothing is seen of it yet, and when it was refused."""


def spec_of(seen: JobSeen, cluster: str) -> JobSpec:
    """The job that an AegisJob is. SpecError with everything that is wrong with it."""
    spec = from_mapping(
        {
            **seen.body,
            "kind": "AegisJob",
            "metadata": {"name": seen.name, "namespace": seen.namespace, "labels": seen.body["metadata"].get("labels") or {}},
        }
    )
    return msgspec.structs.replace(spec, namespace=seen.namespace, labels={**spec.labels, CLUSTER_LABEL: cluster})


class Submitter:
    """`ask` is called whenever something has changed, and once a second."""

    def __init__(self, bus: Bus, client: Client) -> None:
        self._bus = bus
        self._client = client
        self._asked: dict[tuple[str, str], float] = {}

    async def ask(self, world: World, cluster: Cluster) -> bool:
        now = time.monotonic()
        self._asked = {key: until for key, until in self._asked.items() if until > now}
        by_uid = {job.head.uid: job for job in world.jobs.values()}
        for seen in cluster.jobs.values():
            if seen.deleting:
                continue
            if seen.uid not in by_uid:
                if seen.status.get("phase") not in ENDED or self._corrected(seen):
                    await self._submit(seen, world, cluster)
            elif seen.suspend != bool(seen.status.get("suspend")):
                await self._wish(seen, by_uid[seen.uid].head.job, "suspend" if seen.suspend else "resume")
        for job in ours(world, cluster):
            known = cluster.jobs.get(job.head.uid)
            if not job.head.phase.terminal and (known is None or known.deleting) and self._due(job.head.uid, "stop"):
                request = ActionRequest(job.head.job, f"{job.head.uid}-deleted", who="kubernetes", reason="its AegisJob was deleted")
                await self._act("stop", job.head.namespace, request)
        return False

    def _corrected(self, seen: JobSeen) -> bool:
        """Refused as it was, and changed since."""
        return seen.status.get("reason") == "InvalidTemplate" and seen.status.get("observedGeneration") != seen.generation

    def _due(self, uid: str, what: str) -> bool:
        """Not asked just now; then it is asked now."""
        if (uid, what) in self._asked:
            return False
        self._asked[uid, what] = time.monotonic() + AGAIN
        return True

    async def _submit(self, seen: JobSeen, world: World, cluster: Cluster) -> None:
        what = f"submit {seen.generation}"
        if not self._due(seen.uid, what):
            return
        try:
            spec = spec_of(seen, cluster.id)
            if job_id(spec.name, seen.uid) in world.known and seen.status.get("job"):
                return  # it has its job, which is only not loaded
        except (SpecError, ValueError) as error:
            await self._refuse(seen, [str(error)], cluster)
            return
        request = encode(Submit(spec, seen.uid, suspended=seen.suspend))
        try:
            reply = read_reply(SubmitReply, await self._bus.request(subjects.rpc_do("master", "submit", spec.namespace), request, timeout=TIMEOUT))
        except RequestRefused as error:
            if error.code in ("E108", "E106", "E101"):
                log.warning("AegisJob %s/%s is not submitted yet: %s", seen.namespace, seen.name, error)
                return
            self._asked[seen.uid, what] = time.monotonic() + REFUSED_FOR
            await self._refuse(seen, [str(error), *error.details], cluster)
        except (BusError, BadMessage) as error:
            log.warning("AegisJob %s/%s is not submitted yet: %s", seen.namespace, seen.name, error)
        else:
            log.info("AegisJob %s/%s is job %s%s", seen.namespace, seen.name, reply.job, " already" if reply.existed else "")
            await self._patch(seen, {"job": reply.job, "suspend": seen.suspend, "phase": "Suspended" if seen.suspend else "Pending"})

    async def _wish(self, seen: JobSeen, job: str, verb: str) -> None:
        """`requestId` names the generation: the same wish is granted once, a later one anew."""
        if self._due(seen.uid, f"{verb} {seen.generation}"):
            request = ActionRequest(
                job, f"{seen.uid}-{seen.generation}-{verb}", who="kubernetes", reason=f"spec.suspend is {str(seen.suspend).lower()}"
            )
            if await self._act(verb, seen.namespace, request):
                await self._patch(seen, {"suspend": seen.suspend})

    async def _act(self, verb: str, namespace: str, request: ActionRequest) -> bool:
        try:
            read_reply(ActionReply, await self._bus.request(subjects.rpc_do("master", verb, namespace), encode(request), timeout=TIMEOUT))
        except (RequestRefused, BusError, BadMessage) as error:
            log.warning("%s of job %s is asked again: %s", verb, request.job, error)
            return False
        return True

    async def _refuse(self, seen: JobSeen, problems: list[str], cluster: Cluster) -> None:
        log.info("AegisJob %s/%s is refused: %s", seen.namespace, seen.name, problems[0])
        await self._patch(seen, refused(seen, problems, cluster.now))

    async def _patch(self, seen: JobSeen, status: Mapping[str, Any]) -> None:
        """A patch that comes too late is of another object: its uid says so."""
        try:
            await self._client.patch(AEGISJOBS, seen.namespace, seen.name, {"metadata": {"uid": seen.uid}, "status": dict(status)}, "status")
        except KubeError as error:
            if not error.absent:
                log.warning("status of AegisJob %s/%s is not written yet: %s", seen.namespace, seen.name, error)
