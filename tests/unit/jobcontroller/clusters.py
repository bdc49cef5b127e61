"""Clusters and jobs for tests of platform `kubernetes`: objects as the API server gives them."""

from __future__ import annotations

from typing import Any

from aegis_jobcontroller.kubernetes import manifest, seen
from aegis_jobcontroller.kubernetes.seen import Cluster
from aegis_jobcontroller.world import Job, World
from aegis_proto.ids import pod_index
from aegis_proto.job import CLUSTER_LABEL
from aegis_proto.phases import Phase
from aegis_proto.state import Head, JobSpec, Pod

UID, ID, NOW = "11111111-2222-3333-4444-555555555555", "cluster-1", 1_800_000_000_000
JOB = "ddp-abc123"
SITE = manifest.Site("creds:7443", "PEM", "registry.example/aegis:1")


def pod(attempt: int = 1, boot: str = "", **more: Any) -> Pod:
    return Pod(attempt=attempt, boot=boot, **more)


def job(*pods: Pod, phase: Phase = Phase.RUN_COMMAND, spec: dict[str, Any] | None = None, ended_for: float = -1.0, **head: Any) -> Job:
    wanted = JobSpec("ddp", ("python", "train.py"), workers=len(pods), labels={CLUSTER_LABEL: ID}, **(spec or {}))
    return Job(Head(JOB, "ddp", "default", UID, len(pods), 3, phase=phase, **head), pods, wanted, ended_for=ended_for)


def aegisjob(**spec: Any) -> seen.JobSeen:
    template = {"spec": {"containers": [{"name": "train", "image": "x", "command": ["python", "train.py"]}]}}
    metadata = {"name": "ddp", "namespace": "default", "uid": UID, "generation": 1, "resourceVersion": "7"}
    return seen.job({"apiVersion": "aegis.train/v1", "kind": "AegisJob", "metadata": metadata, "spec": {"template": template, **spec}})


def kube_pod(worker: str = "w0", attempt: int = 1, node: str = "n1", **more: Any) -> seen.PodSeen:
    """`running=True`, `code=N` with `word=`, `deleting="2026-..."`, `phase=`."""
    name = manifest.name_of(JOB, pod_index(worker), attempt)
    labels = {seen.LABEL_JOB: JOB, seen.LABEL_UID: UID, seen.LABEL_WORKER: worker, seen.LABEL_ATTEMPT: str(attempt)}
    metadata = {"name": name, "namespace": "default", "uid": f"pod-{worker}-{attempt}", "labels": labels}
    state: dict[str, Any] = {}
    if more.get("running"):
        state = {"running": {"startedAt": "2026-11-30T02:00:00Z"}}
    if "code" in more:
        state = {"terminated": {"exitCode": more["code"], "finishedAt": "2026-11-30T02:10:00Z", "message": more.get("word", "")}}
    if more.get("deleting"):
        metadata["deletionTimestamp"] = more["deleting"]
    status = {
        "phase": more.get("phase", "Running" if state else "Pending"),
        "containerStatuses": [{"state": state}] if state else [],
        "conditions": more.get("conditions", []),
    }
    found = seen.pod({"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status})
    assert found is not None
    return found


def node(name: str = "n1", ready: bool = True, **spec: Any) -> seen.NodeSeen:
    condition = {"type": "Ready", "status": "True" if ready else "Unknown", "lastTransitionTime": "2026-11-30T02:00:00Z"}
    return seen.node({"metadata": {"name": name, "labels": {seen.HOSTNAME: f"host-{name}"}}, "spec": spec, "status": {"conditions": [condition]}})


def world(*jobs: Job, **more: Any) -> World:
    return World({job.head.job: job for job in jobs}, now=NOW, **more)


def cluster(*pods: seen.PodSeen, nodes: tuple[seen.NodeSeen, ...] = (), now: int = NOW, **more: Any) -> Cluster:
    jobs = more.pop("jobs", {UID: aegisjob()})
    found = nodes or (node("n1"), node("n2"))
    return Cluster(ID, now, {p.key: p for p in pods}, {n.id: n for n in found}, jobs, **more)
