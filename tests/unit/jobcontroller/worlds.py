"""Small worlds for the tests of the plan and of the facts."""

from __future__ import annotations

from typing import Any

from aegis_jobcontroller.world import Holding, Job, Node, Placed, World
from aegis_proto.ids import pod_name
from aegis_proto.messages import NodeSpec, NodeStatus, Place, Slot, SlotStatus
from aegis_proto.phases import Mode, Phase
from aegis_proto.state import ErrorNode, Head, JobSpec, Pod

NOW = 1_800_000_000_000


def make_job(name: str = "job-a", workers: int = 3, pods: dict[int, dict[str, Any]] | None = None, **options: Any) -> Job:
    """A job; `pods`: changed fields by index; `errors`: names of errorNodes; `spec`: fields of its specification; the rest: fields of the head."""
    errors = tuple(ErrorNode(node, "gpuLost", NOW) for node in options.pop("errors", ()))
    spec = JobSpec(name, ("true",), workers=workers, **options.pop("spec", {}))
    ended_for = options.pop("ended_for", -1.0)
    head = Head(name, name, "default", f"uid-{name}", workers, 3, errorNodes=errors, **options)
    made = tuple(Pod(**(pods or {}).get(i, {})) for i in range(workers))
    return Job(head, made, spec, 1, ended_for)


def make_node(name: str, slots: int = 1, status: dict[str, SlotStatus] | None = None, **options: Any) -> Node:
    holdings = options.pop("holdings", {})
    spec = NodeSpec(name, slots=slots, boot="boot-1", addr=f"addr-{name}", **options.pop("spec", {}))
    told = tuple((status or {}).get(str(i), SlotStatus(str(i))) for i in range(slots))
    return Node(spec, NodeStatus(name, options.pop("boot", "boot-1"), 1, told), options.pop("alive", True), slots=holdings, **options)


def at(job: Job, index: int, node: str, attempt: int = 1, slot: str = "0", *, seq: int = 7) -> tuple[tuple[str, str], Placed]:
    """A placement, as an entry of `places`."""
    return (job.head.job, pod_name(index)), Placed(Place(job.head.uid, pod_name(index), attempt, node, slot, NOW), seq)


def held(job: Job, index: int, attempt: int = 1, seq: int = 7, stop: bool = False) -> Holding:
    return Holding(Slot(job.head.job, job.head.uid, "default", pod_name(index), attempt, stop=stop), seq)


def told(job: Job, index: int, state: str, attempt: int = 1, slot: str = "0", **values: Any) -> SlotStatus:
    return SlotStatus(slot, job.head.job, job.head.uid, pod_name(index), attempt, state, **values)


def running(job: Job, index: int, name: str, attempt: int = 1, state: str = "running", **values: Any) -> Node:
    """A node with one slot that holds this worker."""
    options = {key: values.pop(key) for key in ("alive", "silent_for", "taint", "boot", "spec") if key in values}
    return make_node(name, 1, {"0": told(job, index, state, attempt, **values)}, holdings={"0": held(job, index, attempt)}, **options)


def make_world(jobs: list[Job], nodes: list[Node], places: list[tuple[tuple[str, str], Placed]] | None = None) -> World:
    return World({job.head.job: job for job in jobs}, dict(places or ()), {node.name: node for node in nodes}, NOW)


RUNS = dict(phase=Phase.RUN_COMMAND, started=True)
RESTARTS = dict(phase=Phase.RESTARTING, started=True)
PLAIN = dict(mode=Mode.PLAIN, phase=Phase.RUN_COMMAND, started=True)
HERE = dict(boot="b1", node="x", placed=True)
