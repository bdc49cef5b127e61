"""Platform `kubernetes` (`aegis_jobcontroller.platform.Platform`): pods are the placements, AegisJobs the submissions. When, and in which order.

Reads AegisJobs, pods of ours and nodes (informers), heads of jobs (the world). Creates and deletes pods, their secrets, a job's service and record;
writes the status of AegisJobs. What is decided is pure: `plan`, `facts`, `status`, `manifest`. Everything here can be done twice, by two replicas.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from aegis_bus.connection import Bus
from aegis_bus.crashpoint import crashpoint
from aegis_bus.errors import Unreachable
from aegis_bus.service import Service
from aegis_bus.settings import JobControllerSettings
from aegis_proto.api_nodes import JobPending, WorkerRecord
from aegis_proto.credapi import JoinRequest
from aegis_proto.ids import pod_name
from aegis_proto.job import CLUSTER_LABEL

from aegis_jobcontroller import metrics, tokens
from aegis_jobcontroller.cache import Cache
from aegis_jobcontroller.facts import News
from aegis_jobcontroller.kubernetes import manifest, seen
from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.events import events
from aegis_jobcontroller.kubernetes.facts import CONNECT, facts, missing
from aegis_jobcontroller.kubernetes.informer import Informer
from aegis_jobcontroller.kubernetes.plan import Create, Delete, expired, ours, pending, plan, record, risk_labels, waiting
from aegis_jobcontroller.kubernetes.resources import AEGISJOBS, EVENTS, NAMESPACES, NODES, PODS, RECORDS, SECRETS, SERVICES, Object
from aegis_jobcontroller.kubernetes.seen import LABEL_RISK, LABEL_UID, Cluster, JobSeen, PodKey, PodSeen
from aegis_jobcontroller.kubernetes.status import differs, status
from aegis_jobcontroller.kubernetes.submit import Submitter
from aegis_jobcontroller.world import Job, World

log = logging.getLogger(__name__)

SIDE_BY_SIDE = 16
"""Requests to the API server at once: it also serves others."""
REMOVED = 20_000
"""Pods that are remembered after they are no more."""
TOKEN_AGAIN = 5.0
"""Seconds between two tries for the join token of a pod that runs without one."""


class Kubernetes:
    """`client`: whose rights count. `site`: what all pods are told."""

    name = "kubernetes"

    def __init__(self, bus: Bus, cache: Cache, client: Client, site: manifest.Site, connect: float = CONNECT) -> None:
        self._bus = bus
        self._cache = cache
        self._client = client
        self._site = site
        self._connect = connect
        self._cluster_id = ""
        self._removed: OrderedDict[PodKey, PodSeen] = OrderedDict()
        self._vanished: set[PodKey] = set()
        self._lacking: dict[PodKey, float] = {}
        """Pods that were created without a join token -> when it is asked for again (monotonic)."""
        self._labels = True
        """Whether this cluster lets it label nodes, as far as is known."""
        self._secured: set[PodKey] = set()
        self._prepared: set[str] = set()
        self._told: OrderedDict[str, None] = OrderedDict()
        """Names of events that the server has."""
        self._wake: Callable[[], None] = lambda: None
        self._pods: Informer[PodSeen] = Informer(client, PODS, seen.pod, self._changed, selector=LABEL_UID, on_removed=self._was_removed)
        self._nodes: Informer[seen.NodeSeen] = Informer(client, NODES, seen.node, self._changed)
        self._jobs: Informer[JobSeen] = Informer(client, AEGISJOBS, seen.job, self._changed)
        self._submitter = Submitter(bus, client)
        self._limit = asyncio.Semaphore(SIDE_BY_SIDE)

    async def start(self, service: Service, wake: Callable[[], None]) -> None:
        self._wake = wake
        service.spawn(self._identify(), "cluster")
        for informer in (self._pods, self._nodes, self._jobs):
            service.spawn(informer.run(), f"watch {informer.plural}")

    async def stop(self) -> None:
        await self._client.close()

    @property
    def ready(self) -> bool:
        return bool(self._cluster_id) and self._pods.synced and self._nodes.synced and self._jobs.synced

    def has_node(self, name: str) -> bool:
        return any(node.id == name for node in self._nodes.items.values())

    def pending(self, job: Job, world: World) -> JobPending | None:
        if job.spec.labels.get(CLUSTER_LABEL) != self._cluster_id:
            return None
        return pending(job, self.cluster())

    def record(self, job: Job, world: World) -> Iterable[WorkerRecord]:
        return record(job, self.cluster()) if job.spec.labels.get(CLUSTER_LABEL) == self._cluster_id else ()

    async def _identify(self) -> None:
        """The cluster's id is that of its namespace kube-system: jobs of another cluster in the same store are not ours."""
        while not self._cluster_id:
            try:
                found = await self._client.get(NAMESPACES, "", "kube-system")
                self._cluster_id = str(found["metadata"]["uid"])
                self._wake()
            except KubeError as error:
                log.warning("the cluster does not say who it is: %s", error)
                await asyncio.sleep(2.0)

    def _changed(self) -> None:
        self._wake()

    def _was_removed(self, pod: PodSeen) -> None:
        self._removed[pod.key] = pod
        while len(self._removed) > REMOVED:
            self._removed.popitem(last=False)

    def cluster(self) -> Cluster:
        """As it is now."""
        pods = {pod.key: pod for pod in self._pods.items.values()}
        nodes = {node.id: node for node in self._nodes.items.values()}
        jobs = {job.uid: job for job in self._jobs.items.values()}
        now = int(time.time() * 1000)
        return Cluster(self._cluster_id, now, pods, nodes, jobs, self._removed, frozenset(self._vanished))

    # --- what masters are told and asked ---------------------------------------------------------------------------------------------

    def facts(self, world: World) -> Iterable[News]:
        return facts(world, self.cluster(), self._connect)

    async def ask(self, world: World) -> bool:
        return await self._submitter.ask(world, self.cluster())

    # --- the cluster is made equal to the state ------------------------------------------------------------------------------------------

    async def place(self, world: World) -> bool:
        began = time.monotonic()
        cluster = self.cluster()
        self._want(world, cluster)
        actions = plan(world, cluster)
        metrics.PASS.observe(time.monotonic() - began)
        await self._look_for_missing(world, cluster)
        creates = [action for action in actions if isinstance(action, Create)]
        work: list[Awaitable[None]] = [self._delete(action) for action in actions if isinstance(action, Delete)]
        work += await self._creations(creates, world, cluster)
        shown = [job for job in ours(world, cluster) if job.head.uid in cluster.jobs]
        work += [self._show(job, cluster) for job in shown]
        work += [
            self._tell(name, body) for job in shown for name, body in events(job, cluster.jobs[job.head.uid], cluster.now) if name not in self._told
        ]
        work += [self._client.delete(AEGISJOBS, seen.namespace, seen.name, uid=seen.uid) for seen in expired(cluster)]
        work += [self._label(name, risk) for name, risk in risk_labels(world, cluster).items() if self._labels]
        await self._all(work)
        await self._late_tokens(world, cluster)
        return bool(actions)

    def _want(self, world: World, cluster: Cluster) -> None:
        """Jobs that have ended, and that the cluster does not know to have ended."""
        loaded = {job.head.uid for job in world.jobs.values()}
        running = {uid for (uid, _, _), pod in cluster.pods.items() if not pod.over}
        for uid, job in cluster.jobs.items():
            name = str(job.status.get("job") or "")
            if name and uid not in loaded and (job.status.get("phase") not in ("Succeeded", "Failed") or uid in running):
                self._cache.want(name)

    async def _all(self, work: Iterable[Awaitable[None]]) -> None:
        """All of them, a few at a time; then the first fault, if there was one."""

        async def one(item: Awaitable[None]) -> None:
            async with self._limit:
                await item

        results = await asyncio.gather(*map(one, work), return_exceptions=True)
        faults = [result for result in results if isinstance(result, BaseException)]
        for fault in faults:
            if not isinstance(fault, KubeError):
                raise fault
        if faults:
            raise Unreachable(f"E101 {len(faults)} requests to the API server failed, the first: {faults[0]}")

    async def _look_for_missing(self, world: World, cluster: Cluster) -> None:
        for namespace, job, key in list(missing(world, cluster)):
            try:
                found = await self._client.get(PODS, namespace, manifest.name_of(job, key[1], key[2]))
                if str(found["metadata"].get("labels", {}).get(LABEL_UID, "")) == key[0]:
                    continue
            except KubeError as error:
                if not error.absent:
                    raise Unreachable(f"E101 whether pod {key} is there cannot be asked: {error}") from None
            self._vanished.add(key)
            self._wake()
        if len(self._vanished) > REMOVED:
            self._vanished = {key for key in self._vanished if key[0] in cluster.jobs}

    async def _delete(self, action: Delete) -> None:
        pod = action.pod
        log.info("delete pod %s/%s grace %g: %s", pod.namespace, pod.name, action.grace, action.why)
        crashpoint("jobcontroller.before-release")
        await self._client.delete(PODS, pod.namespace, pod.name, action.grace, pod.pod_uid)
        crashpoint("jobcontroller.after-release")

    async def _creations(self, creates: list[Create], world: World, cluster: Cluster) -> list[Awaitable[None]]:
        if not creates:
            return []
        jobs = {create.job: world.jobs[create.job] for create in creates}
        await self._all(self._prepare(job, cluster.jobs[job.head.uid]) for name, job in jobs.items() if name not in self._prepared)
        wanted = [(jobs[c.job].head.namespace, JoinRequest(c.job, pod_name(c.index), c.attempt)) for c in creates]
        joins = await tokens.joins(self._bus, wanted)
        work: list[Awaitable[None]] = []
        for create in creates:
            job = jobs[create.job]
            join = joins.get((create.job, pod_name(create.index)))
            work.append(self._create(create, job, cluster.jobs[job.head.uid], join.token if join is not None else ""))
        return work

    async def _prepare(self, job: Job, owner: JobSeen) -> None:
        """What all pods of a job share, before its first pod."""
        for resource, body in ((SERVICES, manifest.service(job, owner)), (RECORDS, manifest.record(job, owner))):
            try:
                await self._client.create(resource, owner.namespace, body)
            except KubeError as error:
                if not error.exists:
                    raise
        self._prepared.add(job.head.job)

    async def _create(self, create: Create, job: Job, owner: JobSeen, token: str) -> None:
        """First the secret: an agent never waits for it in vain. A pod that is there already is this very attempt, since its name says so."""
        crashpoint("jobcontroller.before-place")
        key = (job.head.uid, create.index, create.attempt)
        await self._secure(key, job, owner, token)
        body = manifest.pod(
            job, owner, create.index, create.attempt, self._site, avoid=create.avoid, prefer=create.prefer, doubtful=(create.doubtful, create.minds)
        )
        try:
            await self._client.create(PODS, owner.namespace, body)
            metrics.PLACEMENTS.labels("yes" if create.attempt > 1 else "no").inc()
            log.info("created pod %s/%s, keeping off %s", owner.namespace, body["metadata"]["name"], ", ".join(create.avoid) or "no node")
        except KubeError as error:
            if not error.exists:
                raise
            metrics.REFUSED.inc()
        crashpoint("jobcontroller.after-place")
        await self._pods.has((owner.namespace, body["metadata"]["name"]))

    async def _secure(self, key: PodKey, job: Job, owner: JobSeen, token: str) -> None:
        body = manifest.secret(job, owner, key[1], key[2], self._site, token=token)
        try:
            await self._client.create(SECRETS, owner.namespace, body)
        except KubeError as error:
            if not error.exists:
                raise
            if token:
                await self._client.patch(SECRETS, owner.namespace, body["metadata"]["name"], {"data": body["data"]})
        if token:
            self._lacking.pop(key, None)
            self._secured.add(key)
        else:
            self._lacking[key] = time.monotonic() + TOKEN_AGAIN

    async def _late_tokens(self, world: World, cluster: Cluster) -> None:
        """Agents that have not come yet may wait for a token: one that this replica did not write is written (again)."""
        now = time.monotonic()
        due: list[tuple[PodKey, Job]] = []
        for job in ours(world, cluster):
            if job.head.phase.terminal or job.head.uid not in cluster.jobs:
                continue
            for index, state in enumerate(job.pods):
                key = (job.head.uid, index, state.attempt)
                pod = cluster.pods.get(key)
                if pod is None or pod.over or pod.deleting or state.present or key in self._secured:
                    continue
                if self._lacking.setdefault(key, now + TOKEN_AGAIN) <= now:
                    due.append((key, job))
        if not due:
            return
        wanted = [(job.head.namespace, JoinRequest(job.head.job, pod_name(key[1]), key[2])) for key, job in due]
        joins = await tokens.joins(self._bus, wanted)
        found = [(key, job, joins.get((job.head.job, pod_name(key[1])))) for key, job in due]
        self._lacking |= {key: now + TOKEN_AGAIN for key, _ in due}
        await self._all(self._secure(key, job, cluster.jobs[job.head.uid], join.token) for key, job, join in found if join is not None)

    async def _show(self, job: Job, cluster: Cluster) -> None:
        """The status of the AegisJob, where it says something else."""
        owner = cluster.jobs[job.head.uid]
        waits = list(waiting(job, cluster)) if not job.head.started else []
        changes = differs(status(job, owner, waits, cluster.now), owner.status)
        if changes:
            await self._patch_status(owner, changes)

    async def _label(self, node: str, risk: str) -> None:
        """The risk of a node where whoever schedules there can see it. A cluster that does not allow it loses nothing else."""
        try:
            await self._client.patch(NODES, "", node, {"metadata": {"labels": {LABEL_RISK: risk or None}}})
        except KubeError as error:
            if error.code == 403:
                self._labels = False
            log.warning("the risk of node %s is not shown: %s", node, error)

    async def _tell(self, name: str, body: Object) -> None:
        """An event. What cannot be told now is told while it is news; nothing else waits for it."""
        try:
            await self._client.create(EVENTS, str(body["metadata"]["namespace"]), body)
        except KubeError as error:
            if not error.exists:
                log.warning("event %s is not told yet: %s", name, error)
                return
        self._told[name] = None
        while len(self._told) > REMOVED:
            self._told.popitem(last=False)

    async def _patch_status(self, owner: JobSeen, changes: Object) -> None:
        try:
            await self._client.patch(AEGISJOBS, owner.namespace, owner.name, {"metadata": {"uid": owner.uid}, "status": changes}, "status")
        except KubeError as error:
            if not error.absent and error.code != 409:  # another object of that name, or deleted: nobody's status
                raise


def site_of(settings: JobControllerSettings, credentials: str, tls_ca: str) -> manifest.Site:
    """OSError when the CA file cannot be read."""
    return manifest.Site(credentials, Path(tls_ca).read_text() if tls_ca else "", settings.agent_image)
