"""`aegis job logs` of a job that runs elsewhere: from the store of lognexus, over the bus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_cli import keptlogs
from aegis_cli.client import Client
from aegis_cli.context import Target
from aegis_cli.main import app
from aegis_proto import subjects
from aegis_proto.logs import LogBatch, LogLine
from aegis_proto.messages import encode
from aegis_proto.state import JobSpec
from harness.bus import MakeBus
from harness.masters import InProcess, submit, write_era
from harness.waiting import until
from log_service import T0, Process, Worker
from typer.testing import CliRunner


async def aegis(*words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr); in a thread, since the master answers in this loop."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest_asyncio.fixture
async def job(bus: Bus, make_bus: MakeBus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A job that a master knows, on a bus named by the environment."""
    for name in ("AEGIS_CONTEXT", "AEGIS_BUS_CREDS", "AEGIS_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AEGIS_BUS_SERVERS", nats_server.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("AEGIS_STACK_DIR", str(tmp_path / "stack"))
    await write_era(bus)
    master = await InProcess(await make_bus(name="master-m1"), "m1").start()
    reply = await submit(bus, JobSpec("far", ("true",), workers=2))
    yield reply.job
    await master.stop()


async def test_the_lines_of_a_job_elsewhere_are_asked_of_lognexus_and_followed(bus: Bus, job: str, nats_server: NatsServer, tmp_path: Path) -> None:
    process = await Process(nats_server.url, tmp_path).start()
    try:
        first, second = Worker(bus, job, "w0"), Worker(bus, job, "w1")
        for step in range(5):
            await first.send([f"step {step}", f"loss {step}"], 0, 1)
            await second.send([f"step {step} \x1b[31mred"], 1, 1)
        await until(lambda: len(process.lines(job)) == 15, 20, "all lines are kept")
        code, out, err = await aegis("job", "logs", "far", "--worker", "1", "--tail", "2")
        assert (code, out) == (0, "[w1/r1 i1] step 3 \\x1b[31mred\n[w1/r1 i1] step 4 \\x1b[31mred\n"), err
        code, out, err = await aegis("logs", "far", "--grep", "loss [34]", "--json")
        assert code == 0, err
        assert [json.loads(line)["message"] for line in out.splitlines()] == ["loss 3", "loss 4"]
        code, out, err = await aegis("logs", "far", "--rank", "1", "--incarnation", "1", "--tail", "0")
        assert code == 0 and len(out.splitlines()) == 5
        code, _, err = await aegis("logs", "far", "--grep", "(?=x)y")
        assert code == 2 and "lookaround" in err
        async with Client(Target("test", (nats_server.url,)), 10.0) as client:
            wanted = keptlogs.Wanted("w0")
            last = await keptlogs.last(client, job, wanted, 1)
            assert ([line.text for line in last.lines], last.cut, last.lost) == (["[w0/r0 i1] loss 4"], False, 0)
            await first.send(["came later"], 0, 1)
            seen: list[str] = []
            async with asyncio.timeout(20):
                async for more in keptlogs.follow(client, job, wanted, last.cursor, 0.05):
                    seen += [line.message for line in more]
                    if seen:
                        break
            assert seen == ["came later"]
    finally:
        await process.kill9()


async def test_more_lines_than_one_answer_holds_and_lines_longer_than_that_are_shown_and_lost_ones_told(
    bus: Bus, job: str, nats_server: NatsServer, tmp_path: Path
) -> None:
    process = await Process(nats_server.url, tmp_path).start()
    try:
        parts = [LogLine(T0, 0, 0, "out", "x" * 10_000, k, k < 99) for k in range(100)]
        for n, part in enumerate(parts, 1):
            await bus.publish(subjects.job_log(job, "w1"), encode(LogBatch("uid", 1, "b1", n, (part,), "n1", dropped=7 if n == 1 else 0)))
        worker = Worker(bus, job, "w0")
        for step in range(20):
            await worker.send([f"{step}.{k} " + "\x1b" * 40 for k in range(100)])
        await until(lambda: len(process.lines(job)) == 2001, 20, "all lines are kept")
        for tail in ("2001", "0"):
            code, out, err = await aegis("logs", "far", "--tail", tail, "--json")
            assert code == 0, err
            told = {w: [line["message"] for line in map(json.loads, out.splitlines()) if line["worker"] == w] for w in ("w0", "w1")}
            assert told["w1"] == ["x" * 30_000 + " [cut: 970000 characters more]"]
            assert told["w0"] == [text.replace("\x1b", "\\x1b") for text in worker.sent]
            assert f"7 lines of {job} never reached the store" in err
    finally:
        await process.kill9()


async def test_without_lognexus_it_says_where_the_lines_lie(job: str) -> None:
    code, out, err = await aegis("job", "logs", "far")
    assert (code, out) == (5, "")
    assert "lognexus does not run here" in err and "agent.log" in err
