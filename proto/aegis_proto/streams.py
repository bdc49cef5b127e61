"""The streams, as data (docs/subjects.md). Created by `aegis setup`; no service may create one.

`max_bytes` is reserved by the server, so the sum must fit the account.
"""

from __future__ import annotations

from typing import Any

S = 1_000_000_000
MIB = 1 << 20

STREAMS: list[dict[str, Any]] = [
    # Never forgets: max_age 0 and discard new. Alarm at 50 % of max_bytes, submit refused at 70 % (at the limit every batch would be refused).
    dict(
        name="CTL",
        subjects=["aegis.job.*.state", "aegis.job.*.spec", "aegis.job.*.pods.*", "aegis.cred.*.*", "aegis.era"],
        max_msgs_per_subject=8,
        max_age=0,
        max_bytes=512 * MIB,
        max_msg_size=131072,  # a shard of 256 pods with every field in use is 58 KB, with the longest ids allowed 80 KB; no agent reads shards
        discard="new",
        duplicate_window=120 * S,
        allow_direct=True,
        allow_atomic=True,
        allow_msg_ttl=True,
        subject_delete_marker_ttl=2 * S,
        allow_rollup_hdrs=True,
        republish=dict(src="aegis.job.*.state", dest="aegis.view.job.{{wildcard(1)}}.state"),
    ),
    # Apart from CTL: who may ask who lives need not be able to read specifications and credentials.
    dict(
        name="LEASES",
        subjects=["aegis.lease.*"],
        max_msgs_per_subject=1,
        max_age=0,
        max_bytes=8 * MIB,
        max_msg_size=4096,
        discard="new",
        duplicate_window=60 * S,
        allow_direct=True,
        allow_msg_ttl=True,
        subject_delete_marker_ttl=2 * S,
    ),
    # Written by services only: a daemon that could write here could leave 50 batches open (no placement for 10 s) or roll the stream up.
    dict(
        name="NODES",
        subjects=["aegis.node.*.taint", "aegis.node.*.risk", "aegis.node.*.test", "aegis.node.*.slot.*", "aegis.place.*.*"],
        max_msgs_per_subject=4,
        max_age=0,
        max_bytes=256 * MIB,
        max_msg_size=65536,
        discard="new",
        duplicate_window=120 * S,
        allow_direct=True,
        allow_atomic=True,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        republish=dict(src="aegis.node.*.*", dest="aegis.view.node.{{wildcard(1)}}.{{wildcard(2)}}"),
    ),
    # Written by node daemons: the last word of each. Nothing extra is allowed on it.
    dict(
        name="FLEET",
        subjects=["aegis.node.*.spec", "aegis.node.*.status"],
        max_msgs_per_subject=1,
        max_age=0,
        max_bytes=128 * MIB,
        max_msg_size=32768,
        discard="old",
        duplicate_window=120 * S,
        allow_direct=True,
        republish=dict(src="aegis.node.*.*", dest="aegis.view.node.{{wildcard(1)}}.{{wildcard(2)}}"),
    ),
    # Written by node daemons after a loss of the store. Apart from FLEET, since it carries specifications and must not push out registrations;
    # said again every half minute while it holds, and forgotten soon after.
    dict(
        name="HELD",
        subjects=["aegis.node.*.held.*"],
        max_msgs_per_subject=1,
        max_age=120 * S,
        max_bytes=256 * MIB,
        max_msg_size=65536,
        discard="old",
        duplicate_window=60 * S,
        allow_direct=True,
    ),
    # Agent-writable: nothing extra is allowed on it (rollup, schedules, TTL, batches would be weapons).
    dict(
        name="REPORTS",
        subjects=["aegis.job.*.worker.*.*", "aegis.job.*.fact.*"],
        max_msgs_per_subject=64,
        max_age=7 * 86400 * S,
        max_bytes=512 * MIB,
        max_msg_size=8192,
        discard="old",
        duplicate_window=120 * S,
        allow_direct=True,  # the owner asks for the platform's last word about a silent pod; agents have no right to ask
    ),
    dict(
        name="EVENTS",
        subjects=["aegis.node.*.event.*", "aegis.verdict.*.*.*", "aegis.job.*.event", "aegis.job.*.progress"],
        max_msgs_per_subject=2000,
        max_age=30 * 86400 * S,
        max_bytes=256 * MIB,
        max_msg_size=65536,
        discard="old",
        duplicate_window=120 * S,
        allow_direct=True,
        republish=dict(src="aegis.>", dest="aegis.view.>"),
    ),
    dict(
        name="STORY",
        sources=[dict(name="CTL", filter_subject="aegis.job.*.state")],
        max_age=90 * 86400 * S,
        max_bytes=512 * MIB,
        discard="old",
        allow_direct=True,
    ),
    dict(
        name="LOGS",
        subjects=["aegis.job.*.log.*"],
        max_msgs_per_subject=2000,
        max_age=86400 * S,
        max_bytes=512 * MIB,
        max_msg_size=65536,
        discard="old",
        duplicate_window=60 * S,
        compression="s2",
    ),
    dict(
        name="METRICS",
        subjects=["aegis.job.*.metric.*", "aegis.node.*.metric", "aegis.net.*.counter"],
        max_msgs_per_subject=256,
        max_age=3600 * S,
        max_bytes=128 * MIB,
        max_msg_size=65536,
        discard="old",
        duplicate_window=10 * S,
    ),
    dict(
        name="BLOBS",
        subjects=["aegis.job.*.blob.*.*"],
        max_msgs_per_subject=64,
        max_age=86400 * S,
        max_bytes=512 * MIB,  # flight records of 4,096 ranks x 2,000 entries are 383 MiB packed (bench/flight.py writes such)
        max_msg_size=65536,
        discard="old",
        duplicate_window=60 * S,
    ),
    # What a service remembers for its successors, whole, in pieces; two generations of each.
    dict(
        name="KEPT",
        subjects=["aegis.kept.*.*"],
        max_msgs_per_subject=1,
        max_age=0,
        max_bytes=64 * MIB,
        max_msg_size=65536,
        discard="old",
        duplicate_window=60 * S,
        allow_direct=True,
    ),
    # Per (service, stream, job or node): a source that floods evicts its own dead letters only.
    dict(
        name="DLQ",
        subjects=["aegis.dlq.*.*.*"],
        max_msgs_per_subject=64,
        max_age=7 * 86400 * S,
        max_bytes=64 * MIB,
        max_msg_size=16384,
        discard="old",
        duplicate_window=120 * S,
        allow_direct=True,
    ),
]
"""Stream configurations as the server takes them, without storage and replicas."""

RESERVED_BYTES = sum(int(stream["max_bytes"]) for stream in STREAMS)
"""Sum of max_bytes: the AEGIS account and the server must allow at least this."""


def stream_configs(replicas: int = 1) -> list[dict[str, Any]]:
    """Full configurations for `$JS.API.STREAM.CREATE`."""
    return [{"storage": "file", "num_replicas": replicas, **stream} for stream in STREAMS]


def stream_of(subject: str) -> str:
    """Name of the stream that holds `subject`; ValueError when none does (core subjects, views)."""
    parts = subject.split(".")
    for stream in STREAMS:
        for pattern in stream.get("subjects", ()):
            wanted = pattern.split(".")
            if len(wanted) == len(parts) and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True)):
                return str(stream["name"])
    raise ValueError(f"no stream holds {subject!r}")
