"""Check `contention`: what neighbours take from this worker: pressure (PSI), time stolen by the hypervisor, throttling by the cgroup.

Warns and never fails: it explains a slow node and accuses nobody. Reads /proc and the cgroup twice; writes nothing.
"""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.limits import limit
from aegis_agent.checks.settings import Settings

WINDOW = 1.0


class Sample(NamedTuple):
    """Counts so far; None where this kernel or container does not tell."""

    steal: int | None
    ticks: int | None
    periods: int | None
    throttled: int | None


def text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(65536)
    except OSError:
        return ""


def full10(pressure: str) -> float | None:
    """avg10 of the "full" line of a PSI file, in percent."""
    match = re.search(r"^full avg10=([\d.]+)", pressure, re.M)
    return float(match[1]) if match else None


def sample(settings: Settings) -> Sample:
    cpu = [int(word) for word in text(settings.under("proc/stat")).split("\n", 1)[0].split()[1:] if word.isdigit()]
    groups = dict(line.split(" ", 1) for line in text(own_cgroup(settings)).splitlines() if " " in line)
    periods, throttled = groups.get("nr_periods"), groups.get("nr_throttled")
    return Sample(
        cpu[7] if len(cpu) > 7 else None,
        sum(cpu[:8]) if len(cpu) > 7 else None,
        int(periods) if periods and periods.isdigit() else None,
        int(throttled) if throttled and throttled.isdigit() else None,
    )


def own_cgroup(settings: Settings) -> str:
    """cpu.stat of the cgroup this process is in, of either version."""
    for line in text(settings.under("proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            return settings.under(f"sys/fs/cgroup{path.rstrip('/')}/cpu.stat")
        if "cpu" in controllers.split(","):
            return settings.under(f"sys/fs/cgroup/cpu{path.rstrip('/')}/cpu.stat")
    return settings.under("sys/fs/cgroup/cpu.stat")


def judge(answer: Answer, before: Sample, after: Sample, memory: float | None, io: float | None) -> None:
    """Pure."""
    shares = {
        "steal_share": share(before.steal, after.steal, before.ticks, after.ticks),
        "throttled_share": share(before.throttled, after.throttled, before.periods, after.periods),
        "memory_full": memory,
        "io_full": io,
    }
    for name, value in shares.items():
        if value is None:
            continue
        answer.values[name] = round(value, 4)
        most = limit(f"contention.{name}")
        if value > most.value:
            answer.finding(f"contention_{name}", most.severity, "node", f"{name} {value:.2f}, at most {most.value:g} ({most.unit})")


def share(part_before: int | None, part_after: int | None, all_before: int | None, all_after: int | None) -> float | None:
    if part_before is None or part_after is None or all_before is None or all_after is None or all_after <= all_before:
        return None
    return (part_after - part_before) / (all_after - all_before)


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    before = sample(settings)
    time.sleep(WINDOW)
    after = sample(settings)
    judge(answer, before, after, full10(text(settings.under("proc/pressure/memory"))), full10(text(settings.under("proc/pressure/io"))))
    return ", ".join(f"{name} {value:g}" for name, value in answer.values.items()) or "nothing of it can be read here"


if __name__ == "__main__":
    run("contention", examine)
