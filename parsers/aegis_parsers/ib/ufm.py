"""UFM's event log: `<time> [<id>] [<code>] LEVEL [<topic>] <type> [<device>] [dev_id: <guid>]: <text>`, or the text alone."""

from __future__ import annotations

import re

from ..schema import Draft, Severity, bare_lines_of

LINE = re.compile(
    r"^(?P<time>\d{4}-\d\d-\d\d[T ][\d:.]+)\S* \[(?P<entry>\d+)\] \[(?P<code>\d+)\] (?P<level>\w+) \[(?P<topic>[^\]]*)\] (?P<type>[^\[]*)"
    r"(?:\[(?P<device>[^\]]*)\])?(?: \[dev_id: (?P<guid>[^\]]*)\])?: (?P<text>.*)$"
)
CODES: dict[int, tuple[str, Severity]] = {
    110: ("ufm_symbol_errors", "warning"),
    111: ("ufm_link_retrained", "warning"),
    112: ("ufm_link_downed", "warning"),
    113: ("ufm_rcv_errors", "warning"),
    115: ("ufm_switch_relay_errors", "info"),
    116: ("ufm_xmit_discards", "warning"),
    119: ("ufm_link_integrity", "critical"),
    120: ("ufm_buffer_overrun", "critical"),
    328: ("ufm_link_up", "info"),
    329: ("ufm_link_down", "warning"),
    392: ("ufm_temperature", "warning"),
    394: ("ufm_module_fault", "critical"),
    702: ("ufm_port_unhealthy", "critical"),
    917: ("ufm_symbol_ber", "warning"),
    918: ("ufm_symbol_ber", "critical"),
}
"""110 to 116 and 702 to 918 as public log readers use them; the rest by the vendor's list of events (general knowledge)."""
TEXTS: tuple[tuple[re.Pattern[str], str, Severity], ...] = (
    (re.compile(r"considered by SM as unhealthy due to FLAPPING", re.I), "ufm_port_flapping", "critical"),
    (re.compile(r"considered by SM as unhealthy", re.I), "ufm_port_unhealthy", "critical"),
    (re.compile(r"Link went down", re.I), "ufm_link_down", "warning"),
    (re.compile(r"\bfan\b.*\b(?:fault|fail|error|not working|below)", re.I), "ufm_fan", "warning"),
    (re.compile(r"\btemperature\b.*\b(?:threshold|exceed|high|critical|over)", re.I), "ufm_temperature", "warning"),
)
GUID_PORT = re.compile(r"\)?(?P<guid>[0-9a-f]{16}):(?P<port>\d+)", re.I)
PORT = re.compile(r"\bport (?P<port>\d{1,3})\b", re.I)
DEVICE_PORT = re.compile(r"/ *(?P<port>\d{1,3}) *$")
GUID = re.compile(r"^(?:0x)?[0-9a-f]{16}$", re.I)
NAME = re.compile(r"Port (?P<name>\S+:\d[\d/]*)|Switch:(?P<switch>\S+?)\)")


def looks(text: str) -> bool:
    return bool(
        LINE.search(text)
        or re.search(r"^(?:\d{4}-\d\d-\d\d[T ]\S+ \[\d+\] \[\d+\] |Link went down: \(|Peer Port \S+ is considered by SM)", text, re.M)
    )


def read(draft: Draft, text: str) -> None:
    for n, line in enumerate(bare_lines_of(text)):
        if not line or line.startswith("#"):
            continue
        match = LINE.match(line)
        body = match["text"] if match else line
        named = NAME.search(body)
        sides = [f"{m['guid']}:{m['port']}" for m in GUID_PORT.finditer(body)]
        if match and not sides and GUID.match(match["guid"] or ""):
            port = PORT.search(body) or DEVICE_PORT.search(match["device"] or "")
            sides = [f"{match['guid'].lower().removeprefix('0x')}:{port['port']}"] if port else []
        where = (
            (sides[0] if sides else "")
            or (match["guid"] or match["device"] if match else "")
            or ((named["name"] or named["switch"]) if named else "")
            or "fabric"
        )
        by_text = next(((code, severity) for pattern, code, severity in TEXTS if pattern.search(body)), None)
        known = by_text or (CODES.get(int(match["code"][:9])) if match else None)
        if not match and not known:
            draft.unread("line not understood", line)
            continue
        draft.item(
            f"event{n + 1}",
            "event",
            time=match["time"] if match else None,
            code=int(match["code"][:9]) if match else None,
            where=where,
            sides=list(sides),
            text=body[:300],
        )
        if known and known[0] != "ufm_link_up":
            draft.finding(*known, where, line)
