"""The state being made in one step: a private, mutable holder of immutable parts.

Owns the bookkeeping that must never be forgotten: `head.tally` and `head.counts` follow every change of a pod, and a shard is a new object exactly
when a pod in it changed. Reads and writes nothing outside; lives no longer than one call of `machine.step`.
"""

from __future__ import annotations

from collections.abc import Callable

from aegis_proto.state import SHARD, Head, JobSpec, JobState, Pod, Tally
from msgspec.structs import replace

from aegis_master.events import Dropped, Effect, Note


def tally_of(pods: tuple[tuple[Pod, ...], ...]) -> Tally:
    """The tally by a walk over all pods: the definition of what `Draft.put` keeps up to date."""
    filled = placed = finished = answered = failing = quitting = marked = hung = 0
    for shard in pods:
        for pod in shard:
            filled += pod.boot != ""
            placed += pod.placed
            finished += pod.finished
            answered += pod.finished or pod.errored
            failing += pod.errored or pod.failed != ""
            quitting += pod.toQuit
            marked += pod.mark != ""
            hung += pod.mark == "hang"
    return Tally(filled, placed, finished, answered, failing, quitting, marked, hung)


def counts_of(pods: tuple[tuple[Pod, ...], ...]) -> dict[str, int]:
    """Pods per innerPhase, phases without a pod left out."""
    counts: dict[str, int] = {}
    for shard in pods:
        for pod in shard:
            counts[pod.innerPhase.value] = counts.get(pod.innerPhase.value, 0) + 1
    return counts


def _flags(pod: Pod) -> tuple[bool, ...]:
    return (
        pod.boot != "",
        pod.placed,
        pod.finished,
        pod.finished or pod.errored,
        pod.errored or pod.failed != "",
        pod.toQuit,
        pod.mark != "",
        pod.mark == "hang",
    )


class Draft:
    """`head`, `shards` and `effects` of the step that runs now; `now` in ms since 1970."""

    __slots__ = ("effects", "head", "now", "shards", "spec")

    def __init__(self, state: JobState, now: int) -> None:
        self.head: Head = state.head
        self.shards: tuple[tuple[Pod, ...], ...] = state.shards
        self.spec: JobSpec = state.spec
        self.now = now
        self.effects: list[Effect] = []

    def state(self) -> JobState:
        return JobState(self.head, self.shards, self.spec)

    def pod(self, index: int) -> Pod:
        return self.shards[index // SHARD][index % SHARD]

    def put(self, index: int, new: Pod) -> None:
        """Replace one pod; O(shard), never O(job)."""
        k, i = divmod(index, SHARD)
        shard = self.shards[k]
        old = shard[i]
        if new == old:
            return
        self.shards = (*self.shards[:k], (*shard[:i], new, *shard[i + 1 :]), *self.shards[k + 1 :])
        before, after = _flags(old), _flags(new)
        if before != after:
            tally = self.head.tally
            values = (tally.filled, tally.placed, tally.finished, tally.answered, tally.failing, tally.quitting, tally.marked, tally.hung)
            self.head = replace(self.head, tally=Tally(*(v + a - b for v, b, a in zip(values, before, after, strict=True))))
        if new.innerPhase is not old.innerPhase:
            counts = dict(self.head.counts)
            counts[old.innerPhase.value] -= 1
            if not counts[old.innerPhase.value]:
                del counts[old.innerPhase.value]
            counts[new.innerPhase.value] = counts.get(new.innerPhase.value, 0) + 1
            self.head = replace(self.head, counts=counts)

    def change(self, index: int, **changes: object) -> None:
        """`put` of the present pod with some fields changed, dated now."""
        self.put(index, replace(self.pod(index), ts=self.now, **changes))

    def each(self, new: Callable[[Pod], Pod]) -> None:
        """Replace every pod: once per round, O(job). A pod returned as it is keeps its object, and an untouched shard too."""
        shards = []
        for shard in self.shards:
            made = tuple(map(new, shard))
            shards.append(shard if all(a is b for a, b in zip(made, shard, strict=True)) else made)
        self.shards = tuple(shards)
        self.set(tally=tally_of(self.shards), counts=counts_of(self.shards))

    def where(self, wanted: Callable[[Pod], bool]) -> list[int]:
        """Indices of the pods that are wanted, ascending; O(job)."""
        return [k * SHARD + i for k, shard in enumerate(self.shards) for i, pod in enumerate(shard) if wanted(pod)]

    def set(self, **changes: object) -> None:
        """Change fields of the head."""
        self.head = replace(self.head, **changes)

    def note(self, kind: str, message: str, index: int | None = None, counted: bool = False, **details: str) -> None:
        self.effects.append(Note(kind, message, index, counted, details, self.now))

    def drop(self, why: str) -> None:
        self.effects.append(Dropped(why))
