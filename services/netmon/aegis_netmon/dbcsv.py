"""What a report of ibdiagnet (ibdiagnet2.db_csv) says, section by section: links, counters, bit error rates, firmware, fans, temperatures. Pure.

Sections and columns change between versions: both go by their names, whatever their order and spelling of capitals; what is not there is unknown.
Numbers may be decimal or hexadecimal; all ones, or one less, is ibdiagnet's word for "not supported".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from aegis_parsers.ib import counters
from aegis_parsers.ib.ber import read_ber
from aegis_parsers.ib.ibdiagnet import UNENDED
from aegis_parsers.schema import Item, Parsed, Value, number

from aegis_netmon.correlate import Sensor, card_of
from aegis_netmon.fabricpoll import Reading, ends
from aegis_netmon.series import Poll
from aegis_netmon.topology import End, build, guid, word

Row = Mapping[str, Value]
NOT_SUPPORTED = 2**64 - 2
WIDE = ("ext", "extended")
KEPT = frozenset({"ar_info", "extended_port_info", "fabric"})
"""Kinds of rows on adaptive routing (`routing.read`)."""
BER_FIELDS = {"field12": "raw mantissa", "field13": "raw exponent", "field14": "effective mantissa", "field15": "effective exponent"}
BER_FIELDS |= {"field16": "symbol mantissa", "field17": "symbol exponent"}
"""Of PHY_DB16, whose columns have numbers for names (public readers of it agree)."""
NOTHING = 1e-100
"""A rate below it is how "no error" is written (15E-255)."""


class Digest(NamedTuple):
    """What is used of a report: its rows are many, and are not kept."""

    reading: Reading | None
    optics: Mapping[End, Item]
    firmware: Mapping[str, str]
    sensors: tuple[Sensor, ...]


def digest(parsed: Parsed, at: float) -> tuple[Digest, Parsed]:
    """What is used of it, and the report with nothing but its words on adaptive routing."""
    rest = tuple(item for item in parsed.items if item.get("kind") in KEPT)
    return Digest(reading(at, parsed), optics(parsed), firmware(parsed), tuple(sensors(parsed, at))), msgspec.structs.replace(parsed, items=rest)


def rows(parsed: Parsed, section: str) -> Iterator[dict[str, Value]]:
    """Rows of a section, columns in small letters."""
    for item in parsed.items:
        columns = item.get("columns")
        if item.get("kind") == section and isinstance(columns, dict):
            yield {str(name).lower(): value for name, value in columns.items()}


def of_port(row: Row) -> tuple[str, int] | None:
    """(GUID of the node, port) of a row; None where it names none."""
    port = whole(row.get("portnumber", row.get("portnum")))
    return (guid(str(row["nodeguid"])), port) if port is not None and row.get("nodeguid") else None


def whole(value: Value) -> int | None:
    """A count, decimal or hexadecimal; None where it is none, or not supported."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        found = value if isinstance(value, int) else int(value, 0)
    except ValueError:
        return None
    return found if 0 <= found < NOT_SUPPORTED else None


def names(parsed: Parsed) -> dict[str, str]:
    """ "<GUID of an adapter>/<port>" -> GUID of that port: other tools name adapters by it."""
    kinds = {guid(str(row.get("nodeguid"))): row.get("nodetype") for row in rows(parsed, "nodes")}
    return {
        f"{guid(str(row.get('nodeguid')))}/{row.get('portnum')}": guid(str(row["portguid"]))
        for row in rows(parsed, "ports")
        if row.get("portguid") and kinds.get(guid(str(row.get("nodeguid")))) == 1
    }


def reading(at: float, parsed: Parsed) -> Reading | None:
    """A reading from the report alone: sections NODES, LINKS, PM_INFO, and PORTS for the GUIDs of adapters' ports. None: it lists no link, or is cut
    off (it is being written): what is missing of it would look like links that are down."""
    nodes = {guid(str(row.get("nodeguid"))): row for row in rows(parsed, "nodes")}
    named = names(parsed)
    items: list[Item] = []
    for row in rows(parsed, "links"):
        both = [(guid(str(row.get(f"nodeguid{n}"))), row.get(f"portnum{n}")) for n in (1, 2)]
        for own, other in (both, both[::-1]):
            items.append(
                {
                    **{"id": "", "kind": "link", "type": "CA" if nodes.get(own[0], {}).get("nodetype") == 1 else "SW"},
                    **{"guid": named.get(f"{own[0]}/{own[1]}", own[0]), "port": own[1], "name": nodes.get(own[0], {}).get("nodedesc")},
                    **{"peer_guid": named.get(f"{other[0]}/{other[1]}", other[0]), "peer_port": other[1]},
                }
            )
    if not items or not nodes or any(text.startswith(UNENDED) for text in parsed.unreadable):
        return None
    fabric = build(items)
    polls = tuple(msgspec.structs.replace(poll, guid=named.get(f"{poll.guid}/{poll.port}", poll.guid)) for poll in polls_of(at, parsed))
    silent = sorted({fabric.name(end) for end in ends(fabric)} - {fabric.name((poll.guid, poll.port)) for poll in polls})
    partial = (f"{len(silent)} ports have no counters in the report: {', '.join(silent[:8])}",) if silent else ()
    return Reading(at, fabric, polls, partial, optics(parsed))


def polls_of(at: float, parsed: Parsed) -> list[Poll]:
    """Polls of PM_INFO. Where a counter stands there in both widths (LinkDownedCounter, LinkDownedCounterExt), the wide one is it."""
    found = []
    for row in rows(parsed, "pm_info"):
        if (end := of_port(row)) is None:
            continue
        values: dict[str, int | None] = {}
        wide = False
        for name, value in sorted(row.items(), key=lambda cell: cell[0].endswith(WIDE)):
            known = counters.known(name)
            if known is None:
                continue
            count = whole(value)
            if count is None and values.get(known.name) is not None:
                continue  # the wide one is not supported
            values[known.name] = count
            wide = wide or (known.bits < 64 and count is not None and name.endswith(WIDE))
        found.append(Poll(*end, at, values, wide=wide))
    return found


def optics(parsed: Parsed) -> dict[End, Item]:
    """Bit error rates of ports, in the words of mlxlink's parser: PHY_DBn, as mantissa and exponent (15 and 255 are 15E-255: no error), and the table
    of ibdiagnet2.net_dump_ext."""
    named = names(parsed)
    found: dict[End, Item] = {}
    sections = {str(item.get("kind")) for item in parsed.items}
    for section in sorted(section for section in sections if section.startswith("phy_db")):
        for row in rows(parsed, section):
            end = of_port(row)
            rates = {kind: rate for kind in ("raw", "effective", "symbol") if (rate := ber_of(row, kind, section == "phy_db16")) is not None}
            if end is not None and rates:
                end = named.get(f"{end[0]}/{end[1]}", end[0]), end[1]
                found[end] = {**found.get(end, {}), **{f"{kind}_ber": rate for kind, rate in rates.items()}}
    for row in rows(parsed, "net_dump_ext"):
        port = whole(row.get("#ib"))
        read = {f"{kind}_ber": rate for kind in ("raw", "effective", "symbol") if (rate := read_ber(str(row.get(f"{kind} ber")))) is not None}
        if row.get("guid") and port is not None and read:
            device = guid(str(row["guid"]))
            told = named.get(f"{device}/{port}", device), port
            found[told] = {**found.get(told, {}), **read}
    return found


def ber_of(row: Row, kind: str, numbered: bool) -> float | None:
    """One rate: columns that name it ("raw_ber_mantissa"), or the numbered ones of PHY_DB16."""
    parts: dict[str, int] = {}
    for name, value in row.items():
        told = BER_FIELDS.get(name, "") if numbered else name
        count = whole(value)
        if count is None or not re.search(rf"\b{kind[:3]}", told.replace("_", " ")):
            continue
        for part, words in (("mantissa", ("mantissa", "coef")), ("exponent", ("exponent", "magnitude"))):
            if any(one in told for one in words):
                parts[part] = count
    if len(parts) < 2 or parts["exponent"] > 400:
        return None
    rate = parts["mantissa"] * 10.0 ** -parts["exponent"]
    return 0.0 if rate < NOTHING else rate if rate <= 1 else None


def firmware(parsed: Parsed) -> dict[str, str]:
    """Device (by its description, else its GUID) -> firmware, from NODES_INFO."""
    descriptions = {guid(str(row.get("nodeguid"))): word(row.get("nodedesc")) for row in rows(parsed, "nodes")}
    found = {}
    for row in rows(parsed, "nodes_info"):
        for head in ("fwinfo_extended_", "fwinfo_"):
            major, minor, sub = (whole(row.get(head + part)) for part in ("major", "minor", "subminor"))
            if major and minor is not None and sub is not None:
                node = guid(str(row.get("nodeguid")))
                found[descriptions.get(node) or node] = f"{major}.{minor}.{sub:04d}"
                break
    return found


def sensors(parsed: Parsed, at: float) -> Iterator[Sensor]:
    """Readings of FANS_SPEED (rpm) and TEMP_SENSING (Celsius). A line card's switch is the card."""
    descriptions = {guid(str(row.get("nodeguid"))): str(row.get("nodedesc") or "") for row in rows(parsed, "nodes")}

    def part(row: Row) -> str:
        node = guid(str(row.get("nodeguid")))
        return card_of(descriptions.get(node, "")) or node

    for row in rows(parsed, "fans_speed"):
        index = next((value for name, value in row.items() if name.endswith("index")), None)
        rpm = next((value for name, value in row.items() if name.endswith("speed") and not name.startswith(("min", "max"))), None)
        if row.get("nodeguid") and index is not None and (speed := whole(rpm)) is not None:
            yield Sensor(at, part(row), "fan", f"fan{index}", float(speed))
    for row in rows(parsed, "temp_sensing"):
        told = next((value for name, value in row.items() if "temp" in name and not name.startswith(("min", "max"))), None)
        degrees = number(str(told)) if told is not None else None
        if row.get("nodeguid") and degrees is not None and degrees < 250:
            yield Sensor(at, part(row), "temperature", "chip", float(degrees))
