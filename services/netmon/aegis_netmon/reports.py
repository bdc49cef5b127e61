"""What tools printed that need other rights than ours: ibdiagnet, ibswinfo and UFM's log, as files in one folder (setting `netmon.reports`).

Reads that folder, file by file, when a file is new or has changed; which tool it was is seen from the text. Writes nothing. A file that is no tool's
is named in `unread`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, tzinfo
from pathlib import Path

import msgspec
from aegis_parsers import parse
from aegis_parsers.schema import Item, Parsed, clip

from aegis_netmon import dbcsv, routing, sensors, ufmlog
from aegis_netmon.correlate import PortEvent, Sensor
from aegis_netmon.dbcsv import Digest
from aegis_netmon.fabricpoll import Reading
from aegis_netmon.flaps import Dip
from aegis_netmon.routing import AdaptiveState
from aegis_netmon.topology import End, guid, word

MOST_FILES = 256
MOST_BYTES = 64 << 20
FRESH = 86400.0
"""Seconds after which the bit error rates of a report are not held against a link any more."""


class Reports:
    """`look` reads what changed. `files`: name -> (what it said, when it was written)."""

    def __init__(self, folder: str, zone: tzinfo = UTC) -> None:
        """`zone`: that of UFM's machine."""
        self.folder, self._zone = folder, zone
        self.files: dict[str, tuple[Parsed, float]] = {}
        self.unread: dict[str, str] = {}
        self._digests: dict[str, Digest] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._told: dict[str, float] = {}

    def look(self) -> list[str]:
        """Names of the files that are new or changed. Blocks."""
        if not self.folder:
            return []
        try:
            names = sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())[:MOST_FILES]
        except OSError as error:
            self.unread = {self.folder: error.strerror or str(error)}
            return []
        for gone in self._seen.keys() - set(names):
            for known in (self.files, self._digests, self._told, self._seen):
                known.pop(gone, None)
        changed = []
        self.unread = {name: why for name, why in self.unread.items() if name in names}
        for name in names:
            path = Path(self.folder, name)
            try:
                stat = path.stat()
                if self._seen.get(name) == (stat.st_mtime_ns, stat.st_size):
                    continue
                self._seen[name] = (stat.st_mtime_ns, stat.st_size)
                with path.open("rb") as file:
                    parsed = parse("auto", file.read(MOST_BYTES))
            except OSError as error:
                self.unread[name] = error.strerror or str(error)
                continue
            self.unread.pop(name, None)
            self._digests.pop(name, None)
            if parsed.items:
                if parsed.tool == "ibdiagnet":
                    self._digests[name], parsed = dbcsv.digest(parsed, stat.st_mtime)
                self.files[name] = (parsed, stat.st_mtime)
                changed.append(name)
            else:
                self.unread[name] = "; ".join(parsed.unreadable)[:200]
        return changed

    def of(self, tool: str) -> Iterator[tuple[str, Parsed, float]]:
        """(name, what it said, when) of each file of a tool, the oldest first."""
        return ((name, parsed, at) for name, (parsed, at) in sorted(self.files.items(), key=lambda row: row[1][1]) if parsed.tool == tool)

    def adaptive(self, switches: int | None) -> AdaptiveState:
        """Adaptive routing by the newest report of ibdiagnet; unknown, with the reason, where there is none."""
        found = list(self.of("ibdiagnet"))
        if not found:
            why = (
                f"no report of ibdiagnet in {self.folder}"
                if self.folder
                else "no reports are given (netmon.reports): ibdiagnet -r reads it, with rights"
            )
            return AdaptiveState("unknown", None, switches, "", 0.0, why)
        states = [(name, routing.read(parsed, switches, at)) for name, parsed, at in found]
        told = [(name, state) for name, state in states if state.switches is not None]
        name, best = told[-1] if told else states[-1]
        masks = {key: mask for _, state in states for key, mask in state.masks.items()}
        return msgspec.structs.replace(best, source=f"ibdiagnet ({name})", masks=masks)

    def firmware(self) -> dict[str, str]:
        """Device -> firmware: of a switch from ibswinfo, of all from ibdiagnet's db_csv."""
        told = {device: version for name, _, _ in self.of("ibdiagnet") for device, version in self._digests[name].firmware.items()}
        return told | {
            word(item.get("name")) or name: clip(str(item["firmware_version"]))
            for name, parsed, _ in self.of("ibswinfo")
            for item in parsed.items
            if item.get("firmware_version")
        }

    def optics(self, now: float) -> dict[End, Item]:
        """Bit error rates of ports by reports of ibdiagnet that are not old; of a port the newest."""
        fresh = (self._digests[name] for name, _, at in self.of("ibdiagnet") if now - at < FRESH)
        return {end: item for digest in fresh for end, item in digest.optics.items()}

    def sensors(self, changed: list[str]) -> list[Sensor]:
        """Fans and temperatures in the changed files. A file `PART.anything` is about that part (a line card has no name in the tool's output)."""
        found: list[Sensor] = []
        for name in changed:
            parsed, at = self.files[name]
            if parsed.tool == "ibswinfo":
                found += sensors.of_ibswinfo(parsed, at, part_of(name))
            elif parsed.tool == "ibdiagnet":
                found += self._digests[name].sensors
        return found

    def faults(self) -> list[tuple[str, str]]:
        """(part, what) of fans and power supplies that a switch itself calls faulty, by the last report on it."""
        found: dict[str, list[str]] = {}
        for name, parsed, _ in self.of("ibswinfo"):
            switch = next((item for item in parsed.items if item.get("kind") == "switch"), {})
            part = part_of(name) or (guid(str(switch["guid"])) if switch.get("guid") else word(switch.get("name")) or name)
            own = (clip(one.evidence.replace("|", " ")) for one in parsed.findings if one.code in ("switch_fan", "switch_psu"))
            found[part] = [" ".join(what.split()) for what in own]
        return [(part, what) for part, told in sorted(found.items()) for what in told]

    def events(self, changed: list[str]) -> list[PortEvent]:
        """Events of counters in the changed logs of UFM that were not there before: a log is read anew whenever it grows."""
        found = []
        for name in changed:
            parsed, _ = self.files[name]
            if parsed.tool == "ufm":
                events, upto = list(ufmlog.events(parsed, self._zone)), self._told.get(name, 0.0)
                found += [event for event in events if event.at > upto]
                self._told[name] = max((event.at for event in events), default=upto)
        return found

    def reading(self, changed: list[str]) -> Reading | None:
        """The newest changed report of ibdiagnet that lists links and counters, as a sweep."""
        found = [self._digests[name].reading for name in changed if name in self._digests]
        return max((one for one in found if one is not None), key=lambda one: one.at, default=None)

    def dips(self, changed: list[str]) -> list[tuple[End, Dip]]:
        """Links that went down and came back by the changed logs of UFM, also between two sweeps."""
        return [dip for name in changed for parsed, _ in [self.files[name]] if parsed.tool == "ufm" for dip in ufmlog.dips(parsed, self._zone)]


def part_of(name: str) -> str:
    """The part a file is about: "dir1_L12.ibswinfo.txt" is "dir1/L12"; "" when its name says none.

    >>> part_of("dir1_L12.ibswinfo.txt"), part_of("ibswinfo.txt")
    ('dir1/L12', '')
    """
    head = name.partition(".")[0]
    return head.replace("_", "/") if "_" in head else ""
