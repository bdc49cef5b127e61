"""Where each worker goes: from what is known to what should be written. Pure: no clock, no bus; the same world gives the same plan in every replica.

Rules (a model holds the first ones: spec/AegisSpares.tla)
- A place is filled for attempt n when it holds none or a lower one, and that lower one is gone: by the state (`Pod.gone`) or by the node's daemon.
- Only the master raises attempts; this module never counts, declares dead or excludes.
- A node is usable for a job: registered, heard within 15 s, not tainted, not in the job's errorNodes or `exclude`, within `nodes` when given, of the
  GPU type asked for, with a free slot, and without another worker of the same job.
- A worker returns to the node it was on when that is usable (its checkpoints in memory and on local disk are there), else to the best by `preferred`:
  what a fault would cost decides. Who minds gets the nodes with the least risk (lemon's word, with the health of their links); who does not may have
  the doubtful ones, and takes them first, so that the others stay free. A node on which nobody's judgement lies is as good as any.
- The first placing of a job is all or nothing: two half-placed jobs would wait for each other. Later a lost worker is placed alone.
- A job that was brought back after a loss of the store begins nothing for a while: its workers run somewhere, and are recorded as they are heard of.
- Spares: for a job that asks for N, the first N nodes that are free and would take a worker of it are kept from jobs behind it in the order of
  placing. Nothing is written: a spare is a node that no place needs yet, a lost place takes it at once, and a more urgent job goes first.
- A plain job is placed once and never again. Slots that nobody is to hold any more are cleared; what still runs in a job that has ended, or of an
  attempt that the state has given up, is stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from aegis_proto.ids import pod_index, pod_name
from aegis_proto.lemon import DOUBTFUL
from aegis_proto.messages import Place, Slot, SlotStatus
from aegis_proto.phases import Mode
from aegis_proto.state import Pod

from aegis_jobcontroller.world import Holding, Job, Node, Placed, World, excluded, free, reported_key

LARGE = 16
"""Workers from which a job minds a doubtful node by itself: with so many, one node in twenty that fails is met more often than not."""
FOUND_AGAIN_WITHIN = 60.0
"""Seconds after a job that the store had lost was brought back, before a worker that no daemon has told of yet is started anew."""
LINGERS = 10.0
"""Seconds that a place waits for its old worker to be out of the slot, before its wish for that node is given up."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Put attempt `attempt` of `pod` on (`node`, `slot`). The sequences are what the write expects. `clear`: the other slot that it leaves."""

    job: str
    pod: str
    attempt: int
    node: str
    slot: str
    place_seq: int
    slot_seq: int
    clear: tuple[str, str, int] | None = None  # node, slot, expected sequence


@dataclass(frozen=True, slots=True)
class Stop:
    """End what runs in a slot; the record stays, so that its end is told."""

    node: str
    slot: str
    slot_seq: int
    content: Slot


@dataclass(frozen=True, slots=True)
class Release:
    """The slot is nobody's any more. The worker's files stay on its node for reading."""

    node: str
    slot: str
    slot_seq: int


@dataclass(frozen=True, slots=True)
class Retire:
    """The place of a job that has ended: written once more, released, to be forgotten by the store in time."""

    job: str
    place: Place
    place_seq: int


Action = Assign | Stop | Release | Retire


@lru_cache(maxsize=65536)
def natural(name: str) -> tuple[object, ...]:
    """Sort key that puts n2 before n10."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


Todo = tuple[int, Pod, Placed | None]
"""A place to fill: index, pod, the placement before."""


def waiting(job: Job, world: World) -> Iterator[Todo]:
    """Places to fill, in pod order. Also those whose previous attempt still lives."""
    head = job.head
    if head.phase.terminal or head.suspended:
        return
    for index, pod in enumerate(job.pods):
        before = world.places.get((head.job, pod_name(index)))
        if before is None:
            if not pod.present:
                yield index, pod, None
        elif before.place.attempt < pod.attempt and before.place.uid == head.uid and not pod.present and head.mode is Mode.MANAGED:
            yield index, pod, before


def may_place(pod: Pod, before: Placed | None, world: World) -> bool:
    """The previous attempt is gone (or there was none)."""
    return before is None or pod.gone or world.gone(before)


def refusal(job: Job, node: Node, world: World, taken: frozenset[tuple[str, str]] | set[tuple[str, str]]) -> tuple[str, str] | None:
    """Why this node cannot take one more worker of this job: (code, detail), None when it can. `taken`: slots given away in this plan."""
    if not node.alive:
        return "silent", f"not heard for {node.silent_for:.0f} s"
    if excluded(node.taint, world.now):
        return "excluded", node.taint.reason if node.taint is not None else ""
    if (error := next((e for e in job.head.errorNodes if e.name == node.name and e.avoided(world.now)), None)) is not None:
        return "errorNode", error.reason
    if node.name in job.spec.exclude or (job.spec.nodes and node.name not in job.spec.nodes):
        return "notAsked", ""
    if job.spec.gpuType and job.spec.gpuType != node.spec.gpuType:
        return "gpuType", node.spec.gpuType or "none"
    if any(node.holding(slot).slot.job == job.head.job for slot in node.names()):
        return "sameJob", ""
    if not any(free(node, slot) and (node.name, slot) not in taken for slot in node.names()):
        unclean = [node.reported(slot) for slot in node.names() if not node.reported(slot).clean]
        if unclean:
            return "unclean", unclean[0].message
        return "busy", ", ".join(sorted({node.holding(slot).slot.job for slot in node.names()} - {""}))
    return None


def plan(world: World) -> list[Action]:
    """Everything that should be written now, in order: what ends first, then what is taken as it is, then what begins."""
    nodes = sorted(world.nodes.values(), key=lambda node: natural(node.name))
    claims = list(_claims(world, nodes))
    adopted = list(_adoptions(world, claims))
    spared = {(assign.node, assign.slot) for assign in adopted}
    ending = [action for action in _endings(world, nodes) if isinstance(action, Retire) or (action.node, action.slot) not in spared]
    return [*ending, *adopted, *(_beginnings(world, adopted, claims) if world.settled else ())]


# --- adoptions -----------------------------------------------------------------------------------------------------------------


Claim = tuple[Node, SlotStatus, Job]
"""What a daemon says that runs: its node, its word, the job."""


def _adoptions(world: World, claims: Iterable[Claim]) -> Iterator[Assign]:
    """Workers that run though no record says so: the store was restored from an older copy. They are recorded where they are, and train on.

    A daemon's word alone moves nobody: only the attempt that the state names is recorded, and only where there is no record to overrule.
    """
    done: set[tuple[str, str]] = set()
    for node, status, job in claims:
        pod, placed = (status.job, status.pod), world.places.get((status.job, status.pod))
        held = node.holding(status.slot).slot
        mine = status.slot in node.names() and (held.job, held.pod) in (("", ""), pod)
        if mine and pod not in done and status.attempt == job.pods[pod_index(status.pod)].attempt:
            done.add(pod)
            seq = placed.seq if placed is not None else 0
            yield Assign(*pod, status.attempt, node.name, status.slot, seq, node.holding(status.slot).seq)


def _claims(world: World, nodes: Iterable[Node]) -> Iterator[Claim]:
    """What daemons say that runs, of attempts that no record is as new as, where such a word may count: nothing is on record, the agent itself
    has told the state that it runs there, or the job asks everybody what runs."""
    for node in nodes:
        for status in node.status.slots if node.status is not None and node.alive and not node.rebooted else ():
            job = world.jobs.get(status.job)
            if status.state != "running" or job is None or job.head.phase.terminal or job.head.uid != status.uid:
                continue
            index = pod_index(status.pod)
            if index >= len(job.pods) or status.attempt < job.pods[index].attempt:
                continue
            placed, pod = world.places.get((status.job, status.pod)), job.pods[index]
            told = pod.present and pod.node == node.name and pod.attempt == status.attempt
            if placed is None or (placed.place.attempt < status.attempt and (told or job.head.adopting)):
                yield node, status, job


# --- endings -------------------------------------------------------------------------------------------------------------------


def _endings(world: World, nodes: Iterable[Node]) -> Iterator[Action]:
    for node in nodes:
        for slot in node.names():
            action = _ending(world, node, slot)
            if action is not None:
                yield action
    for (job_id, _), placed in sorted(world.places.items()):
        job, node_ = world.jobs.get(job_id), world.nodes.get(placed.place.node)
        held = node_ is not None and node_.holding(placed.place.slot).key == placed.key
        if job is not None and job.head.phase.terminal and not held:
            yield Retire(job_id, placed.place, placed.seq)


def _ending(world: World, node: Node, slot: str) -> Action | None:
    """What to do with a slot whose holder is not to be there any more. Of a job that cannot be read nothing is touched."""
    holding = node.holding(slot)
    job = world.jobs.get(holding.slot.job)
    if holding.key is None or job is None:
        return None
    placed = world.places.get((holding.slot.job, holding.slot.pod))
    if placed is None or placed.key != holding.key:
        return Release(node.name, slot, holding.seq)  # another attempt has the place: the daemon ends what may still run here
    status = node.reported(slot)
    ended = reported_key(status) == holding.key and status.state == "gone"
    if job.head.phase.terminal:
        if ended:
            return Release(node.name, slot, holding.seq)
        over = job.ended_for >= job.stop_after
    else:
        index = pod_index(holding.slot.pod)
        over = not ended and index < len(job.pods) and job.pods[index].attempt > placed.place.attempt
    if over and not holding.slot.stop:
        return Stop(node.name, slot, holding.seq, holding.slot)
    return None


# --- beginnings ----------------------------------------------------------------------------------------------------------------


def _beginnings(world: World, adopted: Sequence[Assign], claims: Iterable[Claim]) -> list[Action]:
    taken = {(assign.node, assign.slot) for assign in adopted}
    found_again = {(status.job, status.pod) for _, status, _ in claims}  # those of a later attempt wait until the state names it
    load = {node.name: sum(node.holding(slot).key is not None for slot in node.names()) for node in world.nodes.values()}
    actions: list[Action] = []
    for job in sorted(world.jobs.values(), key=turn):
        found = _place_job(job, world, taken, load, found_again)
        taken |= {(assign.node, assign.slot) for assign in found}
        for assign in found:
            load[assign.node] += 1
        actions += found
        taken |= {(name, slot) for name in spares(job, world, taken) for slot in world.nodes[name].names()}
    return actions


def turn(job: Job) -> tuple[int, int, str]:
    """Sort key of the order in which jobs are placed, and in which they keep spares."""
    return -job.spec.priority, job.head.createdAt, job.head.job


def kept(job: Job, world: World) -> dict[str, str]:
    """Nodes that are kept as spares of jobs before this one: name -> whose."""
    taken: set[tuple[str, str]] = set()
    found: dict[str, str] = {}
    for other in sorted((other for other in world.jobs.values() if turn(other) < turn(job)), key=turn):
        for name in spares(other, world, taken):
            found[name] = other.head.job
            taken |= {(name, slot) for slot in world.nodes[name].names()}
    return found


def spares(job: Job, world: World, taken: set[tuple[str, str]]) -> list[str]:
    """Names of the nodes that are kept free for this job, at most as many as it asks for."""
    head = job.head
    if not job.spec.spares or head.phase.terminal or head.suspended or head.mode is not Mode.MANAGED:
        return []
    whole = [node for node in world.nodes.values() if all(free(node, slot) and (node.name, slot) not in taken for slot in node.names())]
    good = [node for node in whole if refusal(job, node, world, taken) is None]
    return [node.name for node in sorted(good, key=lambda node: (node.doubt >= DOUBTFUL, natural(node.name)))][: job.spec.spares]


def _place_job(job: Job, world: World, taken: set[tuple[str, str]], load: dict[str, int], found_again: set[tuple[str, str]]) -> list[Assign]:
    if job.head.adopting and world.now - job.head.createdAt < FOUND_AGAIN_WITHIN * 1000:
        return []
    todo = [
        (index, pod, before)
        for index, pod, before in waiting(job, world)
        if may_place(pod, before, world) and (job.head.job, pod_name(index)) not in found_again and not _lingers(job, pod, before, world, taken)
    ]
    if not todo:
        return []
    usable = preferred(job, [node for node in world.nodes.values() if refusal(job, node, world, taken) is None], load)
    chosen: dict[int, str] = {}
    used: set[str] = set()
    for index, pod, before in todo:
        for name in (pod.pin, before.place.node if before is not None else ""):
            back = before is not None and before.place.node == name and _can_return(job, before, world, taken)
            if name and name not in used and (back or name in usable):
                chosen[index] = name
                used.add(name)
                break
    rest = iter([name for name in usable if name not in used])
    for index, _, _ in todo:
        if index not in chosen and (name := next(rest, "")):
            chosen[index] = name
    first = len(todo) == len(job.pods) and not any((job.head.job, pod_name(i)) in world.places for i in range(len(job.pods)))
    if first and len(chosen) < len(job.pods):
        return []
    return [_assign(job, entry, chosen[entry[0]], world, taken) for entry in todo if entry[0] in chosen]


def care(job: Job) -> int:
    """How much a job minds a doubtful node: 1 it wants the best (it says so, is large or urgent), 0 as they come, -1 it takes what others mind.

    A large job never takes doubtful ones for liking: it meets as many faults as it has nodes.
    """
    spec = job.spec
    if spec.riskTolerance == "low":
        return 1
    if spec.riskTolerance == "high":
        return -1 if spec.workers < LARGE else 0
    return 1 if spec.workers >= LARGE or spec.priority > 0 else 0


def preferred(job: Job, usable: Iterable[Node], load: Mapping[str, int]) -> list[str]:
    """Names of nodes, best first for this job. Without a word about risk: the emptiest, then by name."""
    minds = care(job)

    def key(node: Node) -> tuple[object, ...]:
        doubtful = node.doubt >= DOUBTFUL
        if minds > 0:
            return (round(node.doubt, 2), load[node.name], natural(node.name))
        return (doubtful if minds == 0 else not doubtful, load[node.name], natural(node.name))

    return [node.name for node in sorted(usable, key=key)]


def _can_return(job: Job, before: Placed, world: World, taken: set[tuple[str, str]]) -> bool:
    """The slot of the attempt before is still this job's, is empty of processes, and its node is fine."""
    node = world.nodes.get(before.place.node)
    return node is not None and refusal(job, _vacated(node, before), world, taken) is None


def _lingers(job: Job, pod: Pod, before: Placed | None, world: World, taken: set[tuple[str, str]]) -> bool:
    """A fresh container is wished for on the node of the attempt before, which has told that it leaves and has not left its slot yet."""
    node = world.nodes.get(before.place.node) if before is not None else None
    if node is None or before is None or pod.pin != node.name or world.now - pod.ts >= LINGERS * 1000:
        return False
    status, vacated = node.reported(before.place.slot), _vacated(node, before)
    why = refusal(job, vacated, world, taken)
    return why is not None and why[0] == "busy" and reported_key(status) == before.key and status.state != "gone"


def _vacated(node: Node, before: Placed) -> Node:
    """The node as it will be when the slot of that attempt is given up."""
    if node.holding(before.place.slot).key != before.key:
        return node
    return replace(node, slots={**node.slots, before.place.slot: Holding(Slot(), node.holding(before.place.slot).seq)})


def _assign(job: Job, todo: Todo, name: str, world: World, taken: set[tuple[str, str]]) -> Assign:
    index, pod, before = todo
    node = world.nodes[name]
    clear: tuple[str, str, int] | None = None
    if before is not None:
        old = world.nodes.get(before.place.node)
        if old is not None and old.holding(before.place.slot).key == before.key:
            clear = (old.name, before.place.slot, old.holding(before.place.slot).seq)
            node = _vacated(node, before) if old.name == name else node
    slot = next(s for s in node.names() if free(node, s) and (name, s) not in taken)
    if clear is not None and clear[:2] == (name, slot):
        clear = None
    return Assign(job.head.job, pod_name(index), pod.attempt, name, slot, before.seq if before is not None else 0, node.holding(slot).seq, clear)
