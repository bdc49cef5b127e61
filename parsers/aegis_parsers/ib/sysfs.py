"""A dump of /sys/class/infiniband: "path: value" per line (`grep -r .` gives it), or JSON of path -> value.

One file that cannot be read is unread; it never blinds its port, nor a port its device. A first non-zero count is a baseline, not an event.
"""

from __future__ import annotations

import json
import re

from ..schema import Draft, Item, bare_lines_of
from . import counters
from .local import judge_port

PORT = re.compile(r"(?:(?P<device>[^/\s]+)/)?ports/(?P<port>\d+)/(?P<file>.+)$")
LOOSE = re.compile(r"^(?:(?P<device>[^/\s]+)/)?(?P<file>(?:hw_)?counters/.+)$")
DEVICE = re.compile(r"(?P<device>[^/\s]+)/(?P<file>fw_ver|hca_type|board_id|node_guid|node_desc|sys_image_guid|node_type)$")
SEPARATOR = re.compile(r"[:=]")


def looks(text: str) -> bool:
    return bool(re.search(r"ports/\d+/(?:(?:hw_)?counters/\w+|state|phys_state|rate|link_layer)\b[^\n]*[:=]|\bhw_counters/", text))


def read(draft: Draft, text: str) -> None:
    ports: dict[str, Item] = {}
    for path, value in pairs(draft, text):
        if match := PORT.search(path) or LOOSE.match(path):
            groups = match.groupdict()
            id = f"{groups.get('device') or '?'}/{groups.get('port') or '?'}"
            port = ports.get(id) or ports.setdefault(id, draft.item(id, "port", counters={}))
            take(draft, port, groups["file"], value)
        elif match := DEVICE.search(path):
            device = next((item for item in draft.items if item["id"] == match["device"]), None) or draft.item(match["device"], "device")
            device[match["file"]] = value
    for id, port in ports.items():
        if port.get("state") or port.get("phys_state"):
            judge_port(draft, port, f"{id}: {port.get('state')}, {port.get('phys_state')}")
        known = port["counters"]
        if isinstance(known, dict):
            port["saturated"] = list(counters.note_saturation(draft, id, {name: value for name, value in known.items() if isinstance(value, int)}))


def pairs(draft: Draft, text: str) -> list[tuple[str, str]]:
    if text.lstrip().startswith("{"):
        try:
            loaded = json.loads(text)
        except ValueError as error:
            draft.unread("JSON is cut or damaged", str(error))
            return [(m[1], m[2]) for m in re.finditer(r'"([^"\n]+)"\s*:\s*"([^"\n]*)"', text)]
        return [(str(path), str(value)) for path, value in loaded.items()] if isinstance(loaded, dict) else []
    found = []
    for line in bare_lines_of(text):
        if match := SEPARATOR.search(line):
            found.append((line[: match.start()].strip(), line[match.end() :].strip()))
        elif line:
            draft.unread("line not understood", line)
    return found


def take(draft: Draft, port: Item, file: str, value: str) -> None:
    folder, _, name = file.rpartition("/")
    if folder in ("counters", "hw_counters", "counters_ext"):
        store = port["counters"]
        digits = value.strip()
        if isinstance(store, dict) and re.fullmatch(r"\w+", name) and digits.isascii() and digits.isdigit() and len(digits) < 40:
            store[name] = int(digits)
        else:
            draft.unread(f"{port['id']}: counter {name} has no number", value)
    elif file in ("state", "phys_state"):
        port[file] = re.sub(r"^\d+:\s*", "", value)
    elif file == "rate":
        match = re.match(r"([\d.]+) Gb/sec(?: \((.*)\))?", value)
        port |= {"rate_gbps": float(match[1]) if match else None, "rate": value}
    elif file == "lid":
        try:
            port["lid"] = int(value, 0)
        except ValueError:
            draft.unread(f"{port['id']}: lid", value)
    elif "/" not in file:
        port[file] = value
