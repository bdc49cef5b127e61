"""Bringing back a job that runs and that the store has lost: once, only with deeds that the credentials service vouches for."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aegis_bus.connection import Bus, Msg
from aegis_bus.jobstore import JobStore
from aegis_master.adoption import ENOUGH, enough
from aegis_proto import messages, subjects
from aegis_proto.api import AdoptReply, AdoptRequest, RequestRefused, read_reply
from aegis_proto.credapi import Claim, VouchReply, VouchRequest, spec_digest
from aegis_proto.ids import job_id
from aegis_proto.state import JobSpec
from harness.masters import InProcess, state_of, write_era
from harness.waiting import until

MakeBus = Callable[..., Awaitable[Bus]]
SPEC = JobSpec("lost", ("python", "train.py"), namespace="ml", workers=3, maxRetry=2, env={"A": "b"})
OLD, NEW = "era0", "era1"
GOOD = "right"


class Credentials:
    """The one request of the credentials service, as the master sees it: the deed of a claim is right when it says so."""

    def __init__(self) -> None:
        self.asked: list[VouchRequest] = []

    async def start(self, bus: Bus) -> Credentials:
        await bus.subscribe("aegis.rpc.credentials.do.vouch.*", self._on_request)
        return self

    async def _on_request(self, msg: Msg) -> None:
        request = messages.decode(VouchRequest, msg.data)
        self.asked.append(request)
        held = {claim.pod: claim.attempt for claim in request.claims if claim.deed == GOOD}
        await msg.respond(messages.encode(VouchReply(held if request.given.digest == spec_digest(messages.encode(SPEC)) else {})))


def wanted(**changes: Any) -> AdoptRequest:
    uid = str(uuid.uuid4())
    claims = (Claim("w2", 4, GOOD), Claim("w0", 1, GOOD))
    made = AdoptRequest(job_id(SPEC.name, uid), uid, "ml", 3, OLD, NEW, claims, messages.raw(SPEC))
    return msgspec.structs.replace(made, **changes)


async def adopt(bus: Bus, request: AdoptRequest) -> AdoptReply:
    return read_reply(AdoptReply, await bus.request(subjects.ADOPT, messages.encode(request), timeout=20.0))


async def start(bus: Bus, make_bus: MakeBus, replica: str = "m1") -> InProcess:
    if await bus.get("CTL", subjects.ERA) is None:
        await write_era(bus, NEW)
    return await InProcess(await make_bus(name=f"master-{replica}"), replica).start()


async def test_a_lost_job_is_brought_back_once_however_often_it_is_asked(bus: Bus, make_bus: MakeBus) -> None:
    for replica in ("m1", "m2"):
        await start(bus, make_bus, replica)
    credentials = await Credentials().start(bus)
    request = wanted()
    replies = [await adopt(bus, request) for _ in range(6)]
    assert [reply.existed for reply in replies] == [False, *[True] * 5]
    assert {reply.job for reply in replies} == {request.job}
    state = (await state_of(bus, request.job)).state
    assert (state.spec, state.head.uid, state.head.era, state.head.adopting) == (SPEC, request.uid, NEW, True)
    assert [pod.attempt for pod in state.pods()] == [1, 1, 4]
    assert (state.head.recoverCount, state.head.maxRetry, state.head.owner.replica != "") == (0, 2, True)
    given = credentials.asked[0].given
    assert (given.job, given.uid, given.namespace, given.workers, given.era) == (request.job, request.uid, "ml", 3, OLD)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (dict(claims=(Claim("w0", 1, "forged"), Claim("w1", 1, "forged"), Claim("w2", 1, "forged"))), "E107"),
        (dict(claims=(Claim("w0", 1, GOOD), Claim("w1", 1, "forged"))), "E107"),
        (dict(claims=(Claim("w0", 1, GOOD), Claim("w0", 2, GOOD))), "E107"),
        (dict(claims=(Claim("w7", 1, GOOD), Claim("w8", 1, GOOD), Claim("w0", 1, GOOD))), "E107"),
        (dict(claims=()), "E107"),
        (dict(claims=(Claim("master", 1, GOOD),)), "E107"),
        (dict(spec=messages.raw(msgspec.structs.replace(SPEC, command=("rm", "-rf")))), "E107"),
        (dict(spec=messages.raw(msgspec.structs.replace(SPEC, workers=4))), "E107"),
        (dict(spec=messages.raw(msgspec.structs.replace(SPEC, namespace="other"))), "E107"),
        (dict(spec=messages.raw(msgspec.structs.replace(SPEC, name="Bad Name"))), "E107"),
        (dict(spec=msgspec.Raw(b"[]")), "E107"),
        (dict(uid="short"), "E107"),
        (dict(era=NEW), "E107"),
        (dict(present="era2"), "E108"),
        (dict(present=""), "E108"),
    ],
)
async def test_what_is_not_shown_brings_nothing_back(bus: Bus, make_bus: MakeBus, changes: dict[str, Any], code: str) -> None:
    await start(bus, make_bus)
    await Credentials().start(bus)
    request = wanted(**changes)
    with pytest.raises(RequestRefused) as error:
        await adopt(bus, request)
    assert error.value.code == code, error.value
    assert await JobStore(bus).load(request.job) is None


async def test_without_the_credentials_service_nothing_is_believed_and_it_is_asked_again_later(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    request = wanted()
    with pytest.raises(RequestRefused, match="E108"):
        await adopt(bus, request)
    assert await JobStore(bus).load(request.job) is None
    await Credentials().start(bus)
    assert (await adopt(bus, request)).existed is False


async def test_the_job_of_somebody_else_is_not_replaced(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    await Credentials().start(bus)
    request = wanted()
    await adopt(bus, request)
    with pytest.raises(RequestRefused, match="E105"):
        await adopt(bus, msgspec.structs.replace(request, uid=str(uuid.uuid4())))
    assert (await state_of(bus, request.job)).state.head.uid == request.uid


async def test_a_replica_that_has_not_seen_the_new_store_yet_answers_later(bus: Bus, make_bus: MakeBus) -> None:
    await start(bus, make_bus)
    await Credentials().start(bus)
    await write_era(bus, "era2")
    request = wanted(present="era2")

    async def done() -> bool:
        try:
            return not (await adopt(bus, request)).existed
        except RequestRefused as error:
            assert error.code == "E108", error
            return False

    await until(done, 20, "brought back")
    assert (await state_of(bus, request.job)).state.head.era == "era2"


def test_more_than_half_of_a_job_must_be_shown_and_never_more_than_a_request_holds() -> None:
    assert [enough(workers) for workers in (1, 2, 3, 4, 100, 10_000)] == [1, 2, 2, 3, 51, ENOUGH]
