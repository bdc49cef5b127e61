"""What the platform can say about the workers that are placed: facts for the masters, derived from the present world. Pure.

Level, not edge: the facts that hold now are derived anew each time, so that a crash loses none; `Teller` decides which of them must be said (again).
A fact is never an opinion: gone is said when the daemon has verified it, silence is said as silence. Nothing here counts or declares dead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from aegis_proto.ids import pod_index
from aegis_proto.messages import Fact, encode
from aegis_proto.phases import FactKind, Mode
from aegis_proto.state import Pod

from aegis_jobcontroller.world import Job, Node, Placed, World, reported_key

REPEAT = 5.0
"""Seconds after which a fact that the state does not show yet is said again; doubles each time up to REPEAT_MAX."""
REPEAT_MAX = 120.0
SILENT_REPEAT = 60.0
"""Silence is not kept in the state: said again this often while it lasts, so that a master that took over hears it."""


@dataclass(frozen=True, slots=True)
class News:
    """A fact about `pod` of `job` that holds now. `until_seen`: to be repeated until the state shows it. `era`: of the store, as the job knows it."""

    job: str
    pod: str
    fact: Fact
    until_seen: bool = False
    era: str = ""

    @property
    def msg_id(self) -> str:
        """The same content has the same id, from whichever replica. The uid of the job makes it unguessable.

        The owner of a job that takes up a new era passes over what the store holds then: what was said before that must not count as said.
        """
        return hashlib.sha256(b"\0".join((self.job.encode(), self.pod.encode(), self.era.encode(), encode(self.fact)))).hexdigest()[:40]

    @property
    def topic(self) -> tuple[str, str, int, FactKind]:
        return (self.job, self.pod, self.fact.attempt, self.fact.kind)


def facts(world: World) -> Iterator[News]:
    """Every fact that holds now, of jobs that have not ended."""
    for (job_id, pod), placed in world.places.items():
        job = world.jobs.get(job_id)
        if job is None or job.head.phase.terminal or placed.place.uid != job.head.uid:
            continue
        index = pod_index(pod)
        if index < len(job.pods):
            yield from _of_place(world, job, job.pods[index], placed)


def _of_place(world: World, job: Job, state: Pod, placed: Placed) -> Iterator[News]:
    place = placed.place
    node = world.nodes.get(place.node)
    older = place.attempt < state.attempt
    if place.attempt > state.attempt or (older and (state.gone or state.present)):
        return

    def news(kind: FactKind, until_seen: bool = False, **values: object) -> News:
        return News(job.head.job, place.pod, Fact(kind, place.uid, place.attempt, place.node, **values), until_seen, job.head.era)  # type: ignore[arg-type]

    if node is None:
        return
    if state.finished or (job.head.mode is Mode.PLAIN and state.exitCode is not None):
        return  # the state has its end
    status = node.reported(place.slot)
    if reported_key(status) != placed.key:
        if world.gone(placed) or _given_away(node, placed):
            yield news(FactKind.GONE, True, message="its slot was given to another worker, which starts only when this one is gone")
        elif not older:
            yield news(FactKind.PLACED, at=place.at)
        return
    plain = status.plain and job.head.mode is Mode.MANAGED
    if status.state == "gone" and plain and not job.head.started:
        # it ran and ended before anybody could be told: first the job becomes plain, then this end is the end of a plain worker
        yield news(FactKind.PLAIN, True, at=status.at, message=status.message)
        return
    if status.state == "gone":
        yield news(
            FactKind.GONE,
            True,
            exitCode=status.exitCode,
            signal=status.signal,
            at=status.at,
            message=status.message,
            lastWord=status.lastWord,
            clean=status.clean,
            notStarted=status.notStarted,
        )
        return
    if node.rebooted:
        kind = FactKind.GONE if older else FactKind.NODE_LOST
        yield news(kind, True, at=node.spec.at, message="the machine was started anew: nothing of before can live")
        return
    if older:
        return
    if plain:
        yield news(FactKind.PLAIN, True, at=status.at, message=status.message)
    if node.alive:
        yield news(FactKind.RUNNING, not state.placed, at=status.at)
    elif node.silent:
        yield news(FactKind.NODE_SILENT, message=f"node {node.name} is silent")


def _given_away(node: Node, placed: Placed) -> bool:
    """Somebody emptied the slot by hand, and the daemon holds nothing of this attempt."""
    return node.alive and node.status is not None and node.holding(placed.place.slot).key is None


class Teller:
    """Which facts must be said now. Memory of one replica: what it said and when. Losing it costs repeats, never a fact."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str, int, FactKind], tuple[str, float, float]] = {}  # topic -> msg_id, when, wait
        self._silent: set[tuple[str, str, int]] = set()

    def due(self, holding: Iterable[News], now: float, now_ms: int) -> list[News]:
        """`now`: seconds of a monotonic clock; `now_ms`: ms since 1970, dates what has no date of its own. Mark what was sent with `said`."""
        result = []
        held = set()
        for item in holding:
            held.add(item.topic)
            who = (item.job, item.pod, item.fact.attempt)
            said = self._said.get(item.topic)
            if item.fact.kind is FactKind.RUNNING and who in self._silent:
                result.append(_dated(item, now_ms, "confirmed again after silence"))
            elif item.fact.kind is FactKind.NODE_SILENT:
                bucket = int(now_ms / 1000 // SILENT_REPEAT * SILENT_REPEAT * 1000)
                if said is None or now - said[1] >= SILENT_REPEAT:
                    result.append(_dated(item, bucket, item.fact.message))
            elif said is None or (item.until_seen and (said[0] != item.msg_id or now - said[1] >= said[2])):
                result.append(item)
        self._forget(held)
        return result

    def said(self, item: News, now: float) -> None:
        """`item` was acknowledged by the bus."""
        before = self._said.get(item.topic)
        wait = min(REPEAT_MAX, before[2] * 2) if before is not None and before[0] == item.msg_id else REPEAT
        self._said[item.topic] = (item.msg_id, now, wait)
        who = (item.job, item.pod, item.fact.attempt)
        if item.fact.kind is FactKind.NODE_SILENT:
            self._silent.add(who)
            self._said.pop((*who, FactKind.RUNNING), None)
        elif item.fact.kind is FactKind.RUNNING:
            self._silent.discard(who)
            self._said.pop((*who, FactKind.NODE_SILENT), None)

    def _forget(self, held: set[tuple[str, str, int, FactKind]]) -> None:
        """Keep memory of placements that still exist only."""
        if len(self._said) > 2 * len(held) + 1000:
            alive = {topic[:3] for topic in held}
            self._said = {topic: value for topic, value in self._said.items() if topic[:3] in alive}
            self._silent &= alive


def _dated(item: News, at: int, message: str) -> News:
    fact = item.fact
    return replace(item, fact=Fact(fact.kind, fact.uid, fact.attempt, fact.node, at=at, message=message))
