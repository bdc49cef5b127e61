"""Every subject as data for the generated documents: what travels on it, and one example that really decodes.

Owns the table only; who may publish and hear is computed from `roles`, where it is kept from `streams`. `docs.py` renders it.
"""

from __future__ import annotations

import hashlib

from aegis_proto import api, api_nodes, blobs, credapi, deeptest, lemon, logs, messages, metrics, net, subjects
from aegis_proto.entry import Entry
from aegis_proto.examples import (
    AT,
    BLOB,
    BOOT,
    ERA,
    EVENT,
    HEAD,
    HELD,
    ISSUED,
    JOB,
    LOG_BATCH,
    NODE,
    NODE_SPEC,
    NS,
    PLACE,
    PODS,
    PORTS,
    REPORTS,
    RISK,
    SLOT,
    SPEC,
    STATUS,
    TAGS,
    TAINT,
    UID,
    VERDICT,
)
from aegis_proto.phases import FactKind
from aegis_proto.requests import REQUESTS
from aegis_proto.state import Head, JobSpec, Pod

__all__ = ["ENTRIES", "TAGS", "Entry"]


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
    Entry("aegis.kept.{service}.{piece}", subjects.kept("netmon", "a0"), "48 KB of it, packed"),
    Entry("aegis.kept.lemon.{node}", subjects.kept("lemon", NODE), "its case, as long as it is open, or that it is clear", messages.Verdict, VERDICT),
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
    *REQUESTS,
]
