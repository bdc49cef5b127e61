"""`aegis net ls|show|job|top` against netmon as it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_cli.main import app
from aegis_proto.state import JobState, Pod
from harness.bus import MakeBus
from harness.netservice import Node, Process, Sysfs
from harness.site import A, job_state
from harness.waiting import until
from typer.testing import CliRunner

IBSWINFO = """SwitchIB Mellanox Technologies
-------------------------------------------------
part number        | MSB7790-ES2F
product name       | Scorpion IB EDR Unmanaged
GUID               | 0x1c34da0300010540
firmware version   | 11.2008.2102
-------------------------------------------------
temperature (C)    | 45
fan status         | ERROR
"""


async def aegis(*words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["net", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest_asyncio.fixture
async def nodes(bus: Bus, make_bus: MakeBus, nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Five nodes of one port under netmon; a job on two of them; the first port counts errors and the firmware of the last is another."""
    for name in ("AEGIS_CONTEXT", "AEGIS_BUS_CREDS", "AEGIS_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AEGIS_BUS_SERVERS", nats_server.url)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AEGIS_STACK_DIR", str(tmp_path / "stack"))
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/ibdiagnet.log").write_text("Adaptive Routing is enabled on 3 switches.\n")
    (tmp_path / "reports/sw1.txt").write_text(IBSWINFO)
    made = job_state(A, "uid-a")
    await JobStore(bus).create(JobState(made.head, ((Pod(node="n0"), Pod(node="n1")),), made.spec))
    process = await Process(nats_server.url, tmp_path, AEGIS_NETMON_REPORTS=str(tmp_path / "reports")).start()
    found = [Node(await make_bus(name=f"node-n{n}"), f"n{n}", Sysfs(tmp_path / f"n{n}", 0x10_0000 + n)) for n in range(5)]
    for n, node in enumerate(found):
        (node.sysfs.root / "mlx5_0/fw_ver").write_text("28.41.1000\n" if n < 4 else "28.39.2048\n")
    for _ in range(2):
        for node in found:
            await node.poll()
        await asyncio.sleep(0.002)
    found[0].sysfs.count("mlx5_0", symbol_error=900)
    await found[0].poll()
    yield found
    await process.kill9()


async def listed(*words: str) -> dict[str, Any]:
    code, out, _ = await aegis("ls", *words, "--json")
    return dict(json.loads(out)) if code == 0 else {}


async def test_links_are_listed_shown_and_joined_with_jobs(nodes: list[Node], tmp_path: Path) -> None:
    async def bad() -> bool:
        found = await listed("--bad")
        return bool(found.get("items")) and bool(found["items"][0].get("jobs")) and "ibdiagnet" in found["routing"].get("source", "")

    await until(bad, 30, "the bad port with its job")
    code, out, err = await aegis("ls")
    assert code == 0, err
    rows = out.split("\n")
    assert rows[0].split() == ["A", "B", "STATE", "BER", "RETX", "DROPS", "FLAPS", "JOBS", "LOOK-AT"]
    assert rows[1].startswith("n0 mlx5_0 port 1  -  degraded") and A in rows[1]
    assert "Adaptive routing: unknown by ibdiagnet (ibdiagnet.log)" in out and "on for 3 switches, of how many is not known" in out
    assert "Firmware differs: n4 mlx5_0: 28.39.2048, most have 28.41.1000" in out
    assert "Adaptive routing not known to be supported: SwitchIB Mellanox Technologies: Switch-IB 11.2008.2102" in out
    assert "netmon.fabric is false" in out
    assert "Switch 1c34da0300010540: fan status ERROR" in out
    code, out, _ = await aegis("ls", "-o", "wide")
    assert code == 0 and "GBPS" in out.split("\n")[0].split() and "GB/S" not in out
    code, out, _ = await aegis("show", "n0 mlx5_0")
    assert code == 0 and "GUID 0000000000100000" in out and "symbol_error rose by 900" in out and f"Jobs: {A}" in out
    code, out, _ = await aegis("job", A)
    assert code == 0 and f"{A} runs on 2 nodes and uses 2 links" in out
    assert json.loads((await aegis("job", A, "--json"))[1])["links"][0]["state"] == "degraded"
    nodes[1].sysfs.count("mlx5_0", port_xmit_data=10**9)
    await nodes[1].poll()

    async def busiest() -> bool:
        code, out, _ = await aegis("top", "--once")
        return code == 0 and out.split("\n")[1].startswith("n1 mlx5_0 port 1")

    await until(busiest, 20, "the busiest port comes first")
    assert (await aegis("top", "--by", "size"))[0] == 2
    for name, words in {"before": ["--bandwidth", "350"], "after": ["--bandwidth", "300", "--latency", "12"]}.items():
        code, out, err = await aegis("sample", "--nodes", "n0,n1,n99", *words, "--json")
        assert code == 0 and "n99" in err
        (tmp_path / f"{name}.json").write_text(out)
    sample = json.loads((tmp_path / "before.json").read_text())
    assert (sample["ports"], sample["bitErrors"], sample["bits"]) == (2, 900, 32 * 10**9)
    code, out, _ = await aegis("rollout", str(tmp_path / "before.json"), str(tmp_path / "after.json"))
    assert code == 0 and "turn it off again: worse: bandwidth" in out
    assert (await aegis("rollout", str(tmp_path / "before.json"), str(tmp_path / "reports/sw1.txt")))[0] == 2
    code, _, err = await aegis("show", "nothing of the kind")
    assert code == 3 and err.startswith("E104 no link")
