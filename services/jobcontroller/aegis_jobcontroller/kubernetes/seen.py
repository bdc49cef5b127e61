"""The cluster as plain values: pods of ours, nodes, AegisJobs; read from the API's JSON. Pure. What a field means is said where it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from aegis_proto.ids import node_id

from aegis_jobcontroller.kubernetes.resources import Object

PodKey = tuple[str, int, int]
"""(uid of the job, index of the worker, attempt)."""

LABEL_JOB, LABEL_UID, LABEL_WORKER, LABEL_ATTEMPT = "aegis.train/job", "aegis.train/uid", "aegis.train/worker", "aegis.train/attempt"
"""On every pod: id and uid of its job, w<i>, attempt."""
LABEL_RISK = "aegis.train/risk"
"""On a node of which lemon or netmon say something: its risk in percent, in steps of 5; for affinities of whoever schedules there."""
HOSTNAME = "kubernetes.io/hostname"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Taint by which a person says that the machine is off."""
MAX_WORD = 2048
"""Characters of a termination message that travel on in a fact."""


@dataclass(frozen=True, slots=True)
class End:
    """How the container ended, by its kubelet's word."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    word: str = ""
    at: int = 0  # ms


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One attempt of one worker. `deleting`: ms since 1970 when its grace ends, 0 = nobody has asked. `end`: None while it is not verified that the
    container ended."""

    namespace: str
    name: str
    pod_uid: str
    job: str
    key: PodKey
    node: str = ""
    ip: str = ""
    phase: str = "Pending"
    running: bool = False
    since: int = 0  # ms, start of the container
    end: End | None = None
    deleting: int = 0
    waits: str = ""
    """Why it is not scheduled or not started, in the cluster's words."""
    created: int = 0

    @property
    def over(self) -> bool:
        """Nothing of it runs: the kubelet says so, or no kubelet ever had it."""
        return self.end is not None


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """`id`: what Aegis calls it (`ids.node_id`). `silent_since`: ms, when its kubelet was last known to be well; 0 while it is."""

    name: str
    id: str
    hostname: str
    ready: bool
    silent_since: int = 0
    lost: bool = False
    risk: str = ""
    """Its label."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """An AegisJob. `body` is the whole object."""

    namespace: str
    name: str
    uid: str
    generation: int
    version: str
    suspend: bool
    deleting: bool
    body: Object = field(repr=False, hash=False, compare=False)

    @property
    def spec(self) -> Object:
        return _mapping(self.body.get("spec"))

    @property
    def status(self) -> Object:
        return _mapping(self.body.get("status"))


@dataclass(frozen=True, slots=True)
class Cluster:
    """`id`: of this cluster. `now`: ms since 1970. `removed`: pods as they were last seen, that are no more. `vanished`: pods that ran, and that the
    server does not have when it is asked for them."""

    id: str = ""
    now: int = 0
    pods: Mapping[PodKey, PodSeen] = field(default_factory=dict)
    nodes: Mapping[str, NodeSeen] = field(default_factory=dict)  # by id
    jobs: Mapping[str, JobSeen] = field(default_factory=dict)  # by uid
    removed: Mapping[PodKey, PodSeen] = field(default_factory=dict)
    vanished: frozenset[PodKey] = frozenset()


def ms(text: object) -> int:
    """`2026-11-30T02:40:38Z` in ms since 1970, 0 for nothing. ValueError on what is no time."""
    return int(datetime.fromisoformat(str(text)).timestamp() * 1000) if text else 0


def _mapping(value: object) -> Object:
    return value if isinstance(value, Mapping) else {}


def pod(item: Object) -> PodSeen | None:
    """None for a pod that is not ours."""
    metadata, spec, status = item["metadata"], item["spec"], _mapping(item.get("status"))
    labels = _mapping(metadata.get("labels"))
    worker, uid = str(labels.get(LABEL_WORKER, "")), str(labels.get(LABEL_UID, ""))
    if not uid or not worker.startswith("w"):
        return None
    node, phase = str(spec.get("nodeName") or ""), str(status.get("phase") or "Pending")
    state = _state(status)
    ended = _mapping(state.get("terminated"))
    end = None
    if ended:
        end = _end(ended)
    elif phase in ("Failed", "Succeeded") and not state.get("running"):
        # Refused or evicted before its container ran; `Failed` beside a container that is said to run is the word of who has not asked its kubelet.
        end = End(0 if phase == "Succeeded" else 1, reason=str(status.get("reason") or phase), word=str(status.get("message") or "")[:500])
    elif not node and metadata.get("deletionTimestamp"):
        end = End(1, reason="NeverStarted")
    return PodSeen(
        str(metadata["namespace"]),
        str(metadata["name"]),
        str(metadata["uid"]),
        str(labels.get(LABEL_JOB, "")),
        (uid, int(worker[1:]), int(labels.get(LABEL_ATTEMPT, 0))),
        node_id(node) if node else "",
        str(status.get("podIP") or ""),
        phase,
        bool(state.get("running")),
        ms(_mapping(state.get("running")).get("startedAt")),
        end,
        ms(metadata.get("deletionTimestamp")),
        _waits(status, state),
        ms(metadata.get("creationTimestamp")),
    )


def _state(status: Object) -> Object:
    """State of the worker's container, which is the first."""
    states = status.get("containerStatuses") or ()
    return _mapping(_mapping(states[0]).get("state")) if states else {}


def _end(ended: Object) -> End:
    code, signal = int(ended.get("exitCode") or 0), int(ended.get("signal") or 0)
    if not signal and 128 < code < 128 + 65:
        signal = code - 128
    return End(code, signal, str(ended.get("reason") or ""), str(ended.get("message") or "")[:MAX_WORD], ms(ended.get("finishedAt")))


def _waits(status: Object, state: Object) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")[:500]
    waiting = _mapping(state.get("waiting"))
    if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
        return f"{waiting.get('reason')}: {waiting.get('message') or ''}".rstrip(": ")[:500]
    for entry in status.get("initContainerStatuses") or ():
        ended = _mapping(_mapping(entry.get("state")).get("terminated"))
        if ended.get("exitCode"):
            return f"init container {entry.get('name')} failed with exit code {ended['exitCode']}"
    return ""


def node(item: Object) -> NodeSeen:
    metadata, spec, status = item["metadata"], _mapping(item.get("spec")), _mapping(item.get("status"))
    name = str(metadata["name"])
    ready: Object = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    well = ready.get("status") == "True"
    lost = any(taint.get("key") == OUT_OF_SERVICE for taint in spec.get("taints") or ())
    labels = _mapping(metadata.get("labels"))
    silent_since = 0 if well else ms(ready.get("lastTransitionTime")) or 1
    return NodeSeen(name, node_id(name), str(labels.get(HOSTNAME) or name), well, silent_since, lost, str(labels.get(LABEL_RISK) or ""))


def job(item: Object) -> JobSeen:
    metadata = item["metadata"]
    return JobSeen(
        str(metadata["namespace"]),
        str(metadata["name"]),
        str(metadata["uid"]),
        int(metadata.get("generation") or 0),
        str(metadata.get("resourceVersion") or ""),
        bool(_mapping(item.get("spec")).get("suspend")),
        bool(metadata.get("deletionTimestamp")),
        item,
    )
