"""When the job controller asks for a job that runs and that the store does not know."""

from __future__ import annotations

from typing import Any

import msgspec
from aegis_jobcontroller.lost import lost
from aegis_jobcontroller.world import World
from aegis_proto.credapi import MAX_CLAIMS, Claim
from aegis_proto.messages import Held, raw
from aegis_proto.state import JobSpec

SPEC = raw(JobSpec("job-a", ("true",), workers=3))
OLD, NEW = "01k0", "01m0"


def held(index: int = 0, attempt: int = 1, **changes: Any) -> Held:
    made = Held("job-a", "uid-job-a", "ml", f"w{index}", attempt, 3, OLD, f"deed-{index}-{attempt}", SPEC)
    return msgspec.structs.replace(made, **changes)


def world(*entries: Held, era: str = NEW, known: tuple[str, ...] = ()) -> World:
    return World(era=era, known=known, held=entries)


def test_a_job_of_another_era_of_which_more_than_half_runs_is_asked_for_with_all_deeds() -> None:
    (ask,) = lost(world(held(0), held(2, 3)))
    request = ask.request
    assert (request.job, request.uid, request.namespace, request.workers) == ("job-a", "uid-job-a", "ml", 3)
    assert (request.era, request.present, bytes(request.spec)) == (OLD, NEW, bytes(SPEC))
    assert request.claims == (Claim("w2", 3, "deed-2-3"), Claim("w0", 1, "deed-0-1")), "raised attempts first"


def test_what_the_store_knows_is_not_asked_for() -> None:
    assert not list(lost(world(held(0), held(1), known=("job-a",))))


def test_what_an_ended_job_of_this_store_left_behind_is_not_asked_for() -> None:
    assert not list(lost(world(held(0), held(1), held(2), era=OLD)))


def test_nothing_is_asked_before_the_era_is_known() -> None:
    assert not list(lost(world(held(0), held(1), era="")))


def test_half_a_job_or_less_is_not_asked_for() -> None:
    assert not list(lost(world(held(0), held(0, 2))))
    assert not list(lost(world(held(0, workers=2))))
    assert list(lost(world(held(0, workers=1))))


def test_who_tells_another_story_of_a_job_spoils_nothing() -> None:
    forged = [held(0, spec=raw(JobSpec("job-a", ("rm",), workers=3))), held(1, workers=1), held(1, uid="uid-other"), held(7)]
    asked = [ask.request for ask in lost(world(*forged, held(0), held(1)))]
    assert [request.claims for request in asked if request.uid == "uid-job-a" and request.spec == SPEC and request.workers == 3] == [
        (Claim("w0", 1, "deed-0-1"), Claim("w1", 1, "deed-1-1"))
    ]


def test_a_question_is_bounded_and_the_same_until_more_is_known() -> None:
    many = [held(index, workers=4000) for index in range(3000)]
    (ask,) = lost(world(*many))
    assert len(ask.request.claims) == MAX_CLAIMS
    (one,), (same,), (more,) = lost(world(held(0), held(1))), lost(world(held(1), held(0))), lost(world(held(0), held(1), held(2)))
    assert one.key == same.key != more.key
