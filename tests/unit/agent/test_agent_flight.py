"""Flight records of a run: torch is told to keep them, a hang brings them to the store, and there they name the culprit."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import zlib
from pathlib import Path

import pytest
from aegis_agent import blobs, flight
from aegis_agent.env import RunPlan, nested_environment, rank_environment
from aegis_agent.nested import detect
from aegis_bus.natsserver import NatsServer
from aegis_lognexus.dumps import collect, flight_report
from aegis_lognexus.flight import Report
from aegis_proto.phases import OrderPhase
from aegis_proto.streams import stream_configs
from agent_scripted_master import JOB, Agent, ScriptedMaster, task_of

PLAN = RunPlan("j-000001", "w1", 1, 2, 1, 2, 4, "10.0.0.1", 29500, 3, "scope", flight_dir="/state/flight/2")
TRAIN = """
import os, time, torch, torch.distributed as dist
import aegis_agent.flightwriter
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    dist.all_reduce(torch.ones(1))
print("three are done", flush=True)
if rank == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""


def test_torch_is_told_to_keep_records_and_where_and_the_users_own_values_win() -> None:
    env = rank_environment({}, PLAN, 0)
    assert env["TORCH_FR_BUFFER_SIZE"] == "2000" and env["TORCH_FR_DUMP_TEMP_FILE"] == "/state/flight/2/rank_"
    assert env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "/state/flight/2/ask_" and env["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    torchrun = detect(["torchrun", "x.py"])
    assert torchrun is not None and nested_environment({}, PLAN, torchrun)["TORCH_FR_DUMP_TEMP_FILE"] == "/state/flight/2/rank_"
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/mine/x_", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    env = rank_environment(own, PLAN, 0)
    assert {name: env[name] for name in own} == own
    assert "TORCH_FR_BUFFER_SIZE" not in env and "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in env
    assert flight.prefix_of(env, flight.FLIGHT_DUMP, PLAN.dump_prefix) == "/mine/x_"


def test_a_record_has_a_rank_in_the_end_of_its_name_and_a_pipe_is_none(tmp_path: Path) -> None:
    for name in ("rank_7", "rank_host-a_12", "rank_", "rank_x", "other_3"):
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "rank_9")
    (tmp_path / "rank_11").symlink_to(tmp_path / "rank_7")
    assert sorted(found.rank for found in flight.look(f"{tmp_path}/rank_").values()) == [7, 12]
    assert flight.look("") == {} and flight.look(f"{tmp_path}/none/rank_") == {}
    small, large = b"x" * 100, os.urandom(1000) * 1000
    assert blobs.packed(small) == (small, "")
    body, end = blobs.packed(large)
    assert end == ".zlib" and len(body) < len(large) and zlib.decompress(body) == large


async def test_what_an_earlier_run_left_where_the_user_wants_records_is_no_word_about_this_one(
    server: NatsServer, master: ScriptedMaster, agents: list[Agent], tmp_path: Path
) -> None:
    blobs_of = next(config for config in stream_configs() if config["name"] == "BLOBS")
    await master.bus.js_api("STREAM.CREATE.BLOBS", blobs_of)
    (tmp_path / "fr").mkdir()
    (tmp_path / "fr/x_7").write_bytes(b"of an earlier run")
    os.utime(tmp_path / "fr/x_7", (time.time() - 60, time.time() - 60))
    task = task_of(server, "sh", "-c", 'printf new > "${TORCH_FR_DUMP_TEMP_FILE}3"; exit 3')
    agents.append(agent := Agent(tmp_path, task, {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/fr/x_"}))
    await master.report("pending")
    await master.order(OrderPhase.COMMAND)
    await master.report("error")
    await master.order(OrderPhase.QUIT, exitCode=1)
    assert await agent.exit_code() == 1
    assert {piece.rank for _, piece, _ in await collect(master.bus, JOB) if piece.kind == "flight"} == {3}


@pytest.mark.torch
@pytest.mark.timeout(120)
async def test_a_hang_of_real_ranks_is_recorded_sent_and_names_the_rank_that_did_not_come(
    server: NatsServer, master: ScriptedMaster, agents: list[Agent], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    for config in stream_configs():
        if config["name"] in ("BLOBS", "LOGS"):
            await master.bus.js_api(f"STREAM.CREATE.{config['name']}", config)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    task = task_of(server, sys.executable, str(script), nprocPerNode=3)
    agents.append(agent := Agent(tmp_path, task, {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}))
    await master.report("pending")
    await master.order(OrderPhase.COMMAND, masterAddr="127.0.0.1", masterPort=29511)

    async with asyncio.timeout(90):
        while agent.text.count("three are done") < 3:
            await asyncio.sleep(0.05)
        await master.order(OrderPhase.HANG)
        report: Report | None = None
        while report is None or not report.culprits or any("no dump" in text for text in report.missing):
            await asyncio.sleep(0.2)
            report = await flight_report(master.bus, JOB, 0)
    assert (report.verdict, report.culprits, report.cause) == ("hang", (1,), "not_joined")
    assert "flight record of rank 1 sent" in agent.text
