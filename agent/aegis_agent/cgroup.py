"""A cgroup for one scope, where we may make one: `cgroup.kill` ends what hides from every other search.

Best effort: in most containers the tree is read-only, then everything works without. Writes only below this process's own cgroup, in folders named
`aegis-<scope>`; enables no controller, so that nothing is accounted or limited differently.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

ABANDONED = 3600.0
"""Seconds after which an empty cgroup of ours is taken for one whose agent was killed."""


def own_cgroup() -> Path | None:
    """Folder of this process in the v2 tree, or None without one."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="surrogateescape")
        lines = Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    mount = next((fields[1] for line in mounts.splitlines() if (fields := line.split())[2] == "cgroup2"), None)
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if mount is None or path is None:
        return None
    folder = Path(mount) / path.lstrip("/")
    return folder if (folder / "cgroup.procs").exists() else None


class Cgroup:
    """The cgroup of one scope."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.procs = str(folder / "cgroup.procs")

    @classmethod
    def make(cls, scope: str) -> Cgroup | None:
        """A new empty cgroup, or None where none can be made (read-only, v1 only, no cgroup.kill)."""
        parent = own_cgroup()
        if parent is None or "/" in scope:
            return None
        if parent.name.startswith("aegis-"):
            parent = parent.parent
        remove_abandoned(parent)
        folder = parent / f"aegis-{scope}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            return None
        if not os.access(folder / "cgroup.kill", os.W_OK) or not os.access(folder / "cgroup.procs", os.W_OK):
            _remove(folder)
            return None
        return cls(folder)

    def pids(self) -> set[int]:
        return set(_pids(self.folder))

    def kill(self) -> None:
        _kill(self.folder)

    def remove(self) -> None:
        _remove(self.folder)


def _pids(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except (OSError, ValueError):
        return []


def _kill(folder: Path) -> None:
    try:
        (folder / "cgroup.kill").write_text("1")
    except OSError:
        pass


def _remove(folder: Path) -> None:
    """Remove the folder and the empty ones below it; a folder with processes stays."""
    try:
        for inner in [entry for entry in folder.iterdir() if entry.is_dir()]:
            _remove(inner)
        folder.rmdir()
    except OSError:
        pass


def _folders(prefix: str) -> list[Path]:
    parent = own_cgroup()
    if parent is None:
        return []
    if parent.name.startswith("aegis-"):
        parent = parent.parent
    try:
        return [entry for entry in parent.iterdir() if entry.name.startswith(f"aegis-{prefix}") and entry.is_dir()]
    except OSError:
        return []


def remove_abandoned(parent: Path) -> None:
    """Remove empty cgroups of ours that nobody has touched for an hour: their agents were killed. One with processes cannot be removed."""
    try:
        for entry in parent.iterdir():
            if entry.name.startswith("aegis-") and time.time() - entry.stat().st_mtime > ABANDONED:
                _remove(entry)
    except OSError:
        pass


def kill_scopes(prefix: str) -> None:
    """cgroup.kill of every scope of ours that begins with `prefix`."""
    for folder in _folders(prefix):
        _kill(folder)


def remove_scopes(prefix: str) -> None:
    """Remove the empty cgroups of ended scopes."""
    for folder in _folders(prefix):
        _remove(folder)
