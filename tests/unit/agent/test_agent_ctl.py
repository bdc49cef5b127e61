"""`aegis-agent ctl`: what people on the machine may ask of an agent, and the training may not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aegis_bus.natsserver import NatsServer
from aegis_proto import subjects
from aegis_proto.messages import HangData, StoppedData, encode
from aegis_proto.phases import OrderPhase
from aegis_proto.state import Inject
from agent_scripted_master import Agent, ScriptedMaster, task_of, until
from msgspec.structs import replace

SCRIPT = """
import json, os, subprocess, sys, time
said = {verb: subprocess.run([sys.executable, "-m", "aegis_agent", "ctl", verb], capture_output=True, text=True).stdout for verb in sys.argv[2:]}
open(sys.argv[1], "w").write(json.dumps(said))
time.sleep(600)
"""


async def ctl(agent: Agent, *words: str) -> tuple[int, dict[str, Any]]:
    argv = [sys.executable, "-m", "aegis_agent", "ctl", *words, "--socket", str(agent.state / "control.sock")]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout)


async def running(master: ScriptedMaster) -> None:
    await master.report("pending")
    await master.order(OrderPhase.BOOTCHECK)
    checked = await master.data("finish")
    await master.order(OrderPhase.COMMAND, masterAddr=checked.addr, masterPort=checked.port)


async def test_people_may_what_the_training_may_not(server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent]) -> None:
    told = tmp_path / "told.json"
    refused = ("stop", "taint", "untaint", "hang", "burn", "check")
    python = tmp_path / "python"  # what the command names, and nobody finds in the PATH
    python.write_text(f'#!/bin/sh\n[ "$3" != gpu ] || exec echo \'{{"pass": true, "result": "the users"}}\'\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    agent = Agent(tmp_path / "agent", task_of(server, str(python), "-c", SCRIPT, str(told), "status", *refused))
    agents.append(agent)
    await running(master)
    said = json.loads(await until(lambda: told.exists() and told.read_text(), "what the training was told", 60))
    assert json.loads(said.pop("status"))["ok"]
    assert {verb for verb, text in said.items() if "may not" in json.loads(text)["error"]} == set(refused)

    assert await ctl(agent, "taint", "--why", "loud fan") == (0, {"ok": True, "result": "mark slow asked for"})
    mark = await master.data("hang")
    assert isinstance(mark, HangData) and (mark.kind, mark.cleared, mark.message) == ("slow", False, "(loud fan)")
    assert (await ctl(agent, "untaint"))[0] == 0 and (await master.data("hang")).cleared
    assert (await ctl(agent, "hang"))[0] == 0 and (await master.data("hang")).kind == "hang"

    code, answer = await ctl(agent, "check", "process")
    assert (code, [result["CheckType"] for result in answer["results"]]) == (0, ["process"])
    assert (await ctl(agent, "check", "astrology"))[0] == 1
    code, answer = await ctl(agent, "burn", "--seconds", "0.2")
    assert code == 1 and "the command runs" in answer["error"]
    code, answer = await ctl(agent, "burn", "--seconds", "0.2", "--force")
    assert code == 0 and answer["values"]["wrong"] == 0 and answer["values"]["rounds"] > 0
    code, answer = await ctl(agent, "burn", "gpu", "--seconds", "0.2", "--force")
    assert (code, answer["result"]) == (0, "the users"), answer

    assert (await ctl(agent, "stop"))[0] == 0
    stopped = await master.data("stopped")
    assert isinstance(stopped, StoppedData) and (stopped.leaving, stopped.reason) == (True, "preempted")
    assert await agent.exit_code() == 75


INJECTED = {"kill": (9, "SIGKILL"), "raise": (2, "KeyboardInterrupt"), "oom": (0, "MemoryError")}


@pytest.mark.parametrize("fault", INJECTED)
async def test_a_fault_is_injected_into_the_run_that_it_names(
    server: NatsServer, master: ScriptedMaster, tmp_path: Path, agents: list[Agent], fault: str
) -> None:
    script = "print('up', flush=True)\nwhile True: bytearray(64 << 20)"
    agent = Agent(tmp_path / "agent", task_of(server, sys.executable, "-c", script, allowInject=True))
    agents.append(agent)
    await running(master)
    await until(lambda: "up" in agent.text, "the command")
    for run in (5, 0):  # of another run: nothing; of this one: done
        master.head = replace(master.head, inject=Inject("one", "w0", 1, run, fault))
        await master.bus.publish(subjects.job_state(master.head.job), encode(master.head))
    error = await master.data("error")
    signal, words = INJECTED[fault]
    assert error.signal == signal and (words in error.message or words in agent.text), error
