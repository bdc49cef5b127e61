"""Fans and temperatures of switches as readings, and drops per line card. Pure: from what `ibswinfo` printed, and from the watch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aegis_parsers.schema import Parsed

from aegis_netmon.correlate import Sensor, card_of
from aegis_netmon.topology import End, guid
from aegis_netmon.watch import Watch, sums


def of_ibswinfo(parsed: Parsed, at: float, part: str = "") -> Iterator[Sensor]:
    """Readings of one switch; `part` is what it is called (default: its GUID). A fan without a number is left out: it is unread, not still."""
    for item in parsed.items:
        if item.get("kind") != "switch":
            continue
        name = part or guid(str(item.get("guid") or item["id"]))
        fans = item.get("fans_rpm")
        for fan, rpm in fans.items() if isinstance(fans, dict) else ():
            if isinstance(rpm, int | float) and f"fan {fan}" not in " ".join(parsed.unreadable):
                yield Sensor(at, name, "fan", f"fan{fan}", float(rpm))
        chip = item.get("temperature_c")
        if isinstance(chip, int | float) and not isinstance(chip, bool):
            yield Sensor(at, name, "temperature", "chip", float(chip))


def drops_by_card(watch: Watch, cards: Mapping[End, str] | None = None) -> dict[str, int]:
    """Packets dropped on egress within the window, per line card; switches without cards by their own name."""
    found: dict[str, int] = {}
    for end, port in watch.ports.items():
        dropped = sums(port).get("port_xmit_discards", 0)
        name = watch.names.get(end[0], end[0])
        card = (cards or {}).get(end) or card_of(name) or name
        found[card] = found.get(card, 0) + dropped
    return found
