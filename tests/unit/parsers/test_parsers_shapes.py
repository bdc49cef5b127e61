"""Shapes of tool output that the samples do not hold, written here after each tool's format."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import aegis_parsers
import pytest
from aegis_parsers import PARSERS, parse
from aegis_parsers.causes.classify import load_rules
from aegis_parsers.codes import CODES
from aegis_parsers.schema import Draft

DEAD_ROW = """\
| NVIDIA-SMI 515.65.01    Driver Version: 515.65.01    CUDA Version: 11.7     |
|-------------------------------+----------------------+----------------------+
|   0  NVIDIA A100-SXM...  On   | 00000000:07:00.0 Off |                    0 |
| N/A   32C    P0    62W / 400W |      0MiB / 81920MiB |      0%      Default |
|                               |                      |             Disabled |
+-------------------------------+----------------------+----------------------+
|   1  ERR!                Off  | ERR!            ERR! |                 ERR! |
|ERR!  ERR! ERR!    ERR! / ERR! |      ERR!            | ERR!           ERR!  |
|                               |                      |                 ERR! |
+-------------------------------+----------------------+----------------------+
| Processes:                                                                  |
|    0   N/A  N/A      1234      C   python                          1234MiB |
"""
NPU = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| 0     Ascend910           | OK            | 161.8       34                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3165 / 65536         |
| 0     Ascend910           | Critical      | -           34                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3165 / 65536         |
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| 1       0                 | 3456          | python                   | 1234                    |
"""
MIG = """\
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|                               |                      |               MIG M. |
|===============================+======================+======================|
|   0  NVIDIA A100-SXM...  On   | 00000000:07:00.0 Off |                   On |
| N/A   32C    P0    62W / 400W |     20MiB / 40536MiB |     N/A      Default |
|                               |                      |              Enabled |
+-------------------------------+----------------------+----------------------+
| MIG devices:                                                                |
+------------------+----------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |         Memory-Usage |        Vol|         Shared        |
|      ID  ID  Dev |           BAR1-Usage | SM     Unc| CE  ENC  DEC  OFA  JPG|
|                  |                      |        ECC|                       |
|==================+======================+===========+=======================|
|  0    7   0   0  |      3MiB /  4864MiB | 14      0 |  1   0    0    0    0 |
|                  |      0MiB /  8191MiB |           |                       |
+------------------+----------------------+-----------+-----------------------+
"""
WINDOWS = """| NVIDIA-SMI 512.95       Driver Version: 512.95       CUDA Version: 11.6     |
|-------------------------------+----------------------+----------------------+
| GPU  Name            TCC/WDDM | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  NVIDIA GeForce ... WDDM  | 00000000:01:00.0  On |                  N/A |
| 30%   45C    P8    15W / 220W |    800MiB /  8192MiB |      3%      Default |
+-------------------------------+----------------------+----------------------+
"""
QUERY = """\
Attached GPUs                             : 1
GPU 00000000:04:00.0
    GPU Recovery Action                   : None
    ECC Errors
        Volatile
            DRAM Uncorrectable            : 2
        Aggregate
            DRAM Uncorrectable            : 9
            SRAM Threshold Exceeded       : Yes
    Remapped Rows
        Correctable Error                 : 3
        Pending                           : Yes
        Remapping Failure Occurred        : No
    Clocks Event Reasons
        HW Thermal Slowdown               : Active
    GPU Link Info
        Link Width
            Max                           : 16x
            Current                       : 8x
"""


def codes(tool: str, text: str) -> list[str]:
    return sorted(finding.code for finding in parse(tool, text).findings)


def test_a_row_of_errors_is_a_lost_gpu_and_its_neighbour_is_not() -> None:
    parsed = parse("nvidia-smi", DEAD_ROW)
    assert [(finding.code, finding.item) for finding in parsed.findings] == [("gpu_lost", "1")]
    assert not parsed.unreadable


SMART = """\
smartctl 7.3 2022-02-28 r5338 [x86_64-linux-6.1.0] (local build)
=== START OF SMART DATA SECTION ===
SMART overall-health self-assessment test result: FAILED!
Critical Warning:                   0x04
Temperature:                        38 Celsius
Available Spare:                    100%
Available Spare Threshold:          10%
Percentage Used:                    101%
Media and Data Integrity Errors:    1,204
"""
ATA = """\
smartctl 7.2 2020-12-30 r5155
SMART overall-health self-assessment test result: PASSED
ID# ATTRIBUTE_NAME          FLAG     VALUE WORST THRESH TYPE      UPDATED  WHEN_FAILED RAW_VALUE
  5 Reallocated_Sector_Ct   0x0033   100   100   010    Pre-fail  Always       -       0
197 Current_Pending_Sector  0x0032   100   100   000    Old_age   Always       -       8
"""


def test_a_disk_is_judged_by_its_own_verdict_and_limits() -> None:
    assert codes("smartctl", SMART) == ["smart_failed", "smart_media_errors", "smart_worn"]
    assert codes("auto", ATA) == ["smart_media_errors"] and parse("smartctl", ATA.replace("   8\n", "   0\n")).health == "healthy"
    log = {"critical_warning": 2, "available_spare": 5, "available_spare_threshold": 10, "media_errors": 0, "percentage_used": 1}
    told = {"smartctl": {}, "device": {"name": "/dev/nvme1n1"}, "smart_status": {"passed": True}, "nvme_smart_health_information_log": log}
    assert codes("smartctl", json.dumps(told)) == ["smart_failed", "smart_hot"]
    assert parse("smartctl", json.dumps({**told, "nvme_smart_health_information_log": {}})).health == "healthy"
    mute = {"smartctl": {"messages": [{"string": "Unable to detect device type"}]}, "device": {"name": "/dev/vda"}}
    assert parse("smartctl", json.dumps(mute)).health == "unknown"


def test_parts_of_a_gpu_are_listed_beside_it_and_each_has_its_own_errors() -> None:
    parsed = parse("nvidia-smi", MIG)
    assert ([item["id"] for item in parsed.items], parsed.health) == (["driver", "00000000:07:00.0", "0/mig0"], "healthy")
    assert [(finding.code, finding.item) for finding in parse("nvidia-smi", MIG.replace("14      0 |", "14      2 |")).findings] == [
        ("ecc_uncorrected", "0/mig0")
    ]


def test_a_table_of_windows_is_read() -> None:
    assert parse("nvidia-smi", WINDOWS.replace("\n", "\r\n")).health == "healthy"


def test_what_an_editor_or_a_terminal_put_around_a_text_changes_nothing(shared: Path) -> None:
    kept = (
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "   \n"),
        lambda text: "\n".join(f"\x1b[1;32m{line}\x1b[0m\x1b[K" for line in text.split("\n")),
        lambda text: text.encode("utf-16"),
        lambda text: text.rstrip("\n"),
    )
    for path in sorted((shared / "tools").glob("*.*")):
        text = path.read_text()
        if path.name == "README.md":
            continue
        for change in kept:
            for tool in (path.stem, "auto"):
                before, after = parse(tool, text), parse(tool, change(text))
                assert ([(f.code, f.item) for f in after.findings], after.health) == ([(f.code, f.item) for f in before.findings], before.health), (
                    path.name,
                    tool,
                    after.unreadable,
                )


def test_state_of_the_remapping_decides_and_not_the_lifetime_count() -> None:
    found = codes("nvidia-smi-q", QUERY)
    assert found == [
        "ecc_sram_threshold",
        "ecc_uncorrected",
        "pcie_width",
        "row_remap_pending",
        "throttle_hw_thermal_slowdown",
    ]


def test_a_gpu_may_be_lost_field_by_field() -> None:
    text = "index, uuid, temperature.gpu, power.draw [W]\n0, GPU-1, 35, 110.2 W\n"
    text += "1, GPU-2, [GPU is lost], [GPU is lost]\n2, GPU-3, [n/a], [Unknown Error]"
    assert [(finding.code, finding.item) for finding in parse("nvidia-smi", text).findings] == [("gpu_lost", "GPU-2")]


def test_a_dead_link_is_named_with_its_gpu() -> None:
    text = "GPU 0: NVIDIA H100 (UUID: GPU-a)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
    assert [(finding.code, finding.item) for finding in parse("nvlink", text).findings] == [("nvlink_inactive", "0")]


def test_down_with_the_physical_link_up_is_a_missing_subnet_manager_and_no_cable() -> None:
    text = "CA 'mlx5_1'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: LinkUp\n\t\tBase lid: 65535\n\t\tLink layer: InfiniBand\n"
    parsed = parse("ibstat", text)
    assert [(finding.code, finding.severity) for finding in parsed.findings] == [("ib_no_subnet_manager", "info")]


def test_two_dies_of_one_npu_are_two_items() -> None:
    parsed = parse("npu-smi", NPU)
    assert [item["id"] for item in parsed.items] == ["0/0", "0/1"]
    assert [(finding.code, finding.item) for finding in parsed.findings] == [("npu_health_critical", "0/1")]


def test_not_available_is_not_available() -> None:
    text = "| 0           MetaX C550             | 0000:0f:00.0        | 0%                   |\n"
    text += "| 29C         53W / 450W             | 858/65536 MiB       | Not Available(0x1)   |\n"
    assert codes("mx-smi", text) == ["mx_gpu_not_available"]

    cut = text.replace("Not Available(0x1)   |", "Avai").rstrip()
    assert parse("mx-smi", cut).health == "unknown" and codes("mx-smi", cut) == []


def test_what_is_cut_or_damaged_or_no_output_at_all_is_not_well() -> None:
    lost = "[ 12.0] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    assert codes("dmesg", lost.replace(" ", "\u00a0")) == codes("dmesg", lost.replace("\n", "\r") * 2) == ["xid_79"]
    assert parse("dmesg", "[ 12.0] all\0\0is well\n").health == "unknown"
    assert parse("nvidia-smi-csv", "Segmentation fault, core dumped, sorry\n").health == "unknown"
    assert parse("nvidia-smi-csv", "NVIDIA H100, GPU-01234567-89ab-cdef, 00000000:3B:00.0\n").health == "healthy"
    half = "|   5  NVIDIA H100 80GB HBM3          On  |   00000000:97:00.0 N/A |                  N/A |\n"
    half += "|ERR!   50C    P0            N/A  /  N/A  |       0MiB /  81559MiB |     N/A      Default |\n"
    assert parse("nvidia-smi", half).health == "unknown"
    port = "\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
    assert parse("ibstat", "CA 'mlx5_0'\n\tNumber of ports: 2\n" + port).health == "unknown"
    assert parse("ibstat", "CA: 'mlx5_0'\n" + port).health == "healthy"


def test_a_listing_is_judged_by_what_it_measures_and_not_by_what_processes_are_called() -> None:
    text = "Attached GPUs : 1\nGPU 00000000:19:00.0\n    Product Name : NVIDIA H100\n    PCI\n        Bus : 0x19\n"
    assert parse("nvidia-smi-q", text).health == "unknown", "cut off"
    text += "    Temperature\n        GPU Current Temp : 30 C\n    Processes\n        Process ID : 7\n            Name : python GPU is lost\n"
    assert (parse("nvidia-smi-q", text).health, codes("nvidia-smi-q", text)) == ("healthy", [])
    text += "    Fabric\n        State : Completed\n        Health\n            Route Unhealthy : True\n"
    assert codes("nvidia-smi-q", text) == ["fabric_unhealthy"]


def test_a_word_or_a_number_that_nobody_knows_is_unknown_and_no_finding() -> None:
    gpu = "| 0           MetaX C550             | 0000:0f:00.0        | 0%                   |\n"
    state = gpu + "| 29C         53W / 450W             | 858/65536 MiB       | {}            |\n"
    for word, health in (("Available", "healthy"), ("可用", "unknown"), ("Unavailable", "unhealthy")):
        assert parse("mx-smi", state.format(word)).health == health
    assert parse("superbench", '{"nccl-bw/busbw:0": NaN}').health == "unknown"
    card = "3b:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n\tCapabilities: <access denied>\n"
    assert parse("lspci", card).health == "unknown" and parse("lspci", card.replace("3D", "USB")).health == "healthy"


def test_the_long_form_of_ibdev2netdev_tells_the_state_of_the_port() -> None:
    line = "0000:18:00.0 mlx5_0 (MT4129 - MCX75310AAS-NEAT) ConnectX-7 (NDR) fw 28.39.1002 port 1 ({}) ==> {} (Down)\n"
    assert parse("ibdev2netdev", line.format("ACTIVE", "ibp24s0")).health == "healthy"
    assert codes("ibdev2netdev", line.format("DOWN  ", "ibp24s0")) == ["ib_port_down"]
    assert codes("ibdev2netdev", line.format("DOWN  ", "ens3f0")) == ["eth_port_down"], "an Ethernet port may be unused"
    assert {item["id"] for item in parse("ibdev2netdev", line.format("ACTIVE", "ibp24s0")).items} == {"mlx5_0/1"}


def test_what_the_driver_advises_is_what_it_said_last() -> None:
    line = "[ 9.0] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n"
    back = "[ 99.0] NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"
    assert [finding.severity for finding in parse("dmesg", line + back).findings] == ["info"]
    assert [finding.severity for finding in parse("dmesg", line + back + line).findings] == ["critical"]


def test_a_warning_in_place_of_json_is_no_data() -> None:
    assert parse("rocm-smi", "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n").health == "unknown"


def test_a_narrow_gpu_and_a_slow_rdma_card_are_named_and_a_dead_function() -> None:
    text = "3b:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)\n"
    text += "5d:00.0 Infiniband controller: Mellanox Technologies MT2910\n\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x16 (ok)\n"
    text += "9b:00.0 3D controller: NVIDIA Corporation Device 2330 (rev ff)\n\t!!! Unknown header type 7f\n"
    assert [(finding.code, finding.item) for finding in parse("lspci", text).findings] == [
        ("pcie_width", "3b:00.0"),
        ("pcie_speed", "5d:00.0"),
        ("gpu_fallen_off_bus", "9b:00.0"),
    ]


def test_one_link_below_the_others_is_named() -> None:
    line = '           3    {n}[  ] ==( {w}X        53.125 Gbps Active/  LinkUp)==>       {n}    1[  ] "gpu-{n}" ({note})\n'
    text = "Switch: 0x01 leaf:\n" + "".join(line.format(n=n, w=4, note=" ") for n in range(1, 4)) + line.format(n=4, w=1, note=" Could be 4X ")
    assert [(finding.code, finding.item) for finding in parse("iblinkinfo", text).findings] == [("ib_link_degraded", "0x01 port 4")]


def test_cleanup_beside_another_xid_is_dropped_and_alone_it_stands() -> None:
    cleanup = "NVRM: Xid (PCI:0000:db:00): 45, pid=1, Ch 00000008\n"
    assert codes("dmesg", cleanup * 600 + "NVRM: Xid (PCI:0000:db:00): 79, GPU has fallen off the bus\n") == ["xid_79"]
    assert codes("dmesg", cleanup) == ["xid_45"]
    assert codes("dmesg", "[   12.3] NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.\n") == ["xid_79"]  # older drivers


def test_a_server_that_answered_again_is_no_finding() -> None:
    away, back = "[ 10.1] nfs: server 10.0.0.1 not responding, still trying\n", "[ 12.1] nfs: server 10.0.0.1 OK\n"
    assert codes("dmesg", away + back) == []
    assert codes("dmesg", away + back + away) == ["nfs_not_responding"]


def test_a_slow_fan_is_measured_against_those_of_its_side() -> None:
    rows = [9000, 7000, 9100, 7100, 8900, 6900, 9000, 3000]
    text = "part number        | X\n" + "".join(f"fan#{n} (rpm)        | {rpm}\n" for n, rpm in enumerate(rows, 1))
    assert [finding.item for finding in parse("ibswinfo", text).findings] == ["fan8"]


def test_wrong_data_of_a_collective_is_named_with_its_size() -> None:
    text = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    text += "   536870912     134217728     float     sum      -1   1806.7  297.16  586.06      3   1835.9  292.43  576.74      0\n"
    assert [(finding.code, finding.item) for finding in parse("nccl-tests", text).findings] == [("nccl_wrong_data", "536870912")]


def test_every_code_in_the_source_is_explained() -> None:
    folder = Path(aegis_parsers.__file__).parent
    used = {
        code
        for path in folder.rglob("*.py")
        for code in re.findall(r'\.finding\(\s*"(\w+)",', path.read_text())
        + re.findall(r'\),? ?"(\w+)", "(?:info|warning|critical|fatal)"', path.read_text())
    }
    labels = {pattern.label for pattern in load_rules().patterns}
    assert len(used) > 40
    assert not used - set(CODES) - labels


def test_who_reads_one_tool_loads_its_parser_alone_and_every_row_has_one() -> None:
    """On the way of every recovery: loading all of them takes longer than the check that asks."""
    code = "import sys; from aegis_parsers import parse; parse('dmesg', 'x'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "aegis_parsers.dmesg" in loaded
    assert not [name for name in loaded if name.startswith(("aegis_parsers.ib", "aegis_parsers.nvidia", "aegis_parsers.vendors"))]
    for tool, parser in PARSERS.items():
        draft = Draft(tool)
        parser.read(draft, "")
        assert not parser.looks(""), tool


@pytest.mark.parametrize(
    ("state", "active", "enabled", "found"),
    [
        ("Active", "1X", "1X or 4X", ["ib_link_degraded"]),
        ("Active", "2X", "1X or 4X or 2X", ["ib_link_degraded"]),
        ("Active", "4X", "1X or 4X or 12X", []),
        ("Active", "1X", "1X", []),
        ("Down", "1X", "1X or 4X", ["ib_port_down"]),
    ],
)
def test_an_active_port_that_has_lost_lanes_is_named(state: str, active: str, enabled: str, found: list[str]) -> None:
    phys = "LinkUp" if state == "Active" else "Polling"
    width = f"LinkWidthEnabled:....{enabled}\nLinkWidthActive:...{active}\n"
    text = f"# Port info: Lid 3 port 1\nLinkState:......{state}\nPhysLinkState:.....{phys}\n{width}"
    assert [finding.code for finding in parse("ibportstate", text).findings] == found
