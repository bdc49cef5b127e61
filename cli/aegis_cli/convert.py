"""From other kinds of training job to an AegisJob: PyTorchJob, TrainJob, JobSet, Volcano's Job. Pure: a document in, a document and words out.

Lossless, or it says what was dropped: every value of the source is either taken (and then is in the AegisJob, or is what an AegisJob does anyway), or
is in the list of what was dropped, by its path.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aegis_proto.ids import is_id, nearest_id

Body = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
_OF_THE_SERVER = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "ownerReferences", "finalizers")
_MISSING = object()


class NotConvertible(ValueError):
    """The document is no job that is known here; says what it is and what is known."""


@dataclass
class Source:
    """A document of which parts are taken; `left` is the rest, leaf by leaf."""

    body: Any
    _taken: set[tuple[str | int, ...]] = field(default_factory=set)

    def get(self, *path: str | int, default: Any = None) -> Any:
        """Look, and leave it untaken."""
        at = self.body
        for key in path:
            if isinstance(at, Mapping):
                at = at.get(key, _MISSING)
            elif isinstance(at, Sequence) and not isinstance(at, str) and isinstance(key, int) and key < len(at):
                at = at[key]
            else:
                return default
            if at is _MISSING:
                return default
        return at

    def take(self, *path: str | int, default: Any = None) -> Any:
        """The value there, which is converted, whole."""
        self._taken.add(path)
        found = self.get(*path, default=default)
        return copy.deepcopy(found) if found is not None else default

    def left(self) -> list[str]:
        """Paths of all that nobody took, with short values; of a subtree that was not touched at all its own path alone."""
        return [f"{_text(path)}{_short(value)}" for path, value in self._left((), self.body)]

    def _left(self, path: tuple[str | int, ...], value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
        if path in self._taken or value in (None, {}, [], ""):
            return
        touched = any(taken[: len(path)] == path for taken in self._taken)
        if not touched or not isinstance(value, Mapping | list):
            yield path, value
            return
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from self._left((*path, key), item)


def _text(path: Sequence[str | int]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else value
    return f": {text}" if len(text) <= 60 else ""


@dataclass(frozen=True)
class Converted:
    """`job`: the AegisJob. `dropped`: what of the source has no place in it. `notes`: what is done differently."""

    job: Body
    dropped: tuple[str, ...]
    notes: tuple[str, ...]


def convert(document: Any) -> Converted:
    """Raises: NotConvertible."""
    kind, api = (str(document.get(key, "")) for key in ("kind", "apiVersion")) if isinstance(document, Mapping) else ("", "")
    group = api.partition("/")[0]
    make = KINDS.get((group, kind))
    if make is None:
        known = ", ".join(f"{name} of {group}" for group, name in KINDS)
        raise NotConvertible(f'E117 "{kind}" of "{api}" is none of these: {known}')
    source, notes = Source(document), list[str]()
    for key in ("apiVersion", "kind", "status"):
        source.take(key)
    metadata = _metadata(source, notes)
    spec = make(source, notes)
    spec = {key: value for key, value in spec.items() if value is not None}
    return Converted({"apiVersion": "aegis.train/v1", "kind": "AegisJob", "metadata": metadata, "spec": spec}, tuple(source.left()), tuple(notes))


def _metadata(source: Source, notes: list[str]) -> Body:
    for key in _OF_THE_SERVER:
        source.take("metadata", key)
    name = str(source.take("metadata", "name", default="") or source.take("metadata", "generateName", default="job"))
    found: Body = {"name": name if is_id(name) else nearest_id(name)}
    if found["name"] != name:
        notes.append(f"name {name} is now {found['name']}: a-z, 0-9 and -, at most 40")
    for key in ("namespace", "labels", "annotations"):
        if value := source.take("metadata", key):
            found[key] = value
    found.get("annotations", {}).pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {key: value for key, value in found.items() if value}


def _template(source: Source, notes: list[str], *path: str | int) -> Body:
    """A pod template, whole. Its restartPolicy is always ours."""
    template: Body = source.take(*path, default={}) or {}
    spec = template.setdefault("spec", {})
    if (policy := spec.pop("restartPolicy", None)) not in (None, "Never"):
        notes.append(f"restartPolicy {policy}: pods are Never restarted by the kubelet; the agent restarts the command in place, counted")
    if not spec.get("containers"):
        raise NotConvertible(f"E117 {_text(path)} has no container")
    return template


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else int(value) if isinstance(value, str) and value.isdecimal() else None


def _clean(source: Source, *path: str) -> str | None:
    value = source.get(*path)
    return source.take(*path) if value in ("Running", "All", "None") else None


def _pytorch(source: Source, notes: list[str]) -> Body:
    roles = [role for role in ("Master", "Worker") if source.get("spec", "pytorchReplicaSpecs", role)]
    if not roles:
        raise NotConvertible("E117 spec.pytorchReplicaSpecs has neither Master nor Worker")
    templates, workers = {}, 0
    for role in roles:
        at = ("spec", "pytorchReplicaSpecs", role)
        workers += int(source.take(*at, "replicas", default=1))
        policy = source.take(*at, "restartPolicy")
        if policy == "ExitCode":
            notes.append(f"restartPolicy ExitCode of {role}: every failure restarts and is counted; 126 and 127 end the job")
        templates[role] = _template(source, notes, *at, "template")
    template = templates[roles[-1]]
    if len(roles) == 2 and templates["Master"] != templates["Worker"]:
        notes.append("the template of Worker is used for all workers; that of Master differs and was dropped: compare them by hand")
    run = ("spec", "runPolicy")
    retry = _number(source.take("spec", "elasticPolicy", "maxRestarts"))
    backoff = _number(source.take(*run, "backoffLimit"))
    for key in ("rdzvBackend", "rdzvId", "rdzvHost", "rdzvPort", "rdzvConf", "nProcPerNode"):  # where ranks meet is the agent's
        if source.get("spec", "elasticPolicy", key) is not None:
            value = source.take("spec", "elasticPolicy", key)
            notes.append(f"elasticPolicy.{key} {value}: the agent gives MASTER_ADDR, MASTER_PORT and ranks")
    return {
        "workers": workers,
        "nprocPerNode": _nproc(source, notes, "spec", "nprocPerNode"),
        "maxRetry": retry if retry is not None else backoff,
        "suspend": source.take(*run, "suspend"),
        "cleanPodPolicy": _clean(source, *run, "cleanPodPolicy"),
        "ttlSecondsAfterFinished": _number(source.take(*run, "ttlSecondsAfterFinished")),
        "template": template,
    }


def _nproc(source: Source, notes: list[str], *path: str) -> int | None:
    value = source.take(*path)
    if (number := _number(value)) is None and value is not None:
        notes.append(f"{_text(path)} {value}: write the number of ranks per worker into nprocPerNode")
    return number


def _train(source: Source, notes: list[str]) -> Body:
    trainer = ("spec", "trainer")
    runtime = source.take("spec", "runtimeRef", "name")
    for key in ("apiGroup", "kind"):
        source.take("spec", "runtimeRef", key)
    container: Body = {"name": "train"}
    for key in ("image", "command", "args", "env", "envFrom"):
        if (value := source.take(*trainer, key)) is not None:
            container[key] = value
    if (resources := source.take(*trainer, "resourcesPerNode")) is not None:
        container["resources"] = resources
    notes.append(f"the runtime {runtime} is not read: what it adds (image, command, volumes, node selector) must stand in spec.template")
    given = source.take("spec", "labels"), source.take("spec", "annotations")
    metadata = {key: value for key, value in zip(("labels", "annotations"), given, strict=True) if value}
    return {
        "workers": _number(source.take(*trainer, "numNodes")) or 1,
        "nprocPerNode": _nproc(source, notes, *trainer, "numProcPerNode"),
        "suspend": source.take("spec", "suspend"),
        "template": {**({"metadata": metadata} if metadata else {}), "spec": {"containers": [container]}},
    }


def _jobset(source: Source, notes: list[str]) -> Body:
    jobs = source.get("spec", "replicatedJobs") or []
    if not jobs:
        raise NotConvertible("E117 spec.replicatedJobs is empty")
    sizes = [int(job.get("replicas", 1)) * int(_of(job, "parallelism", 1)) for job in jobs]
    index = max(range(len(jobs)), key=lambda at: sizes[at])
    at = ("spec", "replicatedJobs", index)
    if len(jobs) > 1:
        notes.append(f"{jobs[index].get('name', index)} is the training, being the largest; the other replicatedJobs are jobs of their own")
    source.take(*at, "name")
    source.take(*at, "replicas")
    for key in ("parallelism", "completions", "completionMode"):
        source.take(*at, "template", "spec", key)
    limit = _number(source.take(*at, "template", "spec", "backoffLimit"))
    retry = _number(source.take("spec", "failurePolicy", "maxRestarts"))
    return {
        "workers": sizes[index],
        "maxRetry": retry if retry is not None else limit,
        "suspend": source.take("spec", "suspend"),
        "ttlSecondsAfterFinished": _number(source.take("spec", "ttlSecondsAfterFinished")),
        "template": _template(source, notes, *at, "template", "spec", "template"),
    }


def _of(job: Mapping[str, Any], key: str, default: Any) -> Any:
    return ((job.get("template") or {}).get("spec") or {}).get(key, default)


def _volcano(source: Source, notes: list[str]) -> Body:
    tasks = source.get("spec", "tasks") or []
    if not tasks:
        raise NotConvertible("E117 spec.tasks is empty")
    workers, templates = 0, list[Body]()
    for index, task in enumerate(tasks):
        at = ("spec", "tasks", index)
        workers += int(source.take(*at, "replicas", default=1))
        source.take(*at, "name")
        if source.take(*at, "policies"):
            notes.append(f"policies of task {task.get('name', index)}: failures restart all workers and are counted, in place first")
        templates.append(_template(source, notes, *at, "template"))
    if any(template != templates[-1] for template in templates):
        notes.append("the template of the last task is used for all workers; the others differ and were dropped: compare them by hand")
    source.take("spec", "minAvailable")  # all or none, always
    if source.take("spec", "policies"):
        notes.append("policies: failures restart all workers and are counted, in place first")
    if priority := source.take("spec", "priorityClassName"):
        templates[-1]["spec"].setdefault("priorityClassName", priority)
    if scheduler := source.take("spec", "schedulerName"):
        templates[-1]["spec"].setdefault("schedulerName", scheduler)
    plugins = source.take("spec", "plugins") or {}
    if plugins:
        notes.append(f"plugins {', '.join(sorted(plugins))}: ranks, addresses and a headless service are the agent's and the controller's")
    return {
        "workers": workers,
        "maxRetry": _number(source.take("spec", "maxRetry")),
        "ttlSecondsAfterFinished": _number(source.take("spec", "ttlSecondsAfterFinished")),
        "template": templates[-1],
    }


KINDS: dict[tuple[str, str], Callable[[Source, list[str]], Body]] = {
    ("kubeflow.org", "PyTorchJob"): _pytorch,
    ("trainer.kubeflow.org", "TrainJob"): _train,
    ("jobset.x-k8s.io", "JobSet"): _jobset,
    ("batch.volcano.sh", "Job"): _volcano,
}
"""(API group, kind) -> what reads it."""
