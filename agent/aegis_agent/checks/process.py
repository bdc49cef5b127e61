"""Check `process`: the agent lives, nothing of an earlier run does, and what every training needs of the file system is there.

Imports little: it is on the way of every recovery.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MIN_FREE = 64 << 20
"""Bytes that must be free in the working directory."""


def leftovers(prefix: str) -> list[int]:
    """Living processes whose environment names a scope of this attempt's runs."""
    if not prefix:
        return []
    from aegis_agent.procs import VARIABLE, processes, variable

    scopes = {pid: variable(pid, VARIABLE) for pid in processes()}  # read once: a check's tool that ends meanwhile is no leftover
    return [pid for pid, scope in scopes.items() if scope.startswith(prefix) and not scope.startswith((f"{prefix}agent", f"{prefix}check"))]


def writable(folder: str) -> str:
    """Why `folder` cannot be written, or ""."""
    try:
        path = os.path.join(folder, f".aegis-check-{os.getpid()}")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, b"aegis")
        finally:
            os.close(fd)
            os.unlink(path)
        return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"


def examine(context: dict[str, Any]) -> dict[str, Any]:
    cwd = context.get("cwd") or os.getcwd()
    problems: list[tuple[str, str]] = []
    agent = int(context.get("agent", 0))
    if agent and not os.path.exists(f"/proc/{agent}"):
        problems.append(("agentGone", f"the agent (pid {agent}) is gone"))
    if left := leftovers(str(context.get("scope", ""))):
        problems.append(("leftovers", f"processes of an earlier run live: {', '.join(map(str, left[:8]))}"))
    if not os.path.isdir(cwd):
        problems.append(("cwd", f"working directory {cwd} is not there"))
    elif not os.access(cwd, os.W_OK):
        pass  # a read-only code folder is usual; the training writes elsewhere
    elif why := writable(cwd):
        problems.append(("cwd", why))
    else:
        disk = os.statvfs(cwd)
        if disk.f_bavail * disk.f_frsize < MIN_FREE:
            problems.append(("diskFull", f"{cwd}: {disk.f_bavail * disk.f_frsize >> 20} MiB free"))
    if os.path.isdir("/dev/shm") and (why := writable("/dev/shm")):
        problems.append(("shm", why))
    if problems:
        return {"pass": False, "code": problems[0][0], "result": "; ".join(text for _, text in problems)}
    return {"pass": True, "result": "agent alive, no process left, working directory and /dev/shm writable"}


def main() -> None:
    context = json.loads(sys.stdin.readline() or "{}")
    print(json.dumps(examine(context)), flush=True)


if __name__ == "__main__":
    main()
