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
    112: ("ufm_link_downed", "warning"),
    113: ("ufm_rcv_errors", "warning"),
    115: ("ufm_switch_relay_errors", "info"),
    116: ("ufm_xmit_discards", "warning"),
    328: ("ufm_link_up", "info"),
    329: ("ufm_link_down", "warning"),
    702: ("ufm_port_unhealthy", "critical"),
    917: ("ufm_symbol_ber", "warning"),
    918: ("ufm_symbol_ber", "critical"),
}
TEXTS: tuple[tuple[re.Pattern[str], str, Severity], ...] = (
    (re.compile(r"considered by SM as unhealthy due to FLAPPING", re.I), "ufm_port_flapping", "critical"),
    (re.compile(r"considered by SM as unhealthy", re.I), "ufm_port_unhealthy", "critical"),
    (re.compile(r"Link went down", re.I), "ufm_link_down", "warning"),
)
GUID_PORT = re.compile(r"\)?(?P<guid>[0-9a-f]{16}):(?P<port>\d+)", re.I)
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
