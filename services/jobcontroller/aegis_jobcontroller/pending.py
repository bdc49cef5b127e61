"""Why a job still waits, in the words of E113, and what people see of a node. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from aegis_proto.api_nodes import JobPending, NodeInfo, NodeRefusal, SlotInfo, WorkerRecord
from aegis_proto.ids import pod_name
from aegis_proto.messages import SlotStatus

from aegis_jobcontroller.plan import kept, may_place, natural, refusal, waiting
from aegis_jobcontroller.world import Job, Node, World, excluded, free, reported_key

WORDS = {
    "excluded": "excluded",
    "silent": "silent",
    "errorNode": "failed in this job",
    "notAsked": "not asked for",
    "busy": "busy",
    "kept": "kept as a spare",
    "unclean": "with processes that do not die",
    "gpuType": "of another GPU type",
}
EXAMPLES = 3


def pending(job: Job, world: World) -> JobPending | None:
    """Which places wait and why; None when none does."""
    todo = list(waiting(job, world))
    if not todo:
        return None
    ready = [index for index, pod, before in todo if may_place(pod, before, world)]
    stopping = [pod_name(index) for index, pod, before in todo if not may_place(pod, before, world)]
    refusals, usable, spared = [], 0, kept(job, world)
    for node in sorted(world.nodes.values(), key=lambda n: natural(n.name)):
        why = refusal(job, node, world, set()) or (("kept", f"job {spared[node.name]}") if node.name in spared else None)
        if why is None or why[0] == "sameJob":
            usable += 1
        else:
            refusals.append(NodeRefusal(node.name, why[0], why[1]))
    short = bool(ready) and usable < len(job.pods)
    return JobPending(
        job.head.job,
        job.head.namespace,
        len(job.pods),
        tuple(pod_name(index) for index, _, _ in todo[:16]),
        len(todo),
        tuple(stopping[:16]),
        usable,
        tuple(refusals[:64]),
        "E113" if short else "",
        sentence(job, world, usable, refusals) if short else _waits(stopping),
    )


def _waits(stopping: list[str]) -> str:
    return f"waits until the processes of {', '.join(stopping[:8])} are verified gone" if stopping else ""


def sentence(job: Job, world: World, usable: int, refusals: list[NodeRefusal]) -> str:
    """`E113 8 workers asked, 6 nodes usable: 1 excluded (cn-114, XID 79, until Mon 11:42), 1 busy (job llm-2). aegis node ls`"""
    text = f"E113 {len(job.pods)} workers asked, {usable} {'node' if usable == 1 else 'nodes'} usable"
    groups: dict[str, list[NodeRefusal]] = {}
    for entry in refusals:
        groups.setdefault(entry.why, []).append(entry)
    parts = []
    for why, entries in groups.items():
        shown = "; ".join(_detail(entry, world) for entry in entries[:EXAMPLES])
        parts.append(f"{len(entries)} {WORDS[why]} ({shown}{'; ...' if len(entries) > EXAMPLES else ''})")
    if not world.nodes:
        parts.append("no node daemon has registered")
    elif all(node.spec.virtual for node in world.nodes.values()):
        parts.append("one worker per node; these are virtual nodes of one machine: aegis up --nodes N makes more")
    return text + (f": {', '.join(parts)}" if parts else "") + ". aegis node ls"


def _detail(entry: NodeRefusal, world: World) -> str:
    taint = world.nodes[entry.node].taint
    if entry.why == "excluded" and taint is not None:
        until = f"until {datetime.fromtimestamp(taint.until / 1000, UTC):%a %H:%M} UTC" if taint.until else "until lifted"
        return ", ".join(filter(None, (entry.node, taint.reason, until)))
    if entry.why == "busy":
        return f"{entry.node}, job {entry.detail}" if entry.detail else entry.node
    return ", ".join(filter(None, (entry.node, entry.detail)))


def record(job: Job, world: World) -> Iterator[WorkerRecord]:
    """Where the workers of a job were placed, and what the daemons there say of them."""
    for index in range(len(job.pods)):
        placed = world.places.get((job.head.job, pod_name(index)))
        if placed is None:
            continue
        place, node = placed.place, world.nodes.get(placed.place.node)
        status = node.reported(place.slot) if node is not None else SlotStatus(place.slot)
        mine = reported_key(status) == placed.key
        state = status.state if mine else "released" if place.released else "starting" if node is not None else "on a node that is not known"
        ended = f"exit code {status.exitCode}" if mine and status.exitCode is not None else ""
        silent = f"its daemon is silent for {node.silent_for:.0f} s" if node is not None and not node.alive else ""
        words = "; ".join(filter(None, (ended, status.message if mine else "", silent)))
        yield WorkerRecord(place.pod, place.attempt, place.node, f"slot {place.slot}", place.at, state, words[:300])


def describe(node: Node, world: World, namespace: str = "") -> NodeInfo:
    """A node for people. With a namespace: jobs of other namespaces are not named."""

    def name_of(job: str) -> str:
        known = world.jobs.get(job)
        return job if not namespace or (known is not None and known.head.namespace == namespace) else ""

    slots, jobs = [], []
    for slot in node.names():
        status, wanted = node.reported(slot), node.holding(slot)
        mine = reported_key(status) == wanted.key or wanted.key is None
        job = name_of(wanted.slot.job or status.job)
        shown = bool(job) or not (wanted.slot.job or status.job)
        if job and wanted.slot.job:
            jobs.append(job)
        slots.append(
            SlotInfo(
                slot,
                job,
                (wanted.slot.pod or status.pod) if shown else "",
                (wanted.slot.attempt or status.attempt) if shown else 0,
                status.state if mine else "starting",
                status.pid if mine and shown else 0,
                status.exitCode if mine and shown else None,
                status.clean,
                status.message if mine and shown else "",
            )
        )
    taint = node.taint if excluded(node.taint, world.now) else None
    unclean = any(not node.reported(slot).clean for slot in node.names())
    return NodeInfo(
        node.name,
        node.spec.host,
        node.spec.addr,
        "silent" if not node.alive else "excluded" if taint is not None else "unclean" if unclean else "ok",
        round(node.silent_for, 1),
        tuple(slots),
        sum(free(node, slot) for slot in node.names()),
        tuple(sorted(set(jobs))),
        node.spec.gpus,
        node.spec.gpuType,
        node.spec.virtual,
        node.spec.version,
        taint is not None,
        taint.reason if taint is not None else "",
        taint.by if taint is not None else "",
        taint.until if taint is not None else 0,
        node.spec.labels,
        node.doubt,
        node.risk.why if node.risk is not None else "",
    )
