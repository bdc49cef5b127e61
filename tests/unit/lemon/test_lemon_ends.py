"""What was never told: a case older than its stream, a Slurm drain without a verdict, a run whose end nobody heard."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aegis_bus.connection import Stored
from aegis_bus.settings import LemonSettings
from aegis_lemon.watch import cases, fleet, slurm
from aegis_lemon.watch.collector import Collector, Memory, Run
from aegis_lemon.watch.reading import LATE, MOST_LOOKS, Reading
from aegis_lemon.watch.rounds import Rounds
from aegis_lemon.watch.slurm import SlurmSide
from aegis_proto import subjects
from aegis_proto.messages import Verdict, decode, encode
from aegis_proto.phases import Phase
from aegis_proto.state import Head

NOW = 1_796_000_000.0


class Store:
    """Last messages by stream and subject."""

    def __init__(self) -> None:
        self.streams: dict[str, dict[str, Stored]] = {}
        self.gets = 0

    def put(self, stream: str, subject: str, data: bytes, at: float = NOW) -> None:
        self.streams.setdefault(stream, {})[subject] = Stored(subject, 1, int(at * 1000), data, {})

    async def publish(self, subject: str, data: bytes, **_: object) -> None:
        self.put("KEPT" if subject.startswith("aegis.kept.") else "EVENTS", subject, data)

    async def get(self, stream: str, subject: str) -> Stored | None:
        self.gets += 1
        return self.streams.get(stream, {}).get(subject)

    async def get_many(self, stream: str, *_: object, **__: object) -> list[Stored]:
        return list(self.streams.get(stream, {}).values())


def case(node: str, state: str, at: int = 5) -> Verdict:
    return Verdict(f"{node}-1", "lemon", "lemon", (node,), ("why",), at=at, nodes=(node,), state=state, sentence="said")


async def test_a_case_outlives_the_stream_that_told_it() -> None:
    store: Any = Store()
    nothing: Any = SimpleNamespace()
    heard: Any = SimpleNamespace(collector=Collector())
    rounds = Rounds(store, heard, nothing, nothing, settings=LemonSettings(), mode="act", slurm=None)
    for node, state in (("n1", "failed"), ("n2", "clear")):
        store.put("EVENTS", subjects.verdict("lemon", "node", node), encode(case(node, state)))
    rounds.picture.fleet = await fleet.read(store)
    await rounds._remember()
    assert set(store.streams["KEPT"]) == {subjects.kept("lemon", "n1")}  # who never had an open case is not kept
    store.streams["EVENTS"].clear()
    found = await fleet.read(store)
    assert found.verdicts == {"n1": case("n1", "failed")}
    store.put("EVENTS", subjects.verdict("lemon", "node", "n1"), encode(case("n1", "clear", 6)))
    rounds.picture.fleet = found = await fleet.read(store)
    assert found.verdicts["n1"].state == "clear"
    await rounds._remember()
    kept = decode(Verdict, store.streams["KEPT"][subjects.kept("lemon", "n1")].data)
    assert kept == cases.kept(case("n1", "clear", 6)) and not kept.evidence


def test_slurm_resumes_only_whom_a_verdict_gives_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[tuple[str, ...]] = []

    def run(*words: str) -> str:
        told.append(words[2:])
        return (
            "".join(f"n{k}|drained|{reason}\n" for k, reason in enumerate(("aegis lemon: a", "aegis lemon: b", "aegis lemon: c", "hers")))
            + "n4|idle|none\n"
        )

    monkeypatch.setattr(slurm, "run", run)
    SlurmSide(tmp_path, 1.0).apply({"n0": "bad", "n4": "worse"}, {"n1", "n3"})  # nothing is known of n2
    assert told[1:] == [("NodeName=n1", "State=RESUME"), ("NodeName=n4", "State=DRAIN", "Reason=aegis lemon: worse")]


def test_risk_is_weight_in_slurm_and_what_a_node_weighed_before_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = {"n1": {"Weight": "20", "AvailableFeatures": "h200"}, "n2": {"Weight": "20", "AvailableFeatures": "(null)"}}
    told: list[str] = []

    def run(*words: str) -> str:
        if words[1] == "-o":
            return "\n".join(f"NodeName={name} " + " ".join(f"{key}={value}" for key, value in row.items()) for name, row in nodes.items())
        values = dict(word.split("=", 1) for word in words[2:])
        told.append(values["NodeName"])
        nodes[values["NodeName"]] = {"Weight": values["Weight"], "AvailableFeatures": values["AvailableFeatures"] or "(null)"}
        return ""

    monkeypatch.setattr(slurm, "run", run)
    side = SlurmSide(tmp_path, 1.0)
    side.weigh({"n2": 0.0, "far": 0.0})
    assert not told
    for replica in (side, SlurmSide(tmp_path / "other", 1.0)):  # another replica, later: nothing grows
        replica.weigh({"n1": 0.6, "far": 0.9})
        assert nodes["n1"] == {"Weight": "620", "AvailableFeatures": "h200,aegis_base_20,aegis_suspect"}
    side.weigh({"n1": 0.1})
    assert nodes["n1"] == {"Weight": "120", "AvailableFeatures": "h200,aegis_base_20"}
    side.weigh({})
    assert nodes["n1"] == {"Weight": "20", "AvailableFeatures": "h200"} and told == ["n1"] * 3
    nodes["n1"]["Weight"] = "30"  # a person's
    side.weigh({})
    assert nodes["n1"]["Weight"] == "30" and told == ["n1"] * 3


async def test_a_run_whose_end_was_never_told_ends_when_its_job_is_over_or_gone() -> None:
    store: Any = Store()
    for job, phase, at in (("over", Phase.SUCCEED, NOW - LATE - 1), ("just", Phase.FAILED, NOW - 1), ("runs", Phase.RUN_COMMAND, NOW - 9999)):
        store.put("CTL", subjects.job_state(job), encode(Head(job, job, "default", "u", 1, 0, phase=phase)), at)
    memory = Memory({job: Run(job, 0, NOW - 5000, "n1") for job in ("over", "just", "runs", "gone")} | {"new": Run("new", 0, NOW - 1, "n1")})
    reading = Reading(store, Collector(memory), 0)
    await reading.look(NOW)
    assert len(memory.open) == 5  # the end may lie in what is not read yet
    reading.at_end = True
    await reading.look(NOW)
    assert set(memory.open) == {"just", "runs", "new"}
    rows = reading.collector.take(NOW)[0]
    assert [(row["job"], row["state"], row["failure"], row["end"]) for row in rows] == [
        ("over-0", "requeued", "", NOW - LATE - 1),
        ("gone-0", "requeued", "", NOW),
    ]
    memory.open.update({f"j{k}": Run(f"j{k}", 0, NOW - 5000, "n1") for k in range(200)})
    rounds = 0
    while len(memory.open) > 3 and rounds < 20:
        store.gets, rounds = 0, rounds + 1
        await reading.look(NOW)
        await asyncio.sleep(0)
        assert store.gets <= MOST_LOOKS
    assert set(memory.open) == {"just", "runs", "new"}
