"""A worker's whole life against a real server and a scripted master."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from aegis_agent.control import ask
from aegis_agent.procs import carries, processes, scope_prefix
from aegis_bus.natsserver import NatsServer
from aegis_proto.messages import CheckResponse, ErrorData, FinishData, PendingData, StoppedData
from aegis_proto.phases import OrderPhase
from agent_scripted_master import UID, Agent, ScriptedMaster, task_of, until

SLEEPER = (sys.executable, "-c", "import os, time; print('run', os.environ['AEGIS_INCARNATION'], flush=True); time.sleep(600)")


def children(agent: Agent) -> list[int]:
    """Processes of the command (not the checks' and not the agent's own)."""
    prefix = scope_prefix(UID, agent.task.pod, agent.task.attempt)
    return [pid for pid in processes() if carries(pid, prefix) and not any(carries(pid, prefix + own) for own in ("agent", "check"))]


async def running(master: ScriptedMaster, agent: Agent, incarnation: int = 0) -> int:
    """Through bootcheck into the command; the pid of the child."""
    await master.report("pending")
    await master.order(OrderPhase.BOOTCHECK)
    checked = await master.data("finish")
    await master.order(OrderPhase.COMMAND, incarnation=incarnation, masterAddr=checked.addr, masterPort=checked.port)
    await master.report("ack", where=lambda m: m.phase == "command")
    pid, *_ = await until(lambda: children(agent), "child")
    return int(pid)


async def test_from_bootcheck_over_a_killed_child_to_the_end(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    flag = tmp_path / "finish"
    script = (
        f"import os, time, pathlib\nwhile not pathlib.Path({str(flag)!r}).exists(): time.sleep(0.02)\n"
        "print('incarnation', os.environ['AEGIS_INCARNATION'])"
    )
    await master.order(OrderPhase.WAIT)
    agent = Agent(tmp_path / "agent", task_of(server, sys.executable, "-c", script))
    agents.append(agent)
    pending = await master.data("pending")
    assert isinstance(pending, PendingData) and pending.podIP == "127.0.0.1" and not pending.running

    await master.order(OrderPhase.BOOTCHECK)
    checked = await master.data("finish")
    assert isinstance(checked, CheckResponse) and [(r.CheckType, r.Pass) for r in checked.results] == [("process", True), ("io", True)]
    assert checked.treeGone and checked.addr == "127.0.0.1" and 20000 <= checked.port <= 29999

    await master.order(OrderPhase.COMMAND, masterAddr=checked.addr, masterPort=checked.port)
    assert (await master.report("ack")).phase == "command"
    (child,) = await until(lambda: children(agent), "child")
    await until(lambda: agent.status.running, "status running")

    os.kill(child, signal.SIGKILL)
    error = await master.data("error")
    assert isinstance(error, ErrorData) and (error.reason, error.signal, error.exitCode, error.rank) == ("signal", 9, 137, 0)

    await master.order(OrderPhase.TROUBLESHOOT)
    checked = await master.data("finish")
    assert checked.treeGone and all(r.Pass for r in checked.results)
    await master.order(OrderPhase.COMMAND, incarnation=1, masterAddr=checked.addr, masterPort=checked.port)
    (again,) = await until(lambda: children(agent), "new child")
    assert again != child

    flag.touch()
    finish = await master.data("finish")
    assert isinstance(finish, FinishData) and finish.exitCode == 0
    await until(lambda: agent.state.joinpath("exit.json").exists(), "early word about the end")
    assert agent.process.poll() is None  # it stays until the job has ended

    await master.order(OrderPhase.QUIT)
    stopped = await master.data("stopped")
    assert isinstance(stopped, StoppedData) and stopped.clean and stopped.leaving
    assert await agent.exit_code() == 0
    assert "[w0/r0 i1] incarnation 1" in agent.text
    assert (agent.last_word.code, agent.last_word.childCode, agent.last_word.clean) == (0, 0, True)
    assert (agent.state / "logs" / "1" / "rank0.log").read_text() == "incarnation 1\n"
    assert not children(agent)


async def test_each_kill_is_followed_by_the_next_incarnation_in_place(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    child = await running(master, agent)
    took = []
    for incarnation in range(1, 6):
        killed = time.monotonic()
        os.kill(child, signal.SIGKILL)
        await master.report("error")
        await master.order(OrderPhase.TROUBLESHOOT)
        checked = await master.data("finish")
        await master.order(OrderPhase.COMMAND, incarnation=incarnation, masterAddr=checked.addr, masterPort=checked.port)
        line = f"run {incarnation}"
        (child,) = await until(lambda: children(agent), "new child")
        took.append((time.monotonic() - killed, checked.results[0].duration))
        await until(lambda line=line: line in agent.text, line)
    own = [total - checks for total, checks in took]
    print("kill -> new process, s:", [round(total, 3) for total, _ in took], "less the checks:", [round(t, 3) for t in own])
    assert len(own) == 5 and agent.text.count("run 5") == 1


async def test_an_order_given_before_it_was_there_is_not_carried_out(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    """A new boot of the same attempt: the run of the present incarnation is never started again on the agent's own account."""
    await master.order(OrderPhase.COMMAND, incarnation=3, masterAddr="127.0.0.1", masterPort=23000)
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    pending = await master.data("pending")
    assert pending.incarnation == -1 and not pending.running
    assert master.head is not None
    await master.write(master.head.order)  # the same again
    await master.order(OrderPhase.STOP)
    stopped = await master.data("stopped")
    assert stopped.incarnation == 3 and stopped.clean and "run 3" not in agent.text
    await master.order(OrderPhase.COMMAND, incarnation=4, masterAddr="127.0.0.1", masterPort=23000)
    await until(lambda: "run 4" in agent.text, "run 4")


async def test_a_new_boot_does_not_act_in_a_round_that_is_repeated(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    """Reports were lost, or a hang mark went: the same round under a higher number. A boot that began in the middle of it would train alone."""
    await master.order(OrderPhase.COMMAND, incarnation=3, masterAddr="127.0.0.1", masterPort=23000)
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    first = await master.report("pending")
    await master.repeat(round_seq=1)
    assert (await master.report("pending")).seqNum == first.seqNum + 1  # its first word may be among the lost ones
    await master.order(OrderPhase.STOP)
    assert (await master.data("stopped")).clean
    await master.order(OrderPhase.COMMAND, incarnation=4, masterAddr="127.0.0.1", masterPort=23000)
    await until(lambda: "run 4" in agent.text, "run 4")
    assert "run 3" not in agent.text


async def test_older_orders_and_those_of_others_change_nothing(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    child = await running(master, agent, incarnation=2)
    seq = master.seq
    await master.order(OrderPhase.STOP, incarnation=1)  # an older incarnation
    master.seq = 0
    await master.order(OrderPhase.STOP, incarnation=2)  # an older number
    master.seq = seq
    await master.order(OrderPhase.STOP, attempts=())  # names nobody
    await master.order(OrderPhase.STOP, exceptions={"w0": OrderPhase.WAIT})  # an exception for us
    await until(lambda: agent.status.seqNum == master.seq, "the last order heard")
    assert children(agent) == [child] and not [kind for kind, _ in master.reports if kind == "stopped"]


async def test_a_repeated_round_finds_the_run_untouched_and_gets_its_end_again(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    flag = tmp_path / "end"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", f"while ! test -e {flag}; do sleep 0.05; done; exit 3"))
    agents.append(agent)
    shell = await running(master, agent)
    await master.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
    assert (await master.report("ack")).seqNum == master.seq
    assert shell in children(agent)
    flag.touch()
    first = await master.report("error")
    await master.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)  # reports were lost: all report again
    again = await master.report("error")
    assert (again.seqNum, bytes(again.data)) == (first.seqNum + 1, bytes(first.data))
    assert not children(agent)


async def test_told_to_leave_it_leaves_with_1(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    await running(master, agent)
    await master.order(OrderPhase.TROUBLESHOOT, exceptions={"w0": OrderPhase.HANG_WITH_QUIT})
    stopped = await master.data("stopped")
    assert stopped.leaving and stopped.clean
    assert await agent.exit_code() == 1 and not children(agent)
    assert agent.last_word.reason == "ordered"


async def test_a_higher_attempt_in_its_place_ends_it(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    await running(master, agent)
    master.attempt = 2
    await master.order(OrderPhase.STOP)
    assert await agent.exit_code() == 75 and not children(agent)
    assert (agent.last_word.reason, agent.last_word.clean) == ("superseded", True)


async def test_a_hang_order_touches_nothing(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    child = await running(master, agent)
    await master.order(OrderPhase.HANG)
    await until(lambda: "marked as hung" in agent.text, "note")
    looked = {(await master.data("check")).CheckType for _ in range(2)}  # beside it: what needs no free device
    await until(lambda: "hang: 2 checks beside the run: passed" in agent.text, "what they say")
    assert looked == {"io", "hang"} and children(agent) == [child]
    os.kill(child, signal.SIGKILL)
    error = await master.report("error")
    assert error.seqNum == master.seq


async def test_the_bus_may_be_away_as_long_as_it_likes(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    """The server is killed and comes back: the training never notices, and what happened meanwhile is reported once."""
    flag = tmp_path / "end"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", f"while ! test -e {flag}; do sleep 0.05; done; echo 'ValueError: x' >&2; exit 3"))
    agents.append(agent)
    await running(master, agent)
    server.kill9()
    await until(lambda: not agent.status.connected, "loss of the connection noticed")
    flag.touch()
    await until(lambda: not agent.status.running, "end of the command")
    assert agent.process.poll() is None
    server.start()
    error = await master.data("error")
    assert (error.exitCode, error.message) == (3, "ValueError: x")
    await until(lambda: agent.status.connected, "connection again")
    await master.order(OrderPhase.STOP)
    await master.report("stopped")  # all that came before is in the stream now
    assert [kind for kind, _ in master.reports].count("error") == 1


async def test_after_a_loss_of_the_store_it_says_what_runs(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    child = await running(master, agent, incarnation=7)
    master.era, master.seq = "01B", 0
    await master.order(OrderPhase.WAIT, incarnation=0)
    pending = await master.report("pending")
    assert pending.era == "01B" and b'"running":true' in bytes(pending.data) and b'"incarnation":7' in bytes(pending.data)
    await master.order(OrderPhase.COMMAND, incarnation=7, masterAddr="127.0.0.1", masterPort=23001)
    await master.report("ack", where=lambda m: m.phase == "command" and m.era == "01B")
    assert children(agent) == [child]


@pytest.mark.parametrize("how", [(0, False, True), (3, False, False), (0, True, False)])
async def test_after_a_loss_of_the_store_a_run_that_has_ended_well_by_itself_stands(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent], how: tuple[int, bool, bool]
) -> None:
    code, stopped, stands = how
    flag = tmp_path / "end"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", f"trap 'exit 0' TERM; while ! test -e {flag}; do sleep 0.05; done; exit {code}"))
    agents.append(agent)
    await running(master, agent, incarnation=7)
    if stopped:
        await master.order(OrderPhase.STOP, incarnation=7)
        await master.report("stopped")
    else:
        flag.touch()
        await master.report("finish" if code == 0 else "error", where=lambda m: m.phase == "command")
    master.era, master.seq = "01B", 0
    await master.order(OrderPhase.WAIT, incarnation=0)
    pending = await master.data("pending", where=lambda m: m.era == "01B")
    assert (pending.running, pending.incarnation) == (stands, 7)
    if stands:  # taken over: it says its end again, and runs nothing
        await master.order(OrderPhase.COMMAND, incarnation=7, masterAddr="127.0.0.1", masterPort=23001)
        await master.report("finish", where=lambda m: m.era == "01B" and m.seqNum == master.seq)
        assert children(agent) == []


async def test_the_child_tells_its_steps_and_may_not_do_more(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    script = (
        "import json, os, socket, time\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(os.environ['AEGIS_CONTROL_SOCKET']); f = s.makefile('rw')\n"
        "def ask(**r):\n    f.write(json.dumps(r) + '\\n'); f.flush(); return json.loads(f.readline())\n"
        "print(ask(verb='progress', step=41), ask(verb='progress', step=42), ask(verb='checkpoint', step=40), ask(verb='expect-long', seconds=60))\n"
        "print(ask(verb='progress', step=10**400), ask(verb='stop'), ask(verb='taint'), ask(verb=3), flush=True)\n"
        "time.sleep(600)"
    )
    agent = Agent(tmp_path / "agent", task_of(server, sys.executable, "-c", script))
    agents.append(agent)
    await running(master, agent)
    await until(lambda: "may not 'taint'" in agent.text, "answers")
    assert agent.text.count("{'ok': True}") == 4 and "may not 'stop'" in agent.text and "not a request" in agent.text
    beat = await until(lambda: next((b for b in master.beats if b.step == 42), None), "heartbeat with the step")
    assert beat.running and beat.checkpoint == 40
    assert os.stat(agent.state / "control.sock").st_mode & 0o777 == 0o600
    status = await asyncio.to_thread(ask, str(agent.state / "control.sock"), {"verb": "status"})
    assert status["status"]["step"] == 42
    numbers = [b.n for b in master.beats]
    assert numbers == sorted(set(numbers))


async def test_the_port_of_a_run_that_is_taken_is_told_as_such(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    script = "import os, socket\na = socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))\nsocket.create_server(a.getsockname())"
    agent = Agent(tmp_path / "agent", task_of(server, sys.executable, "-c", script))
    agents.append(agent)
    await master.report("pending")
    await master.order(OrderPhase.BOOTCHECK)
    checked = await master.data("finish")
    await master.order(OrderPhase.COMMAND, masterAddr=checked.addr, masterPort=checked.port)
    assert (await master.data("error")).reason == "port"


async def test_a_command_that_is_not_there_is_named(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, "pyhton", "train.py"))
    agents.append(agent)
    await master.report("pending")
    await master.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=23000)
    error = await master.data("error")
    assert (error.exitCode, error.reason) == (127, "error") and error.message.startswith('E111 w0: "pyhton" not found in PATH (exit 127).')


async def test_quit_comes_with_the_code_of_the_job(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    await running(master, agent)
    await master.order(OrderPhase.QUIT, exitCode=76)
    assert await agent.exit_code() == 76 and not children(agent)


async def test_a_check_is_given_up_for_a_later_order(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    agent = Agent(tmp_path / "agent", task_of(server, *SLEEPER))
    agents.append(agent)
    await master.report("pending")
    for _ in range(5):
        await master.order(OrderPhase.BOOTCHECK)
    last = await master.report("finish", where=lambda m: m.seqNum == master.seq)
    assert last.phase == "bootcheck"
    assert not [pid for pid in processes() if carries(pid, f"{UID}.w0.1.check")]


PROGRESS = """
import json, os, pathlib, socket, sys, time
s = socket.socket(socket.AF_UNIX); s.connect(os.environ['AEGIS_CONTROL_SOCKET'])
step = 0
while True:
    if not pathlib.Path(sys.argv[1]).exists():
        step += 1
        s.sendall(json.dumps({'verb': 'progress', 'step': step}).encode() + b'\\n'); s.recv(4096)
    time.sleep(0.05)
"""
CLOCKS = "import aegis_agent.mode as m, aegis_agent.worker as w; m.CUT_OFF = 1.0; w.HEARTBEAT = 0.1; w.HOLD = 1.0"


async def test_cut_off_it_trains_on_and_stops_only_when_it_stands_still(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    stuck = tmp_path / "stuck"
    agent = Agent(tmp_path / "agent", task_of(server, sys.executable, "-c", PROGRESS, str(stuck)), patch=CLOCKS)
    agents.append(agent)
    child = await running(master, agent)
    await until(lambda: any(b.step > 10 for b in master.beats), "progress")
    server.kill9()
    gone = time.monotonic()
    await until(lambda: time.monotonic() - gone > 3, "three times as long as the patience")
    assert children(agent) == [child]  # it advances: nothing of ours stops it
    stuck.touch()
    await until(lambda: not children(agent), "the end of a child that stands still")
    assert agent.process.poll() is None and "cut off from the bus" in agent.text
    server.start()
    error = await master.data("error")
    assert (error.reason, error.message) == ("hung", "cut off from the bus, and no progress")
    await master.order(OrderPhase.QUIT, exitCode=75)
    assert await agent.exit_code() == 75


async def test_finished_while_the_bus_is_away_it_holds_and_then_leaves_with_the_code(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]
) -> None:
    flag = tmp_path / "end"
    agent = Agent(tmp_path / "agent", task_of(server, "sh", "-c", f"while ! test -e {flag}; do sleep 0.05; done"), patch=CLOCKS)
    agents.append(agent)
    await running(master, agent)
    server.kill9()
    await until(lambda: not agent.status.connected, "loss noticed")
    flag.touch()
    assert await agent.exit_code() == 0
    assert (agent.last_word.reason, agent.last_word.childCode) == ("finished", 0)
