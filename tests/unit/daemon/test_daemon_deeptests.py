"""Deep tests by order: a real daemon, a real server, the real tests; once, told, and never beside a worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_agent.daemon.deeptests import FILE, fitting, results_in
from aegis_agent.handover import now_ms
from aegis_agent.scope import Proc, processes, send
from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_proto import subjects
from aegis_proto.deeptest import DeepTest, DeepTestDone
from aegis_proto.messages import CheckResult, Slot, decode, encode
from harness.waiting import until, until_sync
from test_daemon_service import Nodes, slot_of

OWN = f"x{os.getpid()}"
"""Of each id: a test is known on the whole machine by the id of its order."""


@pytest_asyncio.fixture
async def nodes(bus: Bus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    """Under a python without torch, and with a kernel that says nothing: a machine of which every test can pass."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -E -S "$@"\n')
    python.chmod(0o755)
    (tmp_path / "quiet.log").touch()
    monkeypatch.setenv("AEGIS_CHECKS_PYTHON", str(python))
    monkeypatch.setenv("AEGIS_CHECKS_KERNEL_LOG", str(tmp_path / "quiet.log"))
    made = Nodes(bus, nats_server, tmp_path)
    yield made
    made.close()
    end_all_in(tmp_path)


def end_all_in(folder: Path) -> None:
    """A test that failed leaves no deep test behind: it lives in a session of its own, and its daemon is gone."""

    def here() -> list[Proc]:
        found = []
        for proc in processes().values():
            with contextlib.suppress(OSError):
                if Path(os.readlink(f"/proc/{proc.pid}/cwd")).is_relative_to(folder) and proc.pid != os.getpid():
                    found.append(proc)
        return found

    until_sync(lambda: not [send(proc, signal.SIGKILL) for proc in here()], 30, "all that was started is gone")


@pytest.fixture
def uid(tmp_path: Path) -> str:
    return f"u{os.getpid()}d{abs(hash(str(tmp_path))):x}"[:36]


async def ask(bus: Bus, order: DeepTest, node: str = "n1") -> None:
    await bus.publish(subjects.node_test(node), encode(order))


async def told(bus: Bus, ident: str, *states: str, node: str = "n1") -> DeepTestDone:
    """The newest word about a test, once it is one of `states`."""
    found: list[DeepTestDone] = []

    async def there() -> bool:
        stored = await bus.get("EVENTS", subjects.node_event(node, "test"))
        found[:] = [decode(DeepTestDone, stored.data)] if stored is not None else []
        return bool(found) and found[0].id == ident and found[0].state in states

    try:
        await until(there, 100, f"test {ident}: {states}")
    except AssertionError as error:
        raise AssertionError(f"{error}; last {found}") from None
    return found[0]


async def test_what_is_asked_for_is_tested_once_and_told_with_every_result(nodes: Nodes, bus: Bus) -> None:
    """The test before was cut short by the machine: that is its answer."""
    (nodes.folder / "n1").mkdir()
    (nodes.folder / "n1" / FILE).write_text(json.dumps({"id": f"c1{OWN}", "boot": "another", "tries": 1, "pid": os.getpid()}))
    await ask(bus, DeepTest(f"c1{OWN}", "alice"))
    nodes.start()
    down = await told(bus, f"c1{OWN}", "failed")
    assert down.code == "node_down" and "went down" in down.message
    await ask(bus, DeepTest("../no-id", "alice"))
    await ask(bus, DeepTest(f"a1{OWN}", "alice", "odd", 0.1, at=now_ms()))
    done = await told(bus, f"a1{OWN}", "passed", "failed", "refused")
    assert done.state == "passed" and (done.node, done.by) == ("n1", "alice"), done
    assert {"io", "deep-memory", "deep-compute", "deep-copy", "baseline"} <= {result.CheckType for result in done.results}
    kept = json.loads((nodes.folder / "n1" / "deep" / "baseline.json").read_text())["speeds"]
    assert len(kept["deep-copy host.gb_per_s"]) == 1
    nodes.daemons[0].send_signal(signal.SIGKILL)
    nodes.daemons[0].wait()
    nodes.start()
    await ask(bus, DeepTest(f"a2{OWN}", "alice", seconds=0.1, at=now_ms()))
    await told(bus, f"a2{OWN}", "passed")
    log = nodes.log()
    assert log.count("deep tests: done") == 3 and log.count(f'"id": "a1{OWN}"') + log.count(f"id=a1{OWN}") == 2, "begun once, done once"


async def test_a_worker_has_the_node_first(nodes: Nodes, bus: Bus, uid: str) -> None:
    nodes.start()
    await nodes.put(slot_of(uid))
    await nodes.reaches("running")
    await ask(bus, DeepTest(f"b1{OWN}", "alice", seconds=0.1))
    refused = await told(bus, f"b1{OWN}", "refused", "passed", "failed")
    assert (refused.state, refused.code) == ("refused", "busy") and "job-a/w0" in refused.message
    await ask(bus, DeepTest(f"b2{OWN}", "alice", seconds=60.0, until=now_ms() + 600_000))
    assert "job-a/w0" in (await told(bus, f"b2{OWN}", "waiting")).message
    await nodes.put(Slot())
    await nodes.reaches("gone")
    await until(lambda: "seconds=60" in nodes.log() or '"seconds": 60' in nodes.log(), 40, "the node is free: the test begins")
    await nodes.put(slot_of(uid, attempt=2))
    await nodes.reaches("running", attempt=2)
    await until(lambda: "ended for a worker" in nodes.log(), 40, "the worker has it back")
    await ask(bus, DeepTest(f"b3{OWN}", "alice", seconds=0.1, until=now_ms() + 600_000))
    await told(bus, f"b3{OWN}", "waiting")
    await nodes.put(Slot())
    assert (await told(bus, f"b3{OWN}", "passed", "failed", "refused")).state == "passed"


def test_an_answer_always_fits_into_an_event() -> None:
    many = tuple(CheckResult(f"t{i}", i % 2 == 0, "x" * 1900, values={f"v{j}": 1.5 for j in range(200)}) for i in range(60))
    cut = fitting(DeepTestDone("a", "n1", "failed", results=many))
    assert len(encode(cut)) < 60_000 and {result.CheckType for result in cut.results} >= {"t1", "t59"}
    assert results_in('words\n{"CheckType": "io", "Pass": true}\n{"Pass": 3}\n') == (CheckResult("io", True),)
