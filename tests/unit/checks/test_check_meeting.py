"""The workers of a round meet under the user's python: real programs, real gloo, on one machine."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aegis_agent import ports
from aegis_agent.checks import meeting, running
from aegis_agent.checks.interpreter import Interpreter, of_command
from aegis_agent.checks.meeting import Meeting
from aegis_agent.collective import environment, hub, member
from aegis_agent.handover import WorkerTask
from aegis_agent.reaper import Reaper
from aegis_agent.warm import Standby, python_command
from aegis_agent.warm import run as standby_run
from aegis_master import pairs
from aegis_proto.messages import CheckResult
from aegis_proto.state import JobSpec
from harness.waiting import until

TORCH = ("python", "-c", "import torch; print(torch.ones(1))")


# --- which python -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with scripts, and a PATH with a `python` and a `torchrun` of its own."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, first in (("python", "#!/bin/sh"), ("torchrun", f"#!{tools}/python"), ("tool", "#!/bin/sh"), ("train", f"#!{tools}/python")):
        (tools / name).write_text(f"{first}\n" + ("import torch\n" if name == "train" else ""))
        (tools / name).chmod(0o755)
    (tmp_path / "direct.py").write_text("import os\nimport torch\n")
    (tmp_path / "through.py").write_text("from models import net\n")
    (tmp_path / "models.py").write_text("import numpy\nfrom inner.deep import x\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").touch()
    (tmp_path / "inner" / "deep.py").write_text("from transformers import AutoModel\n")
    (tmp_path / "listed.py").write_text("import os, time as t, torch.distributed as dist\n")
    (tmp_path / "beside.py").write_text("import sys; import os, models\n")
    (tmp_path / "plain.py").write_text("print('no torch: import torch')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "torch"),
    [
        ("python direct.py --lr 1", True),
        ("python through.py", True),
        ("python plain.py", False),
        ("python listed.py", True),
        ("python beside.py", True),
        ("python|-c|import os, torch.nn as nn; nn.Linear(1, 1)", True),
        ("python|-c|import os; import torchless", False),
        ("python -m through", True),
        ("python -u direct.py", True),
        ("torchrun --nnodes 2 plain.py", True),
        ("train", True),
        ("sh|-c|cd x && FOO=1 exec python direct.py", True),
        ("bash|-lc|torchrun direct.py; echo done", True),
        ("numactl --cpunodebind 0 python direct.py", True),
        ("tool direct.py", None),
        ("sh|-c|sleep 5", None),
        ("sh|-c|echo 'unfinished", None),
        ("nothing-of-that-name", None),
        ("", None),
    ],
)
def test_the_python_of_a_command_and_its_use_of_torch_are_told_from_its_words(place: Path, command: str, torch: bool | None) -> None:
    words = command.split("|") if "|" in command else command.split()
    found = of_command(words, {"PATH": f"{place}/bin:/usr/bin:/bin"}, str(place))
    python = str(place / "bin" / "python")
    assert found == (Interpreter() if torch is None else Interpreter(python, torch))


def test_what_the_settings_say_about_the_collective_checks_is_done(place: Path) -> None:
    environ = {"PATH": f"{place}/bin"}
    assert of_command(["python", "plain.py"], {**environ, "AEGIS_CHECKS_COLLECTIVE": "always"}, str(place)).torch
    assert of_command(["python", "direct.py"], {**environ, "AEGIS_CHECKS_COLLECTIVE": "never"}, str(place)) == Interpreter()
    assert of_command(["python", "direct.py"], {**environ, "AEGIS_CHECKS_PYTHON": "/other"}, str(place)) == Interpreter("/other", True)


# --- what is compared -------------------------------------------------------------------------------------------------------------------------


def test_different_versions_are_named_with_who_has_them() -> None:
    one = {"python": "3.11.4", "torch": "2.3", "kernel": "6.1", "NCCL_SOCKET_IFNAME": "eth0"}
    told = {
        0: one,
        1: {**one, "python": "3.11.9"},
        2: {**one, "torch": "2.1", "NCCL_SOCKET_IFNAME": "ib0"},
        3: {**one, "NCCL_ALGO": "Ring", "kernel": "5"},
    }
    differs = environment.versions(told)
    assert environment.sentence(differs) == "multiple versions: NCCL_ALGO none on w0,w1,w2; Ring on w3 | torch 2.3 on w0,w1,w3; 2.1 on w2 | " + (
        "kernel 6.1 on w0,w1,w2; 5 on w3"
    )
    assert environment.odd_ones(differs) == {2: ["torch 2.1"], 3: ["NCCL_ALGO Ring"]}
    assert environment.versions({0: one, 1: one}) == {} and environment.sentence({}) == ""


@pytest.mark.parametrize(
    ("node", "module", "said", "offers"),
    [
        ("", "", {"cuda": "12.8"}, ("cpu", "gloo")),
        ("/dev/nvidiactl", "", {"cuda": "12.8"}, ("cuda", "nccl")),
        ("/dev/nvidiactl", "", {}, ("cpu", "gloo")),  # torch for processors, on a machine with GPUs
        ("/dev/kfd", "", {"hip": "6.4"}, ("cuda", "nccl")),
        ("/dev/davinci_manager", "torch_npu", {}, ("npu", "hccl")),
        ("/dev/davinci_manager", "", {}, ("cpu", "gloo")),
        ("/dev/mtgpu.0", "torch_musa", {}, ("musa", "mccl")),
        ("/dev/cambricon_ctl", "torch_mlu", {}, ("mlu", "cncl")),
    ],
)
def test_the_backend_is_that_of_the_devices_and_of_the_torch_that_are_there(
    monkeypatch: pytest.MonkeyPatch, node: str, module: str, said: dict[str, str], offers: tuple[str, str]
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: path == node)
    monkeypatch.setattr(environment, "found", lambda name: module if name == module else "")
    assert environment.backend_here(said) == offers


def test_the_interface_of_a_way_is_found_by_its_address() -> None:
    assert (member.interface_of("127.0.0.1"), member.interface_of("192.0.2.1")) == ("lo", "")


def test_a_pairing_is_judged_by_the_median_of_the_others_size_by_size() -> None:
    measured = {(0, 1): {"net.4": 10.0, "net.8": 20.0}, (2, 3): {"net.4": 10.0, "net.8": 20.0}, (4, 5): {"net.4": 10.0, "net.8": 10.0}}
    assert hub.relative(measured) == {}, "two others are no median"
    measured[(1, 2)] = {"net.4": 11.0, "net.8": 21.0}
    shares = hub.relative(measured)
    assert shares[(4, 5)] == 0.5 and shares[(0, 1)] == 1.0


def spoken(speed: dict[tuple[int, int], float], *, workers: int = 4, **told: Any) -> list[dict[str, Any]]:
    """What `performance` tells each of the workers, of eight devices, when the pairs have these speeds: 10 GB/s if not said, 0 = the test fails."""

    class Given(hub.Hub):
        def _give(self, groups: list[list[int]], what: str, seconds: float, link: str = "net", **more: float) -> list[dict[str, Any]]:
            found = [speed.get((group[0], group[-1]), 10.0) for group in groups]
            return [{"ok": value > 0, "text": "no end", "speed": {f"{link}.4194304": value}} for value in found]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        conductor = Given(listener, {"world": workers, **told})
        for index in range(workers):
            conductor.peers[index] = mock.Mock(gone=False, ready={"locals": 8})
        conductor._speed(list(range(workers)))
        conductor.selector.close()
    return [peer.send.call_args.args[0]["line"] for _, peer in sorted(conductor.peers.items())]


def named_by(lines: list[dict[str, Any]], passes: float) -> pairs.Named:
    told = [pairs.told([CheckResult("performance", line["pass"], values=line["values"])], i, len(lines)) for i, line in enumerate(lines)]
    return pairs.judge(pairs.outcomes(dict(enumerate(told)), passes))


def test_a_worker_that_is_slow_to_others_is_slow_however_quick_it_is_inside() -> None:
    lines = spoken({(0, 1): 5.0, (1, 2): 5.0, (1, 3): 5.0}, speedCounts=True)
    assert [line["code"] for line in lines] == ["", "slow", "", ""], lines
    assert named_by(lines, pairs.SLOW) == pairs.Named(frozenset({1})) and named_by(lines, 0.0) == pairs.Named()


@pytest.mark.parametrize("counts", [True, False])
def test_a_worker_whose_large_messages_do_not_arrive_is_named_though_no_speed_of_it_is_known(counts: bool) -> None:
    lines = spoken({(0, 1): 0.0, (1, 2): 0.0, (1, 3): 0.0}, speedCounts=counts)
    assert "failed with w" in lines[1]["result"] and named_by(lines, 0.0) == pairs.Named(frozenset({1})), lines
    both = spoken({(0, 1): 0.0, (0, 0): 0.0, (1, 1): 0.0}, workers=2, byHand=True)
    assert [(line["pass"], line["code"]) for line in both] == [(False, "bandwidthFailed")] * 2
    assert not any(name.startswith("pair.") for line in spoken({}) for name in line["values"])


# --- the meeting ------------------------------------------------------------------------------------------------------------------------------


def task(workers: int, command: tuple[str, ...] = TORCH, **spec: Any) -> WorkerTask:
    return WorkerTask(JobSpec("meet", command=command, workers=workers, **spec), job="meet-1", uid="uid-1", workers=workers)


def prepared(index: int, workers: int, port: int, env: dict[str, str] | None = None, **told: Any) -> Meeting:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, **(env or {})}
    made = meeting.prepare(task(workers), environ, index=index, host="127.0.0.1", port=port, round_key=("e", 0, 1), grace=10.0, gpus=False)
    assert made is not None
    return Meeting(made.python, json.dumps({**json.loads(made.told), **told}), made.grace, made.env)


async def met(meetings: list[Meeting]) -> list[dict[str, CheckResult]]:
    reaper = Reaper()
    reaper.open()
    try:
        every = await asyncio.gather(*(one.run(reaper, f"check.{os.getpid()}.meet{i}", f"n{i}") for i, one in enumerate(meetings)))
    finally:
        reaper.close()
    return [{result.CheckType: result for result in results} for results in every]


@pytest.mark.torch
async def test_two_workers_meet_and_every_value_of_a_real_collective_is_right() -> None:
    pytest.importorskip("torch")
    port = ports.free_port((20000, 29999))
    first, second = await met([prepared(0, 2, port), prepared(1, 2, port, {"NCCL_ALGO": "Ring"})])
    for results in (first, second):
        assert list(results) == ["environment", "allreduce", "performance"]
        assert all(result.Pass for result in results.values()), results
    assert "multiple versions: NCCL_ALGO none on w0; Ring on w1" in first["environment"].Result
    assert first["environment"].code == "multipleVersions"
    assert "all_reduce and all_gather over 2 workers, every value right (gloo)" in second["allreduce"].Result
    assert first["performance"].values["net.4194304.1"] > 0 and (first["allreduce"].node, second["allreduce"].node) == ("n0", "n1")


async def test_without_torch_in_that_python_nothing_is_tested_and_nobody_fails(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not for this machine')\n")
    port = ports.free_port((20000, 29999))
    broken = {"PYTHONPATH": str(tmp_path)}
    for results in await met([prepared(0, 2, port, broken), prepared(1, 2, port, broken)]):
        assert all(result.Pass for result in results.values()) and "not applicable" in results["allreduce"].Result
    assert "not for this machine" in results["allreduce"].Result


async def test_who_does_not_come_is_told_and_who_finds_nobody_says_so_without_accusing() -> None:
    port = ports.free_port((20000, 29999))
    (alone,) = await met([prepared(0, 2, port, meet=0.5)])
    assert "not there: w1" in alone["environment"].Result and alone["allreduce"].Pass
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first:  # further packets to it get no answer
        first.connect(full.getsockname())
        (cut,) = await met([prepared(1, 2, port, meet=1.0, hub=list(full.getsockname()))])
    assert (cut["allreduce"].Pass, cut["allreduce"].code, cut["allreduce"].values) == (False, "allreduce", {"pair.0": 0.0})
    (late,) = await met([prepared(1, 2, port, meet=0.5)])
    assert (late["allreduce"].Pass, late["allreduce"].code, late["allreduce"].values) == (False, "late", {})


async def test_a_stranger_at_the_door_of_the_meeting_changes_nothing() -> None:
    port = ports.free_port((20000, 29999))

    async def strangers() -> None:
        for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"hello": 1, "key": "guess", "env": {}}\n', b"[" * 5000 + b"\n", b"\xff\n", b'{"hello": null}\n'):
            for _ in range(1000):
                with socket.socket() as sock:
                    sock.setblocking(False)
                    try:
                        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
                    except OSError:
                        await asyncio.sleep(0.01)
                        continue
                    await asyncio.get_running_loop().sock_sendall(sock, words)
                    await asyncio.get_running_loop().sock_recv(sock, 100)
                    break

    both = asyncio.gather(met([prepared(0, 2, port, {"PYTHONPATH": ""}, meet=3.0)]), strangers(), return_exceptions=True)
    results = (await both)[0]
    assert isinstance(results, list)
    assert "not there: w1" in results[0]["environment"].Result


def test_the_place_of_the_meeting_has_room_for_as_many_as_may_come() -> None:
    script = "import resource as r; from aegis_agent.collective import program as p; p.many_files(); print(r.getrlimit(r.RLIMIT_NOFILE))"
    few = f"ulimit -Sn 64; ulimit -Hn 512; exec {sys.executable} -c '{script}'"
    assert subprocess.run(["sh", "-c", few], capture_output=True, text=True, check=True, timeout=60).stdout == "(512, 512)\n"


@pytest.mark.parametrize(
    ("workers", "port", "command"), [(1, 23000, TORCH), (2, 0, TORCH), (2, 23000, ("sleep", "1")), (2, 23000, ("python", "-c", "print(1)"))]
)
def test_nobody_meets_where_there_is_nobody_no_place_or_no_torch(workers: int, port: int, command: tuple[str, ...]) -> None:
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    assert meeting.prepare(task(workers, command), environ, index=0, host="127.0.0.1", port=port, round_key=("e", 0, 1), grace=1, gpus=False) is None


@pytest.mark.torch
async def test_a_meeting_out_of_warm_standbys_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed, time\ntime.sleep(600)\n")
    argv = (sys.executable, str(script))
    warm: list[bool] = []

    def spawn(*given: Any, **options: Any) -> Any:
        child, out_of_it = standby_run(*given, **options)
        warm.append(out_of_it)
        return child, out_of_it

    monkeypatch.setattr(running, "warm_run", spawn)
    reaper, port = Reaper(), ports.free_port((20000, 29999))
    reaper.open()
    standbys, children = [], []
    try:
        for index in range(2):
            command = python_command(argv)
            assert command is not None
            folder = tmp_path / str(index)
            folder.mkdir()
            environ = {**os.environ, "AEGIS_SCOPE": f"warm{os.getpid()}.w{index}.1.agent"}
            standby = Standby(reaper, command, environ, cwd=str(tmp_path), folder=folder, say=lambda _: None)
            standby.open()
            standbys.append(standby)
            child, _ = standby_run(standby, reaper, argv, env={**environ, "AEGIS_SCOPE": f"warm{os.getpid()}.w{index}.1.0"}, record=True)
            children.append(child)
        await until(lambda: all(one.given_up or one.preloaded > 100 for one in standbys), 90, "torch is imported by both standbys")
        assert not any(one.given_up for one in standbys), [one.given_up for one in standbys]
        for child in children:
            child.signal_group(9)
        meetings = [dataclasses.replace(prepared(index, 2, port), words=argv[:1]) for index in range(2)]
        every = await asyncio.gather(
            *(
                one.run(reaper, f"check.{os.getpid()}.warm{i}", f"n{i}", standby)
                for i, (one, standby) in enumerate(zip(meetings, standbys, strict=True))
            )
        )
        assert warm == [True, True]
        for results in every:
            assert [result.CheckType for result in results] == ["environment", "allreduce", "performance"] and all(r.Pass for r in results), results
            assert "every value right (gloo)" in results[1].Result
    finally:
        for one in standbys:
            one.close()
        for child in children:
            child.signal_group(9)
        reaper.close()
