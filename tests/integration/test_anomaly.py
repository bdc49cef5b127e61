"""What a monitor finds, through the whole stack: a report of the worker, a record and an event of its job, an event of the machine, and history."""

from __future__ import annotations

import asyncio
import csv
import shutil
import sys
from pathlib import Path

import pytest
from aegis_bus.ordered import OrderedReader, Stored
from aegis_proto import messages, subjects
from aegis_proto.messages import JobEvent
from aegis_proto.metrics import Anomaly
from harness.waiting import until
from support.fakegpu import Machine, build
from support.house import House, house

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("cc"), reason="SKIPPED: no C compiler: the fake NVML cannot be built"),
]


async def events(h: House, subject: str) -> list[bytes]:
    """What was published there so far."""
    assert h.admin is not None
    found: list[bytes] = []
    async with OrderedReader(h.admin, "EVENTS", [subject], start=1) as reader:
        while True:
            try:
                item = await asyncio.wait_for(anext(reader), 1.0)
            except TimeoutError:
                return found
            found += [item.data] if isinstance(item, Stored) else []


async def test_a_driver_that_stops_answering_is_told_by_its_worker_and_its_machine_and_nothing_is_stopped(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="SKIPPED: nvidia-ml-py is not installed")
    async with house(tmp_path, nodes=0) as h:
        machine = Machine(tmp_path, build(tmp_path / "nvml"), "a1")
        await h.start_node("a1", virtual=False, **machine.env)
        env = {"AEGIS_BUS_CREDS": h.creds("lemon", "lemon"), "AEGIS_SERVICE_REPLICA": "lemon1", "AEGIS_LEMON_STATE": str(tmp_path / "lemon")}
        await h.start("lemon", "-m", "aegis_lemon", env={**env, "AEGIS_LEMON_ROUND": "0.5"})
        work = tmp_path / "work"
        work.mkdir()
        job = await h.submit(COMMAND, workers=1, cwd=str(work))
        await h.when_phase(job, "RunCommand", 90)
        machine.tells("hang=1")
        try:
            state = await h.when(job, lambda s: s.head.errorNodes, 90, "the record")
            (record,) = state.head.errorNodes
            assert (record.podName, record.name, record.reason, record.noted) == ("w0", "a1", "gpuSilent", True), await h.describe(job)
            assert abs(record.timeStamp - state.head.runStartedAt) < 120_000 and state.head.runStartedAt <= record.timeStamp

            async def of_the_job() -> JobEvent | None:
                found = [messages.decode(JobEvent, data) for data in await events(h, subjects.job_event(job))]
                return next((event for event in found if event.type == "anomaly"), None)

            told = await until(of_the_job, 60, "the event of the job")
            assert (told.pod, told.node, told.cause, told.counted) == ("w0", "a1", "gpuSilent", False) and "does not answer" in told.message, told

            async def of_the_machine() -> Anomaly | None:
                found = await events(h, subjects.node_event("a1", "anomaly"))
                return messages.decode(Anomaly, found[-1]) if found else None

            seen = await until(of_the_machine, 90, "the event of the machine")
            assert (seen.nodeName, seen.code) == ("a1", "gpuSilent"), seen

            def remembered() -> list[dict[str, str]]:
                path = tmp_path / "lemon" / "history" / "events.csv"
                rows = list(csv.DictReader(path.open())) if path.exists() else []
                return [row for row in rows if (row["node"], row["value"]) == ("a1", "gpuSilent")]

            assert (await until(remembered, 90, "history"))[0]["kind"] == "failure"
            state = await h.state(job)
            assert (state.head.phase, state.head.incarnation, state.head.recoverCount) == ("RunCommand", 0, 0), "it is only told"
        finally:
            machine.tells("")
        (work / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"
