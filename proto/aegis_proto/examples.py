"""One real example of everything that travels: what the generated documents show, and what the tests decode. They fit together: one job, one node."""

from __future__ import annotations

from aegis_proto import api, blobs, credapi, lemon, logs, messages, net, snapshots
from aegis_proto.ids import job_id
from aegis_proto.phases import LedgerState, LostReason, MessageType, OrderPhase, Phase
from aegis_proto.state import Deadline, Head, JobSpec, Ledger, Order, Owner, Pod, Transition

UID = "0b6f7a52-6d0e-4a45-9f0b-6c1f0f2a7c11"
JOB = job_id("digits", UID)
NS = "default"
NODE = "n1"
ERA = "01m8mf9a5gnv7x9g2dj0pzamv9"
AT = 1_796_000_000_000  # ms
BOOT = "5f1d0c2ab7e94d10"
TAGS = {"job": JOB, "pod": "w0", "node": NODE, "namespace": NS}


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
RISK = lemon.Risk(NODE, 0.91, 0.91, why="4 failures in 6.1 days in jobs, 98 times the fleet", at=AT)
LEMON = lemon.LemonNode(
    NODE,
    0.91,
    True,
    0.91,
    "drained",
    AT,
    4.0,
    6.1,
    98.0,
    "4 failures in 6.1 days in jobs, 98 times the fleet",
    signals={"multi_node_node_fails": 4.0},
)
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
SNAPSHOT = snapshots.NodeSnapshot(
    "w0",
    NODE,
    0,
    -12,
    snapshots.Snapshot(
        AT, 86400.0, 3.1, 96, 0.62, {"io": 0.4}, (snapshots.KernelLine(AT - 4000, "NVRM: Xid (PCI:0000:3b:00): 79, ...", "xid_79", "gpu_hw"),)
    ),
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
