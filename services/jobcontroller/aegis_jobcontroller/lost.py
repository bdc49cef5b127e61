"""Jobs that run and that the store does not know: it was lost, or restored from a copy of before they began. Pure: from what daemons hold to what is
asked of the master.

A daemon's word creates nothing: the master has the deeds verified. Here it is only decided when asking is worth while: the store was read whole, it
is another one than that in which the job was placed, and more than half of the job is there to be taken over. What a job of the present era left
behind when it ended is nobody's any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aegis_proto.api import AdoptRequest
from aegis_proto.credapi import MAX_CLAIMS, Claim
from aegis_proto.ids import pod_index
from aegis_proto.messages import Held

from aegis_jobcontroller.world import World

REFUSED_FOR, LATER = 60.0, 3.0
"""Seconds before the same is asked again: when it was not believed, and when it could not be answered just now."""


@dataclass(frozen=True, slots=True)
class Ask:
    """`key`: the same for the same question, so that a refusal is not asked for again at once."""

    key: tuple[object, ...]
    request: AdoptRequest


def lost(world: World) -> Iterator[Ask]:
    """One question per job and story told of it: a daemon that says something else of a job does not spoil what the others say."""
    if not world.era:
        return
    groups: dict[tuple[object, ...], list[Held]] = {}
    for held in world.held:
        if held.era != world.era and held.job not in world.known and pod_index(held.pod) < held.workers:
            groups.setdefault((held.job, held.uid, held.namespace, held.workers, held.era, bytes(held.spec)), []).append(held)
    for story, members in sorted(groups.items(), key=lambda item: str(item[0][:2])):
        one = members[0]
        if 2 * len({held.pod for held in members}) <= one.workers:
            continue
        claims = sorted({(held.pod, held.attempt, held.deed) for held in members}, key=lambda claim: (-claim[1], pod_index(claim[0])))
        proofs = tuple(Claim(*claim) for claim in claims[:MAX_CLAIMS])
        request = AdoptRequest(one.job, one.uid, one.namespace, one.workers, one.era, world.era, proofs, one.spec)
        yield Ask((*story, world.era, request.claims), request)
