"""What each backend takes, and what its answers mean. Pure.

Sources: OpenObserve, Ingestion API `_json`; Grafana Loki, HTTP API `POST /loki/api/v1/push`; OpenTelemetry protocol 1.x, OTLP/HTTP with JSON.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from aegis_proto.logs import StoredLine

Verdict = Literal["taken", "again", "smaller", "refused", "setup"]
SEVERITY = {"out": (9, "INFO"), "err": (13, "WARN"), "agent": (9, "INFO"), "aegis": (9, "INFO")}
"""OTLP severity of each kind; standard error is no error by itself."""


@dataclass(frozen=True)
class Format:
    """`path`: where lines are posted, behind the path of the URL, which is `base` when it has none."""

    path: str
    base: str
    encode: Callable[[Sequence[StoredLine]], bytes]


@dataclass(frozen=True)
class Answer:
    """taken: `lost` lines were refused one by one. again: try the same later. smaller: fewer lines at once. refused: these lines never will be taken.
    setup: nothing will be, until somebody changes address or credentials."""

    verdict: Verdict
    reason: str = ""
    lost: int = 0
    wait: float | None = None


def openobserve(lines: Sequence[StoredLine]) -> bytes:
    """An array of records; `_timestamp` in microseconds."""
    return b"[" + b",".join(msgspec.json.encode({"_timestamp": line.at * 1000, **msgspec.structs.asdict(line)}) for line in lines) + b"]"


def loki(lines: Sequence[StoredLine]) -> bytes:
    """Streams by few labels; rank, incarnation and the rest in the line, which is JSON: a label per rank would make an index of its own for each."""
    streams: dict[tuple[str, str, str], list[list[str]]] = defaultdict(list)
    for line in lines:
        rest = {"message": line.message, "rank": line.rank, "incarnation": line.incarnation, "node": line.node, "boot": line.boot, "n": line.n}
        streams[line.job, line.worker, line.kind].append([str(line.at * 1_000_000), msgspec.json.encode(rest).decode()])
    body = [
        {"stream": {"service_name": "aegis", "aegis_job": job, "worker": worker, "kind": kind}, "values": values}
        for (job, worker, kind), values in streams.items()
    ]
    return msgspec.json.encode({"streams": body})


def otlp(lines: Sequence[StoredLine]) -> bytes:
    """A resource per worker, a record per line."""
    resources: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        number, text = SEVERITY[line.kind]
        attributes = [
            _int("rank", line.rank),
            _int("incarnation", line.incarnation),
            _text("kind", line.kind),
            _text("boot", line.boot),
            _int("n", line.n),
        ]
        record = {
            "timeUnixNano": str(line.at * 1_000_000),
            "severityNumber": number,
            "severityText": text,
            "body": {"stringValue": line.message},
            "attributes": attributes,
        }
        resources[line.job, line.worker, line.node].append(record)
    body = [
        {
            "resource": {
                "attributes": [_text("service.name", "aegis"), _text("aegis.job", job), _text("aegis.worker", worker), _text("host.name", node)]
            },
            "scopeLogs": [{"scope": {"name": "aegis.lognexus"}, "logRecords": records}],
        }
        for (job, worker, node), records in resources.items()
    ]
    return msgspec.json.encode({"resourceLogs": body})


def _text(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _int(key: str, value: int) -> dict[str, Any]:
    return {"key": key, "value": {"intValue": str(value)}}


FORMATS: dict[str, Format] = {
    "openobserve": Format("/_json", "/api/default/aegis", openobserve),
    "loki": Format("/loki/api/v1/push", "", loki),
    "otlp": Format("/v1/logs", "", otlp),
}


def read_answer(kind: str, status: int, headers: dict[str, str], body: bytes) -> Answer:
    """What to do after an answer of a backend."""
    if 200 <= status < 300:
        lost, reason = _partly(kind, body)
        return Answer("taken", reason, lost)
    reason = f"{status} {body[:200].decode('utf-8', 'replace')}".strip()
    if status in (401, 403, 404, 405) or 300 <= status < 400:
        return Answer("setup", reason)
    if status == 413:
        return Answer("smaller", reason)
    if status in (408, 425, 429) or status >= 500 or status < 200:
        after = headers.get("retry-after", "")
        return Answer("again", reason, wait=float(after) if after.isdecimal() and len(after) < 6 else None)
    return Answer("refused", reason)


def _partly(kind: str, body: bytes) -> tuple[int, str]:
    """(lines refused, why) in an answer that is good as a whole."""
    try:
        told = json.loads(body) if body.strip() else {}
        if kind == "openobserve":
            rows = [row for row in told.get("status") or [] if int(row.get("failed") or 0)]
            return sum(int(row["failed"]) for row in rows), "; ".join(str(row.get("error", "")) for row in rows)[:200]
        if kind == "otlp" and (part := told.get("partialSuccess")):
            return int(part.get("rejectedLogRecords") or 0), str(part.get("errorMessage", ""))[:200]
    except (ValueError, OverflowError, TypeError, AttributeError, KeyError, RecursionError):
        pass
    return 0, ""
