"""What the cluster can say about the workers: facts for the masters, derived from the present cluster. Pure.

Level, not edge, as on platform `nodes`: what holds now is derived anew each time. `gone` is a kubelet's word that the container ended (or that it
never began); a pod that was removed from the API while nobody said so is told as lost and not verified gone. An agent that cannot reach the bus
cannot say that it runs its command plain: the cluster shows it, by a container that runs and was never heard, or by the last word of one that ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from aegis_proto.ids import pod_name
from aegis_proto.messages import Fact
from aegis_proto.phases import FactKind, Mode
from aegis_proto.state import Pod

from aegis_jobcontroller.facts import News
from aegis_jobcontroller.kubernetes.plan import by_worker, ours
from aegis_jobcontroller.kubernetes.seen import Cluster, PodSeen
from aegis_jobcontroller.world import Job, World

CONNECT = 120.0
"""Seconds that a container runs until a worker that was never heard is taken for one that runs without Aegis: as long as its agent tries."""


def facts(world: World, cluster: Cluster, connect: float = CONNECT) -> Iterator[News]:
    """Every fact that holds now, of jobs of this cluster that have not ended. `connect`: see CONNECT."""
    present, removed = by_worker(cluster.pods), by_worker(cluster.removed)
    for job in ours(world, cluster):
        if job.head.phase.terminal:
            continue
        for index, state in enumerate(job.pods):
            who = (job.head.uid, index)
            yield from _of_worker(job, index, state, {**removed.get(who, {}), **present.get(who, {})}, cluster, connect=connect)


def missing(world: World, cluster: Cluster) -> Iterator[tuple[str, str, tuple[str, int, int]]]:
    """(namespace, job, key) of workers that are said to run and of which there is no pod: the server is asked once more before that is told."""
    for job in ours(world, cluster):
        head = job.head
        if head.phase.terminal:
            continue
        for index, state in enumerate(job.pods):
            key = (head.uid, index, state.attempt)
            known = key in cluster.pods or key in cluster.vanished or (key in cluster.removed and cluster.removed[key].over)
            if (state.placed or state.present) and not known:
                yield head.namespace, head.job, key


def _of_worker(job: Job, index: int, state: Pod, attempts: dict[int, PodSeen], cluster: Cluster, *, connect: float) -> Iterator[News]:
    def news(kind: FactKind, attempt: int, until_seen: bool = False, **values: object) -> News:
        return News(job.head.job, pod_name(index), Fact(kind, job.head.uid, attempt, **values), until_seen, job.head.era)  # type: ignore[arg-type]

    def ended(seen: PodSeen) -> News:
        end = seen.end
        assert end is not None
        text = f"{end.reason} (exit {end.exit_code})" if end.reason not in ("", "Error", "Completed") else ""
        code = None if end.signal else end.exit_code
        at = end.at or seen.since
        return news(FactKind.GONE, seen.key[2], True, node=seen.node, exitCode=code, signal=end.signal, at=at, message=text, lastWord=_word(end.word))

    if state.finished or (job.head.mode is Mode.PLAIN and state.exitCode is not None):
        return  # the state has its end
    before = attempts.get(state.attempt - 1)
    if before is not None and before.over and not (state.gone or state.present):
        yield ended(before)
    seen = attempts.get(state.attempt)
    if (job.head.uid, index, state.attempt) in cluster.vanished:
        yield news(FactKind.GONE, state.attempt, True, verified=False, message="its pod was removed; nobody said that its processes have ended")
    elif seen is None:
        return
    elif (why := _plain(job, state, seen, cluster, connect)) is not None:
        # first the job becomes plain, then the end of this worker is the end of a plain one
        yield news(FactKind.PLAIN, state.attempt, True, node=seen.node, at=seen.since, message=why)
    elif seen.over:
        yield ended(seen)
    elif seen.node:
        yield from _alive(seen, state, cluster, news)


def _plain(job: Job, state: Pod, seen: PodSeen, cluster: Cluster, connect: float) -> str | None:
    """Why it must be running its command without Aegis. A first attempt alone does so, and only of a job that has never run."""
    if job.head.mode is not Mode.MANAGED or job.head.started or state.present or state.attempt > 1:
        return None
    if seen.end is not None:
        return "it ran without Aegis" if _ran_plain(seen.end.word) else None
    if seen.running and not seen.deleting and cluster.now - seen.since >= 1000 * connect:
        return f"its container has run for {connect:g} s and its agent was never heard"
    return None


def _alive(seen: PodSeen, state: Pod, cluster: Cluster, news: object) -> Iterator[News]:
    tell = news
    assert callable(tell)
    node, attempt = cluster.nodes.get(seen.node), seen.key[2]
    if node is None or node.lost:
        text = "its node is no part of the cluster any more" if node is None else "its node is out of service"
        yield tell(FactKind.NODE_LOST, attempt, True, node=seen.node, at=node.silent_since if node is not None else 0, message=text)
    elif not node.ready:
        yield tell(FactKind.NODE_SILENT, attempt, node=seen.node, message=f"node {node.name} is not ready")
    elif seen.running:
        yield tell(FactKind.RUNNING, attempt, not state.placed, node=seen.node, at=seen.since)
    else:
        yield tell(FactKind.PLACED, attempt, node=seen.node, at=seen.created)


def _ran_plain(text: str) -> bool:
    try:
        word = json.loads(_word(text) or "{}")
    except ValueError:
        return False
    return isinstance(word, dict) and word.get("plain") is True


def _word(text: str) -> str:
    """The agent's last word is JSON; a container without an agent may have left anything."""
    return text if text.startswith("{") else ""
