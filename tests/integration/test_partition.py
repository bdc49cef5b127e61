"""The network between the parts fails for a while, for one of them or for all, in one direction or both, while a worker fails: told once.

Real packets that do not arrive, by network namespaces; and a bus of three servers that loses the one that leads, in the middle of a recovery.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import psutil
import pytest
from aegis_bus.natsserver import Found, NatsServer, find_server, free_port
from aegis_proto import subjects
from aegis_proto.state import JobState
from harness.waiting import until
from support import netns
from support.house import House, house, phases, retries
from support.threeservers import ThreeServers

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]
RECOVERY = ["RunCommand", "Troubleshooting", "RunCommand"]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


class Training:
    """One job of three workers that fails and recovers, over and over; `far`: the place on node n1. The others fail in turn, none twice in a row."""

    def __init__(self, h: House, folder: Path) -> None:
        self.h, self.folder = h, folder
        self.job, self.far, self.faults = "", "", 0
        self.near: list[str] = []

    async def begin(self, name: str) -> None:
        self.folder.mkdir()
        self.job = await self.h.submit(COMMAND, name=name, workers=3, cwd=str(self.folder), maxRetry=20, noProgressRuns=0)
        await self.runs(0)
        state = await self.h.state(self.job)
        self.far = next(f"w{i}" for i, pod in enumerate(state.pods()) if pod.node == "n1")
        self.near = sorted({"w0", "w1", "w2"} - {self.far})

    def fail(self) -> int:
        """A worker that is not on n1 raises; the process that does."""
        worker = self.near[self.faults % 2]
        pid = self.pid(worker)
        (self.folder / f"raise-{worker}-{self.faults}").touch()
        self.faults += 1
        return pid

    def pid(self, worker: str) -> int:
        """Of its command in the present run."""
        return int(next(self.folder.glob(f"run-{worker}-{self.faults}-*")).name.split("-")[3])

    async def counted(self) -> JobState:
        return await self.h.when(self.job, lambda s: s.head.failures == self.faults, 60, f"fault {self.faults} is counted")

    async def runs(self, incarnation: int) -> None:
        def there() -> bool:
            return {path.name.split("-")[1] for path in self.folder.glob(f"run-w*-{incarnation}-*")} == {"w0", "w1", "w2"}

        try:
            await until(there, 90, f"all run incarnation {incarnation}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.h.describe(self.job)}") from None
        await self.h.when(self.job, lambda s: s.head.phase == "RunCommand" and s.head.incarnation == incarnation, 60, f"run {incarnation}")

    async def right(self) -> None:
        """Each fault once, everybody where he was, and no run of the command beside the ones that were ordered."""
        await self.runs(self.faults)
        state = await self.h.state(self.job)
        n = self.faults
        assert (retries(state), state.head.recoverCount, state.head.failures) == (f"{n}:{n}:{n}", n, n), await self.h.describe(self.job)
        assert [pod.attempt for pod in state.pods()] == [1, 1, 1] and not state.head.errorNodes, await self.h.describe(self.job)
        assert len(list(self.folder.glob("run-*"))) == 3 * (n + 1), sorted(path.name for path in self.folder.glob("run-*"))

    async def ends_well(self) -> None:
        (self.folder / "finish").touch()
        state = await self.h.ended(self.job, 60)
        assert state.head.phase == "Succeed", await self.h.describe(self.job)
        story = phases(await self.h.story(self.job))
        assert story == ["Pending", "BootChecking", *(RECOVERY[:2] * self.faults), "RunCommand", "Succeed"], await self.h.describe(self.job)


@pytest.mark.skipif(not netns.possible(), reason="SKIPPED: network namespaces need root and iproute2")
async def test_a_fault_while_agent_master_or_bus_is_cut_off_is_told_late_and_counted_once(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    async with netns.cable([], [port, http]) as to_bus:
        real = find_server()
        program = tmp_path / "nats-server"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(to_bus.inside)} {shlex.quote(real.path)} "$@"\n')
        program.chmod(0o755)
        found = Found(str(program), real.version, "a namespace")
        async with house(
            tmp_path,
            nodes=0,
            masters=0,
            bus=lambda site: NatsServer(
                tmp_path / "nats", auth_conf=site.auth_conf.read_text(), port=port, http_port=http, die_with_parent=True, found=found
            ),
        ) as h:
            grpc = int((await h.grpc_address()).rpartition(":")[2])
            async with netns.cable([port, grpc]) as to_agent, netns.cable([port]) as to_master:
                h.inside |= {"n1": to_agent.inside, "m1": to_master.inside}
                for start, name in ((h.start_node, "n1"), (h.start_node, "n2"), (h.start_node, "n3"), (h.start_master, "m1")):
                    await start(name)
                training = Training(h, tmp_path / "work")
                await training.begin("cut")
                for way in ("out", "in", "both"):
                    await agent_cut_off(training, to_agent, way)
                for way in ("out", "in", "both"):
                    await master_cut_off(training, to_master, way)
                for way in ("out", "in", "both"):
                    await bus_cut_off(training, to_bus, way)
                await training.ends_well()


async def agent_cut_off(training: Training, cable: netns.Cable, way: str) -> None:
    """Its peer fails meanwhile. No new run begins without it; it is no failure of its own."""
    pid = training.pid(training.far)
    cable.cut(way)
    training.fail()
    state = await training.counted()
    assert state.head.incarnation == training.faults - 1, "all wait for the one who is cut off"
    if way != "out":  # the order does not arrive
        assert psutil.pid_exists(pid)
    cable.heal()
    await training.right()


async def master_cut_off(training: Training, cable: netns.Cable, way: str) -> None:
    """The owner of the job. Another one takes over and repairs; who comes back changes nothing, and may own again."""
    h = training.h
    await h.start_master("m2")
    await leased(h, "m2")
    assert (await h.state(training.job)).head.owner.replica == "m1"
    cable.cut(way)
    training.fail()
    await h.when(training.job, lambda s: s.head.owner.replica == "m2", 60, "the other master owns the job")
    await training.right()
    cable.heal()
    await leased(h, "m1")
    await h.children["m2"].terminate()
    await h.when(training.job, lambda s: s.head.owner.replica == "m1", 60, "given back")
    await training.right()


async def bus_cut_off(training: Training, cable: netns.Cable, way: str) -> None:
    """Nobody hears anybody. The failure is told when the bus is back."""
    cable.cut(way)
    pid = training.fail()
    await until(lambda: not psutil.pid_exists(pid), 60, "the command has failed")
    cable.heal()
    await training.counted()
    await training.right()


async def leased(h: House, replica: str) -> None:
    async def there() -> bool:
        assert h.admin is not None
        found = await h.admin.get("LEASES", subjects.lease(replica), leader=True)
        return found is not None and bool(found.data)  # an empty one was given up

    await until(there, 60, f"{replica} has a lease")


async def test_the_leading_server_of_three_is_lost_in_the_middle_of_a_recovery_and_nothing_else_is(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=3, masters=2, bus=lambda site: ThreeServers(tmp_path, site)) as h:
        assert isinstance(h.nats, ThreeServers) and h.admin is not None
        training = Training(h, tmp_path / "work")
        await training.begin("three")
        for stream in ("CTL", "REPORTS"):
            leader = (await h.admin.js_api(f"STREAM.INFO.{stream}"))["cluster"]["leader"]
            training.fail()
            await h.when(training.job, lambda s: s.head.phase == "Troubleshooting", 60, "a recovery")
            await asyncio.to_thread(h.nats.one(leader).kill9)
            await training.counted()
            await training.right()
            await asyncio.to_thread(h.nats.start_one, leader)
        await training.ends_well()
