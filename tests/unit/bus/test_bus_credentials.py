"""Expiry, revocation, renewal and missing rights, in operator mode with the rights as shipped.

nats-py closes for good on all of them; the bus does not.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aegis_bus import errors
from aegis_bus.connection import Bus, Msg
from aegis_bus.identity import Identity
from aegis_bus.ordered import OrderedReader
from harness.site import A, B, Secured
from harness.waiting import until

EVENT = f"aegis.job.{A}.event"


def service(secured: Secured, role: str = "master", ttl: float | None = None) -> Identity:
    identity = Identity.new()
    identity.jwt = fresh(secured, identity, role, ttl)
    return identity


def fresh(secured: Secured, identity: Identity, role: str = "master", ttl: float | None = None) -> str:
    return secured.site.token(role, identity.public, expires=None if ttl is None else int(time.time() + ttl))


def agent(secured: Secured, job: str = A, pod: str = "w0") -> Identity:
    identity = Identity.new()
    identity.jwt = secured.site.token("agent", identity.public, {"job": job, "pod": pod}, uid=secured.jobs[job])
    return identity


async def test_expired_credentials_at_the_start_are_named_as_such(secured: Secured) -> None:
    identity = service(secured, ttl=-7200)
    began = time.monotonic()
    with pytest.raises(errors.CredentialsRefused, match=r'^E102 your credentials "master" expired 2 h ago\. Renew: ') as caught:
        await Bus.connect(identity, [secured.url], timeout=30)
    assert time.monotonic() - began < 5  # waiting would not help
    assert caught.value.reason == "expired"
    assert isinstance(caught.value, errors.Unreachable)


async def test_strange_credentials_at_the_start_are_refused_not_unreachable(secured: Secured) -> None:
    identity = Identity.new()
    identity.jwt = fresh(secured, Identity.new())  # signed for another key
    with pytest.raises(errors.CredentialsRefused, match=r"^E102 .*were refused by the bus") as caught:
        await Bus.connect(identity, [secured.url], timeout=1)
    assert caught.value.reason == "refused"


async def test_expiry_while_connected_gets_a_new_jwt_and_everything_goes_on(secured: Secured) -> None:
    """nats-py closes for good on "user authentication expired", telling nobody."""
    identity = service(secured, ttl=3)
    closed: list[str] = []
    asked = 0

    async def jwt_source() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RuntimeError("credentials service away")
        return fresh(secured, identity)

    seen: list[bytes] = []

    async def on_msg(msg: Msg) -> None:
        seen.append(msg.data)

    async with await Bus.connect(identity, [secured.url], name="master-1", on_closed=closed.append, jwt_source=jwt_source) as bus:
        await bus.subscribe(f"aegis.view.job.{A}.event", on_msg)
        await until(lambda: closed == ["expired"])
        await until(lambda: bus.connected and bus.generation == 2)
        assert asked >= 2
        await bus.publish(EVENT, b"after", msg_id="auto")
        await until(lambda: seen == [b"after"])


async def test_without_a_source_a_renewal_from_outside_brings_it_back(secured: Secured) -> None:
    identity = service(secured, ttl=3)
    async with await Bus.connect(identity, [secured.url]) as bus:
        await until(lambda: bus.closed_reason == "expired")
        with pytest.raises(errors.CredentialsRefused, match=r"^E102 .*expired"):
            await bus.publish(EVENT, b"", timeout=0.3)
        await bus.renew(fresh(secured, identity))
        await bus.wait_connected(10)


async def test_a_revoked_agent_is_told_so_and_the_word_is_revoked(secured: Secured) -> None:
    """An agent that is told "revoked" stops its child; one that is only cut off trains on. The two must never look alike."""
    secured_job, uid = "revoked-333333", "uid-revoked"
    await secured.add_job(secured_job, uid)
    identity = agent(secured, secured_job)
    closed: list[str] = []
    async with await Bus.connect(identity, [secured.url], on_closed=closed.append) as bus:
        revoked_at = int(time.time())
        await secured.push_account(secured_job, uid, revocations={identity.public: revoked_at})
        await until(lambda: closed == ["revoked"])
        await until(lambda: bus._tries >= 2)  # it goes on trying: a newer JWT may be accepted
        assert bus.closed_reason in ("revoked", "refused")
        await until(lambda: int(time.time()) > revoked_at)  # a JWT issued in a later second is not meant
        await bus.renew(agent_jwt(secured, identity, secured_job))
        await bus.wait_connected(10)


def agent_jwt(secured: Secured, identity: Identity, job: str) -> str:
    return secured.site.token("agent", identity.public, {"job": job, "pod": "w0"}, uid=secured.jobs[job])


async def test_renewals_under_load_lose_nothing_and_repeat_nothing(secured: Secured) -> None:
    identity = service(secured)
    async with await Bus.connect(identity, [secured.url], name="master-1") as bus, await Bus.connect(service(secured), [secured.url]) as other:
        served: list[bytes] = []

        async def serve(msg: Msg) -> None:
            served.append(msg.data)
            await msg.respond(msg.data)

        await bus.subscribe("aegis.rpc.master.query.ping", serve, queue="master")
        start = int((await other.js_api("STREAM.INFO.EVENTS"))["state"]["last_seq"])
        stop = asyncio.Event()
        published = 0

        async def publish() -> None:
            nonlocal published
            while not stop.is_set():
                await bus.publish(EVENT, b"%d" % published, timeout=5)  # without an id: a repeat would show
                published += 1

        asked = 0

        async def ask() -> None:
            nonlocal asked
            operator = Identity.new()
            operator.jwt = secured.site.token("operator", operator.public)
            async with await Bus.connect(operator, [secured.url]) as caller:
                while not stop.is_set():
                    assert await caller.request("aegis.rpc.master.query.ping", b"%d" % asked, timeout=5) == b"%d" % asked
                    asked += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(publish())
            group.create_task(ask())
            for n in range(2, 6):
                await until(lambda n=n: published > 40 * (n - 1) and asked > 10 * (n - 1))
                await bus.renew(fresh(secured, identity))
                assert bus.generation == n and bus.connected
            stop.set()
        state: dict[str, Any] = (await other.js_api("STREAM.INFO.EVENTS"))["state"]
        assert state["last_seq"] - start == published
        assert len(served) == asked == len(set(served))


async def test_a_renewal_with_a_refused_jwt_leaves_the_old_connection_alone(secured: Secured) -> None:
    identity = service(secured)
    old = identity.jwt
    async with await Bus.connect(identity, [secured.url]) as bus:
        with pytest.raises(errors.CredentialsRefused):
            await bus.renew(fresh(secured, Identity.new()))
        assert bus.connected and bus.generation == 1 and identity.jwt == old
        await bus.publish(EVENT, b"")


async def test_a_missing_right_is_told_at_once_to_the_one_who_waits(secured: Secured) -> None:
    """nats-py tells only its error callback; publish, request and next_msg run into their timeouts."""
    async with await Bus.connect(agent(secured), [secured.url], name="agent") as bus, asyncio.timeout(5):
        foreign = f"aegis.job.{B}.worker.w0.finish"
        own = asyncio.create_task(bus.publish(f"aegis.job.{A}.worker.w0.ack", b"{}", msg_id="auto"))
        with pytest.raises(errors.NotAllowed, match=rf'^E103 "agent" may not publish to {foreign}'):
            await bus.publish(foreign, b"{}", timeout=30)
        assert (await own).stream == "REPORTS"
        with pytest.raises(errors.NotAllowed, match=r"^E103 .* may not publish to aegis\.rpc\.master\.do\.stop\.x"):
            await bus.request("aegis.rpc.master.do.stop.x", b"", timeout=30)
        with pytest.raises(errors.NotAllowed):
            await bus.batch([(f"aegis.job.{A}.state", b"{}", 0), (f"aegis.job.{A}.pods.0", b"[]", None)], timeout=30)

        async def on_msg(_: Msg) -> None: ...

        with pytest.raises(errors.NotAllowed, match=r"^E103 .* may not subscribe to aegis\.>"):
            await bus.subscribe("aegis.>", on_msg)
        for n in range(100):
            with pytest.raises(errors.NotAllowed):
                await bus.subscribe(f"foreign.{n}", on_msg)
        await bus.subscribe(f"aegis.view.job.{A}.state", on_msg)
        assert bus.connected and bus.generation == 1


async def test_an_agents_message_above_its_limit_never_reaches_the_server(secured: Secured) -> None:
    """The limit of the template (64 KB) is not in what the server tells a client: it would cut the agent off."""
    async with await Bus.connect(agent(secured), [secured.url]) as bus:
        with pytest.raises(errors.Rejected, match="the bus takes 65536; not sent"):
            await bus.publish(f"aegis.job.{A}.log.w0", b"x" * 65_500, msg_id="auto")
        await bus.publish(f"aegis.job.{A}.log.w0", b"x" * 65_000, msg_id="auto")
        assert bus.generation == 1


async def test_an_agent_reads_its_state_and_hears_of_the_next(secured: Secured) -> None:
    """The whole traffic of an agent fits its rights: Direct Get, the republished head, reports, heartbeats."""
    async with await Bus.connect(agent(secured), [secured.url]) as bus:
        stored = await bus.get("CTL", f"aegis.job.{A}.state")
        assert stored is not None and stored.subject == f"aegis.job.{A}.state"
        assert bus.core(f"aegis.job.{A}.hb.w0", b"{}")
        assert (await bus.publish(f"aegis.job.{A}.worker.w0.pending", b"{}", msg_id="auto")).stream == "REPORTS"


async def test_the_owner_reads_reports_with_the_rights_of_a_master(secured: Secured) -> None:
    async with await Bus.connect(service(secured), [secured.url]) as bus, await Bus.connect(agent(secured, B, "w1"), [secured.url]) as sender:
        ack = await sender.publish(f"aegis.job.{B}.worker.w1.ack", b"{}", msg_id="auto")
        async with OrderedReader(bus, "REPORTS", [f"aegis.job.{B}.worker.*.*", f"aegis.job.{B}.fact.*"], start=ack.seq) as reader:
            async with asyncio.timeout(10):
                item = await anext(reader)
            assert getattr(item, "seq", 0) == ack.seq
