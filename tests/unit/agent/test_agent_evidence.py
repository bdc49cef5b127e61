"""Evidence of a hang: NCCL's RAS port is asked as NVIDIA's client asks it, stacks are looked at twice, and both reach the verdict."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_agent import evidence, ras
from aegis_agent.evidence import Looked, compared, rank_of
from aegis_agent.procs import processes
from aegis_agent.stacks import Stack
from aegis_bus.natsserver import NatsServer
from aegis_lognexus.dumps import collect
from aegis_lognexus.evidence import Failure, Worker
from aegis_lognexus.looks import Looks, by_ras, by_stacks, put_together
from aegis_parsers.ib.ncclras import communicators
from aegis_proto.phases import OrderPhase
from aegis_proto.streams import stream_configs
from agent_scripted_master import JOB, Agent, ScriptedMaster, task_of

TEXT = """Group     Comms      Nodes     Ranks     Ranks     Ranks   Status  Errors
    #  in group   per comm  per node  per comm  in group
    0         1          1         2         2         2  RUNNING  MISMATCH
#0-0 (78db921d1c117b4a) MISMATCH
  1 ranks have launched up to operation 64
  Rank 1 has launched up to operation 60 -- GPU 1 managed by process 42 on node n1
"""
JSON = (
    '{"communicators": [{"hash": "0x1", "size": 2, "missing_ranks": [], "ranks": ['
    '{"rank": 0, "collective_counts": {"AllReduce": 64}}, {"rank": 1, "collective_counts": {"AllReduce": 60}}]}]}'
)


class Double:
    """The server's half of RAS: lines in any case, the report after STATUS, then the end. `json` False: NCCL before 2.28."""

    def __init__(self, *, json: bool = True) -> None:
        self._json = json
        self.asked: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        as_json = False
        while line := (await reader.readline()).decode().strip().upper():
            self.asked.append(line)
            if line.startswith("CLIENT PROTOCOL "):
                writer.write(b"SERVER PROTOCOL 2\n")
            elif line.startswith("TIMEOUT "):
                writer.write(b"OK\n")
            elif line.startswith("SET FORMAT "):
                as_json = self._json
                writer.write(b"OK\n" if self._json else b"ERROR: Unknown command\n")
            elif line in ("STATUS", "VERBOSE STATUS"):
                writer.write((JSON if as_json else TEXT).encode())
                break
        writer.close()


@pytest_asyncio.fixture
async def old() -> AsyncIterator[Double]:
    async with serving(Double(json=False)) as double:
        yield double


class serving:
    def __init__(self, double: Double) -> None:
        self._double = double

    async def __aenter__(self) -> Double:
        self._server = await asyncio.start_server(self._double.serve, "127.0.0.1", 0)
        self._double.port = self._server.sockets[0].getsockname()[1]
        return self._double

    async def __aexit__(self, *error: object) -> None:
        self._server.close()


def behind(text: str) -> dict[int, tuple[int, int]]:
    return {rank: (late.launched, late.others) for comm in communicators(text) for rank, late in comm.behind.items()}


async def test_ras_is_asked_as_nvidias_client_asks_and_an_old_one_answers_in_text(old: Double) -> None:
    async with serving(Double()) as new:
        assert behind(await ras.look("127.0.0.1", new.port)) == {1: (60, 64)}
        assert new.asked == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT JSON", "VERBOSE STATUS"]
    text = await ras.look("127.0.0.1", old.port)
    assert text == TEXT and behind(text) == {1: (60, 64)}


async def test_a_port_that_is_silent_closed_or_talks_of_something_else_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "DEADLINE", 0.5)

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n" + b"x" * 100_000)
        writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    for serve in (other, silent):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        assert await ras.look("127.0.0.1", server.sockets[0].getsockname()[1]) == ""
        server.close()
    assert await ras.look("127.0.0.1", 1) == ""
    found = {"": ras.ADDRESS, "host:7": ("host", 7), "[::1]:9": ("::1", 9), "host:99999": ras.ADDRESS, "7": ras.ADDRESS}
    assert {text: ras.address(text) for text in found} == found


def test_two_looks_tell_what_moved_and_a_number_that_another_process_got_is_another() -> None:
    def look(pid: int, start: int, *frames: str) -> Looked:
        return Looked(pid, start, pid, Stack(False, frames[0], frames), "")

    first = [look(1, 10, "a"), look(2, 10, "a", "b"), look(3, 10, "a"), look(4, 10, "a")]
    second = [look(1, 10, "a"), look(2, 10, "a", "c"), look(3, 99, "a")]
    assert [(stack.pid, stack.moved) for stack in compared(first, second)] == [(1, False), (2, True), (3, None), (4, None), (3, None)]


def test_a_process_below_a_rank_is_no_rank() -> None:
    assert rank_of(os.getpid(), processes()) == -1


TRAIN = """
import time
def load():
    while True:
        time.sleep(0.01)
def all_reduce():
    time.sleep(600)
import os
print("at it", flush=True)
load() if os.environ["RANK"] == "1" else all_reduce()
"""


@pytest.mark.skipif(evidence.find_py_spy() is None, reason="py-spy is not installed")
async def test_a_mark_brings_two_looks_at_stacks_and_ras_to_the_store_and_they_name_the_rank(
    server: NatsServer, master: ScriptedMaster, agents: list[Agent], tmp_path: Path
) -> None:
    blobs = next(config for config in stream_configs() if config["name"] == "BLOBS")
    await master.bus.js_api("STREAM.CREATE.BLOBS", blobs)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    async with serving(Double()) as double:
        task = task_of(server, sys.executable, str(script), nprocPerNode=2)
        environ = {"NCCL_RAS_ADDR": f"127.0.0.1:{double.port}", "PYTHONPATH": os.pathsep.join(sys.path)}
        agents.append(agent := Agent(tmp_path, task, environ, patch="from aegis_agent import evidence; evidence.BETWEEN = 1.0"))
        await master.report("pending")
        await master.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=29512)
        async with asyncio.timeout(30):
            while agent.text.count("at it") < 2:
                await asyncio.sleep(0.05)
        await master.order(OrderPhase.HANG)
        looks = Looks({})
        async with asyncio.timeout(80):
            while not (looks.stacks and looks.ras):
                if "could not be taken" in agent.text or "no stacks could be taken" in agent.text:
                    pytest.skip("py-spy may not trace here")
                await asyncio.sleep(0.5)
                looks = put_together(await collect(master.bus, JOB), 0)
    failure = Failure(JOB, 0, workers=(Worker("w0", "n1", (0, 1)),), stacks=looks.stacks, ras=looks.ras)
    launched = by_ras(failure)
    assert launched is not None and launched.ranks == (1,) and "the same in the second look: stuck" in launched.text
    ranks = {stack.rank: stack for stack in looks.stacks["w0"].stacks}
    assert (ranks[0].waiting, ranks[0].moved, ranks[1].waiting) == (True, False, False) and "load (train.py" in ranks[1].where
    stands = by_stacks(failure)
    assert stands is not None and (stands.cause, stands.ranks) == ("unknown", (1,))
    assert "stacks 1 s later" in agent.text
