"""Enrolment over gRPC, with a real nats-server behind: who gets a JWT, who does not, and what is said."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.errors import CredentialsRefused
from aegis_bus.identity import Identity
from aegis_credentials import jwt
from aegis_credentials.grpc_server import NONCE_LIFE, Nonces
from aegis_credentials.keys import write_private
from aegis_credentials.setup import create_site
from aegis_credentials.tls import ensure_tls
from aegis_proto import subjects
from aegis_proto._pb import credentials_pb2, credentials_pb2_grpc
from aegis_proto.enroll import CertificateBad, Refused, Unreachable, challenge, enroll
from aegis_proto.phases import Phase
from conftest_credentials import Running, add_job, change_job, running
from harness.site import Secured
from harness.waiting import until

pytestmark = pytest.mark.timeout(60)


@pytest_asyncio.fixture
async def service(secured: Secured) -> AsyncIterator[Running]:
    async with running(secured) as made:
        yield made


async def connect(secured: Secured, identity: Identity, token: str) -> Bus:
    identity.jwt = token
    return await Bus.connect(identity, [secured.url], name="agent-test", timeout=5.0)


async def refusal(work: Any) -> Refused:
    with pytest.raises(Refused) as info:
        await work
    assert str(info.value)[:4] in ("E102", "E104", "E110")
    return info.value


# --- good cases ------------------------------------------------------------------------------------------------------------------


async def test_an_agent_enrols_connects_and_reports(secured: Secured, service: Running) -> None:
    await add_job(secured, "one-000001")
    me = Identity.new()
    before = time.time()
    got = await service.enroll("one-000001", "w0", me)
    assert got.servers == (secured.url,)
    assert 86_000 < got.expires - before <= 86_401
    assert jwt.decode(got.jwt)["nats"]["tags"] == ["job:one-000001", "pod:w0"]
    bus = await connect(secured, me, got.jwt)
    assert (await bus.publish(subjects.report("one-000001", "w0", "pending"), b"{}")).stream == "REPORTS"
    assert await bus.get("CTL", subjects.job_state("one-000001")) is not None
    await bus.close()


async def test_a_repeat_gives_the_same_nkey_another_jwt(secured: Secured, service: Running) -> None:
    await add_job(secured, "one-000002")
    me = Identity.new()
    first = await service.enroll("one-000002", "w1", me)
    second = await service.enroll("one-000002", "w1", me)
    assert jwt.decode(first.jwt)["sub"] == jwt.decode(second.jwt)["sub"] == me.public


async def test_renewal_needs_no_token_but_the_bound_nkey(secured: Secured, service: Running) -> None:
    await add_job(secured, "one-000003")
    me = Identity.new()
    first = await service.enroll("one-000003", "w0", me)
    bus = await connect(secured, me, first.jwt)
    again = await service.enroll("one-000003", "w0", me, token="")
    await bus.renew(again.jwt)
    assert (await bus.publish(subjects.report("one-000003", "w0", "ack"), b"{}")).seq
    await bus.close()
    refused = await refusal(service.enroll("one-000003", "w0", Identity.new(), token=""))
    assert refused.code == "bound"
    refused = await refusal(service.enroll("one-000003", "w1", me, token=""))
    assert refused.code == "badToken"


async def test_forty_agents_enrol_at_once(secured: Secured, service: Running) -> None:
    await add_job(secured, "many-000004", workers=600)
    pods = [f"w{index}" for index in (*range(30), *range(250, 260), 599)]
    made = await asyncio.gather(*(service.enroll("many-000004", pod, Identity.new()) for pod in pods))
    assert len({item.jwt for item in made}) == len(pods)
    records = await service.authority.records.read_job("many-000004")
    assert sorted(pod for record in records.values() for pod in record.pods) == sorted(pods)
    assert sorted(records) == [0, 1, 2]


# --- refusals --------------------------------------------------------------------------------------------------------------------


async def test_a_wrong_token_is_refused(secured: Secured, service: Running) -> None:
    await add_job(secured, "bad-000001")
    await add_job(secured, "bad-000002")
    secret = secured.site.secret
    uid, other = secured.jobs["bad-000001"], secured.jobs["bad-000002"]
    for token in (
        "x",
        secret.join_token("bad-000001", uid, "w1", 1),
        secret.join_token("bad-000001", uid, "w0", 2),
        secret.join_token("bad-000001", other, "w0", 1),
        secret.join_token("bad-000002", other, "w0", 1),
    ):
        assert (await refusal(service.enroll("bad-000001", "w0", Identity.new(), token=token))).code == "badToken"


async def test_a_token_cannot_be_replayed_with_another_nkey(secured: Secured, service: Running) -> None:
    await add_job(secured, "bad-000003")
    await service.enroll("bad-000003", "w0", Identity.new())
    refused = await refusal(service.enroll("bad-000003", "w0", Identity.new()))
    assert refused.code == "bound"
    assert "One agent per place" in str(refused)


async def test_the_attempt_must_be_the_states(secured: Secured, service: Running) -> None:
    await add_job(secured, "bad-000004")
    with pytest.raises(Unreachable, match="still says 1"):
        await service.enroll("bad-000004", "w0", Identity.new(), attempt=2)
    await change_job(secured, "bad-000004", attempts={0: 3})
    assert (await refusal(service.enroll("bad-000004", "w0", Identity.new(), attempt=2))).code == "superseded"
    assert await service.enroll("bad-000004", "w0", Identity.new(), attempt=3)


async def test_unknown_ended_and_other_submissions_are_told_apart(secured: Secured, service: Running) -> None:
    assert (await refusal(service.enroll("none-999999", "w0", Identity.new(), token="x"))).code == "unknownJob"
    await add_job(secured, "bad-000005")
    assert (await refusal(service.enroll("bad-000005", "w0", Identity.new(), uid="another"))).code == "superseded"
    assert (await refusal(service.enroll("bad-000005", "w7", Identity.new(), token="x"))).code == "badRequest"
    await change_job(secured, "bad-000005", phase=Phase.SUCCEED)

    async def ended() -> bool:
        try:
            await service.enroll("bad-000005", "w0", Identity.new())
        except Refused as refused:
            return refused.code == "ended"
        return False

    await until(ended, 2.0)


HOSTILE: list[tuple[str, dict[str, Any]]] = [
    ("job star", {"job": "*"}),
    ("job gt", {"job": ">"}),
    ("job dots", {"job": ".."}),
    ("job dotted", {"job": "a.b"}),
    ("job path", {"job": "../x"}),
    ("job upper", {"job": "A"}),
    ("job newline", {"job": "a\n"}),
    ("job huge", {"job": "a" * 4000}),
    ("job template", {"job": "{{tag(job)}}"}),
    ("pod star", {"pod": "*"}),
    ("pod name", {"pod": "master"}),
    ("pod sign", {"pod": "w-1"}),
    ("pod zero", {"pod": "w01"}),
    ("pod huge", {"pod": "w" + "1" * 4000}),
    ("pod empty", {"pod": ""}),
    ("node star", {"job": "", "pod": "*"}),
    ("node dots", {"job": "", "pod": "n1.slot"}),
    ("node empty", {"job": "", "pod": ""}),
    ("attempt zero", {"attempt": 0}),
    ("attempt negative", {"attempt": -5}),
    ("attempt huge", {"attempt": 2_000_000_000}),
    ("nkey empty", {"nkey": ""}),
    ("nkey account", {"nkey": "A" * 56}),
    ("nkey text", {"nkey": "U" * 56}),
    ("nkey huge", {"nkey": "U" * 4000}),
    ("token huge", {"token": "t" * 4000}),
    ("uid huge", {"uid": "u" * 4000}),
    ("nonce huge", {"nonce": "n" * 4000, "signature": b"s" * 64}),
    ("signature huge", {"signature": b"s" * 4000}),
    ("nonce forged", {"nonce": "AAAA", "signature": b"s" * 64}),
    ("nonce no base64", {"nonce": "\u20ac", "signature": b"s" * 64}),
    ("no nonce", {"nonce": "", "signature": b"s" * 64}),
    ("signature short", {"nonce": "AAAA", "signature": b"s"}),
]


@pytest.mark.parametrize(("what", "fields"), HOSTILE, ids=[what for what, _ in HOSTILE])
async def test_hostile_input_gets_a_clear_error(secured: Secured, service: Running, what: str, fields: dict[str, Any]) -> None:
    request = {"job": "hostile-000001", "pod": "w0", "attempt": 1, "nkey": Identity.new().public, "token": "t", **fields}
    stub_of: Any = credentials_pb2_grpc.CredentialsStub
    make: Any = credentials_pb2.SyncWorkerCredsRequest  # type: ignore[attr-defined]
    async with grpc.aio.secure_channel(service.target, grpc.ssl_channel_credentials(secured.site.ca_pem.read_bytes())) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as info:
            await stub_of(channel).SyncWorkerCreds(make(**request), timeout=5)
    assert info.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED), info.value
    assert len(info.value.details() or "") < 600
    assert (info.value.details() or "").startswith(("E102", "E110"))


async def test_a_message_far_too_large_is_refused_by_the_transport(secured: Secured, service: Running) -> None:
    with pytest.raises((Refused, Unreachable)):
        await service.enroll("hostile-000001", "w0", Identity.new(), token="t" * 1_000_000)
    await add_job(secured, "hostile-000002")
    assert await service.enroll("hostile-000002", "w0", Identity.new()), "and the service lives"


async def test_the_signature_is_over_all_that_matters(secured: Secured, service: Running) -> None:
    """A signature made for one place is none for another; nor is another key's."""
    await add_job(secured, "sig-000001")
    me, other = Identity.new(), Identity.new()
    for sign in (
        other.sign,
        lambda data: me.sign(data.replace(b"|w0|", b"|w1|")),
        lambda data: me.sign(data.replace(b"|1|", b"|2|")),
        lambda data: b"",
        lambda data: bytes(64),
    ):
        with pytest.raises(Refused) as info:
            await service.enroll("sig-000001", "w0", me, sign=sign)
        assert info.value.code == "badSignature"


def test_a_nonce_is_for_its_caller_and_a_minute() -> None:
    nonces, who = Nonces(b"k" * 32), challenge("", "j", "w0", 1, "U")
    nonce = nonces.make(who, 1000.0)
    assert nonces.valid(nonce, who, 1000.0 + NONCE_LIFE - 1)
    assert Nonces(b"k" * 32).valid(nonce, who, 1001.0), "another replica takes it"
    assert not nonces.valid(nonce, who, 1000.0 + NONCE_LIFE + 1)
    assert not nonces.valid(nonce, who, 990.0)
    assert not nonces.valid(nonce, challenge("", "j", "w1", 1, "U"), 1001.0)
    assert not Nonces(b"x" * 32).valid(nonce, who, 1001.0)
    assert not nonces.valid("", who, 1001.0)


# --- certificates ----------------------------------------------------------------------------------------------------------------


async def test_a_certificate_of_another_ca_is_refused(secured: Secured, service: Running, tmp_path: Any) -> None:
    other = create_site(tmp_path / "other")
    with pytest.raises(CertificateBad, match="E102 the certificate"):
        await service.enroll("x-000001", "w0", Identity.new(), token="t", ca_pem=other.ca_pem.read_bytes())


async def test_a_certificate_for_another_name_is_refused(secured: Secured) -> None:
    async with running(secured, host="127.0.0.2") as elsewhere:
        with pytest.raises(CertificateBad):
            await elsewhere.enroll("x-000001", "w0", Identity.new(), token="t")


async def test_an_expired_certificate_is_named_and_setup_mends_it_without_a_restart(secured: Secured, service: Running) -> None:
    await add_job(secured, "cert-000001")
    site = secured.site
    now = datetime.datetime.now(datetime.UTC)
    good = {path: path.read_text() for path in (site.server_pem, site.server_key)}
    site.server_pem.unlink()
    ensure_tls(site.folder / "tls", ("127.0.0.1", "localhost"), now, server_days=-1)
    try:
        with pytest.raises(CertificateBad, match=r"(?i)expired"):
            await service.enroll("cert-000001", "w0", Identity.new())
        create_site(site.folder)
        assert site.server_pem.read_text() not in good.values(), "setup made a new one"
        assert await service.enroll("cert-000001", "w0", Identity.new())
    finally:
        for path, text in good.items():
            write_private(path, text)


async def test_nobody_there_is_unreachable(secured: Secured) -> None:
    me = Identity.new()
    began = time.monotonic()
    with pytest.raises(Unreachable, match="E101"):
        await asyncio.to_thread(enroll, "127.0.0.1:1", secured.site.ca_pem.read_bytes(), "j-1", "w0", 1, "u", me.public, me.sign, "t", 3.0)
    assert time.monotonic() - began < 5


# --- one pod name, two agents ----------------------------------------------------------------------------------------------------


async def test_of_two_agents_with_one_pod_name_the_second_is_refused_and_the_older_attempt_is_cut_off(secured: Secured, service: Running) -> None:
    job = "twin-000001"
    await add_job(secured, job)
    first, twin, second = Identity.new(), Identity.new(), Identity.new()
    old = await connect(secured, first, (await service.enroll(job, "w0", first)).jwt)
    assert (await refusal(service.enroll(job, "w0", twin))).code == "bound"
    assert old.connected
    await change_job(secured, job, attempts={0: 2})
    granted = await service.enroll(job, "w0", second, attempt=2)
    await until(lambda: old.closed_reason in ("revoked", "refused"), 10.0, "the older attempt is cut off before the new one hears of its JWT")
    assert (await refusal(service.enroll(job, "w0", first, token=""))).code == "superseded"
    new = await connect(secured, second, granted.jwt)
    assert new.connected
    with pytest.raises(CredentialsRefused):
        await connect(secured, first, first.jwt)
    await asyncio.gather(old.close(), new.close())


# --- node daemons ----------------------------------------------------------------------------------------------------------------


async def test_a_node_daemon_enrols_renews_and_is_replaced_by_a_later_token(secured: Secured, service: Running) -> None:
    secret, now = secured.site.secret, int(time.time())
    first, second = Identity.new(), Identity.new()
    got = await service.enroll("", "n7", first, attempt=0, token=secret.node_token("n7", now + 600))
    daemon = await connect(secured, first, got.jwt)
    assert (await daemon.publish(subjects.node_status("n7"), b"{}")).stream == "FLEET"
    assert await service.enroll("", "n7", first, attempt=0, token="")
    assert (await refusal(service.enroll("", "n7", second, attempt=0, token=""))).code == "bound"
    assert (await refusal(service.enroll("", "n7", second, attempt=0, token=secret.node_token("n7", now + 600)))).code == "bound"
    assert (await refusal(service.enroll("", "n7", second, attempt=0, token=secret.node_token("n8", now + 900)))).code == "badToken"
    assert (await refusal(service.enroll("", "n7", second, attempt=0, token=secret.node_token("n7", now - 1)))).code == "badToken"
    assert daemon.connected
    got = await service.enroll("", "n7", second, attempt=0, token=secret.node_token("n7", now + 900))
    await until(lambda: daemon.closed_reason in ("revoked", "refused"), 10.0)
    assert (await refusal(service.enroll("", "n7", first, attempt=0, token=""))).code == "revoked"
    replacement = await connect(secured, second, got.jwt)
    await asyncio.gather(daemon.close(), replacement.close())
