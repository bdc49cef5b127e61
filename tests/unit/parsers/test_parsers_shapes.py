"""Shapes of tool output that the samples do not hold, written here after each tool's format."""

from __future__ import annotations

import re
from pathlib import Path

import aegis_parsers
from aegis_parsers import parse
from aegis_parsers.causes.classify import load_rules
from aegis_parsers.codes import CODES

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
