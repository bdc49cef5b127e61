"""What is created in the cluster: pods, their secrets, a job's service, its record. From a job and its template to JSON. Pure.

The user's template stays as it is but for this: the command of its first container is run by the agent; restartPolicy is Never, since only masters
restart; nodes of which the state says that they are bad, and nodes that have a worker of this job, are kept off.
"""

from __future__ import annotations

import base64
import copy
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aegis_proto.ids import pod_name
from aegis_proto.job import template_command
from aegis_proto.messages import encode

from aegis_jobcontroller.kubernetes.resources import AEGISJOBS, GROUP
from aegis_jobcontroller.kubernetes.seen import HOSTNAME, LABEL_ATTEMPT, LABEL_JOB, LABEL_UID, LABEL_WORKER, JobSeen
from aegis_jobcontroller.world import Job, plain_port

AGENT_ROOT, JOIN, STATE, TERMINATION = "/opt/aegis", "/run/aegis/join", "/run/aegis/state", "/run/aegis/termination-log"
NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
BEYOND = 30
"""Seconds that a kubelet waits beyond the graces of the agent."""

Body = dict[str, Any]
Wish = tuple[Sequence[str], bool]
"""Host names of doubtful nodes, and whether they are wished against (or for)."""


QUEUE, POD_GROUP, GROUP_SIZE = (f"kueue.x-k8s.io/{name}" for name in ("queue-name", "pod-group-name", "pod-group-total-count"))
"""Labels and annotation by which Kueue admits the pods of a job together, where the AegisJob names a queue."""


@dataclass(frozen=True, slots=True)
class Site:
    """What all pods are told. `credentials`: host:port of the gRPC service, `ca`: PEM that it is verified with, `agent_image`: see the settings."""

    credentials: str = ""
    ca: str = ""
    agent_image: str = ""


def name_of(job: str, index: int, attempt: int) -> str:
    return f"{job}-{pod_name(index)}-a{attempt}"


def owner(seen: JobSeen) -> Body:
    """Whoever deletes the AegisJob deletes all of it."""
    return {"apiVersion": AEGISJOBS.api, "kind": "AegisJob", "name": seen.name, "uid": seen.uid, "controller": True, "blockOwnerDeletion": False}


def _metadata(job: Job, seen: JobSeen, name: str, **labels: str) -> Body:
    ours = {LABEL_JOB: job.head.job, LABEL_UID: job.head.uid, **labels}
    return {"name": name, "namespace": seen.namespace, "labels": ours, "ownerReferences": [owner(seen)]}


def pod(
    job: Job, seen: JobSeen, index: int, attempt: int, site: Site, *, avoid: Iterable[str] = (), prefer: str = "", doubtful: Wish = ((), True)
) -> Body:
    """Attempt `attempt` of worker `index`. `avoid`, `prefer`, `doubtful` are values of the label kubernetes.io/hostname."""
    head, template = job.head, copy.deepcopy(dict(seen.spec.get("template") or {}))
    spec: Body = template.setdefault("spec", {})
    name = name_of(head.job, index, attempt)
    metadata = _metadata(job, seen, name, **{LABEL_WORKER: pod_name(index), LABEL_ATTEMPT: str(attempt)})
    given = template.get("metadata") or {}
    metadata["labels"] = {**(given.get("labels") or {}), **metadata["labels"]}
    queue = str((seen.body["metadata"].get("labels") or {}).get(QUEUE, ""))
    if queue:
        metadata["labels"] |= {QUEUE: queue, POD_GROUP: head.job}
    annotations = {**(given.get("annotations") or {}), **({GROUP_SIZE: str(head.workerNum)} if queue else {})}
    if annotations:
        metadata["annotations"] = annotations
    spec["restartPolicy"] = "Never"
    spec["hostname"], spec["subdomain"] = f"{head.job}-{pod_name(index)}", head.job
    spec["terminationGracePeriodSeconds"] = int(max(job.spec.preemptGrace, job.spec.stopGrace)) + BEYOND
    spec["affinity"] = affinity(spec.get("affinity") or {}, head.uid, sorted(set(avoid)), prefer, doubtful)
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *_tolerations(spec.get("tolerations") or ())]
    containers = spec.get("containers") or [{}]
    containers[0] = _worker(dict(containers[0]), job, index, attempt, site)
    spec["containers"] = containers
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(name, site)]
    if site.agent_image:
        copying = {
            "name": "aegis-agent",
            "image": site.agent_image,
            "command": [f"{AGENT_ROOT}/bin/aegis-agent", "install", "/aegis-agent"],
            "volumeMounts": [{"name": "aegis-agent", "mountPath": "/aegis-agent"}],
        }
        spec["initContainers"] = [copying, *(spec.get("initContainers") or ())]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _worker(container: Body, job: Job, index: int, attempt: int, site: Site) -> Body:
    """The user's container with the agent as its entry point."""
    container.setdefault("name", "worker")
    agent = f"{AGENT_ROOT}/bin/aegis-agent" if site.agent_image else "aegis-agent"
    container["command"] = [agent, "-c", *_text(job.spec.command or template_command({"spec": {"containers": [container]}}))]
    container.pop("args", None)
    where = container.setdefault("terminationMessagePath", TERMINATION)
    kept = [entry for entry in container.get("env") or () if not str(entry.get("name", "")).startswith("AEGIS_")]
    container["env"] = [*kept, *_environment(job, index, attempt, site, where)]
    mounts = [*(container.get("volumeMounts") or ())]
    mounts += [{"name": "aegis-join", "mountPath": JOIN, "readOnly": True}, {"name": "aegis-state", "mountPath": STATE}]
    if site.agent_image:
        mounts.append({"name": "aegis-agent", "mountPath": AGENT_ROOT, "readOnly": True})
    container["volumeMounts"] = mounts
    return container


def _text(command: Iterable[str]) -> list[str]:
    """What follows `aegis-agent -c`: a shell's own text as it was, any other argv as a text that means the same."""
    words = list(command)
    if len(words) >= 3 and words[0].rsplit("/", 1)[-1] in ("sh", "bash") and words[1] == "-c":
        return words[2:]
    return [shlex.join(words)]


def _environment(job: Job, index: int, attempt: int, site: Site, termination: str) -> list[Body]:
    head = job.head
    values = {
        "AEGIS_JOB": head.job,
        "AEGIS_UID": head.uid,
        "AEGIS_NAMESPACE": head.namespace,
        "AEGIS_POD": pod_name(index),
        "AEGIS_ATTEMPT": str(attempt),
        "AEGIS_WORKERS": str(head.workerNum),
        "AEGIS_JOIN_TOKEN_FILE": f"{JOIN}/token",
        "AEGIS_JOB_SPEC_FILE": f"{JOIN}/spec.json",
        "AEGIS_CREDENTIALS": site.credentials,
        "AEGIS_TLS_CA": f"{JOIN}/ca.crt" if site.ca else "",
        "AEGIS_PLAIN_ADDR": f"{head.job}-w0.{head.job}.{head.namespace}.svc",
        "AEGIS_PLAIN_PORT": str(plain_port(job)),
        "AEGIS_AGENT_STATE": STATE,
        "AEGIS_TERMINATION_FILE": termination,
    }
    fields = {"AEGIS_NODE": "spec.nodeName", "AEGIS_AGENT_ADDRESS": "status.podIP"}
    found: list[Body] = [{"name": key, "value": value} for key, value in values.items() if value]
    return found + [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]


def _volumes(name: str, site: Site) -> list[Body]:
    # Optional: a pod whose secret is late starts, and its agent reads the token when it is there.
    found: list[Body] = [{"name": "aegis-join", "secret": {"secretName": name, "optional": True}}, {"name": "aegis-state", "emptyDir": {}}]
    return [*found, {"name": "aegis-agent", "emptyDir": {}}] if site.agent_image else found


def affinity(given: Mapping[str, Any], uid: str, avoid: list[str], prefer: str, doubtful: Wish = ((), True)) -> Body:
    """NotIn goes into *every* term: terms are alternatives, so a term of its own would allow what the others forbid."""
    result: Body = copy.deepcopy(dict(given))
    nodes: Body = result.setdefault("nodeAffinity", {})
    if avoid:
        required: Body = nodes.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
        terms = required.get("nodeSelectorTerms") or [{}]
        forbidden = {"key": HOSTNAME, "operator": "NotIn", "values": avoid}
        required["nodeSelectorTerms"] = [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), forbidden]} for term in terms]
    wishes = [(100, "In", [prefer])] if prefer else []
    wishes += [(50, "NotIn" if doubtful[1] else "In", list(doubtful[0]))] if doubtful[0] else []
    for weight, operator, values in wishes:
        wish = {"weight": weight, "preference": {"matchExpressions": [{"key": HOSTNAME, "operator": operator, "values": values}]}}
        nodes["preferredDuringSchedulingIgnoredDuringExecution"] = [*(nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or ()), wish]
    if not nodes:
        del result["nodeAffinity"]
    apart = {"labelSelector": {"matchLabels": {LABEL_UID: uid}}, "topologyKey": HOSTNAME}
    others: Body = result.setdefault("podAntiAffinity", {})
    others["requiredDuringSchedulingIgnoredDuringExecution"] = [*(others.get("requiredDuringSchedulingIgnoredDuringExecution") or ()), apart]
    return result


def _tolerations(given: Iterable[Mapping[str, Any]]) -> list[Body]:
    """A kubelet that is not heard is no reason to end a training: who is dead is for the master to say."""
    own = {str(entry.get("key", "")) for entry in given}
    return [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in NOT_READY if key not in own]


def secret(job: Job, seen: JobSeen, index: int, attempt: int, site: Site, *, token: str) -> Body:
    """What the agent of exactly this attempt joins with, under the name of its pod. `token` may come later: the file is read at every try."""
    data = {"token": token.encode(), "spec.json": encode(job.spec), "ca.crt": site.ca.encode()}
    body = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, seen, name_of(job.head.job, index, attempt)),
        "type": "Opaque",
        "data": body,
    }


def service(job: Job, seen: JobSeen) -> Body:
    """Headless: gives each worker a name that stays when its pod is replaced."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL_UID: job.head.uid}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(job, seen, job.head.job), "spec": spec}


def record(job: Job, seen: JobSeen) -> Body:
    """The record of the job, to be read by people and tools: its status is a projection, and nothing ever reads it back."""
    head = job.head
    spec = {"JobName": head.name, "WorkerNum": head.workerNum, "MaxRetry": head.maxRetry}
    return {"apiVersion": f"{GROUP}/v1", "kind": "Aegis", "metadata": _metadata(job, seen, head.job), "spec": spec}
