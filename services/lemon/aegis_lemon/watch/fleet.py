"""What is stored about nodes: registrations (FLEET), taints, tests and risks (NODES), their results, links and our own last verdicts (EVENTS, and
KEPT, where they outlive it).

Read anew in each round, by level. What cannot be read is left out and said. Reads only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from aegis_bus.connection import Bus
from aegis_proto import subjects
from aegis_proto.deeptest import DeepTest, DeepTestDone
from aegis_proto.lemon import SERVICE, Risk
from aegis_proto.messages import BadMessage, NodeSpec, Taint, Verdict, decode

log = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)
LABELS = ("role", "rack", "switch", "serial")
"""Labels of a node daemon that the history knows (docs/history.md)."""


@dataclass
class Fleet:
    """By node (links: by link)."""

    specs: dict[str, NodeSpec] = field(default_factory=dict)
    taints: dict[str, Taint] = field(default_factory=dict)
    orders: dict[str, DeepTest] = field(default_factory=dict)
    risks: dict[str, Risk] = field(default_factory=dict)
    results: dict[str, DeepTestDone] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    kept: dict[str, Verdict] = field(default_factory=dict)
    """Of our own verdicts those in KEPT; in `verdicts` is the younger one."""
    links: dict[str, Verdict] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    """Subject -> sequence of its last message in NODES."""

    def rows(self) -> list[dict[str, Any]]:
        """As rows of `nodes`."""
        return [{"node": name, **{key: spec.labels.get(key, "") for key in LABELS}} for name, spec in sorted(self.specs.items())]


async def read(bus: Bus) -> Fleet:
    """Everything. BusError."""
    found = Fleet()
    _take(found.specs, NodeSpec, await bus.get_many("FLEET", [subjects.node_spec("*")], timeout=30.0))
    stored = await bus.get_many("NODES", [subjects.node_taint("*"), subjects.node_test("*"), subjects.node_risk("*")], timeout=30.0)
    found.seqs = {item.subject: item.seq for item in stored}
    _take(found.taints, Taint, [item for item in stored if item.subject.endswith(".taint")])
    _take(found.orders, DeepTest, [item for item in stored if item.subject.endswith(".test")])
    _take(found.risks, Risk, [item for item in stored if item.subject.endswith(".risk")])
    told = [subjects.node_event("*", "test"), subjects.verdict(SERVICE, "node", "*"), subjects.verdict("netmon", "link", "*")]
    events = await bus.get_many("EVENTS", told, timeout=30.0)
    _take(found.results, DeepTestDone, [item for item in events if item.subject.endswith(".event.test")], dated=True)
    _take(found.verdicts, Verdict, [item for item in events if item.subject.startswith(f"aegis.verdict.{SERVICE}.")], at=4)
    _take(found.links, Verdict, [item for item in events if item.subject.startswith("aegis.verdict.netmon.")], at=4)
    _take(found.kept, Verdict, await bus.get_many("KEPT", [subjects.kept(SERVICE, "*")], timeout=30.0), at=3)
    for name, verdict in found.kept.items():
        if name not in found.verdicts or verdict.at > found.verdicts[name].at:
            found.verdicts[name] = verdict
    return found


def _take(table: dict[str, T], kind: type[T], stored: list[Any], at: int = 2, *, dated: bool = False) -> None:
    """`at`: token of the subject that names it; `dated`: by the server's clock, a node's own may be wrong."""
    for item in stored:
        if item.marker or not item.data:
            continue
        try:
            found = decode(kind, item.data)
        except BadMessage as error:
            log.warning("%s: %s", item.subject, error)
            continue
        table[subjects.token(item.subject, at)] = msgspec.structs.replace(found, at=item.time_ms) if dated else found
