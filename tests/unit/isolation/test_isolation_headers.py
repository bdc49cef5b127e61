"""Powers that travel in headers (rollup, TTL, schedules, batches, counters, expected sequences), dedup ids, and tags in JWTs."""

from __future__ import annotations

import time

import nats.errors
import pytest
from aegis_bus.connection import Stored
from aegis_bus.identity import Identity
from aegis_bus.ordered import OrderedReader
from aegis_credentials import jwt
from aegis_credentials.keys import Nkey
from aegis_jobcontroller.facts import News
from aegis_jobcontroller.service import Controller
from aegis_proto import messages, subjects
from aegis_proto.messages import Fact
from aegis_proto.phases import FactKind
from harness.site import A, B, RawOf, Secured

AGENT_STREAMS = {
    "REPORTS": subjects.report(A, "w0", "ack"),
    "LOGS": subjects.job_log(A, "w0"),
    "METRICS": subjects.job_metric(A, "w0"),
    "BLOBS": subjects.blob(A, "w0", "x"),
}
NODE_STREAMS = {
    "FLEET": subjects.node_status("n1"),
    "HELD": subjects.node_held("n1", 0),
    "EVENTS": subjects.node_event("n1", "xid"),
    "METRICS-of-nodes": subjects.net_counter("n1"),
}
POWERS = {
    "rollup of the stream": {"Nats-Rollup": "all"},
    "rollup of the subject": {"Nats-Rollup": "sub"},
    "time to live": {"Nats-TTL": "1s"},
    "schedule": {"Nats-Schedule": "@at 2027-01-01T00:00:00Z", "Nats-Schedule-Target": subjects.report(B, "w0", "ack")},
    "every": {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": subjects.report(B, "w0", "ack")},
    "counter": {"Nats-Incr": "1"},
    "one-message batch": {"Nats-Batch-Id": "evil", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    "open batch": {"Nats-Batch-Id": "evil2", "Nats-Batch-Sequence": "1"},
}


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("stream", AGENT_STREAMS)
async def test_an_agent_has_no_power_by_header(raw: RawOf, stream: str, power: str) -> None:
    agent = await raw("agent", job=A, pod="w0")
    answer = await agent.ask(AGENT_STREAMS[stream], b"1", headers=POWERS[power])
    assert "error" in answer, f"{stream} accepted {POWERS[power]}"


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("stream", NODE_STREAMS)
async def test_a_node_daemon_has_no_power_by_header(raw: RawOf, stream: str, power: str) -> None:
    """NODES has batches and rollup: which is why daemons write into FLEET, not there."""
    daemon = await raw("node", node="n1")
    answer = await daemon.ask(NODE_STREAMS[stream], b"1", headers=POWERS[power])
    assert "error" in answer, f"{stream} accepted {POWERS[power]}"


async def test_expected_sequences_of_other_subjects_teach_nothing(raw: RawOf) -> None:
    """An agent may ask for a condition on another subject of the stream; it is refused, or says no more than "wrong"."""
    agent = await raw("agent", job=A, pod="w0")
    headers = {"Nats-Expected-Last-Subject-Sequence": "7", "Nats-Expected-Last-Subject-Sequence-Subject": subjects.report(B, "w0", "ack")}
    answer = await agent.ask(subjects.report(A, "w0", "ack"), headers=headers)
    assert "error" in answer
    assert B not in str(answer)


async def test_a_stolen_dedup_id_is_harmless_when_ids_cannot_be_guessed(secured: Secured, raw: RawOf) -> None:
    """The window is stream-wide: who knows an id can pre-empt it. So ids carry 128 random bits that leave the process only in the message itself."""
    a, b = await raw("agent", job=A, pod="w0"), await raw("agent", job=B, pod="w0")
    await a.ask(subjects.report(A, "w0", "ack"), headers={"Nats-Msg-Id": "known"})
    assert (await b.ask(subjects.report(B, "w0", "ack"), headers={"Nats-Msg-Id": "known"}))["duplicate"] is True, "if the server changes, simplify"
    buses = [await secured.bus("agent", job=job, pod="w0") for job in (A, B)]
    ids = {bus.next_msg_id() for bus in buses for _ in range(100)}
    assert len(ids) == 200
    assert len({identifier.rpartition("-")[0] for identifier in ids}) == 2
    assert all(len(identifier.rpartition("-")[0]) >= 32 for identifier in ids)
    assert await a.subscribe(subjects.report(B, "w0", "ack")), "and nobody reads another's ids"
    for bus in buses:
        await bus.close()


async def test_the_id_of_a_fact_cannot_be_foretold(secured: Secured, raw: RawOf) -> None:
    """Facts of two replicas are kept once by an id made of their content, which readers know, and a salt in `aegis.era`, which they do not."""
    news = News(B, "w0", Fact(FactKind.GONE, secured.jobs[B], 1, "n1", None, 9, 1))
    public = await secured.streams()
    evil = await raw("agent", job=A, pod="w0")
    for guess in (news.msg_id, messages.Era("").dedup_id(news.msg_id), messages.Era(public).dedup_id(news.msg_id)):
        await evil.ask(subjects.report(A, "w0", "ack"), headers={"Nats-Msg-Id": guess})
    buses = [await secured.bus("jobcontroller") for _ in range(2)]
    before = await buses[0].get("CTL", subjects.ERA)
    assert before is not None
    assert messages.decode(messages.Era, before.data).salt not in ("", public)
    for bus in buses:
        await Controller(bus, "").tell(news)
    master = await secured.bus("master")
    found = []
    async with OrderedReader(master, "REPORTS", [subjects.fact(B, "w0")], start=1) as reader:
        async for item in reader:
            if isinstance(item, Stored) and item.data == messages.encode(news.fact):
                found.append(item.seq)
                await master.publish(subjects.fact(B, "w0"), b"end", msg_id="auto")
            if isinstance(item, Stored) and item.data == b"end":
                break
    assert len(found) == 1, "stored, and once"
    for bus in (*buses, master):
        await bus.close()


# --- tags ------------------------------------------------------------------------------------------------------------------------

BAD_TAGS = ["*", ">", "a.b", "..", "a b", "", "-a", "A", "a_b", "x" * 41, "a\n", "{{tag(job)}}", "é"]


@pytest.mark.parametrize("value", BAD_TAGS)
@pytest.mark.parametrize("tag", ["job", "pod", "node", "namespace"])
def test_a_tag_that_is_no_id_is_not_signed(tag: str, value: str) -> None:
    with pytest.raises(ValueError, match="E110"):
        jwt.user(Nkey.new("account"), Nkey.new("user").public, "x", now=0, tags={tag: value})


def test_tags_outside_the_list_and_missing_ones_are_not_signed(secured: Secured) -> None:
    with pytest.raises(ValueError, match="unknown tag"):
        jwt.user(Nkey.new("account"), Nkey.new("user").public, "x", now=0, tags={"role": "admin"})
    for role, tags in (("agent", {"job": A}), ("node", {}), ("user", {}), ("reader", {"namespace": "ml"}), ("nobody", {})):
        with pytest.raises(ValueError, match=r"takes the tags|unknown role"):
            secured.site.issue(role, tags)


def forged(secured: Secured, job: str, nats: dict[str, object], uid: str = "") -> str:
    """A user signed by the agents' key of `job`, with claims that `aegis_credentials` would never make."""
    key = Nkey.new("user")
    secret = secured.site.secret
    claims = {
        "sub": key.public,
        "name": "evil",
        "nats": {"type": "user", "version": 2, "issuer_account": secret.job_account(job, uid).public, **nats},
    }
    return jwt.creds_file(jwt.encode(claims, secret.job_signing(job, uid), int(time.time())), key.seed)


@pytest.mark.parametrize(
    "tags", [["job:*", "pod:*"], ["job:>", "pod:>"], [f"job:{B}", "pod:w0"], [f"job:{A}", f"job:{B}", "pod:w0"], ["job:*.worker", "pod:w0"]]
)
async def test_even_forged_tags_stay_inside_the_jobs_account(secured: Secured, raw: RawOf, tags: list[str]) -> None:
    """Second line of defence: the imports of the account are pinned to the job."""
    agent = await raw(creds=forged(secured, A, {"tags": tags}, secured.jobs[A]))
    before = await _last(secured)
    for subject in (subjects.report(B, "w0", "finish"), subjects.job_state(B), subjects.fact(B, "w0"), subjects.cred(B)):
        await agent.nc.publish(subject, b"forged")
    await agent.settle()
    assert await _last(secured) == before
    heard = await agent.nc.subscribe(subjects.view_job_state(B))
    await agent.settle()
    assert heard is not None
    assert not await agent.answered(f"$JS.API.DIRECT.GET.CTL.{subjects.job_state(B)}")


async def _last(secured: Secured) -> list[int]:
    admin = await secured.bus("admin")
    stored = [
        await admin.get("REPORTS", subjects.report(B, "w0", "finish"), leader=True),
        await admin.get("CTL", subjects.job_state(B), leader=True),
        await admin.get("REPORTS", subjects.fact(B, "w0"), leader=True),
        await admin.get("CTL", subjects.cred(B), leader=True),
    ]
    await admin.close()
    return [item.seq if item else 0 for item in stored]


@pytest.mark.parametrize(
    "nats",
    [
        {"pub": {"allow": [">"]}, "sub": {"allow": [">"]}, "subs": -1, "data": -1, "payload": -1},
        {"bearer_token": True, "tags": [f"job:{A}", "pod:w0"]},
    ],
)
async def test_a_scoped_jwt_with_rights_of_its_own_is_refused(secured: Secured, raw: RawOf, nats: dict[str, object]) -> None:
    with pytest.raises(nats_errors()):
        await raw(creds=forged(secured, A, nats, secured.jobs[A]))


def nats_errors() -> tuple[type[Exception], ...]:
    return (nats.errors.Error, OSError, TimeoutError)


async def test_a_jwt_without_tags_may_nothing(secured: Secured, raw: RawOf) -> None:
    try:
        agent = await raw(creds=forged(secured, A, {}, secured.jobs[A]))
    except nats_errors():
        return
    assert await agent.publish(subjects.report(A, "w0", "ack"))
    assert await agent.subscribe(subjects.view_job_state(A))


@pytest.mark.parametrize("how", ["another operator", "another job's key", "expired", "another seed"])
async def test_a_jwt_that_is_not_good_does_not_connect(secured: Secured, raw: RawOf, how: str) -> None:
    secret = secured.site.secret
    key = Nkey.new("user")
    account = secret.job_account(A, secured.jobs[A]).public
    signer = {"another operator": Nkey.new("account"), "another job's key": secret.job_signing(B, secured.jobs[B])}.get(
        how, secret.job_signing(A, secured.jobs[A])
    )
    now = int(time.time())
    token = jwt.user(
        signer, key.public, "x", now=now - 100, issuer_account=account, tags={"job": A, "pod": "w0"}, expires=now - 1 if how == "expired" else None
    )
    seed = Nkey.new("user").seed if how == "another seed" else key.seed
    assert Identity.from_creds(jwt.creds_file(token, seed)).public
    with pytest.raises(nats_errors()):
        await raw(creds=jwt.creds_file(token, seed))
