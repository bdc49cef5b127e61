"""Job controller and node daemons as processes with the rights as shipped, on a site in operator mode; people ask from their own account."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.jobstore import JobStore
from aegis_proto import subjects
from aegis_proto.api import read_reply
from aegis_proto.api_nodes import NodesAnswer, NodesQuery, NodeTestAnswer, NodeTestRequest, TaintAnswer, TaintRequest
from aegis_proto.deeptest import DeepTestDone
from aegis_proto.messages import Fact, NodeStatus, Place, SlotStatus, decode, encode
from aegis_proto.phases import FactKind
from aegis_proto.state import Head, JobSpec, JobState, Owner, empty_shards
from harness.site import Secured
from harness.waiting import until

STAND_IN = Path(__file__).parents[1] / "daemon" / "stand_in.py"
WAIT = 60.0


class Processes:
    """What a test started; ended with it."""

    def __init__(self, secured: Secured, folder: Path) -> None:
        self.secured, self.folder = secured, folder
        self.started: list[subprocess.Popen[bytes]] = []

    def _start(self, name: str, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log, cwd=self.folder)
        self.started.append(process)
        return process

    def _creds(self, name: str, role: str, **tags: str) -> str:
        path = self.folder / f"{name}.creds"
        path.write_text(self.secured.creds(role, **tags))
        path.chmod(0o600)
        return str(path)

    def node(self, name: str) -> subprocess.Popen[bytes]:
        flags = ["--node", name, "--state", str(self.folder / name), "--virtual", "--stop-workers", "--worker-cmd", f"{sys.executable} {STAND_IN}"]
        env = {"AEGIS_BUS_SERVERS": self.secured.url, "AEGIS_BUS_CREDS": self._creds(name, "node", node=name)}
        return self._start(name, [sys.executable, "-m", "aegis_agent", "node", *flags], env)

    def controller(self, replica: str) -> subprocess.Popen[bytes]:
        env = {"AEGIS_BUS_SERVERS": self.secured.url, "AEGIS_BUS_CREDS": self._creds(replica, "jobcontroller"), "AEGIS_SERVICE_REPLICA": replica}
        return self._start(replica, [sys.executable, "-m", "aegis_jobcontroller"], env)

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))


@pytest_asyncio.fixture
async def running(secured: Secured, tmp_path: Path) -> AsyncIterator[Processes]:
    made = Processes(secured, tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.terminate()
    for process in made.started:
        await asyncio.to_thread(process.wait, 40)


async def slot_status(master: Bus, node: str) -> SlotStatus:
    stored = await master.get("FLEET", subjects.node_status(node))
    return decode(NodeStatus, stored.data).slots[0] if stored is not None else SlotStatus("0")


async def fact_of(master: Bus, job: str, pod: str, kind: FactKind) -> Fact | None:
    stored = await master.get("REPORTS", subjects.fact(job, pod))
    fact = decode(Fact, stored.data) if stored is not None else None
    return fact if fact is not None and fact.kind is kind else None


async def test_a_job_is_placed_killed_and_told_with_the_rights_as_shipped(secured: Secured, running: Processes) -> None:
    job = "rights-333333"
    master = await secured.bus("master")
    people = {role: await secured.bus(role) for role in ("reader", "operator")}
    scoped = await secured.bus("nsreader", namespace="elsewhere")
    try:
        spec = JobSpec("rights", ("sleep", "1000"), workers=2, nodes=("n1", "n2"), stopGrace=1.0, priority=9)  # the site has other jobs
        state = JobState(Head(job, "rights", "default", "uid-rights", 2, 3, owner=Owner("m1", 1)), empty_shards(2), spec)
        await JobStore(master).create(state)
        for name in ("n1", "n2"):
            running.node(name)
        for replica in ("jobcontroller-1", "jobcontroller-2"):
            running.controller(replica)
        try:
            await until(lambda: all_running(master), WAIT)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{running.logs()}") from None
        places = [decode(Place, item.data) for item in await master.get_many("NODES", [f"aegis.place.{job}.*"])]
        assert {(place.pod, place.attempt) for place in places} == {("w0", 1), ("w1", 1)} and len({place.node for place in places}) == 2
        for pod in ("w0", "w1"):
            assert await until(lambda pod=pod: fact_of(master, job, pod, FactKind.RUNNING), WAIT)

        async def shown() -> bool:
            """Either replica may answer, and one that has just started has not heard every daemon yet."""
            answer = read_reply(NodesAnswer, await people["reader"].request("aegis.rpc.jobcontroller.query.nodes", encode(NodesQuery()), timeout=10))
            return [(node.node, node.health, node.jobs) for node in answer.nodes] == [("n1", "ok", (job,)), ("n2", "ok", (job,))]

        await until(shown, WAIT)
        hidden = read_reply(NodesAnswer, await scoped.request("aegis.rpc.jobcontroller.query.nodes.elsewhere", b"", timeout=10))
        assert [node.jobs for node in hidden.nodes] == [(), ()]
        subject = subjects.rpc_do("jobcontroller", "taint", "default")
        taint = read_reply(TaintAnswer, await people["operator"].request(subject, encode(TaintRequest("n2", "alice", "test")), timeout=10))
        assert taint.after == "excluded (test)" and len(taint.running) == 1
        asked = encode(NodeTestRequest("n2", "alice", "odd", 0.1))
        order = read_reply(NodeTestAnswer, await people["operator"].request(subjects.rpc_do("jobcontroller", "test", "default"), asked, timeout=10))
        done = await until(lambda: word_of(master, "n2"), WAIT)
        assert (done.id, done.state, done.code, done.by) == (order.id, "refused", "busy", "alice") and order.running == taint.running

        on_n1 = await slot_status(master, "n1")
        os.kill(on_n1.pid, signal.SIGKILL)
        gone = await until(lambda: fact_of(master, job, on_n1.pod or "w0", FactKind.GONE), WAIT)
        assert (gone.node, gone.signal, gone.clean, gone.attempt) == ("n1", 9, True, 1)
    finally:
        for bus in (master, *people.values(), scoped):
            await bus.close()


async def word_of(master: Bus, node: str) -> DeepTestDone | None:
    """What a daemon told of its deep tests last."""
    stored = await master.get("EVENTS", subjects.node_event(node, "test"))
    return decode(DeepTestDone, stored.data) if stored is not None else None


async def all_running(master: Bus) -> bool:
    return all([(await slot_status(master, node)).state == "running" for node in ("n1", "n2")])
