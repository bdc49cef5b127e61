"""A world as files of the documented format, and its truth beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from .world import DAY, World

EPOCH = 1_767_225_600.0
"""2026-01-01, the day on which worlds begin."""


def moment(days: float) -> str:
    """Days since the world began, as ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(EPOCH + days * DAY, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]


def name_of(node: int) -> str:
    return f"n{node:04d}"


def names_of(nodes: Sequence[int]) -> str:
    return ";".join(name_of(int(node)) for node in nodes)


def write_world(world: World, out: Path) -> dict[str, Path]:
    """jobs.csv, events.csv, nodes.csv and truth.json in `out`, which is made; the paths by name. The truth is in none of the others."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {name: out / name for name in ("jobs.csv", "events.csv", "nodes.csv", "truth.json")}
    with paths["jobs.csv"].open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["job", "start", "end", "nodes", "state", "blame", "user", "family", "excluded"])
        for number, job in enumerate(world.jobs):
            blame = name_of(job.blame) if job.blame >= 0 else ""
            rows.writerow(
                [f"j{number}", moment(job.start), moment(job.end), names_of(list(job.nodes)), job.state, blame, f"u{job.user}", f"f{job.family}",
                 names_of(job.excluded)]
            )  # fmt: skip
    with paths["events.csv"].open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "node", "kind", "end", "value"])
        for time, node, kind, end, value in world.events:
            rows.writerow([moment(time), name_of(node), kind, moment(end) if end else "", value])
    with paths["nodes.csv"].open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["node", "role", "rack", "switch", "serial"])
        for node in range(world.spec.nodes):
            rows.writerow([name_of(node), world.role[node], world.rack(node), f"s{node // 20 // 20:02d}", f"SN{node:06d}"])
    before, after = world.large_failures()
    lemons = [node for node in range(world.spec.nodes) if world.lemon[node]]
    truth = {
        "lemons": [name_of(node) for node in lemons],
        "onset": {name_of(node): moment(float(world.onset[node])) for node in lemons},
        "spec": asdict(world.spec),
        "large_job_failure_rate": {"with_lemons": before, "without_lemons": after},
    }
    paths["truth.json"].write_text(json.dumps(truth, indent=1) + "\n")
    return paths
