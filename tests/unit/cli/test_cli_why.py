"""`aegis job why`: events, verdicts and machines as one timeline."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import msgspec
from aegis_cli import why
from aegis_cli.client import Client
from aegis_cli.firstlayer import FirstLayer
from aegis_cli.follow import PENDING_NOTE, Follower, Lines
from aegis_cli.output import Output
from aegis_cli.signals import Signals
from aegis_cli.verdicts import sentence
from aegis_proto.api import Events, WorkerView
from aegis_proto.api_nodes import JobPending, NodeRefusal, RecordAnswer, WorkerRecord
from aegis_proto.messages import Verdict
from aegis_proto.net import FindingInfo, JobLinksAnswer, LinkInfo, TouchedJob
from aegis_proto.snapshots import KernelLine, NodeSnapshot, Snapshot
from cli_data import detail as job_detail

T0 = 1_796_000_000_000
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def test_why_tells_one_timeline_of_events_and_machines() -> None:
    known = job_detail()
    snapshot = Snapshot(
        T0, load=3.5, cpus=8, memory=0.5, pressure={"io": 40.0, "cpu": 0.1}, kernel=(KernelLine(T0 - 5_000, XID + "\x1b[2J", "xid_79", "gpu_hw"),)
    )
    machine = NodeSnapshot("w1", "n1", 0, 2_000, snapshot)
    short = why.explain(known, [], None, layer=FirstLayer((machine,)))
    (told,) = [line for line in short.lines if line.what.startswith("kernel:")]
    assert (told.who, told.incarnation) == ("w1 on n1", 0) and "clock +2.000 s" in told.evidence and "gpu_hw" in told.evidence
    assert "\x1b" not in told.what
    assert not any(line.what.startswith("machine:") for line in short.lines)
    whole = why.explain(known, [], None, timeline=True, layer=FirstLayer((machine,)))
    (told,) = [line for line in whole.lines if line.what.startswith("machine:")]
    assert "load 3.5 on 8 CPUs; 50% of memory free; waits for io 40 %" in told.what
    assert [line.time for line in whole.lines] == sorted(line.time for line in whole.lines)


def test_why_tells_the_switches_the_scheduler_and_what_failures_have_in_common() -> None:
    known = job_detail()
    job = known.summary.job
    bad = LinkInfo(
        "l1",
        "degraded",
        "leaf2 port 5",
        "spine1 port 3",
        tier=1,
        since=T0 + 1_000.0,
        jobs=(TouchedJob(job),),
        findings=(FindingInfo("ber", "bad", "symbol_error rose by 900\x1b[2J"),),
        suspect="cable leaf2-spine1",
        reason="both ends count",
    )
    links = JobLinksAnswer(job, ("n0",), (bad, LinkInfo("l2", "healthy", "n0 mlx5_0/1", "leaf2 port 1", tier=0)), 2, True, timeStamp=T0 + 9_000.0)
    record = RecordAnswer("nodes", (WorkerRecord("w1", 2, "n5", "slot 0", T0, "running"),))
    history = ("n3 is suspect in 2 of 2 failures of this job (incarnations 0, 1)",)
    verdict = Verdict(
        f"{job}-1", "lognexus", "gpu_hw", evidence=("[node] n3: xid_79",), sentence="n3: GPU", job=job, incarnation=1, at=T0, history=history
    )
    layer = FirstLayer(links=links, common="4 of 5 incidents coincide with line card 2 of leaf2", record=record)
    short = why.explain(known, [], None, verdicts=[verdict], layer=layer)
    told = {line.who: line.what for line in short.lines}
    assert why.render(short).splitlines()[1] == short.cause == "Cause: n3: GPU"
    assert "\x1b" not in why.render(short, evidence=True) and "  [node] n3: xid_79" in why.render(short, evidence=True)
    assert any(line.what.startswith("link leaf2 port 5 - spine1 port 3: degraded, symbol_error rose") for line in short.lines)
    assert any("it uses this link; look at cable leaf2-spine1" in line.evidence for line in short.lines)
    assert {history[0], layer.common} <= set(told.values()) | {line.what for line in short.lines}
    assert not any("scheduler" in line.evidence for line in short.lines)
    whole = why.explain(known, [], None, timeline=True, layer=layer)
    assert any(line.what == "placed on n5 (slot 0), attempt 2: running" and line.evidence == "scheduler (nodes)" for line in whole.lines)
    assert any("2 links over leaf2, spine1, 1 not well" in line.what for line in whole.lines)


def test_what_is_not_known_is_said_once_and_without_a_share() -> None:
    plain = Verdict("d-0", "lognexus", "unknown", sentence="Cause unknown: nothing", sentenceZh="原因未知:无")
    assert (sentence([plain]), sentence([plain], "zh")) == ("Cause unknown: nothing", "原因未知:无")
    known = Verdict("d-0", "lognexus", "gpu_hw", confidence=0.9, sentence="w1: GPU hardware", sentenceZh="w1:GPU 硬件故障")
    assert (sentence([known]), sentence([known], "zh")) == ("Cause: w1: GPU hardware (90% sure)", "原因:w1:GPU 硬件故障(可信度 90%)")


def test_a_job_that_is_marked_as_hung_is_not_said_to_run() -> None:
    detail = msgspec.structs.replace(job_detail(), workers=(WorkerView("w0"), WorkerView("w1", mark="hang")))
    found = why.explain(detail, [], None).now
    assert "makes no progress" in found and "w1 marked as hung" in found


class Waits:
    """The bus, as far as a job that waits is asked about: it has waited for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.created = round((time.time() - seconds) * 1000)

    async def query(self, *_: object) -> Any:
        return job_detail(phase="Pending", createdAt=self.created, present=0)

    async def events(self, *_: object) -> Events:
        return Events((), 0)

    async def pending(self, job: str) -> JobPending:
        return JobPending(job, workers=3, refusals=(NodeRefusal("n3", "excluded", "XID 79"),), message="3 workers asked, 2 nodes usable: 1 excluded")


class Told(Lines):
    def __init__(self) -> None:
        super().__init__(cast(Output, None))
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_job_that_waits_says_why_by_itself_once_and_no_sooner_than_it_should() -> None:
    def followed(seconds: float) -> list[str]:
        shown = Told()
        follower = Follower(cast(Client, Waits(seconds)), "ddp-7f3a21", shown, signals=Signals())

        async def looked() -> None:
            await follower._step()
            await follower._step()

        asyncio.run(looked())
        return shown.notes

    assert followed(PENDING_NOTE / 3) == []
    (note,) = followed(PENDING_NOTE + 1)
    assert note.startswith("still Pending after 30 s: 3 workers asked, 2 nodes usable: 1 excluded")
    assert "n3: excluded (XID 79)" in note and note.endswith("aegis job why ddp-7f3a21")
