"""One machine at one moment: what can be read is read, the rest is named or left out."""

from __future__ import annotations

import time
from pathlib import Path

from aegis_agent import snapshot
from aegis_bus.natsserver import NatsServer
from aegis_lognexus.firstlayer import snapshots
from aegis_proto.messages import encode
from aegis_proto.phases import OrderPhase
from aegis_proto.streams import stream_configs
from agent_scripted_master import JOB, Agent, ScriptedMaster, task_of

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_load_memory_pressure_ports_and_the_kernels_last_minutes(tmp_path: Path) -> None:
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    put(tmp_path / "proc/loadavg", "3.50 2.0 1.0 1/200 1\n")
    put(tmp_path / "proc/uptime", "86400.5 1.0\n")
    put(tmp_path / "proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n")
    put(tmp_path / "proc/pressure/io", "some avg10=12.50 avg60=1.0 avg300=0.0 total=5\nfull avg10=9.0 avg60=0 avg300=0 total=1\n")
    put(tmp_path / "proc/pressure/cpu", "nonsense\n")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    put(port / "state", "1: DOWN\n")
    put(port / "counters/link_downed", "3\n")
    put(port / "counters/symbol_error", "0\n")
    put(port / "counters/port_rcv_errors", "N/A (no PMA)\n")
    stamps = [(now - 3600, XID.replace("79", "48")), (now - 60, "eth0: link becomes ready"), (now - 5, XID)]
    put(tmp_path / "dev/kmsg", "".join(f"3,{n},{int(at * 1e6)},-;{text}\n" for n, (at, text) in enumerate(stamps)))
    found = snapshot.take(tmp_path)
    assert (found.load, found.uptime, found.memory, found.pressure) == (3.5, 86400.5, 0.25, {"io": 12.5})
    assert found.ports == {"mlx5_0/1 1: DOWN": {"link_downed": 3}}
    assert [(line.label, line.cause) for line in found.kernel] == [("xid_79", "gpu_hw")]
    assert abs(found.at - 5_000 - found.kernel[0].at) < 2_000
    assert len(encode(found)) < 36_000


def test_a_machine_that_tells_nothing_is_no_error(tmp_path: Path) -> None:
    found = snapshot.take(tmp_path)
    assert (found.load, found.memory, found.kernel, found.ports) == (0.0, -1.0, (), {})
    assert any("kernel log" in text for text in found.missing)


async def test_a_failed_run_sends_one_snapshot_though_the_worker_leaves_at_once(
    server: NatsServer, master: ScriptedMaster, agents: list[Agent], tmp_path: Path
) -> None:
    blobs = next(config for config in stream_configs() if config["name"] == "BLOBS")
    await master.bus.js_api("STREAM.CREATE.BLOBS", blobs)
    agents.append(agent := Agent(tmp_path, task_of(server, "sh", "-c", "exit 3", node="n7")))
    await master.report("pending")
    await master.order(OrderPhase.COMMAND)
    await master.report("error")
    await master.order(OrderPhase.QUIT, exitCode=1)
    assert await agent.exit_code() == 1
    (found,) = await snapshots(master.bus, JOB)
    assert (found.pod, found.node, found.incarnation) == ("w0", "n7", 0)
    assert abs(found.offset) < 5_000 and found.snapshot.cpus > 0
