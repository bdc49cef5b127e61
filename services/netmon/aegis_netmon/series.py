"""Port counters as series: one per (GUID, port, name), with width, boot and state. Pure.

Owns `Port` (what is known of one port's counters), `Poll` (one reading of it) and `Step` (what happened between two readings). Rules, from the
public text of the PMA and from what users of other monitors met:

- Classic counters clamp at all ones and never wrap: a lower value is a reset, and the delta is the new value, never a correction by 2^n.
- A counter at its cap says "at least": the step that reaches it has a lower bound, and after it the delta is unknown until a reset.
- The first sight of a value is a baseline. GUIDs carry the history of months; a saturated first reading is no event.
- After another boot the count may or may not have been cleared: what is certain is the smaller of the two readings of it.
- A counter that could not be read is unknown, and nothing else of its port is. The next good reading spans the gap.
- A reading that is not newer than the last changes nothing. What else is carried (unicast, requests) is shown and not kept step by step.
- Time in which the counter of bit errors stood at its cap proves nothing: it is no exposure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec
from aegis_parsers.ib import counters

State = Literal["baseline", "counting", "reset", "saturated", "unknown"]
WINDOW = 30
"""Steps kept per port: five minutes at a poll of 10 s."""
MOST = 2**63 - 1
"""No count, sum or number of bits is above it: nobody's counters are, and what is remembered has no room for more."""
NONE: Mapping[str, int] = {}
"""No counts: most steps have none, and share it."""
TRAFFIC = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")
WAIT = "port_xmit_wait"
CARRIED = frozenset(row.name for row in counters.table().values() if row.kind == "traffic") - set(TRAFFIC)
"""Counters that rise in every poll of a busy port and that nothing is judged by."""


class Poll(msgspec.Struct, frozen=True):
    """What one port said at `at` (seconds). A value of None could not be read. `boot`: id of the boot or driver load, where known.
    `wide`: the values are those of the 64-bit attribute (perfquery -x), which do not clamp."""

    guid: str
    port: int
    at: float
    values: Mapping[str, int | None]
    boot: str = ""
    wide: bool = False


class Step(NamedTuple):
    """Between two readings. `counts`: names that rose, by how much; those in `least` by at least so much. `reset`: cleared in between.
    Traffic is in bits and packets; None: not counted by this port. `waited`: rise of `port_xmit_wait`, at least; not among the counts, since a busy
    port waits in every step."""

    at: float
    seconds: float
    counts: Mapping[str, int]
    least: frozenset[str]
    reset: frozenset[str]
    xmit_bits: int | None
    rcv_bits: int | None
    xmit_packets: int | None
    rcv_packets: int | None
    waited: int = 0


class Series(msgspec.Struct, frozen=True):
    """One counter as a row: for tables and messages."""

    guid: str
    port: int
    name: str
    bits: int
    boot: str
    state: State
    value: int | None
    at: float


class Total(NamedTuple):
    """What a port has counted since its baseline: exposure of every rate that needs hours."""

    seconds: float = 0.0
    xmit_bits: int = 0
    rcv_bits: int = 0
    xmit_packets: int = 0
    rcv_packets: int = 0


class Port(msgspec.Struct, frozen=True):
    """All counters of one port. Persistent: `observe` gives a new one. `odd`: names whose state is not `counting`."""

    guid: str
    port: int
    at: float
    boot: str
    wide: bool
    values: Mapping[str, int | None]
    odd: Mapping[str, State]
    steps: tuple[Step, ...] = ()
    total: Total = Total()
    counts: Mapping[str, int] = {}


def observe(old: Port | None, poll: Poll) -> Port:
    """The port after this reading. A reading that is not newer changes nothing."""
    if old is None:
        return Port(poll.guid, poll.port, poll.at, poll.boot, poll.wide, poll.values, {name: first(poll, name) for name in poll.values})
    if poll.at <= old.at:
        return old
    again = bool(poll.boot and old.boot and poll.boot != old.boot) or poll.wide != old.wide
    deltas: dict[str, int] = {}
    least: set[str] = set()
    reset: set[str] = set()
    odd: dict[str, State] = {}
    values = dict(poll.values)
    for name, value in poll.values.items():
        last = old.values.get(name)
        if value == last and not again and name not in old.odd:
            continue
        if value is None:
            odd[name] = "unknown"
            values[name] = last
            continue
        capped = at_cap(name, value, poll.wide)
        if last is None or poll.wide != old.wide:
            odd[name] = "saturated" if capped else "baseline"
        elif again or value < last:
            odd[name] = "saturated" if capped else "reset"
            reset.add(name)
            certain = value if value < last else value - last
            if certain:
                deltas[name] = certain
            least.add(name)
        elif capped:
            odd[name] = "saturated"
            least.add(name)
            if value > last:
                deltas[name] = value - last
        elif value > last:
            deltas[name] = value - last
    for name in old.values.keys() - poll.values.keys():
        odd[name] = "unknown"
        values[name] = old.values[name]
    traffic = [deltas.pop(name, 0) if poll.values.get(name) is not None and odd.get(name) != "baseline" else None for name in TRAFFIC]
    for name in CARRIED & deltas.keys():
        del deltas[name]
    waited = deltas.pop(WAIT, 0)
    least.discard(WAIT)
    bits = [None if words is None else min(MOST, counters.octets(words) * 8) for words in traffic[:2]]
    step = Step(poll.at, poll.at - old.at, deltas or NONE, frozenset(least), frozenset(reset), bits[0], bits[1], traffic[2], traffic[3], waited)
    return _stepped(old, poll, step, values, odd)


def _stepped(old: Port, poll: Poll, step: Step, values: Mapping[str, int | None], odd: Mapping[str, State]) -> Port:
    blind = old.odd.get("symbol_error") == "saturated"
    total = Total(
        old.total.seconds + (0.0 if blind else step.seconds),
        min(MOST, old.total.xmit_bits + (step.xmit_bits or 0)),
        min(MOST, old.total.rcv_bits + (0 if blind else step.rcv_bits or 0)),
        min(MOST, old.total.xmit_packets + (step.xmit_packets or 0)),
        min(MOST, old.total.rcv_packets + (step.rcv_packets or 0)),
    )
    counts = (
        {**old.counts, **{name: min(MOST, old.counts.get(name, 0) + count) for name, count in step.counts.items()}} if step.counts else old.counts
    )
    steps = (*old.steps[-(WINDOW - 1) :], step)
    return Port(poll.guid, poll.port, poll.at, poll.boot or old.boot, poll.wide, values, odd, steps, total, counts)


def first(poll: Poll, name: str) -> State:
    """State of a value that is seen for the first time."""
    value = poll.values[name]
    if value is None:
        return "unknown"
    return "saturated" if at_cap(name, value, poll.wide) else "baseline"


def at_cap(name: str, value: int, wide: bool) -> bool:
    """Whether a classic counter can go no higher."""
    return not wide and value > 14 and counters.saturated(name, value)


def series(port: Port) -> Iterator[Series]:
    """The counters of a port as rows. Of an unknown one the last value that was read."""
    for name, value in port.values.items():
        row = counters.known(name)
        bits = 64 if port.wide or row is None or (value or 0) > row.cap else row.bits
        yield Series(port.guid, port.port, name, bits, port.boot, port.odd.get(name, "counting"), value, port.at)
