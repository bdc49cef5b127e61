"""mlxlink, as JSON and as text ("Name : value"): state, BER, FEC histogram, module.

All numbers are strings. A status code other than 0 may come with a complete body: what parses is kept, and the answer is not called healthy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .. import jsontext
from ..schema import Draft, Value, number
from .ber import BAD, WATCH, last_bin, line_rate_gbps, raw_ber, read_ber

DEVICE = re.compile(r"^=+\s*(?P<device>[\w./:-]+)\s*=+$")
COMMAND = re.compile(r"-d\s+(\S+)")
FIELD = re.compile(r"^(?P<key>[A-Za-z][^:]{0,80}?)\s*:\s(?P<value>.*)$")
TITLE = re.compile(r"^[A-Za-z][\w /()-]*$|^-+$")
RANGE = re.compile(r"^(?P<values>-?[\d.]+(?:,-?[\d.]+)*)\s*\[(?P<low>-?[\d.]+)\.\.(?P<high>-?[\d.]+)\]")
FAULTS = {
    **dict.fromkeys(("Module FW Fault", "DataPath FW Fault", "Tx Fault [per lane]", "Tx Adaptive EQ Fault [per lane]"), "module_fault"),
    **dict.fromkeys(("Rx LOS [per lane]", "Tx LOS [per lane]", "Rx CDR LOL [per lane]", "Tx CDR LOL [per lane]"), "module_signal_lost"),
}
"""Flags of the module: 1 is bad."""
TOLD = ("State", "Physical state", "Effective Physical BER", "Symbol BER", "Raw Physical BER", "Raw Physical Errors Per Lane")
FINE = re.compile(r"no issue|n/a|^$", re.IGNORECASE)
BIN = re.compile(r"Bin (\d{1,2})$")
NEAR_LAST = 2 / 15
"""Share of the bins before the last correctable one that are called close to it."""
Body = dict[str, str]


def looks(text: str) -> bool:
    return bool(
        re.search(
            r'"(?:Operational Info|Physical Counters and BER Info|Module Info)"\s*:|^Physical Counters and BER Info|'
            r"Effective Physical BER|^#?\s*mlxlink ",
            text,
            re.M,
        )
    )


def read(draft: Draft, text: str) -> None:
    if re.search(r"^\s*\{", text, re.M):
        names = COMMAND.findall(text)
        for n, document in enumerate(jsontext.documents(draft, text)):
            read_document(draft, names[n] if n < len(names) else f"port{n}", document)
        return
    for device, body in devices(draft, text):
        bins: dict[str, Value] = {match[1]: number(value.split(" ")[-1]) for key, value in body.items() if (match := BIN.match(key))}
        judge(draft, device, body, bins)


def read_document(draft: Draft, id: str, document: Any) -> None:
    if not isinstance(document, dict):
        draft.unread(f"{id}: not an object")
        return
    body: Body = {}
    bins: dict[str, Value] = {}
    for path, value in jsontext.walk(document):
        if path[:1] == ("status",) or path[:2] == ("result", "status"):
            if path[-1] == "code" and str(value) != "0":
                draft.unread(f"{id}: mlxlink status", str(document.get("status")))
        elif match := BIN.match(next((part for part in path if part.startswith("Bin ")), "")):
            if path[-1] == "1" or path[-1].startswith("Bin "):
                bins[match[1]] = number(str(value).split(" ")[-1])
        else:
            key = next((part for part in reversed(path) if part != "values" and not part.isdigit()), "")
            body[key] = f"{body[key]},{value}" if key in body else str(value)
    judge(draft, id, body, bins)


def devices(draft: Draft, text: str) -> Iterator[tuple[str, Body]]:
    device, body = "port0", Body()
    for raw in text.split("\n"):
        line = raw.strip()
        if match := DEVICE.match(line):
            if body:
                yield device, body
            device, body = match["device"], {}
        elif match := FIELD.match(line):
            body[match["key"].strip()] = match["value"].strip()
        elif line and not TITLE.match(line) and not line.startswith("#"):
            draft.unread("line not understood", line)
    if body:
        yield device, body


def judge(draft: Draft, id: str, body: Body, bins: dict[str, Value]) -> None:
    lanes = [number(cell) for cell in body.get("Raw Physical Errors Per Lane", "").split(",")]
    minutes = number(body.get("Time Since Last Clear [Min]") or body.get("Time Since Last Clear [min]"))
    rate = line_rate_gbps(body.get("Speed"), body.get("Width"))
    errors = sum(int(lane) for lane in lanes if lane is not None) if all(lane is not None for lane in lanes) else None
    effective, symbol = (read_ber(body.get(name)) for name in ("Effective Physical BER", "Symbol BER"))
    worst_bin, last = max((int(n) for n, count in bins.items() if count), default=None), last_bin(body.get("FEC"))
    draft.item(
        id,
        "port",
        state=body.get("State"),
        phys_state=body.get("Physical state"),
        speed=body.get("Speed"),
        width=body.get("Width"),
        fec=body.get("FEC"),
        line_rate_gbps=rate,
        raw_ber=read_ber(body.get("Raw Physical BER")),
        raw_ber_computed=raw_ber(errors, float(minutes), rate) if errors is not None and minutes and rate else None,
        raw_errors_per_lane=list(lanes) if any(lane is not None for lane in lanes) else None,
        effective_ber=effective,
        effective_errors=number(body.get("Effective Physical Errors")),
        symbol_ber=symbol,
        symbol_errors=number(body.get("Symbol Errors")),
        minutes_since_clear=minutes,
        link_down=number(body.get("Link Down Counter")),
        fec_histogram=bins or None,
        fec_last_bin=last,
        fec_margin=None if worst_bin is None else last - worst_bin,
        temperature_c=number(body.get("Temperature [C]")),
    )
    for name, ber in (("Effective Physical BER", effective), ("Symbol BER", symbol)):
        if name in body and ber is None:
            draft.unread(f"{id}: {name}", body[name])
        elif ber is not None and ber > WATCH:
            draft.finding("ber_high" if ber > BAD else "ber_elevated", "critical" if ber > BAD else "warning", id, f"{name} {body[name]}")
    state = body.get("State", "")
    told = f"State {state}, {body.get('Physical state')}"
    if state.lower() in ("disabled", "disable"):
        draft.finding("ib_port_disabled", "info", id, told)
    elif state.lower() in ("polling", "down") or (state and "Polling" in body.get("Physical state", "")):
        draft.finding("ib_port_down", "warning", id, told)
    if worst_bin is not None and last - worst_bin <= NEAR_LAST * last:
        draft.finding("fec_margin_low", "warning", id, f"code words with {worst_bin} corrected symbols of {last}")
    if not FINE.search(body.get("Recommendation", "")):
        draft.finding("mlxlink_recommendation", "warning", id, body["Recommendation"])
    for name, code in (
        ("Temperature [C]", "module_temperature"),
        ("Rx Power Current [dBm]", "module_rx_power"),
        ("Bias Current [mA]", "module_bias"),
    ):
        if match := RANGE.match(body.get(name, "")):
            out = [
                v
                for v in (number(cell) for cell in match["values"].split(","))
                if v is not None and not float(match["low"]) <= v <= float(match["high"])
            ]
            if out:
                draft.finding(code, "warning", id, f"{name}: {body[name]}")
    for name, code in FAULTS.items():
        if "1" in re.split(r"[,\s]+", body.get(name, "")):
            draft.finding(code, "warning", id, f"{name}: {body[name]}")
    if not any(name in body for name in TOLD):
        draft.unread(f"{id}: neither a state nor a counter in it")
