"""Faults of our own making: each takes one rule out of the real code, and the simulation must notice. Data, and the patches it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aegis_agent.worker
import aegis_jobcontroller.plan
import aegis_master.counting
import aegis_master.reports
import aegis_master.rounds
from aegis_agent.orders import Decision, Rank, Verdict
from aegis_bus.connection import PubAck
from aegis_bus.jobstore import JobStore, Loaded
from aegis_master.draft import Draft
from aegis_master.owner import JobOwner
from aegis_proto.phases import LostReason, Phase
from aegis_proto.state import Head, JobState
from simulation import patches

Put = Callable[[Any, str, Any], None]


def no_fence(put: Put) -> None:
    """A commit no longer expects the head that was read."""
    publish, batch = patches.Bus.publish, patches.Bus.batch

    async def careless_publish(self: patches.Bus, subject: str, data: bytes, **options: Any) -> PubAck:
        if subject.endswith(".state"):
            options.pop("expect", None)
        return await publish(self, subject, data, **options)

    async def careless_batch(self: patches.Bus, items: Any, **options: Any) -> PubAck:
        return await batch(self, [(s, d, None if s.endswith(".state") else expect) for s, d, expect in items], **options)

    put(patches.Bus, "publish", careless_publish)
    put(patches.Bus, "batch", careless_batch)


def cursor_not_in_the_commit(put: Put) -> None:
    """What was read is not part of what is stored: the next owner reads it again."""
    commit = JobOwner._commit

    async def forgetful(self: JobOwner, state: JobState) -> None:
        await commit(self, state.with_head(cursor=self.loaded.state.head.cursor))

    put(JobOwner, "_commit", forgetful)


def stale_reports_taken(put: Put) -> None:
    """A report of any round, incarnation, attempt and boot is an answer to the present round."""
    put(aegis_master.reports, "_stale", lambda draft, pod, event: "answered" if pod.finished or pod.errored else "")


def counted_twice(put: Put) -> None:
    """A loss while the job recovers is counted too."""
    feed, count = aegis_master.counting.feed, aegis_master.counting.count

    def feeds_and_counts(draft: Draft, index: int) -> bool:
        draft.set(countedIncarnation=-1)
        count(draft, index, LostReason.KILLED)
        return feed(draft, index)

    put(aegis_master.counting, "feed", feeds_and_counts)


def aligned_early(put: Put) -> None:
    """Counts are aligned when the diagnosis begins, not when the command runs again."""
    enter = aegis_master.rounds._enter

    def enters_aligned(draft: Draft, target: Phase, *args: Any, **more: Any) -> None:
        enter(draft, target, *args, **more)
        if target is Phase.TROUBLESHOOTING:
            draft.each(lambda pod: aegis_master.counting.aligned(pod, draft.head.recoverCount))

    put(aegis_master.rounds, "_enter", enters_aligned)


def placed_before_gone(put: Put) -> None:
    """The next attempt starts though nobody has verified that the one before is gone."""
    put(aegis_jobcontroller.plan, "may_place", lambda pod, before, world: True)


def orders_of_others_obeyed(put: Put) -> None:
    """An agent acts on every order, also on one that names another attempt, and on one given before it was there."""

    def obeys(last: Rank, head: Head, *, uid: str, pod: str, attempt: int, born: Rank | None = None) -> Decision:
        rank = Rank(head.era, head.order.incarnation, head.order.seqNum)
        if rank == last:
            return Decision(Verdict.REPEAT, rank, head.order.phase)
        return Decision(Verdict.OBEY, rank, head.order.exceptions.get(pod, head.order.phase))

    put(aegis_agent.worker, "judge", obeys)


def budget_by_the_capped_count(put: Put) -> None:
    """The end of the budget is decided on recoverCount, which stops at maxRetry."""
    put(aegis_master.counting, "spent", lambda head: head.recoverCount > head.maxRetry)


def placing_without_deadline(put: Put) -> None:
    """Awaited pods are awaited for ever."""
    put(aegis_master.rounds, "await_places", lambda draft: draft.set(deadline=None))


def commits_over_any_connection(put: Put) -> None:
    """A commit that waited for a connection goes to whatever store it finds there."""

    async def unseen(self: JobStore, job: str, old: Loaded) -> int | None:
        return None

    put(JobStore, "_still", unseen)


@dataclass(frozen=True)
class Mutant:
    """`found_by`: the checks of which one must be the one that notices."""

    apply: Callable[[Put], None]
    found_by: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.apply.__name__


MUTANTS = (
    Mutant(no_fence, ("StaleNeverWrites",)),
    Mutant(cursor_not_in_the_commit, ("CountOnce",)),
    Mutant(stale_reports_taken, ("StaleFinishRejected", "SucceedIsTrue", "StaleErrorOnlyMovesACount")),
    Mutant(counted_twice, ("CountOncePerIncarnation",)),
    Mutant(aligned_early, ("CountExact", "RecoverIsMax")),
    Mutant(placed_before_gone, ("OnePodPerPlace", "OneIncarnationRuns")),
    Mutant(orders_of_others_obeyed, ("OnePodPerPlace", "OneIncarnationRuns", "NobodyRunsAlone")),
    Mutant(budget_by_the_capped_count, ("FailsExactly",)),
    Mutant(placing_without_deadline, ("RoundsEnd", "Ends")),
    Mutant(commits_over_any_connection, ("CountOnce",)),
)


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The code without that rule."""
    saved: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, owner.__dict__.get(name, saved)))
        setattr(owner, name, value)

    mutant.apply(put)
    try:
        yield
    finally:
        for owner, name, value in reversed(saved):
            if value is saved:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
