"""Rights, as data. One scoped signing key per role; a user JWT carries only tags (facts: rights of a tag are pasted unescaped, so tags are ids).

AEGIS is the account of the services and JetStream. Each job has an account without JetStream that reaches AEGIS by the imports below,
with its own id pinned into every subject. FLEET is the account of the node daemons.
"""

from __future__ import annotations

from typing import Any

from aegis_proto.phases import ReportKind

SELF = "_INBOX.{{subject()}}.>"
"""Every client subscribes its own inbox and no other (`inbox_prefix=_INBOX.<public key>`)."""
J, P, N, NS = "{{tag(job)}}", "{{tag(pod)}}", "{{tag(node)}}", "{{tag(namespace)}}"
RESPOND = {"max": 1, "ttl": 2_000_000_000}


def _reads(stream: str) -> list[str]:
    """Ordered consumers and their information on one stream."""
    return [
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        f"$JS.API.CONSUMER.DELETE.{stream}.*",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
        f"$JS.API.STREAM.INFO.{stream}",
    ]


def _gets(stream: str) -> list[str]:
    """Direct Get, and the read through the leader that settles an unknown commit."""
    return [f"$JS.API.DIRECT.GET.{stream}", f"$JS.API.DIRECT.GET.{stream}.>", f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.STREAM.MSG.GET.{stream}"]


ROLES: dict[str, dict[str, Any]] = {
    "credentials": dict(
        pub_allow=["aegis.cred.*", "aegis.dlq.credentials.*", *_gets("CTL"), *_reads("CTL"), *_gets("NODES")],
        sub_allow=[SELF, "aegis.rpc.credentials.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "master": dict(
        pub_allow=[
            "aegis.job.*.state",
            "aegis.job.*.pods.*",
            "aegis.job.*.spec",
            "aegis.lease.*",
            "aegis.job.*.fact.*",
            "aegis.job.*.event",
            "aegis.node.*.taint",
            "aegis.dlq.master.*",
            *_gets("CTL"),
            *_reads("CTL"),
            *_reads("REPORTS"),
            *_gets("REPORTS"),
            *_reads("EVENTS"),
            *_reads("STORY"),
            *_gets("NODES"),
        ],
        sub_allow=[SELF, "aegis.job.*.hb.*", "aegis.rpc.master.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "jobcontroller": dict(
        pub_allow=[
            "aegis.place.*.*",
            "aegis.node.*.slot.*",
            "aegis.job.*.fact.*",
            "aegis.lease.*",
            "aegis.rpc.credentials.do.join.*",
            "aegis.dlq.jobcontroller.*",
            "aegis.node.*.taint",
            *_gets("CTL"),
            *_reads("CTL"),
            *_gets("NODES"),
            *_reads("NODES"),
        ],
        sub_allow=[SELF, "aegis.rpc.jobcontroller.>", "aegis.view.>", "aegis.node.*.hb"],
        resp=RESPOND,
    ),
    "lognexus": dict(
        pub_allow=[
            "aegis.verdict.lognexus.*.*",
            "aegis.job.*.fact.*",
            "aegis.dlq.lognexus.*",
            *_reads("LOGS"),
            *_reads("METRICS"),
            *_reads("BLOBS"),
            *_reads("EVENTS"),
        ],
        sub_allow=[SELF, "aegis.rpc.lognexus.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "lemon": dict(
        pub_allow=[
            "aegis.verdict.lemon.*.*",
            "aegis.node.*.taint",
            "aegis.dlq.lemon.*",
            *_reads("METRICS"),
            *_reads("EVENTS"),
            *_reads("STORY"),
            *_gets("NODES"),
        ],
        sub_allow=[SELF, "aegis.rpc.lemon.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "netmon": dict(
        pub_allow=[
            "aegis.verdict.netmon.*.*",
            "aegis.net.*.counter",
            "aegis.lease.*",
            "aegis.dlq.netmon.*",
            *_reads("METRICS"),
            *_reads("EVENTS"),
            *_gets("NODES"),
        ],
        sub_allow=[SELF, "aegis.rpc.netmon.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    # People and tools. Tag `namespace`: one namespace, or absent rights. The unscoped forms are separate roles, so that a tag can never widen.
    "reader": dict(
        pub_allow=["aegis.rpc.*.query.*", f"aegis.rpc.*.query.*.{NS}"],
        sub_allow=[SELF, "aegis.view.job.>", "aegis.view.node.>", "aegis.view.verdict.>"],
    ),
    "nsreader": dict(pub_allow=[f"aegis.rpc.*.query.*.{NS}"], sub_allow=[SELF]),
    "user": dict(pub_allow=[f"aegis.rpc.*.query.*.{NS}", f"aegis.rpc.master.do.*.{NS}"], sub_allow=[SELF]),
    "operator": dict(
        pub_allow=[
            "aegis.rpc.*.query.>",
            "aegis.rpc.master.do.*.*",
            "aegis.rpc.jobcontroller.do.*.*",
            "aegis.rpc.credentials.do.issue.*",
            "aegis.rpc.credentials.do.revoke.*",
        ],
        sub_allow=[SELF, "aegis.view.>"],
    ),
    "admin": dict(pub_allow=[">"], sub_allow=[">"]),  # `aegis setup` only, one-shot
}

# --- agents: one account per job ---------------------------------------------------------------------------------------------

AGENT: dict[str, Any] = dict(
    pub_allow=[
        *(f"aegis.job.{J}.worker.{P}.{kind.value}" for kind in ReportKind),
        f"aegis.job.{J}.hb.{P}",
        f"aegis.job.{J}.log.{P}",
        f"aegis.job.{J}.metric.{P}",
        f"aegis.job.{J}.blob.{P}.*",
        f"$JS.API.DIRECT.GET.CTL.aegis.job.{J}.state",
    ],
    sub_allow=[SELF, f"aegis.view.job.{J}.state"],
    subs=16,
    payload=65536,
)
"""Template of the agents' scoped key; user JWTs carry the tags job: and pod: only."""

NODE: dict[str, Any] = dict(
    pub_allow=[
        f"aegis.node.{N}.spec",
        f"aegis.node.{N}.status",
        f"aegis.node.{N}.hb",
        f"aegis.node.{N}.event.*",
        f"aegis.net.{N}.counter",
        f"$JS.API.DIRECT.GET.NODES.aegis.node.{N}.slot.*",
        f"$JS.API.DIRECT.GET.NODES.aegis.node.{N}.spec",
    ],
    sub_allow=[SELF, f"aegis.node.{N}.slot.*"],
    subs=64,
    payload=65536,
)
"""Template of the node daemons' scoped key in FLEET; user JWTs carry the tag node: only."""


def _service(name: str, subject: str, response: str = "Singleton") -> dict[str, str]:
    return dict(name=name, subject=subject, type="service", response_type=response)


EXPORTS: list[dict[str, str]] = [
    *(_service(f"report-{kind.value}", f"aegis.job.*.worker.*.{kind.value}") for kind in ReportKind),
    _service("hb", "aegis.job.*.hb.*"),
    _service("log", "aegis.job.*.log.*"),
    _service("metric", "aegis.job.*.metric.*"),
    _service("blob", "aegis.job.*.blob.*.*"),
    _service("state", "$JS.API.DIRECT.GET.CTL.aegis.job.*.state"),
    dict(name="view", subject="aegis.view.job.*.state", type="stream"),
    _service("node-spec", "aegis.node.*.spec"),
    _service("node-status", "aegis.node.*.status"),
    _service("node-hb", "aegis.node.*.hb"),
    _service("node-event", "aegis.node.*.event.*"),
    _service("net", "aegis.net.*.counter"),
    _service("slot-get", "$JS.API.DIRECT.GET.NODES.aegis.node.*.slot.*"),
    _service("spec-get", "$JS.API.DIRECT.GET.NODES.aegis.node.*.spec"),
    dict(name="slot", subject="aegis.node.*.slot.*", type="stream"),
]
"""Exports of AEGIS. Public: only the operator signs account JWTs, so only it decides who imports."""


def job_imports(aegis: str, job: str) -> list[dict[str, str]]:
    """Imports of the account of `job`: the exports with the job token pinned. `aegis` is the public key of AEGIS."""

    def one(name: str, subject: str, kind: str = "service") -> dict[str, str]:
        return dict(name=name, subject=subject, account=aegis, type=kind)

    return [
        *(one(f"report-{kind.value}", f"aegis.job.{job}.worker.*.{kind.value}") for kind in ReportKind),
        one("hb", f"aegis.job.{job}.hb.*"),
        one("log", f"aegis.job.{job}.log.*"),
        one("metric", f"aegis.job.{job}.metric.*"),
        one("blob", f"aegis.job.{job}.blob.*.*"),
        one("state", f"$JS.API.DIRECT.GET.CTL.aegis.job.{job}.state"),
        one("view", f"aegis.view.job.{job}.state", "stream"),
    ]


def fleet_imports(aegis: str) -> list[dict[str, str]]:
    """Imports of FLEET: what a node daemon reaches, for any node; the template pins the node."""
    names = {"node-spec", "node-status", "node-hb", "node-event", "net", "slot-get", "spec-get", "slot"}
    return [dict(name=e["name"], subject=e["subject"], account=aegis, type=e["type"]) for e in EXPORTS if e["name"] in names]
