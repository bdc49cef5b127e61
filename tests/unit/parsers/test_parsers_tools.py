"""Every collected tool output gives the finding that its source names, and healthy ones none."""

from __future__ import annotations

from pathlib import Path

import pytest
from aegis_parsers import Parsed, detect, parse

QUIET = (
    *("nvidia-smi-table-fan-err-only.txt", "nvidia-smi-table-ok-v100.txt", "nvidia-smi-q-ok-v100-trimmed.txt", "nvidia-smi-q-newer-fields.txt"),
    *("nvidia-smi-query-csv.txt", "nvidia-smi-nvlink-status-a100.txt", "lspci-vvv-downgraded.txt", "ibstat-ib-active-56.txt", "ibstatus.txt"),
    *("ibdev2netdev.txt", "perfquery-x-clean.txt", "perfquery-x-discards.txt", "mlxlink-json.txt", "npu-smi-910b-ok.txt", "npu-smi-tight-slash.txt"),
    *("mx-smi-table-ok.txt", "cnmon-ok.txt", "amd-smi-static.txt", "nccl-tests-allreduce.txt", "superbench-monitor.jsonl"),
    "sys-class-infiniband-oddities.txt",
)
FOUND = {
    "nvidia-smi-table-gpu-err-h100.txt": {("gpu_unresponsive", "00000000:97:00.0")},
    "nvidia-smi-null-markers.txt": {("gpu_lost", "4"), ("gpu_requires_reset", "5")},
    "nvidia-smi-stdout-errors.txt": {
        ("gpu_lost", "0000:02:00.0"),
        ("gpu_unreachable", "0000:34:00.0"),
        ("no_gpu_found", "driver"),
        ("nvml_init_failed", "driver"),
        ("driver_library_mismatch", "driver"),
    },
    "fabricmanager-log.txt": {
        ("nvswitch_nonfatal", "00000000:86:00.0/port61"),
        ("nvswitch_fatal", "00000000:86:00.0/port33"),
        ("fabric_manager_stopped", "fabric-manager"),
    },
    "dmesg-nvrm-xid.txt": {
        ("xid_119", "0000:9b:00"),
        ("xid_79", "0000:44:00"),
        ("gpu_fallen_off_bus", "0000:b3:00.0"),
        ("gpu_fallen_off_bus", "0000:a1:00.0"),
        ("xid_31", "0000:db:00"),
        ("xid_94", "0000:00:08"),
        ("xid_64", "0000:0f:00"),
        ("xid_13", "0000:38:00"),
        ("xid_145_nonfatal", "0000:c5:00"),
        ("xid_149_fatal", "0008:01:00"),
        ("xid_149_fatal", "0019:01:00"),
        ("xid_154", "0008:01:00"),
        ("sxid_20034_fatal", "0000:00:00.0"),
        ("sxid_12028_nonfatal", "0000:85:00.0"),
    },
    "sys-class-infiniband-h100.txt": {
        ("counter_saturated", "mlx5_0/1/excessive_buffer_overrun_errors"),
        ("counter_saturated", "mlx5_1/1/excessive_buffer_overrun_errors"),
        ("counter_saturated", "mlx5_1/1/link_downed"),
    },
    "ibstat-two-port-one-disabled.txt": {("ib_port_disabled", "mlx4_0/1")},
    "ibportstate.txt": {("ib_port_down", "lid 38 port 1"), ("ib_port_disabled", "lid 2 port 24")},
    "ibqueryerrors.txt": {("ib_port_errors", "0x0000000000000001 port 1")},
    "rdma-link.txt": {("ib_port_down", "mlx5_7/1")},
    "npu-smi-910-alarm.txt": {("npu_health_alarm", "0/0")},
}
UNKNOWN = ("mlxlink-json.txt", "nvidia-smi-q-newer-fields.txt", "nvidia-smi-q-ok-v100-trimmed.txt", "sys-class-infiniband-oddities.txt")


def read(shared: Path, name: str) -> Parsed:
    return parse(name.rsplit(".", 1)[0], (shared / "tools" / name).read_text())


@pytest.mark.parametrize("name", QUIET)
def test_a_healthy_output_gives_no_finding(shared: Path, name: str) -> None:
    assert read(shared, name).findings == ()


@pytest.mark.parametrize("name", sorted(FOUND))
def test_an_output_gives_the_findings_its_source_names_and_no_other(shared: Path, name: str) -> None:
    assert {(finding.code, finding.item) for finding in read(shared, name).findings} == FOUND[name]


def test_every_sample_is_in_one_of_the_lists(shared: Path) -> None:
    assert {path.name for path in (shared / "tools").iterdir()} - {"README.md"} == {*QUIET, *FOUND}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_cut_or_has_no_number_is_unknown(shared: Path, name: str) -> None:
    parsed = read(shared, name)
    assert parsed.unreadable
    assert parsed.health == "unknown"


def test_the_tool_is_found_from_the_text_alone(shared: Path) -> None:
    wrong = {}
    for path in sorted((shared / "tools").glob("*.*")):
        if path.name == "README.md":
            continue
        by_text, by_name = parse("auto", path.read_text()), parse(path.stem, path.read_text())
        if (by_text.findings, len(by_text.items)) != (by_name.findings, len(by_name.items)):
            wrong[path.name] = detect(path.read_text())
    assert not wrong


def test_a_nonfatal_nvlink_event_is_no_reason_to_act_and_a_fatal_one_is(shared: Path) -> None:
    by_code = {finding.code: finding.severity for finding in read(shared, "dmesg-nvrm-xid.txt").findings}
    assert by_code["xid_145_nonfatal"] == "info"
    assert by_code["xid_149_fatal"] == "critical"
    assert by_code["sxid_12028_nonfatal"] == "info"
    assert by_code["xid_154"] == "critical"


def test_an_xid_says_which_action_and_who_decided(shared: Path) -> None:
    items = {item["code"]: item for item in read(shared, "dmesg-nvrm-xid.txt").items if item["kind"] == "xid"}
    assert (items[64]["action"], items[64]["source"]) == ("replace", "aws")
    assert (items[79]["action"], items[79]["source"]) == ("reboot", "catalogue")
    assert (items[154]["action"], items[154]["source"]) == ("reset_gpu", "text")


def test_bandwidth_is_given_per_size_and_the_average_apart(shared: Path) -> None:
    items = {item["id"]: item for item in read(shared, "nccl-tests-allreduce.txt").items}
    assert items["8589934592"]["out_busbw_gbps"] == 235.26
    assert items["average"]["busbw_gbps"] == 68.4048


def test_a_tight_slash_and_five_digits_are_read(shared: Path) -> None:
    chip = read(shared, "npu-smi-tight-slash.txt").items[0]
    assert (chip["hbm_used_mb"], chip["hbm_total_mb"]) == (57784, 65536)
