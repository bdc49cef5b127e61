"""`smartctl --json -H -A DEVICE` (or its text): what a disk says of itself, NVMe, ATA and SCSI.

A virtual disk, or one behind a controller, tells nothing: that is unread, never well. Limits are the disk's own (its threshold, its verdict).
"""

from __future__ import annotations

import re
from typing import Any

from . import jsontext
from .schema import Draft, Item, lines_of, number

CRITICAL = 0x01 | 0x04 | 0x08 | 0x10
"""NVMe critical warning: spare below its threshold, reliability degraded, read-only, backup of volatile memory failed."""
HOT = 0x02
UNREADABLE = ("current_pending_sector", "offline_uncorrectable")
"""ATA attributes that count sectors which cannot be read (197, 198)."""
VERDICT = re.compile(r"^SMART (?:overall-health self-assessment test result|Health Status): *(?P<verdict>[^\n]{1,80})$")
FIELD = re.compile(r"^(?P<name>[A-Z][A-Za-z/ ]{2,40}): *(?P<value>\S[^\n]{0,80})$")
ATTRIBUTE = re.compile(r"^ *(?P<id>\d{1,3}) (?P<name>[\w-]{3,40}) +0x[0-9a-f]{4} +(?:\d+ +){3}\S+ +\S+ +(?P<failed>\S+) +(?P<raw>\d+)")


def looks(text: str) -> bool:
    return bool(re.search(r'^smartctl \d+\.\d|^SMART (?:overall-health|Health Status)|"smartctl": *\{', text, re.M))


def read(draft: Draft, text: str) -> None:
    if text.lstrip()[:1] in ("{", "["):
        for record in jsontext.documents(draft, text):
            if isinstance(record, dict):
                read_record(draft, record)
            else:
                draft.unread("not an object")
    else:
        read_text(draft, text)


def branch(record: dict[str, Any], name: str) -> dict[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def read_record(draft: Draft, record: dict[str, Any]) -> None:
    name = str(branch(record, "device").get("name") or "disk")
    health = branch(record, "nvme_smart_health_information_log")
    item = draft.item(name, "disk", model=str(record.get("model_name") or "")[:80] or None)
    passed = branch(record, "smart_status").get("passed")
    if isinstance(passed, bool):
        verdict(draft, item, passed, "smart_status.passed")
    elif not health:
        messages = branch(record, "smartctl").get("messages")
        said = messages[0].get("string") if isinstance(messages, list) and messages and isinstance(messages[0], dict) else ""
        draft.unread(f"{name}: tells nothing", str(said or ""))
    nvme(draft, item, {key: whole(value) for key, value in health.items()})
    table = branch(record, "ata_smart_attributes").get("table")
    for row in table if isinstance(table, list) else ():
        if isinstance(row, dict):
            attribute(draft, item, str(row.get("name")), str(row.get("when_failed") or ""), whole(branch(row, "raw").get("value")))


def read_text(draft: Draft, text: str) -> None:
    fields: dict[str, int | None] = {}
    item = draft.item("disk", "disk")
    told = False
    for line in lines_of(text):
        if match := VERDICT.match(line):
            told = True
            verdict(draft, item, match["verdict"].strip().upper().rstrip("!") in ("PASSED", "OK"), line)
        elif match := ATTRIBUTE.match(line):
            attribute(draft, item, match["name"], match["failed"].replace("-", ""), whole(number(match["raw"])))
        elif match := FIELD.match(line):
            value = match["value"].split()[0].rstrip("%")
            bits = int(value, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", value) else whole(number(value.replace(",", "")))
            fields[match["name"].lower().replace(" ", "_").replace("media_and_data_integrity_errors", "media_errors")] = bits
    if not told and "critical_warning" not in fields:
        draft.unread("tells nothing", text.strip().split("\n")[-1])
    nvme(draft, item, fields)


def verdict(draft: Draft, item: Item, passed: bool, evidence: str) -> None:
    item["passed"] = passed
    if not passed:
        draft.finding("smart_failed", "critical", str(item["id"]), evidence)


def nvme(draft: Draft, item: Item, health: dict[str, int | None]) -> None:
    name = str(item["id"])
    bits, spare, least = health.get("critical_warning") or 0, health.get("available_spare"), health.get("available_spare_threshold")
    if bits & CRITICAL:
        draft.finding("smart_failed", "critical", name, f"critical warning 0x{bits:02x}")
    elif spare is not None and least is not None and spare < least:
        draft.finding("smart_failed", "critical", name, f"{spare} % spare, at least {least} %")
    if bits & HOT:
        draft.finding("smart_hot", "warning", name, f"critical warning 0x{bits:02x}: temperature")
    if errors := health.get("media_errors"):
        draft.finding("smart_media_errors", "warning", name, f"{errors} media errors")
    if (worn := health.get("percentage_used")) is not None:
        item["worn_percent"] = worn
        if worn >= 100:
            draft.finding("smart_worn", "warning", name, f"{worn} % of its life used")


def attribute(draft: Draft, item: Item, name: str, failed: str, raw: int | None) -> None:
    where = str(item["id"])
    if failed.lower() in ("now", "failing_now"):
        draft.finding("smart_failed", "critical", where, f"{name} fails now")
    elif name.lower() in UNREADABLE and raw:
        draft.finding("smart_media_errors", "warning", where, f"{name}: {raw}")
