"""Evidence of a hang: NCCL's RAS port is asked as NVIDIA's client asks it, stacks are looked at twice, and both reach the verdict."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from aegis_agent import evidence, ras
from aegis_agent.evidence import Looked, compared, rank_of
from aegis_agent.procs import holds_connection, processes
from aegis_agent.stacks import Stack
from aegis_bus.natsserver import NatsServer
from aegis_lognexus.dumps import collect
from aegis_lognexus.evidence import Failure, Worker
from aegis_lognexus.looks import Looks, by_ras, by_stacks, put_together
from aegis_parsers.ib.ncclras import communicators
from aegis_proto.phases import OrderPhase
from aegis_proto.streams import stream_configs
from agent_scripted_master import JOB, Agent, ScriptedMaster, task_of
from ras_double import TEXT, Double


def ours(local: int, remote: int) -> bool:
    """Both ends of the connections of these tests are in this process."""
    return holds_connection([os.getpid()], local, remote)


def behind(text: str) -> dict[int, tuple[int, int]]:
    return {rank: (late.launched, late.others) for comm in communicators(text) for rank, late in comm.behind.items()}


async def test_ras_is_asked_as_nvidias_client_asks_and_an_old_one_answers_in_text() -> None:
    async with Double() as new:
        assert behind(await ras.look("127.0.0.1", new.port, ours)) == {1: (60, 64)}
        assert new.asked == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT JSON", "VERBOSE STATUS"]
    for older in (Double(json=False), Double(resets=True)):
        async with older:
            text = await ras.look("127.0.0.1", older.port, ours)
            assert text == TEXT and behind(text) == {1: (60, 64)}


async def test_ras_of_a_process_that_is_not_of_the_run_is_not_asked() -> None:
    """The port is one for all jobs of a machine."""
    stranger = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220
    try:
        async with Double() as another:
            with pytest.raises(ras.Foreign):
                await ras.look("127.0.0.1", another.port, lambda local, remote: holds_connection([stranger.pid, -1], local, remote))
            assert another.asked == ["CLIENT PROTOCOL 2"]
    finally:
        stranger.kill()
        stranger.wait(30)


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
        assert await ras.look("127.0.0.1", server.sockets[0].getsockname()[1], ours) == ""
        server.close()
    assert await ras.look("127.0.0.1", 1, ours) == ""
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
if os.environ["RANK"] == "0":
    import threading, ras_double
    threading.Thread(target=ras_double.serve, args=(int(os.environ["NCCL_RAS_ADDR"].rpartition(":")[2]),), daemon=True).start()
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
    with socket.socket() as held:  # the port is rank 0's, as NCCL's would be
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        task = task_of(server, sys.executable, str(script), nprocPerNode=2)
        environ = {"NCCL_RAS_ADDR": f"127.0.0.1:{held.getsockname()[1]}", "PYTHONPATH": os.pathsep.join(sys.path)}
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
