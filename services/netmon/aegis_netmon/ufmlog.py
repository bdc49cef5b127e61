"""UFM's event log as events of ports and as dips of links. Pure.

Its times have no zone: `zone` is that of UFM's machine. A line without a time (a message body alone) is no event.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo

from aegis_parsers.schema import Item, Parsed

from aegis_netmon.correlate import PortEvent
from aegis_netmon.flaps import Dip
from aegis_netmon.topology import End, guid

COUNTERS = {110: "symbol_error", 111: "link_error_recovery", 112: "link_downed", 113: "port_rcv_errors", 116: "port_xmit_discards"}
COUNTERS |= {119: "local_link_integrity_errors", 120: "excessive_buffer_overrun_errors", 917: "symbol_error", 918: "symbol_error"}
"""What UFM's codes are about."""
UP, DOWN = 328, 329


def events(parsed: Parsed, zone: tzinfo = UTC, within: float = 60.0) -> Iterator[PortEvent]:
    """Events of counters, one per side that the line names; how much it rose is not told, so 1. `within`: UFM's own poll, seconds."""
    for item, at in timed(parsed, zone):
        code = item.get("code")
        if isinstance(code, int) and code in COUNTERS:
            for end in sides(item):
                yield PortEvent(at, within, end, COUNTERS[code], 1)


def dips(parsed: Parsed, zone: tzinfo = UTC) -> Iterator[tuple[End, Dip]]:
    """Ports that went down and came back, in the order in which they came back. One that is down still is the sweep's to see."""
    down: dict[End, float] = {}
    for item, at in timed(parsed, zone):
        for end in sides(item) if item.get("code") in (UP, DOWN) else ():
            if item.get("code") == DOWN:
                down.setdefault(end, at)
            elif (start := down.pop(end, None)) is not None:
                yield end, Dip(start, at)


def timed(parsed: Parsed, zone: tzinfo) -> Iterator[tuple[Item, float]]:
    for item in parsed.items:
        if item.get("kind") != "event" or not isinstance(item.get("time"), str):
            continue
        try:
            at = datetime.fromisoformat(str(item["time"]).replace(" ", "T")).replace(tzinfo=zone).timestamp()
        except ValueError:
            continue
        yield item, at


def sides(item: Item) -> Iterator[End]:
    """The ports that a line names: "9c0591030090e000:33"."""
    named = item.get("sides")
    for side in named if isinstance(named, list) else ():
        device, _, port = str(side).partition(":")
        if port.isdigit() and len(port) < 6:
            yield guid(device), int(port)
