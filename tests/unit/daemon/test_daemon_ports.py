"""The ports of a node as its daemon tells them: one message per poll, nothing excluded is opened, and what hangs or fails costs only itself."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from aegis_agent.daemon import cli
from aegis_agent.daemon.ports import Mlxlink, Ports, PortSettings, Telling, nccl
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_bus.ordered import OrderedReader
from aegis_netmon.hostpoll import read
from aegis_netmon.hosts import Hosts
from aegis_parsers.ib.live import PortReading, Reader
from aegis_proto import subjects
from aegis_proto.messages import decode, encode
from aegis_proto.net import NodePorts
from aegis_proto.state import JobSpec
from harness.netservice import Sysfs
from harness.waiting import until_sync

MLXLINK = """#!/bin/sh
echo "$@" >> "$0.asked"
cat <<END
{"result": {"output": {
 "Operational Info": {"State": "Active", "Physical state": "LinkUp", "Speed": "IB-NDR", "Width": "4x", "FEC": "RS"},
 "Physical Counters and BER Info": {"Time Since Last Clear [Min]": "600.0", "Symbol Errors": "90000", "Symbol BER": "6E-11",
  "Effective Physical Errors": "0", "Effective Physical BER": "15E-255", "Raw Physical BER": "1E-9",
  "Raw Physical Errors Per Lane": {"values": ["10", "12", "9", "11"]}}}},
 "status": {"code": 0, "message": "Success"}}
END
"""


def test_a_device_that_does_not_return_costs_itself_alone_and_is_not_asked_again_before_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sysfs(tmp_path, 1, devices=3)
    released, asked = threading.Event(), list[str]()
    real: Callable[[Reader, str], list[PortReading]] = Reader.ports

    def hanging(self: Reader, device: str) -> list[PortReading]:
        asked.append(device)
        if device == "mlx5_1":
            released.wait(30)
        return real(self, device)

    monkeypatch.setattr(Reader, "ports", hanging)
    ports = Ports(PortSettings(root=str(tmp_path)))
    for _ in range(2):
        found = {port.device: port for port in ports.read(patience=0.05)}
        assert [found[device].note for device in ("mlx5_0", "mlx5_1", "mlx5_2")] == ["", "its files do not return", ""]
        assert found["mlx5_2"].counters["symbol_error"] == 0
    assert asked.count("mlx5_1") == 1
    released.set()
    until_sync(lambda: ports.read()[1].counters, 10, "it is read again")


def test_mlxlink_is_asked_seldom_and_beside_the_polls(tmp_path: Path) -> None:
    program = tmp_path / "mlxlink"
    program.write_text(MLXLINK)
    program.chmod(0o700)
    Sysfs(tmp_path / "sysfs", 1, devices=2)
    readings = Ports(PortSettings(root=str(tmp_path / "sysfs"))).read()
    mlxlink, found = Mlxlink(str(program), every=300.0), {}
    until_sync(lambda: found.update(mlxlink.take(readings, 1000.0)) or len(found) == 2, 20, "optics of both ports")
    assert found["mlx5_1/1"].symbolBer == 6e-11
    assert found["mlx5_1/1"].effectiveBer == 0.0
    assert found["mlx5_1/1"].lanes == (10, 12, 9, 11)
    assert mlxlink.take(readings, 1299.0) == {}
    asked = (tmp_path / "mlxlink.asked").read_text().split("\n")
    assert sorted(line.split()[1] for line in asked if line) == ["mlx5_0", "mlx5_1"]
    assert Mlxlink("", every=1.0).take(readings, 0.0) == {}
    assert Mlxlink("/nowhere/mlxlink").take(readings, 0.0) == {}


FLOOD = "mlx5_core 0000:{pci}:00.0: mlx5_cmd_out_err:835:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), err(-22)"


def test_a_device_whose_reading_floods_the_kernel_log_is_left_alone_and_one_that_others_read_is_read_on(tmp_path: Path) -> None:
    """mlx5_0's lines come because of us, and end with our reading; mlx5_1's come all the time."""
    Sysfs(tmp_path / "sys", 1, devices=3)
    for n in range(3):
        (tmp_path / f"sys/mlx5_{n}/device").symlink_to(f"../../../0000:0{n}:00.0")
    log = tmp_path / "kmsg"
    log.write_text(FLOOD.format(pci="02") + "\n" * 3 + "before the daemon was here\n")
    telling = Telling("n1", "boot", PortSettings(root=str(tmp_path / "sys"), kernel_log=str(log)))

    def poll() -> list[bool]:
        """Which of the three devices were read; what the kernel says of it comes at once."""
        read = [bool(port.values) for port in telling.read().ports]
        lines = [FLOOD.format(pci=f"0{n}") for n in (0, 1) if n == 1 or read[0]]
        with log.open("a") as file:
            file.write("".join(f"{line}\n" for line in [*lines, *lines, "usb 1-1: new device"]))
        return read

    seen = [poll() for _ in range(10)]
    assert [read[0] for read in seen] == [True] * 4 + [False] * 6, "after three polls with its lines"
    assert [read[1] for read in seen] == [True] * 4 + [False] * 3 + [True] * 3, "its lines went on without us: they are another reader's"
    assert all(read[2] for read in seen), "its line is older than we are"


def test_of_a_job_s_environment_nothing_but_nccl_s_settings_is_told() -> None:
    spec = encode(JobSpec("x", env={"NCCL_IB_TIMEOUT": "14", "SECRET": "s", "NCCL_DEBUG": "INFO" * 100}))
    assert nccl(spec) == {"NCCL_DEBUG": ("INFO" * 100)[:128], "NCCL_IB_TIMEOUT": "14"}
    assert nccl(b"null") == nccl(b"{") == {}


@pytest.mark.parametrize(
    ("flags", "every", "exclude"),
    [((), 10.0, ()), (("--virtual",), 0.0, ()), (("--ports-every", "30", "--ports-exclude", "mlx5_bond*, hfi*"), 30.0, ("mlx5_bond*", "hfi*"))],
)
def test_flags_of_the_ports(flags: tuple[str, ...], every: float, exclude: tuple[str, ...]) -> None:
    made = cli.settings(["--creds", "x", "--servers", "nats://127.0.0.1:1", *flags], {}).ports
    assert (made.every, made.exclude) == (every, exclude)
    with pytest.raises(ValueError, match="--ports-every"):
        cli.settings(["--creds", "x", "--ports-every", "soon"], {})


async def test_a_daemon_tells_of_its_ports_and_their_optics_make_a_verdict(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> None:
    Sysfs(tmp_path / "sysfs", 0x20_0000, devices=2)
    (tmp_path / "sysfs/mlx5_1/ports/1/counters/symbol_error").unlink()
    (tmp_path / "sysfs/mlx5_1/ports/1/counters/link_downed").write_text("N/A (no PMA)")
    program = tmp_path / "mlxlink"
    program.write_text(MLXLINK)
    program.chmod(0o700)
    Identity.new("none").to_creds_file(tmp_path / "creds")
    command = [sys.executable, "-m", "aegis_agent", "node", "--node", "n1", "--state", str(tmp_path / "state"), "--virtual"]
    command += ["--servers", nats_server.url, "--creds", str(tmp_path / "creds"), "--mlxlink", str(program)]
    command += ["--ports-root", str(tmp_path / "sysfs"), "--ports-every", "1"]
    hosts = Hosts()
    with (tmp_path / "log").open("ab") as log:
        daemon = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with OrderedReader(bus, "METRICS", [subjects.net_counter("n1")]) as reader:
            async for item in reader:
                told = decode(NodePorts, item.data)  # type: ignore[union-attr]
                assert [port.device for port in told.ports] == ["mlx5_0", "mlx5_1"]
                hosts.take(read("n1", item.time_ms / 1000, told))  # type: ignore[union-attr]
                if all(port.optics is not None for port in hosts.ports.values()):
                    break
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(daemon.wait(), 20) == 0, (tmp_path / "log").read_text()
    one, other = (hosts.ports["n1", f"mlx5_{n}", 1] for n in (0, 1))
    assert one.health is not None and other.health is not None and other.port is not None
    assert (one.guid, one.health.state) == ("0000000000200000", "degraded")
    assert [finding.code for finding in other.health.findings] == ["ber_high"]
    assert other.port.values["link_downed"] is None and "symbol_error" not in other.port.values and other.port.values["port_rcv_errors"] == 0
