"""File systems of a test: mounted while it runs, taken away after it. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def possible() -> bool:
    return os.getuid() == 0 and shutil.which("mount") is not None and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


@contextlib.contextmanager
def tmpfs(*folders: Path) -> Iterator[None]:
    """An empty file system of 1 GiB in each folder."""
    try:
        for folder in folders:
            folder.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "none", str(folder)], check=True)
        yield
    finally:
        for folder in folders:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def read_only(folder: Path) -> None:
    """As a kernel makes it after an error."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
