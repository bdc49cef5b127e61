"""join, issue and revoke on the bus, asked with the rights of who may ask."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.errors import NotAllowed
from aegis_bus.identity import Identity
from aegis_credentials import jwt
from aegis_credentials.keys import Nkey
from aegis_proto import messages, subjects
from aegis_proto.api import DeadLetter, RequestRefused, read_reply
from aegis_proto.credapi import (
    Claim,
    Given,
    IssueReply,
    IssueRequest,
    JoinReply,
    JoinRequest,
    ListReply,
    ListRequest,
    RevokeReply,
    RevokeRequest,
    VouchReply,
    VouchRequest,
    spec_digest,
)
from aegis_proto.enroll import Refused
from aegis_proto.state import Head
from conftest_credentials import Running, add_job, change_job, running
from harness.site import Secured
from harness.waiting import until

pytestmark = pytest.mark.timeout(60)


@pytest_asyncio.fixture
async def service(secured: Secured) -> AsyncIterator[Running]:
    async with running(secured) as made:
        yield made


@pytest_asyncio.fixture
async def operator(secured: Secured) -> AsyncIterator[Bus]:
    bus = await secured.bus("operator")
    yield bus
    await bus.close()


@pytest_asyncio.fixture
async def controller(secured: Secured) -> AsyncIterator[Bus]:
    bus = await secured.bus("jobcontroller")
    yield bus
    await bus.close()


def do(verb: str, scope: str = "default") -> str:
    return subjects.rpc_do("credentials", verb, scope)


async def join(bus: Bus, job: str, pod: str = "w0", attempt: int = 1) -> JoinReply:
    return read_reply(JoinReply, await bus.request(do("join"), messages.encode(JoinRequest(job, pod, attempt))))


async def issue(bus: Bus, namespace: str = "ml", **fields: Any) -> IssueReply:
    return read_reply(IssueReply, await bus.request(do("issue", namespace), messages.encode(IssueRequest(**fields))))


async def revoke(bus: Bus, **fields: str) -> RevokeReply:
    request = RevokeRequest(**fields)  # type: ignore[arg-type]
    return read_reply(RevokeReply, await bus.request(do("revoke"), messages.encode(request)))


async def test_a_join_token_opens_exactly_its_attempt(secured: Secured, service: Running, controller: Bus) -> None:
    await add_job(secured, "join-000001")
    reply = await join(controller, "join-000001")
    assert reply.uid == secured.jobs["join-000001"]
    assert await service.enroll("join-000001", "w0", Identity.new(), token=reply.token)
    with pytest.raises(Refused):
        await service.enroll("join-000001", "w1", Identity.new(), token=reply.token)
    assert (await join(controller, "join-000001")).token == reply.token, "stateless"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (JoinRequest("none-000001", "w0", 1), "E104"),
        (JoinRequest("join-000002", "w0", 2), "E105"),
        (JoinRequest("join-000002", "w9", 1), "E107"),
        (JoinRequest("*", "w0", 1), "E110"),
        (JoinRequest("join-000002", "*", 1), "E110"),
        (JoinRequest("join-000002", "w0", 0), "E107"),
    ],
)
async def test_a_join_token_for_what_is_not_so_is_refused(
    secured: Secured, service: Running, controller: Bus, request_: JoinRequest, code: str
) -> None:
    if "join-000002" not in secured.jobs:
        await add_job(secured, "join-000002")
    with pytest.raises(RequestRefused) as info:
        read_reply(JoinReply, await controller.request(do("join"), messages.encode(request_)))
    assert info.value.code == code


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"job":1}',
        b"\xff\xfe",
        b'{"job":"a","pod":"w0","attempt":"1"}',
        b"[" * 2000,
        b'{"v":99,"job":"a","pod":"w0","attempt":1}',
    ],
)
async def test_what_is_no_request_gets_an_error_and_a_dead_letter(secured: Secured, service: Running, controller: Bus, body: bytes) -> None:
    admin = await secured.bus("admin")
    before = await admin.get("DLQ", subjects.dlq("credentials", "rpc"))
    with pytest.raises(RequestRefused) as info:
        read_reply(JoinReply, await controller.request(do("join"), body))
    assert info.value.code == "E107"
    letter = await admin.get("DLQ", subjects.dlq("credentials", "rpc"))
    assert letter is not None
    assert letter.seq > (before.seq if before else 0)
    assert messages.decode(DeadLetter, letter.data).data == body
    await add_job(secured, f"alive-{letter.seq:06d}")
    assert (await join(controller, f"alive-{letter.seq:06d}")).token, "and the service lives"
    await admin.close()


@pytest.mark.parametrize(("role", "tags"), [("reader", []), ("operator", []), ("nsreader", ["namespace:ml"]), ("user", ["namespace:ml"])])
async def test_an_operator_issues_roles_for_a_key_that_stays_with_its_owner(
    secured: Secured, service: Running, operator: Bus, role: str, tags: list[str]
) -> None:
    me = Identity.new()
    reply = await issue(operator, role=role, nkey=me.public, name="alice@ml", ttl=3600)
    claims = jwt.decode(reply.jwt)
    assert claims["nats"].get("tags", []) == tags
    assert claims["name"] == "alice@ml"
    assert abs(reply.expires - time.time() - 3600) < 5
    me.jwt = reply.jwt
    bus = await Bus.connect(me, [secured.url], name="alice")
    with pytest.raises(NotAllowed):
        await bus.publish(subjects.job_state("a-1"), b"{}")
    await bus.close()


async def test_a_node_gets_a_jwt_or_a_join_token(secured: Secured, service: Running, operator: Bus) -> None:
    me = Identity.new()
    me.jwt = (await issue(operator, role="node", node="n3", nkey=me.public, ttl=86400)).jwt
    daemon = await Bus.connect(me, [secured.url], name="daemon")
    assert (await daemon.publish(subjects.node_spec("n3"), b"{}")).stream == "FLEET"
    other = Identity.new()
    token = (await issue(operator, role="node", node="n4", join=True)).token
    assert await service.enroll("", "n4", other, attempt=0, token=token)
    with pytest.raises(Refused):
        await service.enroll("", "n3", Identity.new(), attempt=0, token=token)
    await daemon.close()


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "admin"},
        {"role": "master"},
        {"role": "credentials"},
        {"role": "agent"},
        {"role": ""},
        {"role": "x" * 3000},
        {"role": "reader", "nkey": ""},
        {"role": "reader", "nkey": Nkey.new("account").public},
        {"role": "reader", "nkey": "U" * 56},
        {"role": "reader", "ttl": 0.0},
        {"role": "operator", "ttl": 0.0},
        {"role": "node", "node": "n1", "ttl": 1.0},
        {"role": "node", "node": "n1", "ttl": 0.0, "join": True},
        {"role": "reader", "ttl": -1.0},
        {"role": "reader", "ttl": 1e12},
        {"role": "reader", "name": "a\nb"},
        {"role": "reader", "name": "x" * 100},
        {"role": "node", "node": "*"},
        {"role": "node", "node": ""},
        {"role": "node", "node": "n1.slot"},
        {"role": "node", "node": "*", "join": True},
    ],
)
async def test_what_may_not_be_issued_is_refused(secured: Secured, service: Running, operator: Bus, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestRefused) as info:
        await issue(operator, **{"nkey": Identity.new().public, **fields})
    assert info.value.code in ("E107", "E110")
    assert len(str(info.value)) < 300


@pytest.mark.parametrize("scope", ["*", "A", "a_b", "x" * 41])
async def test_a_namespace_that_is_no_id_is_refused(service: Running, scope: str) -> None:
    """Asked past the bus's own check of the subject: a tag is made of it."""
    reply = await service.requests.answer(do("issue", scope), messages.encode(IssueRequest("user", nkey=Identity.new().public)))
    assert json.loads(messages.encode(reply))["error"]["code"] == "E107"


async def test_what_was_issued_is_listed_until_it_expires_and_says_when_it_is_revoked(service: Running, operator: Bus) -> None:
    alice, bob, node = (Identity.new().public for _ in range(3))
    await issue(operator, role="user", nkey=alice, name="alice", ttl=60)
    await issue(operator, role="operator", nkey=bob, name="bob", ttl=3600)
    await issue(operator, role="node", nkey=node, node="listed-1", name="listed-1", ttl=0)
    await revoke(operator, nkey=alice)
    reply = read_reply(ListReply, await operator.request(do("list"), messages.encode(ListRequest())))
    mine = {item.nkey: item for item in reply.items}
    assert {(mine[k].name, mine[k].role, mine[k].scope, mine[k].revoked) for k in (alice, bob, node)} == {
        ("alice", "user", "ml", True),
        ("bob", "operator", "all", False),
        ("listed-1", "node", "listed-1", False),
    }
    assert mine[node].expires == 0 and mine[alice].expires - mine[alice].issued == 60
    stored = {key: await operator_record(service, key) for key in (alice, node)}
    assert stored == {alice: "60s", node: ""}


async def operator_record(service: Running, nkey: str) -> str:
    """Lifetime of a record in the store."""
    stored = await service.authority.bus.get("CTL", subjects.cred_issued(nkey))
    assert stored is not None
    return stored.headers.get("Nats-TTL", "")


async def test_a_revoked_person_is_out_and_others_are_not(secured: Secured, service: Running, operator: Bus) -> None:
    people = []
    for _ in range(2):
        me = Identity.new()
        me.jwt = (await issue(operator, role="user", nkey=me.public)).jwt
        people.append(await Bus.connect(me, [secured.url], name="person"))
    assert (await revoke(operator, nkey=people[0].identity.public)).revoked
    await until(lambda: people[0].closed_reason in ("revoked", "refused"), 10.0)
    assert people[1].connected
    assert operator.connected
    service.level.everything()
    await asyncio.gather(*(person.close() for person in people))


async def test_a_revoked_node_is_out_until_a_later_token(secured: Secured, service: Running, operator: Bus) -> None:
    secret, now = secured.site.secret, int(time.time())
    me = Identity.new()
    me.jwt = (await service.enroll("", "n6", me, attempt=0, token=secret.node_token("n6", now + 60))).jwt
    daemon = await Bus.connect(me, [secured.url], name="daemon")
    assert (await revoke(operator, node="n6")).revoked
    await until(lambda: daemon.closed_reason in ("revoked", "refused"), 10.0)
    for token in ("", secret.node_token("n6", now + 60)):
        with pytest.raises(Refused) as info:
            await service.enroll("", "n6", me, attempt=0, token=token)
        assert info.value.code == "revoked"
    assert await service.enroll("", "n6", Identity.new(), attempt=0, token=secret.node_token("n6", now + 120))
    assert not (await revoke(operator, node="n99")).revoked
    await daemon.close()


async def test_revoking_a_node_cuts_every_daemon_with_issued_credentials_and_no_other_node(secured: Secured, service: Running, operator: Bus) -> None:
    daemons = []
    for node, ttl in (("n7", 0.0), ("n7", 86400.0), ("n8", 0.0)):
        me = Identity.new()
        reply = await issue(operator, role="node", node=node, nkey=me.public, ttl=ttl)
        me.jwt = reply.jwt
        assert (reply.expires == 0) == ("exp" not in jwt.decode(reply.jwt)) == (ttl == 0.0)
        daemons.append(await Bus.connect(me, [secured.url], name="daemon"))
    assert (await revoke(operator, node="n7")).revoked
    for daemon in daemons[:2]:
        await until(lambda daemon=daemon: daemon.closed_reason in ("revoked", "refused"), 10.0)  # type: ignore[misc]
    assert daemons[2].connected
    assert not (await revoke(operator, node="n7")).revoked, "nobody is left to cut off"
    again = Identity.new()
    again.jwt = (await issue(operator, role="node", node="n7", nkey=again.public, ttl=0.0)).jwt
    daemons.append(await Bus.connect(again, [secured.url], name="daemon"))
    with pytest.raises(RequestRefused, match="revoked"):
        await issue(operator, role="node", node="n7", nkey=daemons[0].identity.public, ttl=0.0)
    await asyncio.gather(*(daemon.close() for daemon in daemons))


async def test_a_pod_is_revoked_by_name(secured: Secured, service: Running, operator: Bus) -> None:
    await add_job(secured, "rev-000001")
    me = Identity.new()
    me.jwt = (await service.enroll("rev-000001", "w0", me)).jwt
    agent = await Bus.connect(me, [secured.url], name="agent")
    assert (await revoke(operator, job="rev-000001", pod="w0")).revoked
    await until(lambda: agent.closed_reason in ("revoked", "refused"), 10.0)
    assert not (await revoke(operator, job="rev-000001", pod="w1")).revoked
    await agent.close()
    await change_job(secured, "rev-000001", attempts={0: 2})


@pytest.mark.parametrize(
    "fields",
    [{}, {"nkey": "x"}, {"nkey": "U" * 56, "node": "n1"}, {"job": "a-1"}, {"job": "a-1", "pod": "*"}, {"node": ">"}, {"job": "none-1", "pod": "w0"}],
)
async def test_a_revocation_of_nothing_is_refused(service: Running, operator: Bus, fields: dict[str, str]) -> None:
    with pytest.raises(RequestRefused) as info:
        await revoke(operator, **fields)
    assert info.value.code in ("E104", "E107", "E110")


async def test_who_may_ask_is_the_buss_to_say(secured: Secured, service: Running, operator: Bus, controller: Bus) -> None:
    with pytest.raises(NotAllowed):
        await operator.request(do("join"), b"{}")
    with pytest.raises(NotAllowed):
        await controller.request(do("issue"), b"{}")
    for role, tags in (("reader", {}), ("user", {"namespace": "default"})):
        person = await secured.bus(role, **tags)
        for verb in ("join", "issue", "revoke"):
            with pytest.raises(NotAllowed):
                await person.request(do(verb), b"{}")
        await person.close()


async def given_of(secured: Secured, job: str) -> Given:
    """What the deeds of `job` say, from the store as it is."""
    bus = await secured.bus("admin")
    stored, spec = await bus.get("CTL", subjects.job_state(job)), await bus.get("CTL", subjects.job_spec(job))
    await bus.close()
    assert stored is not None and spec is not None
    head = messages.decode(Head, stored.data)
    return Given(job, head.uid, head.namespace, head.workerNum, head.era, spec_digest(spec.data))


async def vouched(bus: Bus, given: Given, *claims: Claim, scope: str = "") -> dict[str, int]:
    subject = do("vouch", scope or given.namespace)
    return read_reply(VouchReply, await bus.request(subject, messages.encode(VouchRequest(given, claims)))).held


async def test_a_deed_is_vouched_for_also_when_the_store_has_lost_the_job(secured: Secured, service: Running, controller: Bus) -> None:
    await add_job(secured, "deed-000001")
    replies = {pod: await join(controller, "deed-000001", pod) for pod in ("w0", "w1")}
    given = await given_of(secured, "deed-000001")
    admin, master = await secured.bus("admin"), await secured.bus("master")
    await admin.call("$JS.API.STREAM.PURGE.CTL", messages.encode({"filter": "aegis.job.deed-000001.>"}))
    assert await admin.get("CTL", subjects.job_state("deed-000001")) is None
    claims = [Claim(pod, 1, reply.deed) for pod, reply in replies.items()]
    assert await vouched(master, given, *claims) == {"w0": 1, "w1": 1}
    # a deed that is not right spoils no other
    assert await vouched(master, given, claims[0], Claim("w1", 1, "A" * 43), Claim("w1", 2, replies["w1"].deed)) == {"w0": 1}
    await admin.close()
    await master.close()


@pytest.mark.parametrize(
    "change",
    [
        dict(job="deed-000003"),
        dict(uid="00000000-0000-4000-8000-000000000000"),
        dict(namespace="other"),
        dict(workers=4),
        dict(era="01zzzzzzzzzzzzzzzzzzzzzzzz"),
        dict(digest=spec_digest(b"{}")),
    ],
)
async def test_a_deed_says_nothing_of_another_job_or_specification(
    secured: Secured, service: Running, controller: Bus, change: dict[str, Any]
) -> None:
    if "deed-000002" not in secured.jobs:
        await add_job(secured, "deed-000002")
    claim = Claim("w0", 1, (await join(controller, "deed-000002")).deed)
    given, master = await given_of(secured, "deed-000002"), await secured.bus("master")
    assert await vouched(master, given, claim) == {"w0": 1}
    assert await vouched(master, msgspec.structs.replace(given, **change), claim) == {}
    for other in (Claim("w1", 1, claim.deed), Claim("w0", 2, claim.deed), Claim("w0", 1, claim.deed[:-1]), Claim("w0", 1, "")):
        assert await vouched(master, given, other) == {}
    with pytest.raises(RequestRefused, match="E107"):
        await vouched(master, given, claim, scope="elsewhere")
    await master.close()
