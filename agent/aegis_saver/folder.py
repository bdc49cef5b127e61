"""A folder of incremental checkpoints on disk. Standard library only.

    step-000000120.json            manifest of a complete checkpoint: which part holds which key, and every file with its size
    parts/fault-<job>-i2-120/      what changed since the checkpoint before: a folder of torch.distributed.checkpoint (-i2.1-120: saved again)
    owner.json                     which incarnation of which job writes here: an older one is refused

A checkpoint is its manifest, written last and at once: a save that was killed has none, and its part is removed when a later one is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARTS, OWNER = "parts", "owner.json"
KEEP = 2
"""Complete checkpoints that stay."""


class Refused(RuntimeError):
    """A newer incarnation writes into this folder."""


@dataclass(frozen=True)
class Manifest:
    """`keys`: name -> part; `files`: path below the folder -> bytes."""

    run: str
    incarnation: int
    step: int
    keys: dict[str, str] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> set[str]:
        return set(self.keys.values())


def run_id(environ: dict[str, str]) -> str:
    """The id of this run's saves: with a prefix of its own, so that they are told from the training's own checkpoints."""
    return f"fault-{environ.get('AEGIS_JOB') or environ.get('TORCHELASTIC_RUN_ID') or 'local'}-i{environ.get('AEGIS_INCARNATION', '0')}"


def write_whole(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def claim(folder: Path, job: str, incarnation: int) -> None:
    """Be the writer of `folder`; Refused when a later incarnation of the same job is."""
    (folder / PARTS).mkdir(parents=True, exist_ok=True)
    try:
        owner = json.loads((folder / OWNER).read_text())
        before = (str(owner["job"]), int(owner["incarnation"]))
    except (OSError, ValueError, KeyError, TypeError):
        before = ("", -1)
    if before[0] == job and before[1] > incarnation:
        raise Refused(f"{folder}: incarnation {before[1]} of {job} writes here; this is {incarnation}, an earlier one")
    if before != (job, incarnation):
        write_whole(folder / OWNER, {"job": job, "incarnation": incarnation})


def commit(folder: Path, manifest: Manifest) -> None:
    """Make a checkpoint complete. All its files must be there."""
    write_whole(folder / f"step-{manifest.step:09d}.json", {"v": 1, **manifest.__dict__})


def sizes(folder: Path, part: str) -> dict[str, int]:
    """Every file of a part."""
    root = folder / PARTS / part
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(root.rglob("*")) if path.is_file()}


def read(path: Path) -> Manifest | None:
    try:
        told = json.loads(path.read_text())
        if told["v"] != 1:
            return None
        keys = {str(key): str(part) for key, part in told["keys"].items()}
        files = {str(name): int(size) for name, size in told["files"].items()}
        return Manifest(str(told["run"]), int(told["incarnation"]), int(told["step"]), keys, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_complete(folder: Path, manifest: Manifest) -> bool:
    """Every file is there, whole."""
    for name, size in manifest.files.items():
        try:
            if (folder / name).stat().st_size != size:
                return False
        except OSError:
            return False
    return all((folder / PARTS / part / ".metadata").exists() for part in manifest.parts)


def complete(folder: Path) -> list[Manifest]:
    """Complete checkpoints, the newest first."""
    found = [manifest for path in folder.glob("step-*.json") if (manifest := read(path)) is not None]
    return sorted((one for one in found if is_complete(folder, one)), key=lambda one: -one.step)


def prune(folder: Path, keep: int = KEEP) -> list[str]:
    """Remove checkpoints before the newest `keep`, and parts that none of those needs, but those of a save that may be going on. What was removed."""
    newest = complete(folder)
    if not newest:
        return []
    removed = []
    for old in newest[keep:]:
        (folder / f"step-{old.step:09d}.json").unlink(missing_ok=True)
        removed.append(f"step {old.step}")
    needed = set().union(*(one.parts for one in newest[:keep]))
    for path in sorted((folder / PARTS).iterdir()) if (folder / PARTS).is_dir() else []:
        run, _, step = path.name.rpartition("-")
        going_on = run == newest[0].run and step.isdigit() and int(step) > newest[0].step
        if path.name not in needed and not going_on and path.stat().st_mtime < (folder / f"step-{newest[0].step:09d}.json").stat().st_mtime:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    return removed
