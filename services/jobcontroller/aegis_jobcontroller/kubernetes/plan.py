"""Which pods are created and which are deleted: from the state and the cluster as they are. Pure.

- The state names one attempt of every worker; its pod has the name <job>-w<i>-a<attempt>, so that a create that was done already is no second pod.
- The next attempt is created when the one before is verified gone: by its kubelet, or by the state (`Pod.gone`: the agent's own word, or the fence).
  A pod that was deleted by force, or whose kubelet is not heard, is not gone.
- Only the master raises attempts; nothing here counts, declares dead or excludes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from aegis_proto.api_nodes import JobPending, WorkerRecord
from aegis_proto.ids import pod_name
from aegis_proto.job import CLUSTER_LABEL
from aegis_proto.lemon import DOUBTFUL
from aegis_proto.phases import Mode
from aegis_proto.state import Pod

from aegis_jobcontroller.kubernetes.seen import Cluster, JobSeen, PodSeen, ms
from aegis_jobcontroller.kubernetes.status import ENDED
from aegis_jobcontroller.plan import care
from aegis_jobcontroller.world import Job, World, excluded

MOST_DOUBTFUL = 100
RISK_STEP = 0.05
"""Of the label of a node: smaller changes are no news to the API server."""
KEPT = 3
"""Ended pods of one worker that are kept for reading while their job runs."""
TERMINATION_TIMEOUT = 60.0
"""Seconds after the end of its grace until a pod whose kubelet is silent is taken out of the API by force."""
LEAVE = 10.0
"""Seconds beyond stopGrace for an agent that is told to go."""


@dataclass(frozen=True, slots=True)
class Create:
    """`avoid`, `prefer`, `doubtful`: host names. `doubtful` are wished for or against, by how much the job minds."""

    job: str
    index: int
    attempt: int
    avoid: tuple[str, ...] = ()
    prefer: str = ""
    doubtful: tuple[str, ...] = ()
    minds: bool = True


@dataclass(frozen=True, slots=True)
class Delete:
    """`grace` 0: by force."""

    pod: PodSeen
    grace: float
    why: str


Action = Create | Delete
Attempts = Mapping[int, PodSeen]


def ours(world: World, cluster: Cluster) -> Iterator[Job]:
    """Jobs of this cluster."""
    for job in world.jobs.values():
        if job.spec.labels.get(CLUSTER_LABEL) == cluster.id and cluster.id:
            yield job


def by_worker(pods: Mapping[tuple[str, int, int], PodSeen]) -> dict[tuple[str, int], dict[int, PodSeen]]:
    """(uid, index) -> attempt -> pod."""
    found: dict[tuple[str, int], dict[int, PodSeen]] = {}
    for (uid, index, attempt), pod in pods.items():
        found.setdefault((uid, index), {})[attempt] = pod
    return found


def plan(world: World, cluster: Cluster) -> list[Action]:
    """Everything that should be done now: what ends first."""
    present, removed = by_worker(cluster.pods), by_worker(cluster.removed)
    ending: list[Action] = []
    beginning: list[Action] = []
    for job in ours(world, cluster):
        head, seen = job.head, cluster.jobs.get(job.head.uid)
        for index, pod in enumerate(job.pods):
            mine = present.get((head.uid, index), {})
            ending += _endings(job, pod, mine, cluster)
            if seen is None or seen.deleting or not world.settled:
                continue
            if may_create(job, index, pod, mine, removed=removed.get((head.uid, index), {}), cluster=cluster):
                avoid, prefer = _where(job, pod, mine, world, cluster)
                beginning.append(Create(head.job, index, pod.attempt, avoid, prefer, _doubtful(world, cluster), care(job) >= 0))
    return [*ending, *beginning]


def may_create(job: Job, index: int, pod: Pod, mine: Attempts, *, removed: Attempts, cluster: Cluster) -> bool:
    """The attempt that the state names has no pod, and nothing of an earlier one can live."""
    head = job.head
    if head.phase.terminal or head.suspended or pod.present or pod.placed:
        return False
    if head.mode is Mode.PLAIN and pod.attempt > 1:
        return False
    if pod.attempt in mine or (head.uid, index, pod.attempt) in cluster.vanished:
        return False
    if any(attempt > pod.attempt and not other.over for attempt, other in mine.items()):
        return False  # the state is older than the cluster: that worker will tell it
    before = {**removed, **mine}
    if pod.attempt in removed and not removed[pod.attempt].over:
        return False
    return pod.attempt == 1 or pod.gone or (pod.attempt - 1 in before and all(other.over for at, other in before.items() if at < pod.attempt))


def _endings(job: Job, pod: Pod, mine: Attempts, cluster: Cluster) -> Iterator[Delete]:
    head, grace = job.head, job.spec.stopGrace + LEAVE
    over = head.phase.terminal and job.ended_for >= job.stop_after
    policy = _policy(job, cluster)
    for attempt, seen in mine.items():
        if seen.over:
            continue
        if seen.deleting:
            if _stuck(seen, cluster):
                yield Delete(seen, 0, "its kubelet does not answer")
        elif attempt < pod.attempt:
            yield Delete(seen, grace, f"attempt {pod.attempt} has its place")
        elif over and policy != "None":
            yield Delete(seen, grace, "the job has ended")
        elif head.suspended and not head.phase.terminal:
            yield Delete(seen, grace, "the job is suspended")
    ended = sorted((at for at, seen in mine.items() if seen.over and at < pod.attempt and not seen.deleting), reverse=True)
    for at in ended[KEPT:]:
        yield Delete(mine[at], 0, "long ended")
    if over and policy == "All":
        for seen in mine.values():
            if seen.over and not seen.deleting:
                yield Delete(seen, 0, "cleanPodPolicy All")


def _policy(job: Job, cluster: Cluster) -> str:
    seen = cluster.jobs.get(job.head.uid)
    return str(seen.spec.get("cleanPodPolicy") or "Running") if seen is not None else "Running"


def _stuck(pod: PodSeen, cluster: Cluster) -> bool:
    node = cluster.nodes.get(pod.node)
    return cluster.now > pod.deleting + TERMINATION_TIMEOUT * 1000 and (node is None or not node.ready)


def _where(job: Job, pod: Pod, mine: Attempts, world: World, cluster: Cluster) -> tuple[tuple[str, ...], str]:
    """Host names to keep off and the one to prefer: that of the attempt before, where checkpoints in memory and on local disk are."""
    bad = job.error_nodes(world.now) | set(job.spec.exclude) | {name for name, taint in world.taints.items() if excluded(taint, world.now)}
    if job.spec.nodes:
        bad |= cluster.nodes.keys() - set(job.spec.nodes)
    last = max((at for at in mine if at < pod.attempt), default=0)
    wish = pod.pin or (mine[last].node if last else "")
    hosts = {name: node.hostname for name, node in cluster.nodes.items()}
    prefer = hosts.get(wish, "") if wish not in bad else ""
    return tuple(sorted(hosts.get(name, name) for name in bad)), prefer


def _doubtful(world: World, cluster: Cluster) -> tuple[str, ...]:
    """The worst of the nodes that are not as good as any, by host name."""
    worst = sorted((risk for risk in world.risks.values() if risk.risk >= DOUBTFUL), key=lambda risk: (-risk.risk, risk.node))
    hosts = {name: node.hostname for name, node in cluster.nodes.items()}
    return tuple(sorted(hosts.get(risk.node, risk.node) for risk in worst[:MOST_DOUBTFUL]))


def risk_labels(world: World, cluster: Cluster) -> dict[str, str]:
    """Name of a node -> the label it should have and has not; "" where it should have none."""
    found = {}
    for node in cluster.nodes.values():
        risk = world.risks.get(node.id)
        steps = round(risk.risk / RISK_STEP) if risk is not None else 0
        wish = str(round(100 * RISK_STEP * steps)) if steps else ""
        if wish != node.risk:
            found[node.name] = wish
    return found


def waiting(job: Job, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """(w<i>, why) of workers that are not there, in the cluster's own words where it has any."""
    for index, pod in enumerate(job.pods):
        if not pod.present and not job.head.phase.terminal and not job.head.suspended:
            seen = cluster.pods.get((job.head.uid, index, pod.attempt))
            if seen is None or seen.waits:
                yield pod_name(index), seen.waits if seen is not None else "waits until the attempt before is verified gone"


def pending(job: Job, cluster: Cluster) -> JobPending | None:
    """Which workers wait; `message` has the first one's reason."""
    found = list(waiting(job, cluster))
    if not found:
        return None
    names = tuple(pod for pod, _ in found[:16])
    usable = sum(node.ready for node in cluster.nodes.values())
    text = f"{len(found)} of {len(job.pods)} workers wait in the cluster; {found[0][0]}: {found[0][1]}"
    return JobPending(job.head.job, job.head.namespace, len(job.pods), names, len(found), usable=usable, message=text)


def expired(cluster: Cluster) -> list[JobSeen]:
    """AegisJobs whose time after the end is over."""
    found = []
    for seen in cluster.jobs.values():
        ttl, ended = seen.spec.get("ttlSecondsAfterFinished"), seen.status.get("completionTime")
        if isinstance(ttl, int) and ended and seen.status.get("phase") in ENDED and not seen.deleting and ms(ended) + 1000 * ttl <= cluster.now:
            found.append(seen)
    return found


def record(job: Job, cluster: Cluster) -> Iterator[WorkerRecord]:
    """The pods of a job as the cluster has them, or had them last."""
    for index, pod in enumerate(job.pods):
        key = (job.head.uid, index, pod.attempt)
        if (seen := cluster.pods.get(key) or cluster.removed.get(key)) is not None:
            end = seen.end
            ended = f"{end.reason}, exit code {end.exit_code}".strip(", ") if end is not None else ""
            leaving = "being deleted" if seen.deleting and end is None else "" if key in cluster.pods else "removed"
            words = "; ".join(filter(None, (ended, leaving, seen.waits)))
            yield WorkerRecord(pod_name(index), pod.attempt, seen.node, f"{seen.namespace}/{seen.name}", seen.created, seen.phase, words[:300])
