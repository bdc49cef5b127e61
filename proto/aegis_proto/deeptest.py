"""Deep tests of a node, by order: what is wanted of its daemon (a level in stream NODES), and what came out (an event of the node).

Reads and writes nothing. Written by services only: the job controller, for operators, and lemon.

| subject | who | what |
|---|---|---|
| aegis.node.<n>.test | jobcontroller, lemon | DeepTest: the last one asked for; a daemon that has answered this id does nothing |
| aegis.node.<n>.event.test | node daemon | DeepTestDone |
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION
from aegis_proto.messages import CheckResult

LEAST_SECONDS, MOST_SECONDS = 0.1, 3600.0
"""Bounds of what each single test may be given."""


class DeepTest(msgspec.Struct, frozen=True, omit_defaults=True):
    """NODES `aegis.node.<n>.test`. Memory, computation, copies and a long collective, each for `seconds`. Refused on a busy GPU.

    A node on which a worker runs is left alone: the test waits for it to be free until `until` (ms), then it is refused; 0: refused at once.
    """

    id: str
    by: str
    reason: str = ""
    seconds: float = 10.0
    until: int = 0
    at: int = 0  # ms
    v: int = WIRE_VERSION


class DeepTestDone(msgspec.Struct, frozen=True, omit_defaults=True):
    """EVENTS `aegis.node.<n>.event.test`. `state`: passed | failed | refused | waiting (another word follows). `code`: of the first failed check."""

    id: str
    node: str
    state: str
    message: str = ""
    code: str = ""
    results: tuple[CheckResult, ...] = ()
    seconds: float = 0.0
    by: str = ""
    at: int = 0  # ms
    v: int = WIRE_VERSION


ORDERED = DeepTest("5d0c1f", "alice", "suspected of slow links", 60.0, at=1_796_000_000_000)
ANSWERED = DeepTestDone(
    "5d0c1f",
    "n1",
    "failed",
    "deep-copy-cuda: slower than this node was: h2d.gb_per_s.0 21, 52 before (40 %)",
    "slower_than_baseline",
    (CheckResult("deep-memory", True, "bytes 2.684e+08, passes 3"),),
    312.0,
    "alice",
    1_796_000_312_000,
)
"""Examples for the generated documents."""
