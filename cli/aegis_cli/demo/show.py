"""The demo: three workers train a small real model; the demo kills an agent, then the master that is deciding about it, and one script raises.

Everything is real: the stack, the processes, the signals, the training (`train.py`, which knows nothing of Aegis). At the end the weights are
compared, bit for bit, with those of the same training run beside it without any fault. Owns one folder in the temporary directory.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aegis_bus.connection import Msg
from aegis_proto import VERSION, api, subjects
from aegis_proto.messages import BadMessage, decode
from aegis_proto.phases import Phase
from aegis_proto.state import Head, JobSpec

from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.context import of_stack
from aegis_cli.demo.digits import WORKERS, command, first_steps, last_step, rank_log, reference, training_environment, weights
from aegis_cli.errors import CliError
from aegis_cli.options import Env
from aegis_cli.output import API_VERSION
from aegis_cli.stack import client as stacks

MAX_RETRY = 3
KILL_AT, RAISE_AT = 50, 150
"""Steps after which the agent of worker 0 is killed, and at which the script of worker 1 raises (in its second incarnation)."""
TIMEOUT = 360.0
RETRIES = ["0:0:0", "1:0:0", "1:1:1", "1:2:1", "2:2:2"]
"""The retries table that must come out: counted once each, aligned at each restart."""


@dataclass
class Story:
    """What happened, as it is told and reported. Times are seconds since 1970."""

    began: float
    phases: list[dict[str, Any]] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)
    seen: set[tuple[int, int, str]] = field(default_factory=set)
    head: Head | None = None
    killed: float = 0.0
    master_killed: float = 0.0
    master_phase: str = ""
    owner: str = ""
    taken_over: float = 0.0
    taken_phase: str = ""
    told_steps: set[int] = field(default_factory=set)

    def line(self, at: float, phase: str, incarnation: int | str, retries: str, text: str) -> None:
        """One line of the table."""
        print(f"{max(at - self.began, 0.0):6.1f}  {phase:<15}  {incarnation!s:>3}  {retries:<7}  {text}", flush=True)

    def take(self, head: Head) -> None:
        """A view of the job's head arrived: tell the transitions that are new."""
        self.head, now = head, time.time()
        for step in head.recent:
            key = (step.timeStamp, step.seqNum, step.phaseTo.value)
            if key in self.seen:
                continue
            self.seen.add(key)
            self.phases.append(
                {
                    "t": round(now - self.began, 3),
                    "phase": step.phaseTo.value,
                    "incarnation": step.incarnation,
                    "retries": step.retries,
                    "recover_count": step.recoverCount,
                    "cause": step.cause,
                    "worker": step.podName,
                    "counted": step.counted,
                    "message": step.message,
                }
            )
            if not self.retries or self.retries[-1] != step.retries:
                self.retries.append(step.retries)
            if step.cause != "created":
                self.line(now, step.phaseTo.value, step.incarnation, step.retries, step.message)


def agent_of(base: Path, job: str, pod: str) -> int:
    """Pid of the agent of a worker, from its slot on this machine; 0 when there is none."""
    for path in base.glob("nodes/*/slots/*/record.json"):
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if record.get("job") == job and record.get("pod") == pod and record.get("stage") == "running":
            return int(record.get("pid", 0))
    return 0


def master_pid(base: Path, replica: str) -> int:
    """Pid of the master replica of that name; 0 when the keeper does not know it."""
    for part in stacks.read_info(base).get("parts", ()):
        if part["kind"] == "master" and part["replica"] == replica:
            return int(part["pid"])
    return 0


class Demo:
    """One showing. `run` gives the report; `expectations` what it says is not as promised."""

    def __init__(self, folder: Path, stack: stacks.Stack) -> None:
        self.folder, self.stack = folder, stack
        self.out = folder / "out"
        self.story = Story(time.time())
        self.job = ""

    async def run(self) -> dict[str, Any]:
        """Submit, break, watch, until the job ends."""
        async with Client(of_stack(self.stack.base, self.stack.info)) as client:
            spec = JobSpec(
                name="demo",
                command=tuple(command(self.out)),
                workers=WORKERS,
                maxRetry=MAX_RETRY,
                cwd=str(self.folder),
                env={**training_environment(), "DEMO_RAISE": f"1:1:{RAISE_AT}"},
                checkpointDir=str(self.out),
                user="demo",
            )
            self.story.began = time.time()
            reply = await client.act("submit", api.Submit(spec, uuid.uuid4().hex), api.SubmitReply, spec.namespace)
            self.job = reply.job
            await client.bus.subscribe(subjects.view_job_state(self.job), self._on_view)
            await self._until_ended(client)
            return await self._report(client)

    async def _on_view(self, message: Msg) -> None:
        """Each commit of the job's state, the moment it is made."""
        try:
            head = decode(Head, message.data)
        except BadMessage:
            return
        story = self.story
        murdered = story.killed and not story.master_killed and head.phase is Phase.TROUBLESHOOTING and self._kill_master(head)
        if story.master_killed and not story.taken_over and head.owner.replica != story.owner:
            story.taken_over, story.taken_phase = time.time(), head.phase.value
            spent = story.taken_over - story.master_killed
            story.line(story.taken_over, head.phase.value, head.incarnation, story.retries[-1], f"{head.owner.replica} took over in {spent:.1f} s")
        story.take(head)
        if murdered:
            text = f"{head.owner.replica}, the master that owns the job, killed (by the demo: SIGKILL)"
            story.line(story.master_killed, head.phase.value, head.incarnation, story.retries[-1], text)

    def _kill_master(self, head: Head) -> bool:
        """Before anything else is done about this view: its decision is still being carried out."""
        story = self.story
        pid = master_pid(self.stack.base, head.owner.replica)
        if not pid:
            return False
        os.kill(pid, signal.SIGKILL)
        story.master_killed, story.master_phase, story.owner = time.time(), head.phase.value, head.owner.replica
        return True

    def _kill_agent(self) -> None:
        story, pid = self.story, agent_of(self.stack.base, self.job, "w0")
        if not pid:
            return
        step = last_step(self.out, 0)
        os.kill(pid, signal.SIGKILL)
        story.killed = time.time()
        story.line(story.killed, "RunCommand", 0, story.retries[-1], f"the agent of w0 killed at step {step} (by the demo: SIGKILL to pid {pid})")

    async def _until_ended(self, client: Client) -> None:
        deadline = time.monotonic() + TIMEOUT
        while True:
            head = self.story.head
            if head is None:  # the first views may have gone before we listened
                await self._first_view(client)
            elif head.phase.terminal:
                return
            elif not self.story.killed and (self.out / "checkpoint.pt").exists() and last_step(self.out, 0) >= KILL_AT:
                self._kill_agent()
            self._tell_steps()
            if time.monotonic() > deadline:
                state = f"{head.phase} inc {head.incarnation}" if head else "no view"
                raise CliError("E119", f"the demo did not end within {TIMEOUT:.0f} s ({state}); logs in {self.stack.base}/logs")
            await asyncio.sleep(0.02)

    async def _first_view(self, client: Client) -> None:
        detail = await client.query("job", api.JobRequest(job=self.job, workers=False), api.JobDetail)
        if detail.transitions and not self.story.retries:
            self.story.retries.append(detail.retries)

    def _tell_steps(self) -> None:
        for incarnation in range(3):
            if incarnation in self.story.told_steps:
                continue
            found = first_steps(self.out, incarnation)
            if found is None:
                return
            self.story.told_steps.add(incarnation)
            _, at, number = found
            if incarnation == 0:
                text = "first step of all ranks"
            else:
                before = last_step(self.out, incarnation - 1)
                text = f"first step of all ranks, resumed at step {number} from the checkpoint (lost {max(before - number + 1, 0)} steps)"
            self.story.line(at, "RunCommand", incarnation, self.story.retries[-1], text)

    async def _report(self, client: Client) -> dict[str, Any]:
        detail = await client.query("job", api.JobRequest(job=self.job), api.JobDetail)
        self._tell_steps()
        story, job = self.story, detail.summary
        raised = [line["t"] for line in rank_log(self.out, 1, 1) if line["event"] == "step"]
        faults = [story.killed, raised[-1] if raised else 0.0]
        seen = [first_steps(self.out, 1), first_steps(self.out, 2)]
        pairs = [(fault, found) for fault, found in zip(faults, seen, strict=True) if fault and found]
        return {
            "result": job.phase,
            "phases": story.phases,
            "retries_history": story.retries,
            "recover_count": job.recoverCount,
            "incarnations": job.incarnation + 1,
            "kill_to_first_step_s": [round(found[1] - fault, 3) for fault, found in pairs],
            "respawn_s": [round(found[0] - fault, 3) for fault, found in pairs],
            "takeover_s": round(story.taken_over - story.master_killed, 3) if story.taken_over else None,
            "master_killed_in": story.master_phase,
            "taken_over_in": story.taken_phase,
            "job": self.job,
            "workers": WORKERS,
            "max_retry": MAX_RETRY,
            "stack_up_s": round(self.stack.seconds, 3),
        }


def expectations(report: dict[str, Any]) -> list[str]:
    """What is not as promised."""
    wanted = {
        "result": "Succeed",
        "recover_count": 2,
        "incarnations": 3,
        "retries_history": RETRIES,
        "master_killed_in": "Troubleshooting",
        "taken_over_in": "Troubleshooting",
        "final_state_equal": True,
    }
    wrong = [f"{key} is {report.get(key)!r}, promised {value!r}" for key, value in wanted.items() if report.get(key) != value]
    if len(report.get("kill_to_first_step_s", ())) != 2:
        wrong.append("not every fault was followed by a first step of all ranks")
    if sum(phase["counted"] for phase in report.get("phases", ())) != 2:
        wrong.append("not exactly two faults were counted")
    return wrong


def headline(stack: stacks.Stack) -> str:
    """`aegis 0.1.0 · nats-server 2.15.1 · torch 2.13.0+cpu · ...`."""
    nats = next(part for part in stack.info["parts"] if part["kind"] == "nats")
    where = Path(nats["note"]).parent.name if nats["note"].startswith("/") else nats["note"]
    return (
        f"aegis {VERSION} · nats-server {nats['version']} ({where}) · torch {importlib.metadata.version('torch')} · "
        f"state in {stack.base.parent} · stack up {stack.seconds:.1f} s"
    )


def main(env: Env, report_file: Path | None, keep: bool) -> int:
    """Show it. 0 when everything came out as promised, else 1."""
    for module, what in (("torch", "torch"), ("sklearn", "scikit-learn (its digits are the data)")):
        if importlib.util.find_spec(module) is None:
            raise CliError(
                "E123", f"the demo needs {what} in {sys.executable}", hint="make demo installs what it needs; or pip install 'aegis-train[demo]'"
            )
    folder = Path(tempfile.mkdtemp(prefix="aegis-demo-"))
    began = time.monotonic()
    plain: list[subprocess.Popen[bytes]] = []
    stack: stacks.Stack | None = None
    try:
        stack = stacks.join(folder / "stack", nodes=WORKERS, masters=2)
        print(headline(stack))
        names = " ".join(stack.nodes)
        print(f"{WORKERS} workers on {names}: virtual nodes of this machine; {MAX_RETRY} faults allowed; a small net on scikit-learn's digits")
        print("  time  phase            inc  retries  what happened", flush=True)
        plain = reference(folder / "reference")
        report = run_async(Demo(folder, stack).run())
        for process in plain:
            process.wait(TIMEOUT)
        mine, theirs = weights(folder / "out"), weights(folder / "reference")
        report["final_state_equal"] = bool(mine) and mine.get("sha256") == theirs.get("sha256")
        report["accuracy"] = mine.get("accuracy")
        report["wall_s"] = round(time.monotonic() - began, 1)
        wrong = expectations(report)
        report["not_as_promised"] = wrong
        _summary(report)
        if report_file is not None:
            report_file.write_text(json.dumps({"apiVersion": API_VERSION, "kind": "DemoReport", **report}, ensure_ascii=False, indent=2) + "\n")
        for text in wrong:
            print(f"NOT AS PROMISED: {text}", file=sys.stderr)
        keep = keep or bool(wrong)
        return 1 if wrong else 0
    except BaseException:
        keep = True
        raise
    finally:
        for process in plain:
            if process.poll() is None:
                process.kill()
            process.wait()
        if stack is not None:
            stack.leave()
            stacks.end(stack.base)
        if keep:
            env.out.note(f"everything of this demo lies in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _summary(report: dict[str, Any]) -> None:
    equal = "yes" if report["final_state_equal"] else "NO"
    history = " -> ".join(report["retries_history"])
    print(f"\n{report['incarnations']} incarnations, {report['recover_count']} of {report['max_retry']} restarts used, retries {history}")
    print(f"accuracy {report['accuracy'] or 0:.3f}; weights equal, bit for bit, to those of a run without faults: {equal}")
    if report["kill_to_first_step_s"]:
        each = ", ".join(f"{value:.1f}" for value in report["kill_to_first_step_s"])
        respawn = ", ".join(f"{value:.1f}" for value in report["respawn_s"])
        print(f"fault -> all new processes: {respawn} s; fault -> first step of all ranks: {each} s (the first with a master killed on the way)")
        print(f"takeover by the other master: {report['takeover_s'] or 0:.1f} s (its lease must run out); the whole demo {report['wall_s']:.0f} s")
    print("Try yours:  aegis run --nproc-per-node 2 -- python train.py")
