"""The node daemon as a process, on a real server, with real processes below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aegis_agent.daemon.crashpoints import CRASHPOINTS
from aegis_agent.daemon.processes import boot_id, names_file, scope_of
from aegis_agent.scope import processes, start_ticks
from aegis_bus.connection import Bus, Msg
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_proto import subjects
from aegis_proto.messages import Held, NodeSpec, NodeStatus, Slot, SlotStatus, decode, encode, raw
from aegis_proto.state import JobSpec
from aegis_proto.streams import stream_configs
from harness.waiting import until

STAND_IN = Path(__file__).with_name("stand_in.py")
SLEEP = ("sleep", "1000")
ORPHANS = ("sh", "-c", "setsid sleep 1000 & setsid sh -c 'sleep 1000; true' & echo ready; wait")
"""A command with children that leave its session."""


def alive(uid: str) -> list[int]:
    """Living processes of a job."""
    return [pid for pid in processes() if scope_of(pid).startswith(f"{uid}.")]


class Nodes:
    """Daemons of a test, and what is asked of them."""

    def __init__(self, bus: Bus, server: NatsServer, folder: Path) -> None:
        self.bus, self.server, self.folder = bus, server, folder
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.uids: set[str] = set()
        Identity.new("none").to_creds_file(folder / "creds")

    def start(self, node: str = "n1", *flags: str, crash_at: str = "", state: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "aegis_agent", "node", "--node", node, "--state", str(self.folder / (state or node)), "--virtual"]
        command += ["--servers", self.server.url, "--creds", str(self.folder / "creds"), *flags]
        if "--worker-cmd" not in flags:
            command += ["--worker-cmd", f"{sys.executable} {STAND_IN}"]
        env = {**os.environ, **({"AEGIS_CRASH_AT": crash_at} if crash_at else {})}
        with (self.folder / f"{node}.log").open("ab") as log:
            daemon = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        self.daemons.append(daemon)
        return daemon

    def log(self, node: str = "n1") -> str:
        return (self.folder / f"{node}.log").read_text()

    async def put(self, slot: Slot, node: str = "n1", name: str = "0") -> None:
        self.uids.add(slot.uid)
        await self.bus.publish(subjects.node_slot(node, name), encode(slot))

    async def status(self, node: str = "n1", slot: str = "0") -> SlotStatus:
        stored = await self.bus.get("FLEET", subjects.node_status(node))
        if stored is None:
            return SlotStatus(slot)
        return next((s for s in decode(NodeStatus, stored.data).slots if s.slot == slot), SlotStatus(slot))

    async def reaches(self, state: str, node: str = "n1", slot: str = "0", timeout: float = 40.0, **fields: Any) -> SlotStatus:
        found: list[SlotStatus] = []

        async def there() -> bool:
            found[:] = [await self.status(node, slot)]
            return found[0].state == state and all(getattr(found[0], key) == value for key, value in fields.items())

        try:
            await until(there, timeout, f"{node} slot {slot} {state} {fields}")
        except AssertionError as error:
            raise AssertionError(f"{error}; last {found}; log:\n{self.log(node)}") from None
        return found[0]

    def close(self) -> None:
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.kill()
            daemon.wait()
        deadline = time.monotonic() + 10
        while (left := [pid for uid in self.uids if uid for pid in alive(uid)]) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@pytest_asyncio.fixture
async def nodes(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Nodes]:
    made = Nodes(bus, nats_server, tmp_path)
    yield made
    made.close()


@pytest.fixture
def uid(tmp_path: Path) -> Iterator[str]:
    yield f"u{os.getpid()}x{abs(hash(str(tmp_path))):x}"[:36]


def slot_of(uid: str, command: tuple[str, ...] = SLEEP, attempt: int = 1, pod: str = "w0", job: str = "job-a", **env: str) -> Slot:
    spec = JobSpec(job, command, env=env, stopGrace=1.0)
    return Slot(job, uid, "default", pod, attempt, 1, raw(spec), token="secret-token")


async def test_a_slot_runs_its_worker_and_tells_how_it_ended(nodes: Nodes, uid: str) -> None:
    nodes.start()
    await nodes.put(slot_of(uid, ("sh", "-c", "echo hello; exit 3")))
    gone = await nodes.reaches("gone")
    assert (gone.uid, gone.pod, gone.attempt, gone.exitCode, gone.signal, gone.clean) == (uid, "w0", 1, 3, 0, True)
    assert '"message": "ended with 3"' in gone.lastWord
    files = nodes.folder / "n1" / "slots" / "0"
    assert (files / "agent.log").read_text() == "hello\n" and (files / "exit.json").exists()
    assert "secret-token" not in nodes.log()


async def test_a_slot_written_by_a_slow_batch_is_seen_when_it_is_committed(nodes: Nodes, uid: str, bus: Bus) -> None:
    """Subscribers see a message of a batch before its commit, when a read still shows the old content."""
    nodes.start()
    await until(lambda: "registered" in nodes.log(), 40)
    slot, subject = slot_of(uid, ("true",)), subjects.node_slot("n1", "0")
    nodes.uids.add(uid)
    head = {"Nats-Batch-Id": "b1", "Nats-Batch-Sequence": "1"}
    await bus.call(subject, encode(slot), head)
    await asyncio.sleep(1.0)  # a batch that takes its time
    assert (await nodes.status()).state == "empty"
    await bus.call(subjects.place("job-a", "w0"), b"{}", {**head, "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"})
    committed = time.monotonic()
    await nodes.reaches("gone")
    assert time.monotonic() - committed < 15, "seen by the half-minute reading only"


async def test_the_node_registers_itself_and_beats(nodes: Nodes, bus: Bus) -> None:
    beats: list[str] = []

    async def on_beat(msg: Msg) -> None:
        beats.append(msg.subject)

    await bus.subscribe("aegis.node.*.hb", on_beat)
    nodes.start("n1", "--slots", "2", "--gpus", "8", "--gpu-type", "h100")
    await until(lambda: len(beats) >= 2, 40)
    stored = await until(lambda: bus.get("FLEET", subjects.node_spec("n1")))
    spec = decode(NodeSpec, stored.data)
    assert (spec.node, spec.slots, spec.gpus, spec.gpuType, spec.virtual, spec.addr, spec.boot) == ("n1", 2, 8, "h100", True, "127.0.0.1", boot_id())


async def test_an_attempt_that_ended_is_not_started_again(nodes: Nodes, uid: str, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    daemon = nodes.start()
    await nodes.put(slot_of(uid, ("true",), STARTS=str(starts)))
    await nodes.reaches("gone", exitCode=0)
    daemon.kill()
    daemon.wait()
    nodes.start()
    await nodes.put(slot_of(uid, ("true",), 2, STARTS=str(starts)))
    await nodes.reaches("gone", attempt=2)
    assert [line.split()[2] for line in starts.read_text().splitlines()] == ["1", "2"]


async def test_stop_ends_the_worker_with_grace_and_keeps_its_last_word(nodes: Nodes, uid: str) -> None:
    nodes.start()
    slot = slot_of(uid)
    await nodes.put(slot)
    await nodes.reaches("running")
    await until(lambda: len(alive(uid)) == 2, 40)
    await nodes.put(msgspec.structs.replace(slot, stop=True))
    gone = await nodes.reaches("gone")
    assert gone.exitCode == 143 and gone.lastWord and not alive(uid)


async def test_a_worker_deaf_to_sigterm_is_killed_after_the_grace(nodes: Nodes, uid: str) -> None:
    nodes.start()
    await nodes.put(slot_of(uid, SLEEP, DEAF="1"))
    await nodes.reaches("running")
    await until(lambda: len(alive(uid)) == 2, 40)
    asked = time.monotonic()
    await nodes.put(Slot())
    gone = await nodes.reaches("gone")
    assert gone.signal == 9 and not alive(uid)
    assert time.monotonic() - asked >= 1.0, "SIGKILL before the job's stop grace"


async def test_a_killed_agent_is_gone_only_when_everything_it_started_is(nodes: Nodes, uid: str) -> None:
    nodes.start()
    await nodes.put(slot_of(uid, ORPHANS))
    runs = await nodes.reaches("running")
    await until(lambda: len(alive(uid)) >= 5, 40, what="agent, shell, two orphans-to-be and their child")
    os.kill(runs.pid, signal.SIGKILL)
    gone = await nodes.reaches("gone", signal=9, exitCode=137, clean=True)
    assert gone.lastWord == "" and alive(uid) == []


async def test_unmarked_orphans_of_a_killed_agent_die_too(nodes: Nodes, uid: str) -> None:
    """A process that cleaned its environment and left its session is still found: it became a child of the daemon."""
    nodes.start()
    seconds = f"1234.{os.getpid()}{time.monotonic_ns()}"
    await nodes.put(slot_of(uid, ("sh", "-c", f"env -i setsid sleep {seconds} & echo ready; wait")))
    runs = await nodes.reaches("running")

    def hidden() -> list[int]:
        return [pid for pid in processes() if names_file(pid, seconds) and not scope_of(pid)]

    await until(lambda: len(hidden()) == 1, 40)
    try:
        # Its parent dies first, so that it descends from nobody marked.
        for pid in alive(uid):
            if pid != runs.pid:
                os.kill(pid, signal.SIGKILL)
        os.kill(runs.pid, signal.SIGKILL)
        await nodes.reaches("gone", clean=True)
        assert hidden() == []
    finally:
        for pid in hidden():
            os.kill(pid, signal.SIGKILL)


async def test_a_killed_daemon_leaves_its_workers_and_the_next_one_adopts_them(nodes: Nodes, uid: str, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    daemon = nodes.start()
    await nodes.put(slot_of(uid, ("sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.05; done; exit 5"), STARTS=str(starts)))
    runs = await nodes.reaches("running")
    daemon.kill()
    daemon.wait()
    began = start_ticks(runs.pid)
    assert began is not None
    nodes.start()
    await until(lambda: "adopted" in nodes.log(), 40)
    await nodes.reaches("running", pid=runs.pid)
    assert start_ticks(runs.pid) == began
    (tmp_path / "end").touch()
    gone = await nodes.reaches("gone")
    assert gone.exitCode == 5 and "ended with 5" in gone.lastWord
    assert len(starts.read_text().splitlines()) == 1


async def test_a_worker_that_ended_while_no_daemon_was_there_is_told_by_the_next(nodes: Nodes, uid: str) -> None:
    daemon = nodes.start()
    await nodes.put(slot_of(uid, ORPHANS))
    runs = await nodes.reaches("running")
    await until(lambda: len(alive(uid)) >= 5, 40)
    daemon.kill()
    daemon.wait()
    os.kill(runs.pid, signal.SIGKILL)
    await until(lambda: start_ticks(runs.pid) is None)
    assert alive(uid), "orphans live on without daemon and agent"
    nodes.start()
    gone = await nodes.reaches("gone", clean=True)
    assert gone.exitCode is None and alive(uid) == []


async def test_a_slot_that_goes_to_another_job_is_emptied_first(nodes: Nodes, uid: str) -> None:
    nodes.start()
    await nodes.put(slot_of(uid, ORPHANS))
    await nodes.reaches("running")
    await until(lambda: len(alive(uid)) >= 5, 40)
    other = uid + "b"
    left_when_started = nodes.folder / "left"
    count = f"grep -lz '^AEGIS_SCOPE={uid}\\.' /proc/[0-9]*/environ 2>/dev/null | wc -l > {left_when_started}; sleep 1000"
    await nodes.put(slot_of(other, ("sh", "-c", count), job="job-b"))
    runs = await nodes.reaches("running", uid=other)
    await until(lambda: left_when_started.exists() and left_when_started.read_text().strip(), 40)
    assert left_when_started.read_text().strip() == "0" and alive(uid) == [] and start_ticks(runs.pid)


async def test_a_daemon_that_lost_its_memory_sweeps_before_it_starts(nodes: Nodes, uid: str) -> None:
    daemon = nodes.start(state="one")
    await nodes.put(slot_of(uid, ORPHANS))
    await nodes.reaches("running")
    await until(lambda: len(alive(uid)) >= 5, 40)
    old = set(alive(uid))
    daemon.kill()
    daemon.wait()
    nodes.start(state="two")
    await nodes.put(slot_of(uid, SLEEP, 2))
    runs = await nodes.reaches("running", attempt=2)
    assert not old & set(processes()) and runs.pid in processes()


async def test_on_one_machine_the_end_of_an_old_attempt_does_not_touch_the_new_one(nodes: Nodes, uid: str) -> None:
    """Two virtual nodes share /proc: attempt 1 is on n1, attempt 2 on n2."""
    nodes.start("n1")
    nodes.start("n2")
    await nodes.put(slot_of(uid, SLEEP, 1), "n1")
    await nodes.reaches("running", "n1")
    await nodes.put(Slot(), "n1")
    await nodes.reaches("gone", "n1")
    await nodes.put(slot_of(uid, SLEEP, 2), "n2")
    runs = await nodes.reaches("running", "n2")
    await nodes.put(slot_of(uid + "b", ("true",)), "n1")
    await nodes.reaches("gone", "n1", uid=uid + "b")
    await nodes.put(slot_of(uid, SLEEP, 1), "n1")  # stale: a higher attempt lives
    stale = await nodes.reaches("gone", "n1", uid=uid)
    assert "higher attempt" in stale.message
    assert start_ticks(runs.pid) is not None and (await nodes.status("n2")).state == "running"


async def test_the_second_daemon_of_a_node_refuses(nodes: Nodes) -> None:
    first = nodes.start()
    await until(lambda: "registered" in nodes.log(), 40)
    second = nodes.start()
    assert await asyncio.to_thread(second.wait, 40) == 7
    assert f'E118 node "n1" is kept by another daemon (pid {first.pid} node n1' in nodes.log()
    assert first.poll() is None


async def test_without_a_bus_everything_goes_on_and_is_told_later(nodes: Nodes, uid: str, tmp_path: Path) -> None:
    nodes.start()
    await nodes.put(slot_of(uid, ("sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.05; done; exit 4")))
    runs = await nodes.reaches("running")
    nodes.server.kill9()
    await asyncio.sleep(1.0)  # long enough for a daemon that gives up without a bus to do it
    assert start_ticks(runs.pid) is not None and nodes.daemons[0].poll() is None
    (tmp_path / "end").touch()
    await until(lambda: start_ticks(runs.pid) is None)
    nodes.server.start()
    await nodes.bus.wait_connected(40)
    gone = await nodes.reaches("gone")
    assert gone.exitCode == 4


async def test_a_store_that_is_lost_or_goes_back_stops_nobody(nodes: Nodes, uid: str, bus: Bus) -> None:
    daemon = nodes.start()
    await nodes.put(slot_of(uid + "b", ("true",)))
    await nodes.reaches("gone", uid=uid + "b")
    old = await bus.get("NODES", subjects.node_slot("n1", "0"))
    assert old is not None
    await nodes.put(slot_of(uid, SLEEP, 2))
    runs = await nodes.reaches("running", uid=uid)
    await bus.js_api("STREAM.DELETE.NODES")
    config = next(c for c in stream_configs() if c["name"] == "NODES")
    await bus.js_api("STREAM.CREATE.NODES", config)
    daemon.kill()
    daemon.wait()
    nodes.start()
    await until(lambda: "adopted" in nodes.log(), 40)
    await nodes.put(slot_of(uid, SLEEP, 1))  # a record from before, written again
    await nodes.reaches("running", pid=runs.pid)
    assert start_ticks(runs.pid) is not None
    await nodes.put(slot_of(uid, SLEEP, 3))
    assert (await nodes.reaches("running", attempt=3)).pid != runs.pid


async def test_a_plain_worker_is_told_as_plain(nodes: Nodes, uid: str) -> None:
    nodes.start()
    await nodes.put(slot_of(uid, SLEEP, PLAIN="1"))
    await nodes.reaches("running", plain=True)


async def test_sigterm_leaves_the_workers_unless_told_otherwise(nodes: Nodes, uid: str) -> None:
    daemon = nodes.start()
    await nodes.put(slot_of(uid))
    runs = await nodes.reaches("running")
    daemon.terminate()
    assert await asyncio.to_thread(daemon.wait, 40) == 0
    assert start_ticks(runs.pid) is not None
    await until(lambda: len(alive(uid)) == 2, 40)
    daemon = nodes.start("n1", "--stop-workers")
    await until(lambda: "adopted" in nodes.log(), 40)
    await until(lambda: nodes.log().count("registered") + nodes.log().count("connected") >= 1)
    daemon.terminate()
    assert await asyncio.to_thread(daemon.wait, 40) == 0
    assert start_ticks(runs.pid) is None and not alive(uid)


async def test_an_agent_that_cannot_be_started_is_told_as_gone(nodes: Nodes, uid: str) -> None:
    nodes.start("n1", "--worker-cmd", "/nonexistent/agent")
    await nodes.put(slot_of(uid))
    gone = await nodes.reaches("gone")
    assert gone.notStarted and "could not be started" in gone.message and "/nonexistent/agent" in gone.message


async def test_a_slot_that_nobody_can_read_changes_nothing(nodes: Nodes, uid: str, bus: Bus) -> None:
    nodes.start()
    await nodes.put(slot_of(uid))
    runs = await nodes.reaches("running")
    await bus.publish(subjects.node_slot("n1", "0"), b'{"v": 99, "job": ""}')
    await until(lambda: "slot cannot be read" in nodes.log())
    assert start_ticks(runs.pid) is not None
    assert (await nodes.status()).state == "running"


@pytest.mark.parametrize("point", CRASHPOINTS)
async def test_a_daemon_killed_at_any_point_runs_each_attempt_once(nodes: Nodes, uid: str, tmp_path: Path, point: str) -> None:
    starts = tmp_path / "starts"
    end = tmp_path / "end"
    first = nodes.start(crash_at=f"{point}:2" if point.endswith("-status") else point)
    await nodes.put(slot_of(uid, ("sh", "-c", f"until [ -e {end} ]; do sleep 0.05; done; exit 6"), STARTS=str(starts)))
    if point == "daemon.before-gone":
        await nodes.reaches("running")
        end.touch()
    assert await asyncio.to_thread(first.wait, 40) == -signal.SIGKILL
    nodes.start()
    if point != "daemon.before-gone":
        runs = await nodes.reaches("running")
        assert [pid for pid in alive(uid) if pid == runs.pid]
        end.touch()
    gone = await nodes.reaches("gone")
    assert gone.exitCode == 6 and gone.clean and alive(uid) == []
    assert len(starts.read_text().splitlines()) == 1


async def held_of(nodes: Nodes, slot: str = "0") -> Held | None:
    stored = await nodes.bus.get("HELD", subjects.node_held("n1", slot))
    return decode(Held, stored.data) if stored is not None and not stored.marker else None


async def forget(nodes: Nodes, *streams: str) -> None:
    for stream in streams:
        await nodes.bus.request(f"$JS.API.STREAM.PURGE.{stream}", b"")


async def wake(nodes: Nodes) -> None:
    """A core message on a slot's subject makes the daemon read its slots; NODES does not take this one."""
    headers = {"Nats-Expected-Last-Subject-Sequence": "999999"}
    await nodes.bus.call(subjects.node_slot("n1", "0"), b"{}", headers)


async def test_a_lost_record_is_told_with_its_deed_and_without_its_token(nodes: Nodes, uid: str) -> None:
    daemon = nodes.start()
    slot = msgspec.structs.replace(slot_of(uid, SLEEP, 3), era="era-1", deed="deed-of-w0")
    await nodes.put(slot)
    runs = await nodes.reaches("running")
    await forget(nodes, "NODES", "FLEET")
    await wake(nodes)
    held = await until(lambda: held_of(nodes), 40, "what runs")
    assert held == Held("job-a", uid, "default", "w0", 3, 1, "era-1", "deed-of-w0", slot.spec)
    assert (nodes.folder / "n1" / "slots" / "0" / "held.json").stat().st_mode & 0o777 == 0o600
    # a daemon that was killed meanwhile knows it too, and what runs goes on
    daemon.kill()
    daemon.wait()
    await forget(nodes, "HELD")
    nodes.start()
    assert await until(lambda: held_of(nodes), 40, "what runs") == held
    assert (await nodes.reaches("running")).pid == runs.pid
    # recorded again: nothing more is told
    await nodes.put(msgspec.structs.replace(slot, era="era-2", deed="new-deed"))
    await until(lambda: "new-deed" in (nodes.folder / "n1" / "slots" / "0" / "held.json").read_text(), 40, "kept")
    await forget(nodes, "HELD")
    await wake(nodes)
    await nodes.put(msgspec.structs.replace(slot, era="era-2", deed="new-deed", stop=True))
    await nodes.reaches("gone")
    assert await held_of(nodes) is None


@pytest.mark.parametrize("what", ["plain", "released", "without a deed"])
async def test_what_is_no_lost_worker_is_not_told(nodes: Nodes, uid: str, what: str) -> None:
    """A plain one is nobody's to adopt; one that was told to leave leaves, whatever the store says later; one that never got a deed has none."""
    nodes.start("n1", "--slots", "2")
    env = {"plain": {"PLAIN": "1"}, "released": {"DEAF": "1"}}.get(what, {})
    spec = raw(JobSpec("job-a", SLEEP, env=env, stopGrace=10.0))
    slot = msgspec.structs.replace(slot_of(uid), spec=spec, era="era-1", deed="" if what == "without a deed" else "deed")
    other = msgspec.structs.replace(slot_of(f"{uid}b"[-36:], job="job-b"), era="era-1", deed="deed")
    await nodes.put(slot)
    await nodes.put(other, name="1")
    await nodes.reaches("running", plain=what == "plain")
    await nodes.reaches("running", slot="1")
    await until(lambda: len(alive(uid)) == 2, 40, "the command runs")
    if what == "released":
        await nodes.put(Slot())
        await until(lambda: not (nodes.folder / "n1" / "slots" / "0" / "held.json").exists(), 40, "read")
    await forget(nodes, "NODES")
    await wake(nodes)
    assert (await until(lambda: held_of(nodes, "1"), 40, "the daemon has looked at both")).job == "job-b"
    assert await held_of(nodes) is None
    assert alive(uid)
