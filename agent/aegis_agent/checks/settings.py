"""What a check is told by the environment (`AEGIS_CHECKS_*`), read once.

A value that cannot be read is a warning in the result, never a default in silence.

MOUNTS          /data,/ckpt:mount,/sets:ro     paths that must answer (ro: only read; mount: something must be mounted there)
EXPECTED_GPUS   8                              exactly so many accelerators; unset: as many as there are
EXPECTED_PORTS  8x400 or mlx5_0/1=400,...      so many active RDMA ports of this rate (Gb/s), or these
EXCLUDE_PORTS   mlx5_9,mlx5_1*                 devices that are never opened
KERNEL_LOG      /dev/kmsg                      or a file
PYTHON          the user's interpreter         (default: python3 of the PATH)
LIMITS          /etc/aegis/limits.toml         thresholds over those of limits.toml
ROOT            /                              where proc and sys lie
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from aegis_agent.checks.limits import problem

PREFIX = "AEGIS_CHECKS_"


@dataclass(frozen=True, slots=True)
class Mount:
    """`own`: the working directory, which may be one that is only read."""

    path: str
    readonly: bool = False
    mounted: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """`ports`: name -> Gb/s; `port_count`, `port_rate`: the other form. None: nothing is expected."""

    mounts: tuple[Mount, ...] = ()
    gpus: int | None = None
    ports: dict[str, float] = field(default_factory=dict)
    port_count: int | None = None
    port_rate: float = 0.0
    exclude_ports: tuple[str, ...] = ()
    kernel_log: str = "/dev/kmsg"
    python: str = ""
    root: str = "/"
    problems: tuple[str, ...] = ()

    def under(self, path: str) -> str:
        """`path` (without a leading slash) below the root."""
        return f"{self.root.rstrip('/')}/{path}"


def from_environment(environ: Mapping[str, str]) -> Settings:
    problems: list[str] = []

    def text(name: str, default: str = "") -> str:
        return environ.get(PREFIX + name, "").strip() or default

    def wrong(name: str, expected: str) -> None:
        problems.append(f"{PREFIX}{name}={text(name)!r}: expected {expected}; not used")

    mounts = []
    for word in filter(None, text("MOUNTS").split(",")):
        path, *flags = word.strip().split(":")
        if not path.startswith("/") or set(flags) - {"ro", "rw", "mount"}:
            wrong("MOUNTS", "absolute paths, each with :ro or :mount behind it if so")
            continue
        mounts.append(Mount(path, "ro" in flags, "mount" in flags))
    gpus: int | None = None
    if word := text("EXPECTED_GPUS"):
        if word.isascii() and word.isdigit() and int(word) <= 1024:
            gpus = int(word)
        else:
            wrong("EXPECTED_GPUS", "a number from 0 to 1024")
    ports: dict[str, float] = {}
    count: int | None = None
    rate = 0.0
    if word := text("EXPECTED_PORTS"):
        if match := re.fullmatch(r"(\d{1,3})(?:x(\d{1,5}))?", word):
            count, rate = int(match[1]), float(match[2] or 0)
        elif all(re.fullmatch(r"[\w.-]+/\d{1,3}(=\d{1,5})?", part.strip()) for part in word.split(",")):
            ports = {name: float(gbps or 0) for name, _, gbps in (part.strip().partition("=") for part in word.split(","))}
        else:
            wrong("EXPECTED_PORTS", "8x400, or device/port=400 separated by commas")
    if (word := text("LIMITS")) and (why := problem(word)):
        wrong("LIMITS", f"a file over limits.toml ({why})")
    return Settings(
        tuple(mounts),
        gpus,
        ports,
        count,
        rate,
        tuple(name for word in text("EXCLUDE_PORTS").split(",") if (name := word.strip())),
        text("KERNEL_LOG", "/dev/kmsg"),
        text("PYTHON"),
        text("ROOT", "/"),
        tuple(problems),
    )
