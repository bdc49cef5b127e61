"""Faults of Aegis itself and of the network while a training runs: what must not disturb it does not, what must be repaired is, once."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_credentials.setup import ensure_streams
from aegis_proto import messages, subjects
from aegis_proto.api_nodes import NodeLostAnswer, NodeLostRequest
from aegis_proto.credapi import Given, spec_digest
from aegis_proto.ids import job_id
from aegis_proto.state import JobSpec
from harness.waiting import until
from support.house import House, house, phases, retries
from support.proxy import CutProxy

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]
QUIET = ["Pending", "BootChecking", "RunCommand"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


async def running(h: House, job: str, folder: Path, incarnation: int, workers: int) -> list[int]:
    """Every worker runs the command of `incarnation`: the process ids."""

    def found() -> list[int]:
        names = [p.name.split("-") for p in folder.glob(f"run-w*-{incarnation}-*")]
        return [int(parts[3]) for parts in names] if len({parts[1] for parts in names}) == workers else []

    try:
        return list(await until(found, 90, f"incarnation {incarnation} of {job}"))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await h.describe(job)}") from None


async def start(h: House, name: str, workers: int, **spec: Any) -> tuple[str, Path, list[int]]:
    folder = h.folder / f"work-{name}"
    folder.mkdir()
    job = await h.submit(COMMAND, name=name, workers=workers, cwd=str(folder), **spec)
    return job, folder, await running(h, job, folder, 0, workers)


async def undisturbed(h: House, job: str, folder: Path, pids: list[int]) -> None:
    """The same processes run, nothing was counted, and the job ends well when its command does."""
    assert all(psutil.pid_exists(pid) for pid in pids), await h.describe(job)
    assert not list(folder.glob("run-w*-1-*")), await h.describe(job)
    (folder / "finish").touch()
    state = await h.ended(job, 60)
    assert state.head.phase == "Succeed", await h.describe(job)
    assert (state.head.recoverCount, state.head.incarnation) == (0, 0)
    assert phases(await h.story(job)) == [*QUIET, "Succeed"]


async def wait_silently(seconds: float, condition: Any) -> None:
    """Time that must pass with nothing happening: `condition()` must stay true all the while."""
    until_then = time.monotonic() + seconds
    while time.monotonic() < until_then:
        assert condition()
        await asyncio.sleep(0.5)


async def test_a_master_cut_off_for_a_minute_restarts_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=0) as h, CutProxy("127.0.0.1", h.nats.port) as proxy:
        await h.start_master("m1", AEGIS_BUS_SERVERS=proxy.url)
        job, folder, pids = await start(h, "cut", 2)
        proxy.cut()
        await wait_silently(60.0, lambda: all(psutil.pid_exists(pid) for pid in pids))
        proxy.heal()
        await undisturbed(h, job, folder, pids)


async def test_an_agent_cut_off_restarts_nothing_and_its_lost_node_restarts_once(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=0, masters=1) as h, CutProxy("127.0.0.1", h.nats.port) as proxy:
        for name in ("n1", "n2", "n3"):
            await h.start_node(name, AEGIS_AGENT_SERVERS=proxy.url if name == "n1" else "")
        job, folder, pids = await start(h, "cut", 3, nodes=("n1", "n2", "n3", "n4"))
        await h.start_node("n4")  # only now, so that n1 has a worker whichever node is heard first
        state = await h.state(job)
        on_n1 = next(i for i, pod in enumerate(state.pods()) if pod.node == "n1")
        proxy.cut()
        await h.when(job, lambda s: s.pod(on_n1).suspect, 60, "the silent worker is suspect")
        await wait_silently(20.0, lambda: all(psutil.pid_exists(pid) for pid in pids))
        assert phases(await h.story(job)) == QUIET, await h.describe(job)
        # now the machine is lost: its daemon, its agent and its ranks end together, and an operator says so
        daemon = h.children["n1"]
        for process in psutil.Process(daemon.pid).children(recursive=True):
            process.kill()
        await daemon.kill9()
        assert h.admin is not None
        answer = await h.ask(subjects.rpc_do("jobcontroller", "node-lost", "n1"), messages.encode(NodeLostRequest(by="test", reason="power cut")))
        assert messages.decode(NodeLostAnswer, answer).told
        await running(h, job, folder, 1, 3)
        state = await h.state(job)
        assert (retries(state), state.head.recoverCount) == ("1:1:1", 1), await h.describe(job)
        assert state.pod(on_n1).node != "n1"
        (folder / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"


async def test_kill_9_of_the_bus_restarts_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=3, masters=2) as h:
        job, folder, pids = await start(h, "bus", 3)
        for _ in range(2):
            await asyncio.to_thread(h.nats.kill9)
            await asyncio.to_thread(h.nats.start)
        await undisturbed(h, job, folder, pids)


async def test_a_failure_while_the_bus_is_away_is_repaired_when_it_is_back(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=1) as h:
        job, folder, _ = await start(h, "away", 2)
        await asyncio.to_thread(h.nats.kill9)
        (folder / "raise-w1-0").touch()
        await until(lambda: "ValueError" in _logs(h), 30, "the command failed")
        await asyncio.to_thread(h.nats.start)
        await running(h, job, folder, 1, 2)
        assert retries(await h.state(job)) == "1:1"
        (folder / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"


def _logs(h: House) -> str:
    return "".join(p.read_text(errors="replace") for p in h.folder.glob("state-*/slots/*/agent.log"))


async def test_kill_9_of_a_node_daemon_restarts_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=1) as h:
        job, folder, pids = await start(h, "daemon", 2)
        daemon = h.children["n1"]
        await daemon.kill9()
        assert all(psutil.pid_exists(pid) for pid in pids)
        await daemon.start()
        await undisturbed(h, job, folder, pids)
        agents = _agent_pids(h)
        await until(lambda: not any(psutil.pid_exists(pid) for pid in agents), 60, "the agents leave when the job has ended")


def _agent_pids(h: House) -> list[int]:
    import json

    return [int(json.loads(p.read_text()).get("pid", 0)) for p in h.folder.glob("state-*/slots/*/record.json")]


async def test_kill_9_of_all_services_at_once_restarts_nothing(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=2, controllers=2) as h:
        job, folder, pids = await start(h, "all", 2)
        children = list(h.children.values())
        for child in children:
            await child.kill9()
        await asyncio.to_thread(h.nats.kill9)
        await asyncio.to_thread(h.nats.start)
        for child in children:
            await child.start()
        await undisturbed(h, job, folder, pids)


async def test_sigterm_drains_every_service_within_the_grace(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=2) as h:
        job, folder, pids = await start(h, "drain", 2)
        for name in ("m1", "jc1", "credentials", "n1"):
            began = time.monotonic()
            assert await h.children[name].terminate(15) == 0, (name, await h.describe(job))
            assert time.monotonic() - began < 12.0, name
        for name in ("credentials", "jc1", "n1"):
            await h.children[name].start()
        await undisturbed(h, job, folder, pids)


async def _new_admin(h: House) -> None:
    if h.admin is not None:
        await h.admin.close(grace=0.2)
    h.admin = await Bus.connect(Identity.from_creds(h.site.issue("admin")), [h.nats.url], name="test-admin")


async def test_a_restored_store_adopts_the_training_that_went_on(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=1) as h:
        job, folder, _ = await start(h, "restore", 2)
        backup = tmp_path / "backup"
        await asyncio.to_thread(h.nats.stop)
        await asyncio.to_thread(shutil.copytree, h.nats.state_dir, backup)
        await asyncio.to_thread(h.nats.start)
        # after the backup the job fails once and goes on in incarnation 1
        (folder / "raise-w1-0").touch()
        pids = await running(h, job, folder, 1, 2)
        # disaster: the store of the backup comes back
        await asyncio.to_thread(h.nats.kill9)
        await asyncio.to_thread(shutil.rmtree, h.nats.state_dir)
        await asyncio.to_thread(shutil.copytree, backup, h.nats.state_dir)
        await asyncio.to_thread(h.nats.start)
        await _new_admin(h)
        assert h.admin is not None
        era = await ensure_streams(h.admin, restored=True)
        state = await h.when(job, lambda s: s.head.era == era and s.head.phase == "RunCommand" and s.head.incarnation == 1, 90, "adopted")
        assert all(psutil.pid_exists(pid) for pid in pids), await h.describe(job)
        assert state.head.recoverCount <= 1
        assert not list(folder.glob("run-w*-2-*"))
        (folder / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed", await h.describe(job)


async def _lose_the_store(h: House) -> str:
    """JetStream and the accounts that were pushed are gone; a new server with new streams takes their place. The new era."""
    await asyncio.to_thread(h.nats.kill9)
    await asyncio.to_thread(shutil.rmtree, h.nats.state_dir)
    fresh = NatsServer(h.nats.state_dir, auth_conf=h.site.auth_conf.read_text(), port=h.nats.port, die_with_parent=True)
    await asyncio.to_thread(fresh.start)
    h.nats = fresh
    await _new_admin(h)
    assert h.admin is not None
    return await ensure_streams(h.admin, restored=True)


async def test_the_loss_of_the_whole_store_with_training_running_is_adopted(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=3, masters=2, controllers=2) as h:
        job, folder, _ = await start(h, "lost", 2)
        assert h.admin is not None
        # one restart before, and one worker that was placed anew: what runs is neither incarnation 0 nor attempt 1
        first = await h.state(job)
        os.kill(await h.agent_pid(job, "w1"), signal.SIGKILL)
        pids = await running(h, job, folder, 1, 2)
        assert (await h.state(job)).pod(1).attempt == 2
        era = await _lose_the_store(h)

        async def adopted() -> Any:
            assert h.admin is not None
            loaded = await JobStore(h.admin).load(job)
            return loaded.state if loaded is not None and loaded.state.head.phase == "RunCommand" else None

        state = await until(adopted, 90, "adopted")
        head = state.head
        assert (head.uid, head.era, head.incarnation) == (first.head.uid, era, 1)
        assert (head.recoverCount, retries(state), head.maxRetry) == (0, "0:0", first.head.maxRetry)
        assert state.spec == first.spec and [pod.attempt for pod in state.pods()] == [1, 2]
        assert all(psutil.pid_exists(pid) for pid in pids), await h.describe(job)
        assert "its store was lost" in " ".join(t.message for t in head.recent)

        # places are on record where the workers run
        async def recorded() -> bool:
            assert h.admin is not None
            stored = [await h.admin.get("NODES", subjects.place(job, pod)) for pod in ("w0", "w1")]
            return all(item is not None for item in stored)

        await until(recorded, 30, "places")
        assert not list(folder.glob("run-w*-2-*")), await h.describe(job)
        # from here on it is a job as any other: a killed rank is counted, once
        os.kill(pids[0], signal.SIGKILL)
        await running(h, job, folder, 2, 2)
        state = await h.state(job)
        assert (state.head.recoverCount, retries(state)) == (1, "1:1"), await h.describe(job)
        (folder / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed", await h.describe(job)
        # and the store takes new jobs
        job2, folder2, _ = await start(h, "after", 2)
        (folder2 / "finish").touch()
        assert (await h.ended(job2, 60)).head.phase == "Succeed"


async def test_what_had_finished_when_the_store_was_lost_is_not_done_again(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=3, masters=2) as h:
        job, folder, _ = await start(h, "finished", 3)
        (folder / "exit-w0-0").write_text("0")
        await h.when(job, lambda s: s.pod(0).finished, 30, "w0 has finished")
        era = await _lose_the_store(h)
        (folder / "exit-w1-0").write_text("0")  # while nobody knows the job

        async def adopted() -> bool:
            assert h.admin is not None
            loaded = await JobStore(h.admin).load(job)
            return loaded is not None and loaded.state.head.phase == "RunCommand"

        await until(adopted, 90, "adopted")
        (folder / "finish").touch()
        state = await h.ended(job, 60)
        assert (state.head.phase, state.head.era, state.head.incarnation, state.head.recoverCount) == ("Succeed", era, 0, 0), await h.describe(job)
        assert not list(folder.glob("run-w*-1-*"))


async def test_a_daemon_cannot_invent_a_job_by_saying_that_it_holds_one(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=1) as h:
        assert h.admin is not None
        spec = JobSpec("forged", ("touch", str(tmp_path / "ran")), workers=1, cwd=str(tmp_path))
        uid = str(uuid.uuid4())
        job = job_id("forged", uid)
        daemon = await Bus.connect(Identity.from_creds(h.site.issue("node", {"node": "n1"})), [h.nats.url], name="node-n1")
        log = h.children["jc1"].log
        held = messages.Held(job, uid, "default", "w0", 1, 1, "01k0000000000000000000000a", "A" * 43, messages.raw(spec))
        await daemon.publish(subjects.node_held("n1", "0"), messages.encode(held))
        await until(lambda: f"job {job} runs, the store does not know it, and it is not brought back" in log.read_text(), 60, "asked, and refused")
        assert await JobStore(h.admin).load(job) is None
        assert not (tmp_path / "ran").exists()
        # with the right deed it would be one: it is the deed that was missing, nothing else
        given = Given(job, uid, "default", 1, held.era, spec_digest(bytes(held.spec)))
        genuine = msgspec.structs.replace(held, deed=h.site.secret.deed(given, "w0", 1))
        await daemon.publish(subjects.node_held("n1", "0"), messages.encode(genuine))

        async def known() -> bool:
            assert h.admin is not None
            return await JobStore(h.admin).load(job) is not None

        await until(known, 60, "the genuine one")
        await daemon.close()


async def test_a_killed_rank_costs_one_restart_and_is_in_place(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=1) as h:
        job, folder, pids = await start(h, "rank", 2)
        agents = sorted(_agent_pids(h))
        os.kill(pids[0], signal.SIGKILL)
        await running(h, job, folder, 1, 2)
        state = await h.state(job)
        assert (state.head.recoverCount, state.head.incarnation) == (1, 1)
        assert sorted(_agent_pids(h)) == agents, "the agents stayed"
        (folder / "finish").touch()
        assert (await h.ended(job, 60)).head.phase == "Succeed"


async def test_a_stop_with_a_grace_of_its_own_waits_no_longer_than_that(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=1) as h:
        ready = tmp_path / "ready"
        command = ["sh", "-c", f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"]
        job = await h.submit(command, name="deaf", workers=1, stopGrace=120.0)
        await until(ready.exists, 60, "the command runs")
        began = time.monotonic()
        await h.act("stop", job, grace=0.0)
        await h.ended(job, 30)
        agent = _agent_pids(h)[0]
        await until(lambda: not psutil.pid_exists(agent), 60, "the agent and its command are gone")
        assert time.monotonic() - began < 60, "it waited for the grace of the specification"
