"""What lives beside a real worker: its monitors, its warm standby, the saver's service."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from aegis_bus.natsserver import NatsServer
from aegis_proto import subjects
from aegis_proto.messages import CheckResult, decode
from aegis_proto.metrics import UsageSample
from aegis_proto.phases import OrderPhase
from aegis_saver.folder import Manifest, commit, sizes
from agent_scripted_master import JOB, Agent, ScriptedMaster, task_of, until

MONITORED = """
import aegis_agent.monitors.shapes as s
s.thresholds()["interval"] = 0.2
take = s.Shapes.take
s.Shapes.take = lambda self, sample: [s.Finding("gpuIdle", sample.at, 0.0, 92.0, "GPUs do nothing")] if sample.cpu > 0.5 else take(self, sample)
"""
FOLLOWED = """
import aegis_agent.warm.standby as s
s.LOOK, s.QUIET, s.LOOK_LATER = 0.1, 0.1, 0.1
"""
AGAIN = """
import aegis_agent.subservice as s
import aegis_agent.worker as w
s.AGAIN = w.HEARTBEAT = 0.2
"""


async def run(master: ScriptedMaster, incarnation: int = 0) -> None:
    await master.order(OrderPhase.COMMAND, incarnation=incarnation, masterAddr="127.0.0.1", masterPort=23456 + incarnation)


async def test_what_a_run_uses_is_published_and_what_matters_is_a_report_with_pod_node_code_and_time(
    server: NatsServer, master: ScriptedMaster, agents: list[Agent], tmp_path: Path
) -> None:
    samples: list[UsageSample] = []

    async def heard(msg: Any) -> None:
        samples.append(decode(UsageSample, msg.data))

    await master.bus.subscribe(subjects.job_metric(JOB, "w0"), heard)
    agents.append(agent := Agent(tmp_path, task_of(server, "sh", "-c", "while :; do :; done", node="n1"), patch=MONITORED))
    await master.report("pending")
    await run(master)
    found = await master.report("check")
    result = await master.data("check")
    assert isinstance(result, CheckResult)
    assert (found.podName, result.node, result.CheckType, result.code, result.Pass) == ("w0", "n1", "monitor", "gpuIdle", False)
    assert result.TimeStamp > 1_700_000_000_000 and result.values["expected"] == 92.0
    await until(lambda: len(samples) >= 2, "samples")
    assert (samples[-1].pod, samples[-1].node, samples[-1].incarnation) == ("w0", "n1", 0)
    assert (samples[-1].cpu or 0) > 0.1 and (samples[-1].memory or 0) > 100_000 and (samples[-1].memoryLimit or 0) > 2**30
    assert "monitor: GPUs do nothing" in agent.text and "going on without" not in agent.text


async def test_the_next_run_of_a_warm_job_finds_its_packages_imported(
    server: NatsServer, master: ScriptedMaster, agents: list[Agent], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time\nprint('had', 'numpy' in sys.modules, os.environ['MASTER_PORT'], flush=True)\nimport numpy\ntime.sleep(600)\n"
    )
    agents.append(agent := Agent(tmp_path, task_of(server, sys.executable, str(script), warm=True), patch=FOLLOWED))
    await master.report("pending")
    await run(master)
    await until(lambda: "had False 23456" in agent.text and "warm standby ready" in agent.text, "the standby")
    child = next(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _command(pid) == [sys.executable, str(script)])
    os.kill(child, signal.SIGKILL)
    assert (await master.data("error")).signal == signal.SIGKILL
    await master.order(OrderPhase.TROUBLESHOOT)
    assert all(result.Pass for result in (await master.data("finish")).results), "the standby is nothing left over"
    await run(master, 1)
    await until(lambda: "had True 23457" in agent.text, "the next run")
    await master.order(OrderPhase.QUIT)
    assert await agent.exit_code() == 0


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


async def test_the_savers_service_tells_what_is_complete_and_is_started_again(
    server: NatsServer, master: ScriptedMaster, agents: list[Agent], tmp_path: Path
) -> None:
    folder = tmp_path / "ckpt"
    part = folder / "parts" / "fault-j-i0-7"
    part.mkdir(parents=True)
    (part / ".metadata").write_text("m")
    ask = f"import os; from aegis_saver.saver import tell; print('asked', tell('saver', path={str(folder)!r}), flush=True)"
    agents.append(agent := Agent(tmp_path, task_of(server, sys.executable, "-c", f"{ask}\nimport time; time.sleep(600)"), patch=AGAIN))
    await master.report("pending")
    await run(master)
    await until(lambda: "asked True" in agent.text, "the word of the training")
    await until(lambda: agent.text.count(LOOKS) == 1, "that it looks")  # one that ends before may have said so or not
    service = _service(folder)
    assert service, "it goes on looking"
    os.kill(service, signal.SIGKILL)
    await until(lambda: "saver's service ended with -9; again" in agent.text, "its end in the output")
    await until(lambda: agent.text.count(LOOKS) == 2, "that another one looks: what is complete from now on is news")
    commit(folder, Manifest("fault-j-i0", 0, 7, {"a": part.name}, sizes(folder, part.name)))
    await until(lambda: re.search(r"\[w0 saver\] fault-j-i0: complete at step 7", agent.text), "its word in the output")
    await until(lambda: any(beat.checkpoint == 7 for beat in master.beats), "the step in a heartbeat")
    await master.order(OrderPhase.QUIT)
    assert await agent.exit_code() == 0
    await until(lambda: not _service(folder), "end of the service")


LOOKS = "watching"
"""What the service says when it has looked once, and knows what earlier runs left."""


def _service(folder: Path) -> int:
    """The process of the saver's service for `folder`; 0 when there is none."""
    wanted = ["-m", "aegis_saver", str(folder)]
    return next((pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _command(pid)[-3:] == wanted), 0)
