"""Floods and abandoned batches: one that misbehaves evicts only its own, and stops nobody for longer than the server's batch timeout."""

from __future__ import annotations

import asyncio
import json
import secrets
import time

import pytest
from aegis_bus.errors import Rejected, UnknownResult, Unreachable, WrongLastSequence
from aegis_bus.jobstore import JobStore
from aegis_proto import streams, subjects
from harness.site import A, B, Raw, RawOf, Secured, job_state

pytestmark = pytest.mark.timeout(120)


async def flood(client: Raw, subject: str, count: int, size: int) -> None:
    body = b"x" * size
    for _ in range(count):
        await client.nc.publish(subject, body)
    await client.settle()


async def stored(secured: Secured, stream: str) -> dict[str, int]:
    """Messages per subject."""
    admin = await secured.bus("admin")
    info = json.loads(await admin.request(f"$JS.API.STREAM.INFO.{stream}", json.dumps({"subjects_filter": ">"}).encode()))
    await admin.close()
    return dict(info["state"].get("subjects") or {})


async def test_a_flooding_pod_evicts_only_its_own_reports(secured: Secured, raw: RawOf) -> None:
    quiet, sibling, evil = await raw("agent", job=B, pod="w0"), await raw("agent", job=A, pod="w1"), await raw("agent", job=A, pod="w0")
    finish, other = subjects.report(B, "w0", "finish"), subjects.report(A, "w1", "finish")
    await quiet.ask(finish)
    await sibling.ask(other)
    before = await stored(secured, "REPORTS")
    await flood(evil, subjects.report(A, "w0", "error"), 1000, 8000)
    after = await stored(secured, "REPORTS")
    assert after[subjects.report(A, "w0", "error")] == 64
    assert {k: v for k, v in after.items() if k != subjects.report(A, "w0", "error")} == {
        k: v for k, v in before.items() if k != subjects.report(A, "w0", "error")
    }


def test_what_one_pod_can_hold_of_reports_is_bounded() -> None:
    """Enumerated kinds x messages per subject x size: the kind token is no way around the cap."""
    reports = next(stream for stream in streams.STREAMS if stream["name"] == "REPORTS")
    from aegis_proto.phases import ReportKind

    assert len(ReportKind) * reports["max_msgs_per_subject"] * reports["max_msg_size"] <= 4 * streams.MIB


@pytest.mark.parametrize(("stream", "subject", "cap"), [("LOGS", subjects.job_log(A, "w0"), 2000), ("METRICS", subjects.job_metric(A, "w0"), 256)])
async def test_a_flood_of_logs_or_metrics_evicts_only_its_own(secured: Secured, raw: RawOf, stream: str, subject: str, cap: int) -> None:
    other = subject.replace(A, B)
    quiet, evil = await raw("agent", job=B, pod="w0"), await raw("agent", job=A, pod="w0")
    await quiet.ask(other)
    await flood(evil, subject, cap + 500, 200)
    after = await stored(secured, stream)
    assert after[subject] == cap
    assert after[other] >= 1


async def test_dead_letters_of_one_job_do_not_evict_anothers(secured: Secured) -> None:
    master = await secured.bus("master")
    await master.publish(subjects.dlq("master", "REPORTS", B), b"the one that matters")
    for _ in range(300):
        await master.publish(subjects.dlq("master", "REPORTS", A), b"x" * 8000)
    after = await stored(secured, "DLQ")
    assert after[subjects.dlq("master", "REPORTS", A)] == 64
    assert after[subjects.dlq("master", "REPORTS", B)] == 1
    await master.close()


async def test_other_jobs_commits_never_evict_a_quiet_jobs_state(secured: Secured) -> None:
    """CTL discards new, never old: full, it refuses, and what is there stays. (Discarding old, a quiet job's state went after 221 commits.)"""
    admin, master = await secured.bus("admin"), await secured.bus("master")
    store = JobStore(master)
    await store.create(job_state("quiet-666666", "uid-quiet"))
    noisy = await store.create(job_state("noisy-666666", "uid-noisy"))
    config = json.loads(await admin.request("$JS.API.STREAM.INFO.CTL", b""))["config"]
    config["max_bytes"] = 2 * streams.MIB
    assert "error" not in json.loads(await admin.request("$JS.API.STREAM.UPDATE.CTL", json.dumps(config).encode()))
    try:
        refused = 0
        for n in range(200):  # new subjects: the cap per subject does not bound them
            try:
                await master.publish(f"aegis.job.noise-{n}.spec", b"x" * 40_000)
            except Rejected:
                refused += 1
        assert refused > 0, "the stream was never full: the test shows nothing"
        quiet = await store.load("quiet-666666")
        assert quiet is not None
        assert quiet.state.head.uid == "uid-quiet"
        assert await store.load("noisy-666666") is not None
        await store.commit(noisy, noisy.state.with_head(step=1))
    finally:
        await secured.streams()
        for n in range(200):
            await admin.request("$JS.API.STREAM.PURGE.CTL", json.dumps({"filter": f"aegis.job.noise-{n}.spec"}).encode())
        await admin.close()
        await master.close()


async def test_fifty_abandoned_batches_of_a_service_time_out_and_commits_recover(secured: Secured, raw: RawOf) -> None:
    """The server holds 50 open batches a stream and drops those that stand still for 10 s; a commit that meets them is retried by its owner."""
    rogue, master = await raw("master"), await secured.bus("master")
    store = JobStore(master)
    loaded = await store.create(job_state("batch-333333", "uid-batch"))
    for n in range(60):
        headers = {"Nats-Batch-Id": secrets.token_hex(8), "Nats-Batch-Sequence": "1"}
        await rogue.nc.publish(f"aegis.job.rogue-{n}.state", b"{}", reply=f"_INBOX.{rogue.public}.x", headers=headers)
    await rogue.settle()
    dirty = loaded.state.with_pod(0, loaded.state.pod(0).__class__(attempt=2))
    from aegis_bus.errors import Rejected

    began, refused = time.monotonic(), 0
    while True:
        try:
            await store.commit(loaded, dirty)
            break
        except WrongLastSequence:
            raise
        except (Rejected, Unreachable, UnknownResult):
            refused += 1
            assert time.monotonic() - began < 30
            await asyncio.sleep(0.2)
    assert refused > 0, "if the server no longer refuses, this test and its remedy can go"
    again = await store.load("batch-333333")
    assert again is not None
    assert again.state.pod(0).attempt == 2
    # Commits of a head alone never waited.
    await store.commit(again, again.state.with_head(step=5))
    await master.close()
