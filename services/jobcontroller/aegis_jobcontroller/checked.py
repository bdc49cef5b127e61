"""Whether a stored message says what its subject may say. Pure. Daemons and other services may store anything: what passes needs no second look."""

from __future__ import annotations

import msgspec
from aegis_proto.ids import is_id, pod_index
from aegis_proto.job import MAX_WORKERS
from aegis_proto.lemon import Risk
from aegis_proto.messages import BadMessage, Held, NodeSpec, NodeStatus, Place, Slot, SlotStatus, Taint

MAX_SLOTS = 32
MAX_ATTEMPT = 1_000_000
LATEST = 253_402_300_799_000
"""ms since 1970: the last day that calendars know."""
MAX_WORDS, MAX_LAST_WORD = 500, 2048
"""Characters of a daemon's sentence and of an agent's last word: both travel on in facts, which hold 8 KB."""
SAME_CLOCK_MS = 2000
"""A status is stored so soon after it was made; what differs more are the clocks."""
STATES = ("empty", "running", "gone")


def place(found: Place, pod: str) -> Place:
    """`pod`: of its subject. BadMessage, as of all below."""
    _require(found.pod == pod and _is_pod(pod), f"place of {found.pod[:40]!r} at {pod[:40]!r}")
    _require(1 <= found.attempt <= MAX_ATTEMPT and is_id(found.node) and _is_slot(found.slot), "place without attempt, node or slot")
    return found


def slot(found: Slot, name: str) -> Slot:
    _require(_is_slot(name), f"slot {name[:40]!r}")
    _require(not found.job or (is_id(found.job) and _is_pod(found.pod) and 1 <= found.attempt <= MAX_ATTEMPT), "slot of no worker")
    return found


def taint(found: Taint, node: str) -> Taint:
    _require(is_id(node) and 0 <= found.until <= LATEST, "taint of no node or without a date")
    return found


def risk(found: Risk, node: str) -> Risk:
    _require(is_id(node) and found.node == node and 0 <= found.risk <= 1, "risk of no node, or not from 0 to 1")
    return found


def spec(found: NodeSpec, node: str) -> NodeSpec:
    """The subject is what the server has proved; the body is only what was said."""
    _require(is_id(node), f"node {node[:40]!r}")
    _require(1 <= found.slots <= MAX_SLOTS, f"{found.slots} slots: 1 to {MAX_SLOTS}")
    _require(0 <= found.gpus <= 1024 and _is_date(found.at), "gpus or date out of range")
    return msgspec.structs.replace(found, node=node)


def status(found: NodeStatus, node: str, stored_ms: int) -> NodeStatus:
    """`stored_ms`: when the server stored it. A daemon whose clock is evidently another one's has its dates told by the server's: how long before it
    spoke something happened, it knows; a loss that seems older than it is would be taken for the cause of what came before it."""
    _require(is_id(node) and _is_date(found.at), f"node {node[:40]!r}, or a date out of range")
    names = [entry.slot for entry in found.slots]
    _require(len(names) <= MAX_SLOTS and len(set(names)) == len(names), f"{len(names)} slots, or one twice")
    wrong = stored_ms - found.at if found.at else 0
    by = 0 if abs(wrong) < SAME_CLOCK_MS else wrong
    return msgspec.structs.replace(found, node=node, slots=tuple(_dated(_slot_status(entry), by) for entry in found.slots))


def held(found: Held, name: str) -> Held:
    _require(_is_slot(name) and is_id(found.job) and is_id(found.namespace) and _is_pod(found.pod), "held worker of no slot, job or namespace")
    _require(1 <= found.attempt <= MAX_ATTEMPT and 1 <= found.workers <= MAX_WORKERS, "held worker without attempt, or of no workers")
    _require(0 < len(found.uid) <= 64 and 0 < len(found.deed) <= 64 and len(found.era) <= 64, "held worker without uid or deed")
    return found


def _dated(found: SlotStatus, by: int) -> SlotStatus:
    return msgspec.structs.replace(found, at=max(1, found.at + by)) if by and found.at else found


def _slot_status(found: SlotStatus) -> SlotStatus:
    _require(_is_slot(found.slot) and found.state in STATES, f"slot {found.slot[:40]!r} is {found.state[:40]!r}")
    if found.state != "empty" or found.uid or found.job:
        _require(is_id(found.job) and 0 < len(found.uid) <= 64 and _is_pod(found.pod), f"slot {found.slot}: holds no worker of a job")
        _require(1 <= found.attempt <= MAX_ATTEMPT, f"slot {found.slot}: attempt {found.attempt}")
    numbers = (found.pid, found.signal, found.exitCode or 0)
    _require(_is_date(found.at) and all(-(2**31) <= number < 2**32 for number in numbers), f"slot {found.slot}: a number out of range")
    return msgspec.structs.replace(found, message=found.message[:MAX_WORDS], lastWord=found.lastWord[:MAX_LAST_WORD])


def _require(right: bool, otherwise: str) -> None:
    if not right:
        raise BadMessage(otherwise)


def _is_slot(name: str) -> bool:
    return name in _SLOTS


_SLOTS = frozenset(str(number) for number in range(MAX_SLOTS))


def _is_pod(name: str) -> bool:
    try:
        return pod_index(name) >= 0
    except ValueError:
        return False


def _is_date(ms: int) -> bool:
    return 0 <= ms <= LATEST
