"""SIGTERM to an agent is a notice of preemption: said at once, whatever it was doing; it leaves with 75 and its story is right."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from aegis_agent.procs import carries, processes, scope_prefix
from aegis_bus.natsserver import NatsServer
from aegis_proto.messages import ErrorData, StoppedData
from aegis_proto.phases import OrderPhase
from agent_scripted_master import UID, Agent, ScriptedMaster, task_of, until

SLOW_CHECK = """
import aegis_agent.checks.registry as r
r.run_round.__kwdefaults__["table"] = (r.Check("slow", "slow_check", 60.0, ("bootcheck", "troubleshoot"), "sleeps"),)
"""

PATIENT = """
import aegis_agent.worker as w
w.AHEAD = 30.0
"""


def of_scope(agent: Agent) -> list[int]:
    """Processes of the command and of the checks."""
    prefix = scope_prefix(UID, agent.task.pod, agent.task.attempt)
    return [pid for pid in processes() if carries(pid, prefix) and not carries(pid, f"{prefix}agent")]


async def running(master: ScriptedMaster, agent: Agent) -> None:
    """In the command, with its handlers set (`ready` is printed)."""
    await master.report("pending")
    await master.order(OrderPhase.BOOTCHECK)
    checked = await master.data("finish")
    await master.order(OrderPhase.COMMAND, masterAddr=checked.addr, masterPort=checked.port)
    await until(lambda: "ready" in agent.text, "the command")


async def gone(agent: Agent, master: ScriptedMaster) -> StoppedData:
    """It left as who is preempted leaves: 75, nothing left, and it said why."""
    stopped = await master.data("stopped")
    assert isinstance(stopped, StoppedData) and (stopped.leaving, stopped.clean, stopped.reason) == (True, True, "preempted")
    assert await agent.exit_code() == 75 and not of_scope(agent)
    assert (agent.last_word.reason, agent.last_word.clean) == ("preempted", True)
    return stopped


async def test_the_notice_is_stored_before_the_command_is_told(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    """The errors of its peers, which begin when the command ends, come after it in the stream. The command has the grace of preemption to save.

    The agent waits as long as it takes here: on a busy machine, a second may be too short.
    """
    told, saved = tmp_path / "told", tmp_path / "saved"
    script = f"trap 'date +%s%3N > {told}; sleep 0.3; echo saved > {saved}; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", script, stopGrace=0.1, preemptGrace=30.0), {}, PATIENT)
    agents.append(agent)
    await running(master, agent)
    agent.process.terminate()
    notice = await master.report("error")
    assert notice.phase == "command" and notice.seqNum == master.seq and b'"reason":"preempted"' in bytes(notice.data)
    await gone(agent, master)
    assert saved.read_text() == "saved\n"
    at = [kind for kind, _ in master.reports].index("error")
    assert master.stored_at[at] <= int(told.read_text())  # not the time of the file: that may be some ms old
    assert [kind for kind, _ in master.reports].count("error") == 1  # its end is no second failure


async def test_a_command_that_dies_with_the_notice_is_no_failure(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    """A platform that ends a container tells all of its processes at once."""
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", "echo ready; exec sleep 600"))
    agents.append(agent)
    await running(master, agent)
    (child,) = of_scope(agent)
    agent.process.terminate()
    os.kill(child, signal.SIGTERM)
    error = await master.data("error")
    assert isinstance(error, ErrorData) and error.reason == "preempted"
    await gone(agent, master)
    assert [kind for kind, _ in master.reports].count("error") == 1


@pytest.mark.parametrize("phase", [OrderPhase.BOOTCHECK, OrderPhase.TROUBLESHOOT])
async def test_in_a_round_of_checks_it_answers_with_the_notice(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent], phase: OrderPhase
) -> None:
    (tmp_path / "slow_check.py").write_text("import time; time.sleep(600)")
    agent = Agent(
        tmp_path / "agent", task_of(server, "true"), {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}, SLOW_CHECK
    )
    agents.append(agent)
    await master.report("pending")
    await master.order(phase)
    await until(lambda: of_scope(agent), "the check")
    agent.process.terminate()
    notice = await master.report("error")
    assert notice.phase == phase.value and b'"reason":"preempted"' in bytes(notice.data)
    await gone(agent, master)
    assert "finish" not in [kind for kind, _ in master.reports]


async def test_while_it_waits_there_is_no_round_to_answer(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    await master.order(OrderPhase.WAIT)
    agent = Agent(tmp_path / "agent", task_of(server, "true"))
    agents.append(agent)
    await master.report("pending")
    agent.process.terminate()
    await gone(agent, master)
    assert "error" not in [kind for kind, _ in master.reports]


async def test_a_second_sigterm_kills(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    script = "trap 'echo heard' TERM; echo ready; while :; do sleep 0.05; done"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", script, preemptGrace=600.0))
    agents.append(agent)
    await running(master, agent)
    agent.process.terminate()
    await until(lambda: "heard" in agent.text, "the command is told")
    agent.process.terminate()
    assert (await gone(agent, master)).exitCode == 137
    assert agent.last_word.childCode == 137


async def test_who_is_leaving_by_order_leaves_with_the_code_of_the_order(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    """Platforms send SIGTERM when a job has ended: its end is not a preemption."""
    script = "trap 'echo heard; sleep 0.5; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", script, stopGrace=30.0))
    agents.append(agent)
    await running(master, agent)
    await master.order(OrderPhase.QUIT, exitCode=76)
    await until(lambda: "heard" in agent.text, "the command is told")
    agent.process.terminate()
    stopped = await master.data("stopped")
    assert stopped.leaving and stopped.reason == ""
    assert await agent.exit_code() == 76 and agent.last_word.reason == "ended"


async def test_others_may_save_as_long_as_the_one_that_is_preempted(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    saved = tmp_path / "saved"
    script = f"trap 'sleep 0.5; echo saved > {saved}; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", script, stopGrace=0.1))
    agents.append(agent)
    await running(master, agent)
    await master.order(OrderPhase.STOP, grace=30.0)
    assert (await master.data("stopped")).clean and saved.read_text() == "saved\n"


async def test_an_agent_that_nobody_hears_still_leaves(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", "echo ready; exec sleep 600"))
    agents.append(agent)
    await running(master, agent)
    server.kill9()
    await until(lambda: not agent.status.connected, "loss noticed")
    agent.process.terminate()
    assert await agent.exit_code() == 75 and not of_scope(agent)
    assert agent.last_word.reason == "preempted"
