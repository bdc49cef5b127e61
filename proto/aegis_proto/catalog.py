"""Every subject as data for the generated documents: what travels on it, and one example that really decodes.

Owns the table only; who may publish and hear is computed from `roles`, where it is kept from `streams`. `docs.py` renders it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from aegis_proto import api, api_nodes, blobs, credapi, deeptest, lemon, logs, messages, metrics, net, snapshots, subjects
from aegis_proto.examples import (
    AT,
    BLOB,
    BOOT,
    CLAIM,
    ERA,
    EVENT,
    HEAD,
    HELD,
    ISSUED,
    JOB,
    LEMON,
    LINK,
    LOG_BATCH,
    MOVE,
    NODE,
    NODE_SPEC,
    NS,
    PLACE,
    PODS,
    PORTS,
    PRESENT,
    REPORTS,
    RISK,
    SLOT,
    SNAPSHOT,
    SPEC,
    STATUS,
    STORED,
    SUMMARY,
    TAGS,
    TAINT,
    UID,
    VERDICT,
)
from aegis_proto.phases import FactKind
from aegis_proto.state import Head, JobSpec, Pod

__all__ = ["ENTRIES", "TAGS", "Entry"]


@dataclass(frozen=True)
class Entry:
    """One subject. `address` with {parameters}; `subject` a real one; `payload` None = bytes; `example` the payload as a struct."""

    address: str
    subject: str
    says: str
    payload: type[Any] | None = None
    example: Any = None
    reply: type[Any] | None = None
    answer: Any = None
    reserved: bool = False
    """Stream and rights are there; nothing of this release publishes it."""


ENTRIES: list[Entry] = [
    # CTL
    Entry("aegis.job.{job}.state", subjects.job_state(JOB), "head of a job's state: the fence, and the order itself", Head, HEAD),
    Entry(
        "aegis.job.{job}.pods.{shard}",
        subjects.job_pods(JOB, 0),
        "pods 256k to 256k+255, array-encoded; zstd over the JSON from 4 KB on (aegis_proto.shards)",
        tuple[Pod, ...],
        PODS,
    ),
    Entry(
        "aegis.job.{job}.spec", subjects.job_spec(JOB), "what the user submitted; never republished (its environment may hold secrets)", JobSpec, SPEC
    ),
    Entry("aegis.cred.{job}.{shard}", subjects.cred(JOB), "which nkey holds which place, and what is revoked (aegis_credentials.record)"),
    Entry("aegis.cred._node.{node}", subjects.cred_node(NODE), "the same for a node daemon"),
    Entry("aegis.cred._issued.{nkey}", subjects.cred_issued(ISSUED.nkey), "credentials that were issued, until they expire", credapi.Issued, ISSUED),
    Entry("aegis.cred._account.{account}", subjects.cred_account("people"), "revocations of FLEET and PEOPLE"),
    Entry(
        "aegis.lease.{replica}",
        subjects.lease("m1"),
        "this replica lives, and what it can read",
        messages.LeaseData,
        messages.LeaseData("m1", host="h", pid=42),
    ),
    Entry("aegis.era", subjects.ERA, "id of this state store; a new one after loss or restore", messages.Era, messages.Era(ERA, AT, "created")),
    # NODES, FLEET
    Entry(
        "aegis.place.{job}.{pod}", subjects.place(JOB, "w0"), "where (uid, pod, attempt) is placed; one batch with its slot", messages.Place, PLACE
    ),
    Entry(
        "aegis.node.{node}.slot.{slot}",
        subjects.node_slot(NODE, 0),
        "desired content of a slot; carries a join token, never republished",
        messages.Slot,
        SLOT,
    ),
    Entry("aegis.node.{node}.taint", subjects.node_taint(NODE), "exclusion of a node for all jobs", messages.Taint, TAINT),
    Entry("aegis.node.{node}.risk", subjects.node_risk(NODE), "how bad a node is thought to be, for whoever places jobs", lemon.Risk, RISK),
    Entry("aegis.node.{node}.test", subjects.node_test(NODE), "deep tests that its daemon owes", deeptest.DeepTest, deeptest.ORDERED),
    Entry("aegis.node.{node}.spec", subjects.node_spec(NODE), "registration of a node daemon", messages.NodeSpec, NODE_SPEC),
    Entry(
        "aegis.node.{node}.status", subjects.node_status(NODE), "what the daemon really holds, whole, on every change", messages.NodeStatus, STATUS
    ),
    Entry(
        "aegis.node.{node}.held.{slot}",
        subjects.node_held(NODE, 0),
        "what runs in a slot whose record the store has lost; carries a specification, never republished",
        messages.Held,
        HELD,
    ),
    # REPORTS
    *(Entry(f"aegis.job.{{job}}.worker.{{pod}}.{kind}", subjects.report(JOB, "w0", kind), says, messages.Message, m) for kind, says, m in REPORTS),
    Entry(
        "aegis.job.{job}.fact.{pod}",
        subjects.fact(JOB, "w0"),
        "what the platform, a verdict or an authorised person says about a pod, or `job`",
        messages.Fact,
        messages.Fact(FactKind.GONE, UID, 1, NODE, None, 9, AT),
    ),
    # EVENTS
    Entry("aegis.job.{job}.event", subjects.job_event(JOB), "one decision, for people and tools", messages.JobEvent, EVENT),
    Entry(
        "aegis.job.{job}.progress",
        subjects.job_progress(JOB),
        "steps of the training, at most every 5 s",
        api.Progress,
        api.Progress(JOB, NS, 1, 120, 121, 3.2, AT, 3),
    ),
    Entry("aegis.node.{node}.event.{kind}", subjects.node_event(NODE, "anomaly"), "what a daemon noticed", metrics.Anomaly, metrics.NOTICED),
    Entry(
        "aegis.node.{node}.event.test",
        subjects.node_event(NODE, "test"),
        "what the deep tests that were ordered said",
        deeptest.DeepTestDone,
        deeptest.ANSWERED,
    ),
    Entry(
        "aegis.verdict.{service}.{what}.{id}",
        subjects.verdict("lognexus", "job", f"{JOB}-0"),
        "a finding with cause and evidence",
        messages.Verdict,
        VERDICT,
    ),
    # LOGS, METRICS, BLOBS, DLQ
    Entry("aegis.job.{job}.log.{pod}", subjects.job_log(JOB, "w0"), "log lines of a worker, in batches", logs.LogBatch, LOG_BATCH),
    Entry(
        "aegis.job.{job}.metric.{pod}",
        subjects.job_metric(JOB, "w0"),
        "what the run of a worker uses, every 10 s",
        metrics.UsageSample,
        metrics.EXAMPLE,
    ),
    Entry("aegis.node.{node}.metric", subjects.node_metric(NODE), "what a machine uses, every 10 s", metrics.UsageSample, metrics.EXAMPLE),
    Entry("aegis.net.{node}.counter", subjects.net_counter(NODE), "ports of a node, whole, one message per poll", net.NodePorts, PORTS),
    Entry(
        "aegis.job.{job}.blob.{pod}.{id}",
        subjects.blob(JOB, "w0", "flight-1"),
        "pieces of flight records, stacks, snapshots; loss allowed",
        blobs.BlobPiece,
        BLOB,
    ),
    Entry(
        "aegis.kept.{service}.head",
        subjects.kept("netmon", "head"),
        "which generation of what a service remembers is whole",
        net.KeptHead,
        net.KeptHead(ERA, "net1", 12, 3, 130_000, hashlib.sha256(b"").hexdigest(), AT),
    ),
    Entry("aegis.kept.{service}.{piece}", subjects.kept("netmon", "a0"), "48 KB of it, packed", None, b"\x78\x9c"),
    Entry(
        "aegis.dlq.{service}.{stream}.{source}",
        subjects.dlq("master", "REPORTS", JOB),
        "what did not decode, and why",
        api.DeadLetter,
        api.DeadLetter("REPORTS", 42, subjects.report(JOB, "w0", "ack"), "not a Message", b"{", AT),
    ),
    # core
    Entry(
        "aegis.job.{job}.hb.{pod}",
        subjects.heartbeat(JOB, "w0"),
        "heartbeat of a worker, every 5 s",
        messages.Heartbeat,
        messages.Heartbeat(BOOT, 12, 1, 1, 7, True, 120),
    ),
    Entry("aegis.node.{node}.hb", subjects.node_hb(NODE), "heartbeat of a node daemon, every 5 s", api_nodes.NodeBeat, api_nodes.NodeBeat(BOOT, 12)),
    # requests: master
    Entry(
        "aegis.rpc.master.do.submit.{namespace}",
        subjects.rpc_do("master", "submit", NS),
        "submit a job; the same uid again is the same job",
        api.Submit,
        api.Submit(SPEC, UID),
        api.SubmitReply,
        api.SubmitReply(JOB, NS, UID, 12),
    ),
    *(
        Entry(
            f"aegis.rpc.master.do.{verb}.{{namespace}}",
            subjects.rpc_do("master", verb, NS),
            f"{verb} a job",
            api.ActionRequest,
            api.ActionRequest(JOB, "3d0c", "alice", settings={"max-retry": "6"} if verb == "set" else {}),
            api.ActionReply,
            api.ActionReply(JOB, 77, "RunCommand", 41),
        )
        for verb in api.ACTIONS
    ),
    Entry(
        "aegis.rpc.master.adopt",
        subjects.ADOPT,
        "bring back a job that runs and that the store has lost; only what carries right deeds",
        api.AdoptRequest,
        api.AdoptRequest(JOB, UID, NS, 3, ERA, PRESENT, (CLAIM,), messages.raw(SPEC)),
        api.AdoptReply,
        api.AdoptReply(JOB, 3),
    ),
    Entry(
        "aegis.rpc.master.query.jobs.{namespace}",
        subjects.rpc_query("master", "jobs", NS),
        "jobs of a namespace, or (without it) of all",
        api.JobsRequest,
        api.JobsRequest(all=True),
        api.Jobs,
        api.Jobs((SUMMARY,), 41),
    ),
    Entry(
        "aegis.rpc.master.query.job.{namespace}",
        subjects.rpc_query("master", "job", NS),
        "one job with its workers",
        api.JobRequest,
        api.JobRequest(JOB),
        api.JobDetail,
        api.JobDetail(SUMMARY, SPEC.command, (api.WorkerView("w0", NODE),), (MOVE,), (), "1:0:0", 7, 41, 41),
    ),
    Entry(
        "aegis.rpc.master.query.events.{namespace}",
        subjects.rpc_query("master", "events", NS),
        "events of a job",
        api.EventsRequest,
        api.EventsRequest(JOB),
        api.Events,
        api.Events((api.StoredEvent(9, EVENT),), 9),
    ),
    Entry(
        "aegis.rpc.master.query.status",
        subjects.rpc_query("master", "status"),
        "replicas, jobs per phase, use of the store",
        None,
        None,
        api.Status,
        api.Status("0.1.0", ERA, "m1", (api.Replica("m1", "master", jobs=1),), {"RunCommand": 1}, 0, 0.01, 41),
    ),
    # requests: job controller
    Entry(
        "aegis.rpc.jobcontroller.query.nodes.{namespace}",
        subjects.rpc_query("jobcontroller", "nodes", NS),
        "nodes, slots and exclusions",
        api_nodes.NodesQuery,
        api_nodes.NodesQuery(),
        api_nodes.NodesAnswer,
        api_nodes.NodesAnswer((api_nodes.NodeInfo(NODE),), 1),
    ),
    Entry(
        "aegis.rpc.jobcontroller.query.pending.{namespace}",
        subjects.rpc_query("jobcontroller", "pending", NS),
        "why jobs still wait for nodes",
        api_nodes.PendingQuery,
        api_nodes.PendingQuery(JOB),
        api_nodes.PendingAnswer,
        api_nodes.PendingAnswer((api_nodes.JobPending(JOB),)),
    ),
    *(
        Entry(
            f"aegis.rpc.jobcontroller.do.{verb}.{{namespace}}",
            subjects.rpc_do("jobcontroller", verb, NS),
            f"{verb} a node",
            api_nodes.TaintRequest,
            api_nodes.TaintRequest(NODE, "alice", "XID 79"),
            api_nodes.TaintAnswer,
            api_nodes.TaintAnswer(NODE, "ok", "excluded (XID 79)"),
        )
        for verb in ("taint", "untaint")
    ),
    Entry(
        "aegis.rpc.jobcontroller.do.test.{namespace}",
        subjects.rpc_do("jobcontroller", "test", NS),
        "have a node tested in depth by its daemon",
        api_nodes.NodeTestRequest,
        api_nodes.NodeTestRequest(NODE, "alice", "suspected of slow links", 60.0),
        api_nodes.NodeTestAnswer,
        api_nodes.NodeTestAnswer(NODE, deeptest.ORDERED.id),
    ),
    Entry(
        "aegis.rpc.jobcontroller.do.node-lost.{node}",
        subjects.rpc_do("jobcontroller", "node-lost", NODE),
        "a person says that the machine is off",
        api_nodes.NodeLostRequest,
        api_nodes.NodeLostRequest("alice", "power cut"),
        api_nodes.NodeLostAnswer,
        api_nodes.NodeLostAnswer(NODE, (f"{JOB}/w0/2",)),
    ),
    # requests: lognexus
    Entry(
        "aegis.rpc.lognexus.query.logs.{namespace}",
        subjects.rpc_query("lognexus", "logs", NS),
        "what the workers of a job printed",
        logs.LogsQuery,
        logs.LogsQuery(JOB, "w0", grep="loss"),
        logs.LogsAnswer,
        logs.LogsAnswer((STORED,), "0:1480", replica="logs-1"),
    ),
    Entry(
        "aegis.rpc.lognexus.query.verdicts.{namespace}",
        subjects.rpc_query("lognexus", "verdicts", NS),
        "why the incarnations of a job failed",
        logs.VerdictsQuery,
        logs.VerdictsQuery(JOB),
        logs.VerdictsAnswer,
        logs.VerdictsAnswer((VERDICT,)),
    ),
    Entry(
        "aegis.rpc.lognexus.query.snapshots.{namespace}",
        subjects.rpc_query("lognexus", "snapshots", NS),
        "how the machines of a job looked when its runs failed",
        snapshots.SnapshotsQuery,
        snapshots.SnapshotsQuery(JOB),
        snapshots.SnapshotsAnswer,
        snapshots.SnapshotsAnswer((SNAPSHOT,)),
    ),
    # requests: netmon
    Entry(
        "aegis.rpc.netmon.query.links.{namespace}",
        subjects.rpc_query("netmon", "links", NS),
        "links, alarms first, with the jobs on them; adaptive routing and firmware",
        net.LinksQuery,
        net.LinksQuery(bad=True),
        net.LinksAnswer,
        net.LinksAnswer((LINK,), 1),
    ),
    Entry(
        "aegis.rpc.netmon.query.link.{namespace}",
        subjects.rpc_query("netmon", "link", NS),
        "one link with its counters and dips",
        net.LinkQuery,
        net.LinkQuery("leaf2 port 5"),
        net.LinkAnswer,
        net.LinkAnswer(LINK, (net.CounterRow("leaf2 port 5", "symbol_error", 16, "counting", 900, 900, 60.0),)),
    ),
    Entry(
        "aegis.rpc.netmon.query.job.{namespace}",
        subjects.rpc_query("netmon", "job", NS),
        "what a job uses of the network, and its NCCL settings against it",
        net.JobLinksQuery,
        net.JobLinksQuery(JOB),
        net.JobLinksAnswer,
        net.JobLinksAnswer(JOB, (NODE,), (LINK,), 1),
    ),
    Entry(
        "aegis.rpc.netmon.query.sample.{namespace}",
        subjects.rpc_query("netmon", "sample", NS),
        "what the ports of some nodes counted, for before and after",
        net.SampleQuery,
        net.SampleQuery((NODE,)),
        net.SampleAnswer,
        net.SampleAnswer(8, 300.0, 10**9, 12, 0, 10**13, 3),
    ),
    # requests: lemon
    Entry(
        "aegis.rpc.lemon.query.ranking.{namespace}",
        subjects.rpc_query("lemon", "ranking", NS),
        "nodes, worst first, and what the ranking rests on",
        lemon.RankingQuery,
        lemon.RankingQuery(),
        lemon.RankingAnswer,
        lemon.RankingAnswer((LEMON,), 1, 1, lemon.HistoryInfo("lemon1", 812, 40, detector="blame", window=2419200.0, fleetRate=6.5, mode="act")),
    ),
    Entry(
        "aegis.rpc.lemon.query.node.{namespace}",
        subjects.rpc_query("lemon", "node", NS),
        "one node: its failures, what was decided, done and found",
        lemon.LemonQuery,
        lemon.LemonQuery(NODE),
        lemon.LemonAnswer,
        lemon.LemonAnswer(LEMON),
    ),
    Entry(
        "aegis.rpc.lemon.query.ledgers",
        subjects.rpc_query("lemon", "ledgers"),
        "ledgers of jobs of all namespaces, as spans of states",
        lemon.LedgersQuery,
        lemon.LedgersQuery((JOB,)),
        lemon.LedgersAnswer,
        lemon.LedgersAnswer((lemon.JobLedger(JOB, 3, 24, spans=(lemon.LedgerSpan("productive", AT, AT + 60_000, True),)),)),
    ),
    # requests: credentials
    Entry(
        "aegis.rpc.credentials.do.join.{namespace}",
        subjects.rpc_do("credentials", "join", NS),
        "a join token for one attempt of one place, and the deed that it was given out",
        credapi.JoinRequest,
        credapi.JoinRequest(JOB, "w0", 2),
        credapi.JoinReply,
        credapi.JoinReply("(join token)", UID, ERA, CLAIM.deed),
    ),
    Entry(
        "aegis.rpc.credentials.do.vouch.{namespace}",
        subjects.rpc_do("credentials", "vouch", NS),
        "which of these deeds are ours",
        credapi.VouchRequest,
        credapi.VouchRequest(credapi.Given(JOB, UID, NS, 3, ERA, credapi.spec_digest(messages.encode(SPEC))), (CLAIM,)),
        credapi.VouchReply,
        credapi.VouchReply({"w0": 2}),
    ),
    Entry(
        "aegis.rpc.credentials.do.issue.{namespace}",
        subjects.rpc_do("credentials", "issue", NS),
        "a JWT for a person, a tool or a node",
        credapi.IssueRequest,
        credapi.IssueRequest("user", "U" + "A" * 55, "alice"),
        credapi.IssueReply,
        credapi.IssueReply("(JWT)", expires=1_796_028_800),
    ),
    Entry(
        "aegis.rpc.credentials.do.revoke.{namespace}",
        subjects.rpc_do("credentials", "revoke", NS),
        "cut off a person, a node, or a pod of a job",
        credapi.RevokeRequest,
        credapi.RevokeRequest(job=JOB, pod="w0"),
        credapi.RevokeReply,
        credapi.RevokeReply(True),
    ),
    Entry(
        "aegis.rpc.credentials.do.list.{namespace}",
        subjects.rpc_do("credentials", "list", NS),
        "what was issued and has not expired",
        credapi.ListRequest,
        credapi.ListRequest(),
        credapi.ListReply,
        credapi.ListReply((ISSUED,)),
    ),
]
