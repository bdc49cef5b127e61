"""Fans and temperatures of switches as readings, and drops per line card. Pure: from what `ibswinfo` printed, and from the watch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from aegis_parsers.schema import Parsed

from aegis_netmon.correlate import Sensor, card_of
from aegis_netmon.limits import Common
from aegis_netmon.topology import End, guid
from aegis_netmon.watch import Watch, sums


def of_ibswinfo(parsed: Parsed, at: float, part: str = "") -> Iterator[Sensor]:
    """Readings of one switch; `part` is what it is called (default: its GUID)."""
    for item in parsed.items:
        if item.get("kind") != "switch":
            continue
        name = part or guid(str(item.get("guid") or item["id"]))
        fans = item.get("fans_rpm")
        for fan, rpm in fans.items() if isinstance(fans, dict) else ():
            if isinstance(rpm, int | float):
                yield Sensor(at, name, "fan", f"fan{fan}", float(rpm))
        chip = item.get("temperature_c")
        if isinstance(chip, int | float) and not isinstance(chip, bool):
            yield Sensor(at, name, "temperature", "chip", float(chip))


def odd(readings: Iterable[Sensor], limits: Common) -> list[tuple[str, str]]:
    """(part, a sentence) of fans and temperatures whose last reading is far from the usual: of a fan that of all fans of its part, of a temperature
    that of its own past. `readings` of a part and name in the order of time."""
    series: dict[tuple[str, str], list[Sensor]] = {}
    fans: dict[str, list[float]] = {}
    for reading in readings:
        series.setdefault((reading.part, reading.name), []).append(reading)
        if reading.kind == "fan":
            fans.setdefault(reading.part, []).append(reading.value)
    found = []
    for (part, name), own in sorted(series.items()):
        last = own[-1]
        usual = median(fans[part] if last.kind == "fan" else [one.value for one in own])
        if last.kind == "fan" and last.value < limits.slow_fan * usual:
            found.append((part, f"{name} turns at {last.value:.0f} rpm, {usual:.0f} is usual"))
        elif last.kind == "temperature" and last.value > usual + limits.hot_c:
            found.append((part, f"{name} is at {last.value:.0f} C, {usual:.0f} C is usual"))
    return found


def drops_by_card(watch: Watch, cards: Mapping[End, str] | None = None) -> dict[str, int]:
    """Packets dropped on egress within the window, per line card; switches without cards by their own name."""
    found: dict[str, int] = {}
    for end, port in watch.ports.items():
        dropped = sums(port).get("port_xmit_discards", 0)
        name = watch.names.get(end[0], end[0])
        card = (cards or {}).get(end) or card_of(name) or name
        found[card] = found.get(card, 0) + dropped
    return found
