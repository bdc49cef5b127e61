"""Every subject as data for the generated documents: what travels on it, and one example that really decodes.

Owns the table only; who may publish and hear is computed from `roles`, where it is kept from `streams`. `docs.py` renders it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aegis_proto import api, api_nodes, blobs, credapi, logs, messages, net, subjects
from aegis_proto.ids import job_id
from aegis_proto.phases import FactKind, LedgerState, LostReason, MessageType, OrderPhase, Phase
from aegis_proto.state import Deadline, Head, JobSpec, Ledger, Order, Owner, Pod, Transition

UID = "0b6f7a52-6d0e-4a45-9f0b-6c1f0f2a7c11"
JOB = job_id("digits", UID)
NS = "default"
NODE = "n1"
ERA = "01m8mf9a5gnv7x9g2dj0pzamv9"
AT = 1_796_000_000_000  # ms
BOOT = "5f1d0c2ab7e94d10"
TAGS = {"job": JOB, "pod": "w0", "node": NODE, "namespace": NS}


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


def report(kind: MessageType, phase: str, data: object, *, incarnation: int = 1, seq_num: int = 7) -> messages.Message:
    return messages.Message(
        JOB, NS, "w0", kind, phase, messages.raw(data), AT, uid=UID, era=ERA, attempt=1, boot=BOOT, incarnation=incarnation, seqNum=seq_num
    )


SPEC = JobSpec(name="digits", command=("python", "train.py"), workers=3, maxRetry=3)
MOVE = Transition(
    AT, Phase.RUN_COMMAND, Phase.RESTARTING, 5, 0, 1, "1:0:0", LostReason.KILLED.value, "w0", NODE, "w0 killed by signal 9 -> counted", counted=True
)
HEAD = Head(
    JOB,
    "digits",
    NS,
    UID,
    3,
    3,
    era=ERA,
    owner=Owner("m1", 1),
    cursor=41,
    phase=Phase.RUN_COMMAND,
    recoverCount=1,
    seqNum=7,
    incarnation=1,
    started=True,
    booted=True,
    countedIncarnation=0,
    countedPod="w0",
    masterAddr="127.0.0.1",
    masterPort=20001,
    deadline=Deadline("round", 600.0, 7, 1, AT),
    counts={"RunCommand": 3},
    order=Order(OrderPhase.COMMAND, 7, 1, attempts=((2, 1), (1, 2)), masterAddr="127.0.0.1", masterPort=20001),
    recent=(MOVE,),
    ledger=Ledger(LedgerState.PRODUCTIVE, AT, {"queued": 900, "booting": 2100}),
    createdAt=AT,
    runStartedAt=AT,
)
PODS = (Pod("127.0.0.1", NODE, Phase.RUN_COMMAND, retries=1, attempt=2, boot=BOOT, acked=7),)
CHECK = messages.CheckResult("process", True, "process and node alive", AT, 0.01, NODE)
EVENT = messages.JobEvent(
    "5-0-1", JOB, NS, "Restarting", "2026-11-30T08:53:20Z", 0, 5, "Restarting", "killed", "w0", NODE, 1, "1:0:0", MOVE.message, counted=True
)

R, E, F = MessageType.ACK, MessageType.ERROR, MessageType.FINISH
REPORTS: list[tuple[str, str, messages.Message]] = [
    ("pending", "I am here; a new boot of the present attempt means: restarted", report(R, "", messages.PendingData("127.0.0.1", NODE))),
    ("ack", "an order round was understood", report(R, "command", messages.AckData(4711))),
    ("check", "one check is done", report(R, "check", CHECK)),
    (
        "finish",
        "the round is done: checks, or the command ended with 0",
        report(F, "troubleshoot", messages.CheckResponse((CHECK,), "127.0.0.1", 20001)),
    ),
    (
        "error",
        "the command failed, or the worker could not diagnose",
        report(E, "command", messages.ErrorData("signal", None, 9, 0, "killed by signal 9", AT)),
    ),
    ("hang", "hang or slow: marks only", report(E, "hang", messages.HangData("hang", silence=600.0, rank=3))),
    ("stopped", "the child's tree is gone", report(R, "stop", messages.StoppedData(1))),
]

PLACE = messages.Place(UID, "w0", 2, NODE, "0", AT)
SLOT = messages.Slot(JOB, UID, NS, "w0", 2, 3, messages.raw(SPEC), "(join token)", "127.0.0.1:7443")
CLAIM = credapi.Claim("w0", 2, "(deed)")
HELD = messages.Held(JOB, UID, NS, "w0", 2, 3, ERA, CLAIM.deed, messages.raw(SPEC))
PRESENT = "01m8qk2v7drx5a0c4mj9bzne3w"
TAINT = messages.Taint(NODE, True, "XID 79", "alice", at=AT, until=AT + 86_400_000)
NODE_SPEC = messages.NodeSpec(NODE, "host-1", "127.0.0.1", 1, boot=BOOT, virtual=True, version="0.1.0", at=AT)
STATUS = messages.NodeStatus(NODE, BOOT, 3, (messages.SlotStatus("0", JOB, UID, "w0", 2, "running", 4711, at=AT),), AT)
VERDICT = messages.Verdict(
    f"{JOB}-0",
    "lognexus",
    "user_code",
    ("w0/r0",),
    ("[log] w0/r0 line 812 (python_error): KeyError: 'target'",),
    ("no flight records",),
    0.7,
    "w0/r0: the training's own code: w0/r0 line 812 (python_error): KeyError: 'target'",
    job=JOB,
    incarnation=0,
    at=AT,
    firstLine="w0/r0:812: KeyError: 'target'",
)
LOG_BATCH = logs.LogBatch(UID, 1, BOOT, 812, (logs.LogLine(AT, 1, 3, "out", "step 120 loss 2.318"),), NODE)
BLOB = blobs.pieces(b"(a pickle)", "flight", uid=UID, attempt=1, incarnation=1, rank=3, name="nccl_trace_rank_3", at=AT)[0]
STORED = logs.StoredLine("2026-11-30T08:53:20.000Z", JOB, "w0", 3, 1, "out", NODE, 1, BOOT, 812, AT, "step 120 loss 2.318")
PORTS = net.NodePorts(
    BOOT, AT, ("symbol_error", "port_xmit_data"), (net.PortCounts("mlx5_0", 1, "b83fd20300123456", "ACTIVE", 400.0, "InfiniBand", 4711, (0, 812)),)
)
LINK = net.LinkInfo("0000000000200003-5-0000000000200010-2", "degraded", "leaf2 port 5", "spine1 port 2", jobs=(net.TouchedJob(JOB, False),))
SUMMARY = api.JobSummary(JOB, "digits", NS, "RunCommand", 3, 3, 1, 3, 1, uid=UID, createdAt=AT)

ISSUED = credapi.Issued("alice", "user", NS, "U" + "A" * 55, 1_796_000_000, 1_796_028_800)

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
    Entry("aegis.node.{node}.event.{kind}", subjects.node_event(NODE, "xid"), "what a daemon noticed on its machine", reserved=True),
    Entry(
        "aegis.verdict.{service}.{what}.{id}",
        subjects.verdict("lognexus", "job", f"{JOB}-0"),
        "a finding with cause and evidence",
        messages.Verdict,
        VERDICT,
    ),
    # LOGS, METRICS, BLOBS, DLQ
    Entry("aegis.job.{job}.log.{pod}", subjects.job_log(JOB, "w0"), "log lines of a worker, in batches", logs.LogBatch, LOG_BATCH, reserved=True),
    Entry("aegis.job.{job}.metric.{pod}", subjects.job_metric(JOB, "w0"), "one message per worker and poll", reserved=True),
    Entry("aegis.net.{node}.counter", subjects.net_counter(NODE), "ports of a node, whole, one message per poll", net.NodePorts, PORTS),
    Entry(
        "aegis.job.{job}.blob.{pod}.{id}",
        subjects.blob(JOB, "w0", "flight-1"),
        "pieces of flight records, stacks, snapshots; loss allowed",
        blobs.BlobPiece,
        BLOB,
        reserved=True,
    ),
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
