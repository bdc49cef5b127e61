"""A worker's whole life against a real server and a scripted master."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aegis_agent.scope import carries, processes, scope_prefix
from aegis_bus.natsserver import NatsServer
from aegis_proto.messages import CheckResponse, ErrorData, FinishData, PendingData, StoppedData
from aegis_proto.phases import OrderPhase
from agent_scripted_master import Agent, ScriptedMaster, task_of, until

SLEEPER = (
    sys.executable,
    "-c",
    "import os,time; print('run', os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['MASTER_PORT'], flush=True); time.sleep(600)",
)


@pytest.fixture
def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    with NatsServer(tmp_path / "nats", die_with_parent=True) as running:
        yield running


@pytest.fixture
async def master(server: NatsServer) -> AsyncIterator[ScriptedMaster]:
    scripted = await ScriptedMaster.open(server)
    yield scripted
    await scripted.bus.close()


def children(agent: Agent) -> list[int]:
    return [
        pid for pid in processes() if carries(pid, scope_prefix("uid-1", agent.task.pod, agent.task.attempt)) and not carries(pid, "uid-1.w0.1.agent")
    ]


async def test_from_bootcheck_over_a_killed_child_to_the_end(server: NatsServer, master: ScriptedMaster, tmp_path: Path) -> None:
    flag = tmp_path / "finish"
    script = (
        "import os, time, pathlib\n"
        f"while not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.02)\n"
        "print('incarnation', os.environ['AEGIS_INCARNATION'])"
    )
    await master.order(OrderPhase.WAIT)
    agent = Agent(tmp_path / "agent", task_of(server, sys.executable, "-c", script))
    try:
        pending = await master.data("pending")
        assert isinstance(pending, PendingData) and pending.podIP == "127.0.0.1" and not pending.running

        await master.order(OrderPhase.BOOTCHECK)
        assert (await master.report("ack")).phase == "bootcheck"
        checked = await master.data("finish")
        assert isinstance(checked, CheckResponse) and [(r.CheckType, r.Pass) for r in checked.results] == [("process", True)]
        assert checked.treeGone and checked.addr == "127.0.0.1" and 20000 <= checked.port <= 29999

        await master.order(OrderPhase.COMMAND, masterAddr=checked.addr, masterPort=checked.port)
        assert (await master.report("ack")).phase == "command"
        (child,) = await until(lambda: children(agent), "child")
        await until(lambda: agent.status.running, "status running")

        killed = time.monotonic()
        os.kill(child, signal.SIGKILL)
        error = await master.data("error")
        reported = time.monotonic() - killed
        assert isinstance(error, ErrorData) and (error.reason, error.signal, error.exitCode, error.rank) == ("signal", 9, 137, 0)

        await master.order(OrderPhase.TROUBLESHOOT)
        checked = await master.data("finish")
        checks = checked.results[0].duration
        assert checked.treeGone and all(r.Pass for r in checked.results)
        await master.order(OrderPhase.COMMAND, incarnation=1, masterAddr=checked.addr, masterPort=checked.port)
        (again,) = await until(lambda: children(agent), "new child")
        respawned = time.monotonic() - killed
        assert again != child
        print(f"kill -> Error {reported * 1e3:.0f} ms, kill -> new process {respawned * 1e3:.0f} ms, of which checks {checks * 1e3:.0f} ms")

        flag.touch()
        finish = await master.data("finish")
        assert isinstance(finish, FinishData) and finish.exitCode == 0
        await until(lambda: agent.state.joinpath("exit.json").exists(), "early word about the end")

        await master.order(OrderPhase.QUIT)
        stopped = await master.data("stopped")
        assert isinstance(stopped, StoppedData) and stopped.clean and stopped.leaving
        assert await agent.exit_code() == 0
        assert "[w0/r0 i1] incarnation 1" in agent.text
        assert (agent.last_word.code, agent.last_word.childCode, agent.last_word.clean) == (0, 0, True)
        assert (agent.state / "logs" / "1" / "rank0.log").read_text() == "incarnation 1\n"
        assert not children(agent)
    finally:
        agent.kill()
