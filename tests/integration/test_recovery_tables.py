"""Rows of the tables of recovery on the real stack with the fault itself: GPUs lost to NVML or told of by the kernel, commands that are wrong,
storage and interpreters that fail, a cut network. GPUs by NVIDIA's own bindings over a library compiled here; the network by a namespace whose cable
is pulled."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from aegis_proto.state import JobState
from harness.waiting import until
from support import mounts, netns
from support.fakegpu import Machine, build
from support.house import House, house, phases, retries

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not shutil.which("cc"), reason="SKIPPED: no C compiler: the fake NVML cannot be built"),
]


class Fleet:
    """A house and its machines with GPUs."""

    def __init__(self, h: House) -> None:
        pytest.importorskip("pynvml", reason="SKIPPED: nvidia-ml-py is not installed")
        self.h, self.library = h, build(h.folder / "nvml")
        self.machines: dict[str, Machine] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            await self.h.start_node(name, **self.machine(name).env)

    def machine(self, name: str) -> Machine:
        return self.machines.setdefault(name, Machine(self.h.folder, self.library, name))

    async def submit(self, name: str, nodes: tuple[str, ...], **spec: Any) -> tuple[str, Path]:
        folder = self.h.folder / f"work-{name}"
        folder.mkdir()
        options = {"workers": 2, "cwd": str(folder), "stopGrace": 1.0, **spec}
        return await self.h.submit(options.pop("command", COMMAND), name, nodes=nodes, **options), folder

    async def running(self, job: str, folder: Path, incarnation: int, workers: int = 2) -> dict[str, int]:
        """Process of each worker's rank, once all run this incarnation and the master says so."""

        def all_run() -> dict[str, int]:
            found = {path.name.split("-")[1]: int(path.name.split("-")[3]) for path in folder.glob(f"run-w*-{incarnation}-*")}
            return found if len(found) == workers else {}

        try:
            found: dict[str, int] = await until(all_run, 120, f"incarnation {incarnation}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.h.describe(job)}") from None
        await self.h.when(job, lambda s: s.head.phase == "RunCommand" and s.head.incarnation == incarnation, 60, f"run {incarnation}")
        return found

    async def node(self, job: str, index: int) -> str:
        return (await self.h.state(job)).pod(index).node

    def last_words(self, node: str) -> list[dict[str, Any]]:
        """How the workers of this node ended."""
        return [json.loads(path.read_text()) for path in self.h.folder.glob(f"state-{node}/slots/*/exit.json")]


async def lost_before_the_bootcheck(f: Fleet) -> None:
    """bootcheck, GPU lost: exit 1, errorNode. The other takes its place is found when there is one."""
    f.machine("b1").tells("1.lost=1")
    job, folder = await f.submit("boot", ("b1", "b2", "b3"))
    state = await f.h.when(job, lambda s: s.head.errorNodes, 90, "a node is excluded")
    assert [(node.name, node.reason) for node in state.head.errorNodes] == [("b1", "gpu")], await f.h.describe(job)
    assert not list(folder.glob("run-*")), "nothing ran before the check had passed"
    await until(lambda: [word["code"] for word in f.last_words("b1")] == [1], 30, "the worker on b1 has left with 1")
    await f.start("b3")
    await f.running(job, folder, 0)
    state = await f.h.state(job)
    assert {pod.node for pod in state.pods()} == {"b2", "b3"} and (retries(state), state.head.recoverCount) == ("0:0", 0)
    (folder / "finish").touch()
    assert (await f.h.ended(job, 60)).head.phase == "Succeed"


async def lost_while_the_command_runs(f: Fleet) -> None:
    """command, GPU lost: reported, waits for the diagnosis; there it leaves with exit 1, errorNode. Then the same by a line of the kernel."""
    job, folder = await f.submit("run", ("c1", "c2", "c3", "c4"), maxRetry=3)
    pids, bad = await f.running(job, folder, 0), await f.node(job, 1)
    f.machine(bad).tells("0.lost=1")
    os.kill(pids["w1"], signal.SIGKILL)  # as the driver's error ends it
    # Its successor would end it before its last word, since all these nodes are one machine: there is room for it only now.
    await until(lambda: [word["code"] for word in f.last_words(bad)] == [1], 60, f"the worker on {bad} has left with 1")
    await f.start("c3", "c4")
    pids = await f.running(job, folder, 1)
    state = await f.h.state(job)
    assert [(node.name, node.reason) for node in state.head.errorNodes] == [(bad, "gpu")], await f.h.describe(job)
    assert retries(state) == "1:1" and state.pod(1).node not in (bad, state.pod(0).node)
    assert phases(await f.h.story(job))[2:6] == ["RunCommand", "Troubleshooting", "Restarting", "Troubleshooting"], await f.h.describe(job)
    second = await f.node(job, 0)
    f.machine(second).kernel_says("NVRM: Xid (PCI:0000:10:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    os.kill(pids["w0"], signal.SIGKILL)
    await f.running(job, folder, 2)
    state = await f.h.state(job)
    assert [node.name for node in state.head.errorNodes] == [bad, second], await f.h.describe(job)
    assert not {bad, second} & {pod.node for pod in state.pods()} and retries(state) == "2:2"
    (folder / "finish").touch()
    assert (await f.h.ended(job, 60)).head.phase == "Succeed"


async def commands_that_are_wrong(f: Fleet) -> None:
    """bootcheck, wrong command: the checks cannot see it, its result is shown. troubleshoot, wrong command, nodes well: it runs again there."""
    job, _ = await f.submit("missing", ("d1", "d2"), command=["/no/such/program"])
    state = await f.h.ended(job, 90)
    assert (state.head.phase, state.head.exitCode, state.head.recoverCount) == ("Failed", 127, 0), await f.h.describe(job)
    assert any("E111" in pod_line for pod_line in (t.message for t in await f.h.story(job))), await f.h.describe(job)
    job, folder = await f.submit("raises", ("d1", "d2"))
    await f.running(job, folder, 0)
    nodes = [await f.node(job, 0), await f.node(job, 1)]
    (folder / "raise-w1-0").touch()
    await f.running(job, folder, 1)
    state = await f.h.state(job)
    assert [pod.node for pod in state.pods()] == nodes and not state.head.errorNodes and retries(state) == "1:1", await f.h.describe(job)
    (folder / "finish").touch()
    assert (await f.h.ended(job, 60)).head.phase == "Succeed"


async def test_gpus_that_are_lost_and_commands_that_are_wrong_end_as_the_tables_say(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=0) as h:
        f = Fleet(h)
        await f.start("b1", "b2", "c1", "c2", "d1", "d2")
        await asyncio.gather(lost_before_the_bootcheck(f), lost_while_the_command_runs(f), commands_that_are_wrong(f))


async def storage_that_fails(f: Fleet) -> None:
    """io fails on one node: a fresh container there first (L2); it fails again, so it is the node (L3)."""
    names = ("e1", "e2", "e3")
    data = {name: f.h.folder / f"data-{name}" for name in names}
    with mounts.tmpfs(*data.values()):
        for name in names:
            await f.h.start_node(name, AEGIS_CHECKS_MOUNTS=f"{data[name]}:mount")
        job, folder = await f.submit("storage", names)
        pids, bad = await f.running(job, folder, 0), await f.node(job, 1)
        mounts.read_only(data[bad])
        os.kill(pids["w1"], signal.SIGKILL)  # as EROFS ends it
        await f.running(job, folder, 1)
        state = await f.h.state(job)
        assert [(node.name, node.reason) for node in state.head.errorNodes] == [(bad, "io")], await f.h.describe(job)
        assert (state.pod(1).attempt, retries(state)) == (3, "1:1") and state.pod(1).node not in (bad, state.pod(0).node)
        (folder / "finish").touch()
        assert (await f.h.ended(job, 60)).head.phase == "Succeed"


PYTHON = """#!/bin/sh
case "$AEGIS_SCOPE" in *.w1.1.*) [ ! -e {folder}/broken ] || {{ echo "libc.so.6: cannot open shared object file" >&2; exit 127; }};; esac
exec {python} "$@"
"""
TORCH = {"__init__.py": "", "version.py": "__version__ = '2.0'\n", "lib/none": "", "distributed/__init__.py": "def is_available(): return False\n"}
"""What the checks take for torch, without its import."""


async def a_runtime_that_breaks(f: Fleet) -> None:
    """The python of one container is broken: a fresh container on the same node, nothing else."""
    home = f.h.folder / "runtime"
    lay(home / "site" / "torch", TORCH)
    lay(home, {"train.py": f"import torch\nimport runpy\nrunpy.run_path({COMMAND[1]!r}, run_name='__main__')\n"})
    lay(home, {"bin/python3": PYTHON.format(folder=home, python=sys.executable)})
    (home / "bin" / "python3").chmod(0o755)
    for name in ("g1", "g2"):
        await f.h.start_node(name)
    env = {"PYTHONPATH": f"{home}/site"}
    job, folder = await f.submit("runtime", ("g1", "g2"), command=[f"{home}/bin/python3", f"{home}/train.py"], env=env)
    pids = await f.running(job, folder, 0)
    nodes = [await f.node(job, 0), await f.node(job, 1)]
    (home / "broken").touch()
    os.kill(pids["w1"], signal.SIGKILL)
    await f.running(job, folder, 1)
    state = await f.h.state(job)
    assert ([pod.node for pod in state.pods()], [pod.attempt for pod in state.pods()]) == (nodes, [1, 2]), await f.h.describe(job)
    assert (state.head.errorNodes, retries(state), state.pod(1).reason) == ((), "1:1", "runtime"), await f.h.describe(job)
    (folder / "finish").touch()
    assert (await f.h.ended(job, 60)).head.phase == "Succeed"


async def a_port_that_goes_dark(f: Fleet) -> None:
    """rdma fails on one node: it is excluded, its worker runs elsewhere."""
    names, port = ("i1", "i2", "i3"), "sys/class/infiniband/mlx5_0/ports/1"
    up = {f"{port}/state": "4: ACTIVE\n", f"{port}/phys_state": "5: LinkUp\n", f"{port}/rate": "400 Gb/sec (4X NDR)\n"}
    for name in names:
        lay(f.h.folder / f"root-{name}", {**up, f"{port}/link_layer": "InfiniBand\n"})
        await f.h.start_node(name, AEGIS_CHECKS_ROOT=str(f.h.folder / f"root-{name}"), AEGIS_CHECKS_EXPECTED_PORTS="1x400")
    job, folder = await f.submit("dark", names)
    pids, bad = await f.running(job, folder, 0), await f.node(job, 1)
    lay(f.h.folder / f"root-{bad}", {f"{port}/state": "1: DOWN\n", f"{port}/phys_state": "2: Polling\n"})
    os.kill(pids["w1"], signal.SIGKILL)
    await f.running(job, folder, 1)
    state = await f.h.state(job)
    assert [(node.name, node.reason) for node in state.head.errorNodes] == [(bad, "rdma")], await f.h.describe(job)
    assert (state.pod(1).attempt, retries(state)) == (2, "1:1") and state.pod(1).node not in (bad, state.pod(0).node)
    (folder / "finish").touch()
    assert (await f.h.ended(job, 60)).head.phase == "Succeed"


async def a_level_that_does_not_hold(f: Fleet) -> None:
    """The same worker fails again and again at once: in place, in a fresh container on its node, on another node."""
    for name in ("j1", "j2", "j3"):
        await f.h.start_node(name)
    job, folder = await f.submit("again", ("j1", "j2", "j3"), maxRetry=9)
    await f.running(job, folder, 0)
    bad = await f.node(job, 1)
    for incarnation in (2, 1, 0):
        (folder / f"raise-w1-{incarnation}").touch()
    await f.running(job, folder, 3)
    state = await f.h.state(job)
    left = [(line.cause, line.nodeName) for line in await f.h.story(job) if line.phaseFrom == "Troubleshooting" and line.phaseTo == "Restarting"]
    assert left == [("again", bad), ("persistent", bad)], await f.h.describe(job)
    assert [(node.name, node.reason) for node in state.head.errorNodes] == [(bad, "persistent")] and state.pod(1).node not in (bad, "")
    assert (state.pod(0).attempt, state.pod(1).attempt, retries(state)) == (1, 3, "3:3")
    (folder / "finish").touch()
    assert (await f.h.ended(job, 60)).head.phase == "Succeed"


@pytest.mark.skipif(not mounts.possible(), reason="SKIPPED: mounts need root and unshare")
async def test_what_fails_on_one_node_or_again_and_again_goes_from_level_to_level(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=0) as h:
        f = Fleet(h)
        await asyncio.gather(storage_that_fails(f), a_runtime_that_breaks(f), a_port_that_goes_dark(f), a_level_that_does_not_hold(f))


@pytest.mark.skipif(not netns.possible(), reason="SKIPPED: network namespaces need root and iproute2")
async def test_a_worker_cut_off_in_its_diagnosis_goes_on_shows_its_result_and_is_back_or_leaves_with_the_network(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=0) as h:
        f = Fleet(h)
        address = await h.grpc_address()
        async with netns.cable([h.nats.port, int(address.rpartition(":")[2])]) as cable:
            h.inside["far"] = cable.inside
            await f.start("near", "far")
            job, folder = await f.submit("cut", ("near", "far", "other"), maxRetry=3)
            pids = await f.running(job, folder, 0)
            far = 0 if await f.node(job, 0) == "far" else 1
            f.machine("far").tells("hang=1")  # its check takes as long as we want
            os.kill(pids[f"w{1 - far}"], signal.SIGKILL)
            await until(lambda: _checks("far", h), 60, "the far worker makes its checks")
            cable.cut()
            f.machine("far").tells("")
            log = h.folder / "state-far" / "slots" / "0" / "agent.log"
            await until(lambda: "troubleshoot: 3 checks" in log.read_text(), 60, "its result is shown where it is")
            assert "passed" in log.read_text().partition("troubleshoot: ")[2]
            assert (await h.state(job)).head.phase == "Troubleshooting", await h.describe(job)
            cable.heal()
            pids = await f.running(job, folder, 1)
            state = await h.state(job)
            assert (retries(state), state.head.recoverCount, excluded(state)) == ("1:1", 1, []), await h.describe(job)
            assert {pod.node for pod in state.pods()} == {"near", "far"} and [pod.attempt for pod in state.pods()] == [1, 1]

            f.machine("far").tells("hang=1")  # the same, and a GPU is lost meanwhile
            os.kill(pids[f"w{1 - far}"], signal.SIGKILL)
            await until(lambda: _checks("far", h), 60, "the far worker makes its checks again")
            cable.cut()
            f.machine("far").tells("0.lost=1")
            await until(lambda: "gpu failed" in log.read_text(), 60, "its result is shown where it is")
            assert not f.last_words("far") and not excluded(await h.state(job))
            cable.heal()
            await until(lambda: [word["code"] for word in f.last_words("far")] == [1], 60, "the far worker has left with 1")
            await f.start("other")
            await f.running(job, folder, 2)
            state = await h.state(job)
            assert excluded(state) == [("far", "gpu")], await h.describe(job)
            assert {pod.node for pod in state.pods()} == {"near", "other"} and retries(state) == "2:2"
            (folder / "finish").touch()
            assert (await h.ended(job, 60)).head.phase == "Succeed"


def excluded(state: JobState) -> list[tuple[str, str]]:
    """Nodes that are not used again, and why; not those of which a monitor only noticed something."""
    return [(node.name, node.reason) for node in state.head.errorNodes if not node.noted]


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _checks(node: str, h: House) -> bool:
    """Checks run that ask this node's NVML."""
    wanted = f"FAKE_NVML_FILE={h.folder}/nvml-{node}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"aegis_agent.checks." in (path / "cmdline").read_bytes() and wanted in (path / "environ").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
