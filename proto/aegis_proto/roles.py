"""Rights, as data. One scoped signing key per role; a user JWT carries only tags (the server pastes tags unescaped, so tags are ids).

Accounts (docs/security.md)
  AEGIS    the services and JetStream
  FLEET    the node daemons, tag `node`
  PEOPLE   people and tools (reader, nsreader, user, operator), tag `namespace`
  job-<j>  one per job, its agents, tags `job` and `pod`

Only AEGIS has JetStream. Everybody else reaches it by imports, because a reply subject is not permission-checked: inside one account a
request with `reply=aegis.job.<other>.state` makes the answer overwrite that state. Across an import the server rewrites the reply.
"""

from __future__ import annotations

from typing import Any

from aegis_proto.phases import ReportKind

SELF = "_INBOX.{{subject()}}.>"
"""Every client subscribes its own inbox and no other (`inbox_prefix=_INBOX.<public key>`)."""
J, P, N, NS = "{{tag(job)}}", "{{tag(pod)}}", "{{tag(node)}}", "{{tag(namespace)}}"
RESPOND = {"max": 1, "ttl": 30_000_000_000}
"""A responder may answer each request once, within 30 s (ns): longer than any request waits, and a busy machine is no reason to fall silent."""


def _reads(stream: str) -> list[str]:
    """Ordered consumers and their information on one stream."""
    return [
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.DELETE.{stream}.*",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
        f"$JS.API.STREAM.INFO.{stream}",
    ]


def _gets(stream: str) -> list[str]:
    """Direct Get, the read through the leader that settles an unknown commit, and whether there is a JetStream at all."""
    return [
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        "$JS.API.INFO",
    ]


def _role(*lists: list[str]) -> list[str]:
    """The union, in order, each once."""
    return list(dict.fromkeys(entry for entries in lists for entry in entries))


SERVICES: dict[str, dict[str, Any]] = {
    "credentials": dict(
        pub_allow=_role(["aegis.cred.*.*", "aegis.dlq.credentials.*.*"], _gets("CTL"), _reads("CTL")),
        sub_allow=[SELF, "aegis.rpc.credentials.>", "aegis.view.job.*.state"],
        resp=RESPOND,
    ),
    "master": dict(
        pub_allow=_role(
            [
                "aegis.job.*.state",
                "aegis.job.*.pods.*",
                "aegis.job.*.spec",
                "aegis.job.*.fact.*",
                "aegis.job.*.event",
                "aegis.job.*.progress",
                "aegis.lease.*",
                "aegis.dlq.master.*.*",
                "aegis.rpc.credentials.do.vouch.*",
            ],
            _gets("CTL"),
            _reads("CTL"),
            _gets("LEASES"),
            _gets("REPORTS"),
            _reads("REPORTS"),
            _gets("NODES"),
            _gets("FLEET"),
            _gets("EVENTS"),
            _reads("EVENTS"),
            _gets("STORY"),
            _reads("STORY"),
            _reads("LOGS"),
        ),
        sub_allow=[SELF, "aegis.job.*.hb.*", "aegis.rpc.master.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "jobcontroller": dict(
        pub_allow=_role(
            [
                "aegis.place.*.*",
                "aegis.node.*.slot.*",
                "aegis.node.*.taint",
                "aegis.node.*.test",
                "aegis.job.*.fact.*",
                "aegis.lease.*",
                "aegis.rpc.credentials.do.join.*",
                "aegis.rpc.master.adopt",
                *(f"aegis.rpc.master.do.{verb}.*" for verb in ("submit", "stop", "suspend", "resume")),
                "aegis.dlq.jobcontroller.*.*",
            ],
            _gets("LEASES"),
            _gets("CTL"),
            _reads("CTL"),
            _gets("NODES"),
            _reads("NODES"),
            _gets("FLEET"),
            _reads("FLEET"),
            _gets("HELD"),
            _reads("HELD"),
        ),
        sub_allow=[SELF, "aegis.rpc.jobcontroller.>", "aegis.view.>", "aegis.node.*.hb"],
        resp=RESPOND,
    ),
    "lognexus": dict(
        pub_allow=_role(
            ["aegis.verdict.lognexus.*.*", "aegis.job.*.fact.*", "aegis.lease.*", "aegis.dlq.lognexus.*.*"],
            # By subject only: in CTL lie specifications too, with what users put into the environment.
            [f"$JS.API.DIRECT.GET.CTL.{subject}" for subject in ("aegis.era", "aegis.job.*.state", "aegis.job.*.pods.*")],
            ["$JS.API.DIRECT.GET.FLEET.aegis.node.*.spec"],
            _gets("LEASES"),
            _reads("LOGS"),
            _reads("METRICS"),
            _reads("BLOBS"),
            _gets("EVENTS"),
            _reads("EVENTS"),
        ),
        sub_allow=[SELF, "aegis.rpc.lognexus.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "lemon": dict(
        pub_allow=_role(
            [
                "aegis.verdict.lemon.*.*",
                "aegis.kept.lemon.*",
                *(f"aegis.node.*.{what}" for what in ("taint", "risk", "test")),
                "aegis.lease.*",
                "aegis.dlq.lemon.*.*",
                "$JS.API.INFO",
            ],
            # By subject only: in CTL lie specifications too, with what users put into the environment.
            [f"$JS.API.DIRECT.GET.CTL.{subject}" for subject in ("aegis.era", "aegis.job.*.state", "aegis.job.*.pods.*")],
            _gets("LEASES"),
            _gets("EVENTS"),
            _reads("EVENTS"),
            _reads("STORY"),
            # Beyond 1,024 subjects, the last of each is read by a consumer.
            _gets("NODES"),
            _reads("NODES"),
            _gets("FLEET"),
            _reads("FLEET"),
            _gets("KEPT"),
            _reads("KEPT"),
        ),
        sub_allow=[SELF, "aegis.rpc.lemon.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "netmon": dict(
        pub_allow=_role(
            ["aegis.verdict.netmon.*.*", "aegis.job.*.fact.job", "aegis.kept.netmon.*", "aegis.lease.*", "aegis.dlq.netmon.*.*"],
            ["$JS.API.INFO", "$JS.API.STREAM.INFO.CTL"],
            # By subject only: in CTL lie specifications too, with what users put into the environment.
            [f"$JS.API.DIRECT.GET.CTL.{subject}" for subject in ("aegis.era", "aegis.job.*.state", "aegis.job.*.pods.*")],
            _gets("LEASES"),
            _reads("METRICS"),
            _gets("EVENTS"),
            _reads("EVENTS"),
            _gets("KEPT"),
            _gets("FLEET"),
        ),
        sub_allow=[SELF, "aegis.rpc.netmon.>", "aegis.view.>"],
        resp=RESPOND,
    ),
    "admin": dict(pub_allow=[">"], sub_allow=[">"]),  # `aegis setup` only: minutes, then never again
}
"""Roles of AEGIS. Nobody but these ever connects to that account."""

PEOPLE: dict[str, dict[str, Any]] = {
    # Everything public, of all namespaces; changes nothing.
    "reader": dict(
        pub_allow=["aegis.rpc.*.query.*", "aegis.rpc.*.query.*.*"],
        sub_allow=[SELF, "aegis.view.job.>", "aegis.view.node.>", "aegis.view.verdict.>"],
        subs=1024,
    ),
    # One namespace (tag `namespace`): no view, since views are not divided by namespace.
    "nsreader": dict(pub_allow=[f"aegis.rpc.*.query.*.{NS}"], sub_allow=[SELF], subs=64),
    "user": dict(pub_allow=[f"aegis.rpc.*.query.*.{NS}", f"aegis.rpc.master.do.*.{NS}"], sub_allow=[SELF], subs=64),
    "operator": dict(
        pub_allow=[
            "aegis.rpc.*.query.*",
            "aegis.rpc.*.query.*.*",
            "aegis.rpc.master.do.*.*",
            "aegis.rpc.jobcontroller.do.*.*",
            "aegis.rpc.credentials.do.issue.*",
            "aegis.rpc.credentials.do.revoke.*",
            "aegis.rpc.credentials.do.list.*",
        ],
        sub_allow=[SELF, "aegis.view.>"],
        subs=1024,
    ),
}
"""Roles of PEOPLE. A tag can only narrow: the unscoped forms are roles of their own."""

ROLES: dict[str, dict[str, Any]] = {**SERVICES, **PEOPLE}
"""Every role that `aegis creds issue` knows, without `node` and the agents."""

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
        f"aegis.node.{N}.held.*",
        f"aegis.node.{N}.hb",
        f"aegis.node.{N}.event.*",
        f"aegis.node.{N}.metric",
        f"aegis.net.{N}.counter",
        f"$JS.API.DIRECT.GET.NODES.aegis.node.{N}.slot.*",
        f"$JS.API.DIRECT.GET.NODES.aegis.node.{N}.test",
        f"$JS.API.DIRECT.GET.FLEET.aegis.node.{N}.spec",
        f"$JS.API.DIRECT.GET.FLEET.aegis.node.{N}.status",
    ],
    sub_allow=[SELF, f"aegis.node.{N}.slot.*", f"aegis.node.{N}.test"],
    subs=64,
    payload=65536,
)
"""Template of the node daemons' scoped key in FLEET; user JWTs carry the tag node: only."""


def _service(name: str, subject: str) -> dict[str, str]:
    return dict(name=name, subject=subject, type="service", response_type="Singleton")


JOB_EXPORTS: list[dict[str, str]] = [
    *(_service(f"report-{kind.value}", f"aegis.job.*.worker.*.{kind.value}") for kind in ReportKind),
    _service("hb", "aegis.job.*.hb.*"),
    _service("log", "aegis.job.*.log.*"),
    _service("metric", "aegis.job.*.metric.*"),
    _service("blob", "aegis.job.*.blob.*.*"),
    _service("state", "$JS.API.DIRECT.GET.CTL.aegis.job.*.state"),
]

FLEET_EXPORTS: list[dict[str, str]] = [
    _service("node-spec", "aegis.node.*.spec"),
    _service("node-status", "aegis.node.*.status"),
    _service("node-held", "aegis.node.*.held.*"),
    _service("node-hb", "aegis.node.*.hb"),
    _service("node-event", "aegis.node.*.event.*"),
    _service("node-metric", "aegis.node.*.metric"),
    _service("net", "aegis.net.*.counter"),
    _service("slot-get", "$JS.API.DIRECT.GET.NODES.aegis.node.*.slot.*"),
    _service("test-get", "$JS.API.DIRECT.GET.NODES.aegis.node.*.test"),
    _service("spec-get", "$JS.API.DIRECT.GET.FLEET.aegis.node.*.spec"),
    _service("status-get", "$JS.API.DIRECT.GET.FLEET.aegis.node.*.status"),
    dict(name="slot", subject="aegis.node.*.slot.*", type="stream"),
    dict(name="test", subject="aegis.node.*.test", type="stream"),
]

PEOPLE_EXPORTS: list[dict[str, str]] = [
    _service("query", "aegis.rpc.*.query.*"),
    _service("query-ns", "aegis.rpc.*.query.*.*"),
    _service("do-master", "aegis.rpc.master.do.*.*"),
    _service("do-jobcontroller", "aegis.rpc.jobcontroller.do.*.*"),
    _service("do-issue", "aegis.rpc.credentials.do.issue.*"),
    _service("do-revoke", "aegis.rpc.credentials.do.revoke.*"),
    _service("do-list", "aegis.rpc.credentials.do.list.*"),
    dict(name="view", subject="aegis.view.>", type="stream"),
]

EXPORTS: list[dict[str, str]] = [*JOB_EXPORTS, *FLEET_EXPORTS, *PEOPLE_EXPORTS]
"""Exports of AEGIS. Public: only the operator signs account JWTs, so only it decides who imports."""


def _import(aegis: str, export: dict[str, str], subject: str) -> dict[str, str]:
    return dict(name=export["name"], subject=subject, account=aegis, type=export["type"])


def job_imports(aegis: str, job: str) -> list[dict[str, str]]:
    """Imports of the account of `job`: its exports with the job token pinned. `aegis` is the public key of AEGIS."""
    pinned = [_import(aegis, export, export["subject"].replace("job.*", f"job.{job}", 1)) for export in JOB_EXPORTS]
    return [*pinned, dict(name="view", subject=f"aegis.view.job.{job}.state", account=aegis, type="stream")]


def fleet_imports(aegis: str) -> list[dict[str, str]]:
    """Imports of FLEET: what a node daemon reaches, for any node; the template pins the node."""
    return [_import(aegis, export, export["subject"]) for export in FLEET_EXPORTS]


def people_imports(aegis: str) -> list[dict[str, str]]:
    """Imports of PEOPLE: queries, orders and views; the templates pin role and namespace."""
    return [_import(aegis, export, export["subject"]) for export in PEOPLE_EXPORTS]
