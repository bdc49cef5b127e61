"""The trace of a master is enough to follow its job: each step begins where the one before ended, or where the store was read anew."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aegis_bus.jobstore import Loaded
from aegis_master import events, machine
from aegis_master.trace import Trace, variables
from aegis_proto.state import JobSpec
from simulation import run, world


def follow(lines: Iterable[dict[str, Any]]) -> int:
    """Steps of one master's trace of one job, in their chain; how many were stored."""
    state: dict[str, Any] | None = None
    stored = waiting = 0
    for line in lines:
        match line["kind"]:
            case "void":
                state, waiting = line["state"], 0
            case "step":
                assert state is None or line["before"] == state, line
                state = line["after"]
                waiting += 1
            case "commit":
                stored, waiting = stored + waiting, 0
    return stored


@pytest.mark.parametrize("seed", range(20))
def test_the_traces_of_a_world_are_chains_of_steps(seed: int) -> None:
    result = world.run(seed, story=True)
    assert result.ok, run.tell(result)
    assert sum(follow(trace) for trace in result.traces.values()) > 0


def test_the_file_holds_one_object_a_line(tmp_path: Path) -> None:
    trace = Trace(str(tmp_path / "trace-%p.ndjson"))
    assert trace
    before = machine.create("j-000001", JobSpec("j", workers=2), "uid1", "era1", 1000)
    event = events.PodReady(1, 1, "b1", node="n1")
    after, _ = machine.step(before, event, 2000)
    trace.write(before, event, after, 2000)
    trace.committed(Loaded(after, 7, 2000))
    trace.void(Loaded(after, 7, 2000))
    trace.close()
    [file] = tmp_path.iterdir()
    step, commit, void = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    assert (step["kind"], step["event"], step["args"]["boot"], step["at"]) == ("step", "PodReady", "b1", 2000)
    assert (step["before"]["boot"], step["after"]["boot"]) == (["", ""], ["", "b1"])
    assert step["after"] == msgspec.json.decode(msgspec.json.encode(variables(after))) == void["state"]
    assert (commit["kind"], commit["seq"], void["kind"]) == ("commit", 7, "void")
    assert not Trace()
