"""Every collected network sample parses, and the numbers its README checks come out."""

from __future__ import annotations

from pathlib import Path

import pytest
from aegis_parsers import parse
from aegis_parsers.ib import ber, counters
from aegis_parsers.ib.ncclras import Late, communicators

NOT_TOOLS = {"README.md", "drive.sh", "fat_tree_16hosts.net", "thresholds_nvsentinel.json", "perfquery_0x506b4b0300cc02a6.out"}
"""Notes, ibsim's input, somebody's defaults, and a sample that is empty by intent."""
TOOLS = {
    "iblinkinfo_real_edr_hdr.txt": "iblinkinfo",
    "ibqueryerrors_real_saturated.txt": "ibqueryerrors",
    "ibdiagnet2_db_csv_format_only.csv": "ibdiagnet",
    "ibdiagnet_summary_lines.txt": "ibdiagnet",
    "ibswinfo_test1.out": "ibswinfo",
    "h100_sys_class_infiniband.json": "sysfs",
    "ufm_events.txt": "ufm",
    "kernel_mlx5.txt": "dmesg",
    "syslog_ib_flap.txt": "dmesg",
    "all_reduce_perf.txt": "nccl-tests",
    "dump_fts.txt": "dump_fts",
}


def expected(name: str) -> str:
    prefixes = ("perfquery", "ibnetdiscover", "iblinkinfo", "ibqueryerrors", "ncclras")
    return TOOLS.get(name) or next((prefix for prefix in prefixes if name.startswith(prefix)), "mlxlink")


def test_every_sample_is_recognised_and_read_whole(shared: Path) -> None:
    wrong = {}
    for path in sorted((shared / "net").rglob("*.*")):
        if path.name in NOT_TOOLS:
            continue
        parsed = parse("auto", path.read_text())
        unread = [] if path.name in ("na_fields.json", "status_error.json") else parsed.unreadable
        if parsed.tool != expected(path.name) or not parsed.items or unread:
            wrong[path.name] = (parsed.tool, len(parsed.items), unread)
    assert not wrong


def test_an_empty_answer_is_unknown(shared: Path) -> None:
    assert parse("perfquery", (shared / "net/perfquery/perfquery_0x506b4b0300cc02a6.out").read_text()).health == "unknown"


def test_lane_errors_over_bits_give_the_printed_raw_ber(shared: Path) -> None:
    port = parse("mlxlink", (shared / "net/mlxlink/eth400_healthy.json").read_text()).items[0]
    assert port["raw_ber_computed"] == pytest.approx(5.0e-10, rel=0.02)
    assert port["raw_ber"] == 5e-10
    assert port["effective_ber"] == 0.0


def test_raw_errors_of_healthy_ports_raise_nothing(shared: Path) -> None:
    parsed = parse("mlxlink", (shared / "net/mlxlink/hdr200_8hcas_counters.txt").read_text())
    assert len(parsed.items) == 8
    assert all(isinstance(item["raw_ber"], float) and item["raw_ber"] > 1e-9 for item in parsed.items)
    assert parsed.health == "healthy"


def test_a_ber_that_is_no_number_is_unknown_and_a_bad_status_keeps_the_body(shared: Path) -> None:
    none = parse("mlxlink", (shared / "net/mlxlink/na_fields.json").read_text())
    assert none.items[0]["effective_ber"] is None
    assert none.health == "unknown"
    failed = parse("mlxlink", (shared / "net/mlxlink/status_error.json").read_text())
    assert failed.items[0]["raw_ber"] == 5e-10
    assert failed.health == "unknown"


def test_the_fec_margin_is_fifteen_less_the_highest_bin(shared: Path) -> None:
    port = parse("mlxlink", (shared / "net/mlxlink/eth400_fec_histogram.json").read_text()).items[0]
    assert port["fec_margin"] == 7


def test_counts_are_those_of_the_port_and_never_of_port_all(shared: Path) -> None:
    parsed = parse("ibqueryerrors", (shared / "net/ibsim/ibqueryerrors.txt").read_text())
    ports = {item["id"]: item["counters"] for item in parsed.items if item["kind"] == "port"}
    assert ports["0x200004 port 7"] == {"port_xmit_discards": 1234}
    assert not [port for port in ports if "ALL" in str(port)]


@pytest.mark.parametrize("port", ["mlx5_0/1", "mlx5_9/1"])
def test_a_four_bit_counter_at_fifteen_is_saturated(shared: Path, port: str) -> None:
    parsed = parse("sysfs", (shared / "net/sysfs/h100_sys_class_infiniband.json").read_text())
    assert ("counter_saturated", f"{port}/excessive_buffer_overrun_errors") in {(finding.code, finding.item) for finding in parsed.findings}
    assert parsed.health == "healthy"


def test_a_clamped_counter_is_read_as_at_least(shared: Path) -> None:
    port = parse("perfquery", (shared / "net/ibsim/perfquery_saturated.txt").read_text()).items[0]
    assert port["saturated"] == ["symbol_error", "port_xmit_wait"]


def test_a_device_without_64_bit_error_counters_says_so(shared: Path) -> None:
    assert parse("perfquery", (shared / "net/ibsim/perfquery_x_nocounters2.txt").read_text()).items[0]["errors_64bit"] is False


def test_a_fabric_where_every_link_could_be_faster_is_quiet(shared: Path) -> None:
    parsed = parse("iblinkinfo", (shared / "net/ibsim/iblinkinfo_line.txt").read_text())
    assert parsed.health == "healthy"
    assert sum(item["state"] == "Active" for item in parsed.items) == 64


def test_both_forms_of_ibnetdiscover_list_the_same_links(shared: Path) -> None:
    flat = parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover_p.txt").read_text()).items
    deep = parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover.txt").read_text()).items
    assert sum(item.get("peer_guid") is not None for item in flat) == sum(item["kind"] == "link" for item in deep)


def test_odd_names_are_kept_without_their_blanks(shared: Path) -> None:
    items = parse("ibnetdiscover", (shared / "net/ibnetdiscover/ibnetdiscover_test2.out").read_text()).items
    assert "5FB0406-spine-IB02" in {item["name"] for item in items}


def test_a_fan_fault_of_a_switch_is_named(shared: Path) -> None:
    parsed = parse("ibswinfo", (shared / "net/ibswinfo_test1.out").read_text())
    assert [finding.code for finding in parsed.findings] == ["switch_fan"]
    assert parsed.items[0]["temperature_c"] == 45


def test_noise_of_reading_registers_is_no_finding_and_lost_carrier_lines_are_one(shared: Path) -> None:
    noise = parse("dmesg", (shared / "net/logs/kernel_mlx5.txt").read_text())
    assert {finding.code for finding in noise.findings} == {"nic_power", "nic_module"}
    flap = parse("dmesg", (shared / "net/logs/syslog_ib_flap.txt").read_text())
    assert [(finding.code, finding.item) for finding in flap.findings] == [("ib_lost_carrier", "ib6")]
    assert [item["events"] for item in flap.items if item["kind"] == "carrier"] == [1]


def test_a_ras_report_names_the_rank_that_is_behind(shared: Path) -> None:
    parsed = parse("ncclras", (shared / "net/nccl/ncclras_mismatch.json").read_text())
    assert [finding.item.rsplit("/", 1)[1] for finding in parsed.findings] == ["rank1"]


def test_the_states_of_a_ras_report_in_text_are_told_apart(shared: Path) -> None:
    parts = (shared / "net/nccl/ncclras_text_states.txt").read_text().split("### ")[1:]
    told = {part.split("\n", 1)[0]: communicators(part.split("\n", 1)[1]) for part in parts}
    assert [(each.behind, each.missing) for each in told["healthy"]] == [({}, ())]
    assert [each.missing for each in told["one process exited"]] == [(7,)]
    assert [each.behind for each in told["straggler"]] == [{7: Late("", 60, 64)}]
    dead = parse("ncclras", next(part for part in parts if part.startswith("60-80")))
    assert [finding.code for finding in dead.findings] == ["nccl_process_missing"]


def test_no_error_is_zero_and_not_a_very_small_number() -> None:
    assert ber.read_ber("15E-255") == 0.0
    assert ber.read_ber("N/A") is None
    assert ber.read_ber("2E-9") == 2e-9


def test_a_counter_has_one_name_in_every_spelling() -> None:
    for spelling in ("symbol_error", "SymbolErrorCounter", "SymbolErrorCounterExt"):
        counter = counters.known(spelling)
        assert counter is not None
        assert counter.name == "symbol_error"
    assert not counters.saturated("port_xmit_data", 2**40)


@pytest.mark.parametrize(
    ("fec", "worst", "margin", "low"),
    [
        ("RS-FEC - (544,514) + PLR", 13, 2, True),
        ("Standard_RS-FEC - (544,514)", 12, 3, False),
        ("Standard RS-FEC - (528,514)", 5, 2, False),
        ("Standard RS-FEC - RS(528,514)", 7, 0, True),
        ("Standard LL RS-FEC - (272,257+1)", 7, 0, True),
        ("N/A", 13, 2, True),
    ],
)
def test_the_margin_is_that_of_the_code_that_the_link_has(fec: str, worst: int, margin: int, low: bool) -> None:
    bins = "".join(f"Bin {n:<30}: [{n}:{n}]        {10**6 if n < worst else int(n == worst)} \n" for n in range(16))
    head = f"Operational Info\nState : Active\nSpeed : IB-NDR\nWidth : 4x\nFEC : {fec}\n\n"
    text = f"{head}Histogram of FEC Errors\n-----\nHeader : Range  Occurrences\n{bins}"
    parsed = parse("mlxlink", text)
    port = parsed.items[0]
    assert (port["fec_margin"], port["fec_last_bin"]) == (margin, worst + margin)
    assert ("fec_margin_low" in {finding.code for finding in parsed.findings}) == low
    assert port["line_rate_gbps"] == 425.0


def test_a_count_above_the_classic_cap_is_a_wider_counter_and_not_a_saturated_one() -> None:
    assert counters.saturated("symbol_error", 65535)
    assert not counters.saturated("symbol_error", 65536)
    dump = "mlx5_0/ports/1/counters/symbol_error:70000\nmlx5_0/ports/1/counters/link_downed:255\nmlx5_0/ports/1/state:4: ACTIVE"
    assert [finding.item for finding in parse("sysfs", dump).findings] == ["mlx5_0/1/link_downed"]


@pytest.mark.parametrize(
    ("line", "code", "where"),
    [
        (
            "2024-05-06 07:08:01.1 [1] [110] WARNING [Hw] IBPort [default(34) / Switch: leaf / NA / 17] [dev_id: 0x9c0591030090e000]: symbol rate",
            *("ufm_symbol_errors", "9c0591030090e000:17"),
        ),
        (
            "2024-05-06 07:08:01 [2] [119] CRITICAL [Hw] IBPort [leaf] [dev_id: 9c0591030090e000]: local link integrity errors at port 4",
            *("ufm_link_integrity", "9c0591030090e000:4"),
        ),
        (
            "2024-05-06 07:08:01 [3] [999] WARNING [Hw] Switch [leaf] [dev_id: 9c0591030090e000]: Fan 3 below minimum",
            "ufm_fan",
            "9c0591030090e000",
        ),
        ("2024-05-06 07:08:01 [4] [392] WARNING [Hw] Switch [leaf] [dev_id: 9c0591030090e000]: module 1", "ufm_temperature", "9c0591030090e000"),
    ],
)
def test_ufm_names_a_port_by_its_device_and_what_is_wrong_by_code_or_words(line: str, code: str, where: str) -> None:
    assert [(finding.code, finding.item) for finding in parse("auto", line).findings] == [(code, where)]


def test_flags_of_the_module_are_found_and_a_document_without_state_or_counter_is_unknown(shared: Path) -> None:
    text = (shared / "net/mlxlink/eth400_healthy.json").read_text()
    assert parse("mlxlink", text).health == "healthy"
    lost = text.replace(
        '"Rx LOS [per lane]": {\n     "values": [\n      "0"', '"Module FW Fault": "1",\n    "Rx LOS [per lane]": {\n     "values": [\n      "1"'
    )
    assert [finding.code for finding in parse("mlxlink", lost).findings] == ["module_fault", "module_signal_lost"]
    eye = '{"result": {"output": {"EYE Opening Info (PCIe)": {"Initial FOM": {"values": ["145", "140"]}}}}, "status": {"code": 0}}'
    assert parse("mlxlink", eye).health == "unknown"


def test_a_fan_that_was_not_read_is_not_still_and_the_short_form_is_read_as_well(shared: Path) -> None:
    text = (shared / "net/ibswinfo_test1.out").read_text()
    parsed = parse(
        "auto", text.replace("fan#1 (rpm)        | 8493", "fan#1 (rpm)        |").replace("PSU1 status        | OK", "PSU1 status        |")
    )
    assert [finding.code for finding in parsed.findings] == ["switch_fan"]
    assert parsed.items[0]["fans_rpm"] == {"2": 7349, "3": 8441, "4": 7270, "5": 8337, "6": 7156, "7": 8441, "8": 7232}
    assert len(parsed.unreadable) == 1
    slow = "uptime (sec)       : 16982312\npsu0.power (W)     : 92\ncur.temp (C)       : 73\nmax.temp (C)       : 80\n"
    slow += "".join(f"fan#{n}.speed (rpm)  : {2000 if n == 5 else 8000 + n}\n" for n in range(1, 10))
    parsed = parse("auto", slow)
    assert (parsed.tool, parsed.items[0]["temperature_c"]) == ("ibswinfo", 73)
    assert [(finding.code, finding.item) for finding in parsed.findings] == [("switch_fan_slow", "fan5")]
    named = parse("auto", f"====\n Device: lid-266\n Current node description: leaf-01\n{text.partition('Technologies')[2]}")
    assert (named.items[0]["name"], named.unreadable) == ("leaf-01", ())


@pytest.mark.parametrize(
    "path", ["perfquery/perfquery_0x506b4b03005c2740.out", "ibdiagnet2_db_csv_format_only.csv", "mlxlink/hdr200_8hcas_counters.txt"]
)
def test_colours_line_ends_and_blanks_at_the_end_of_lines_change_nothing(shared: Path, path: str) -> None:
    text = (shared / "net" / path).read_text()
    painted = "\r\n".join(f"\x1b[32m{line}\x1b[0m  " for line in text.split("\n"))
    one, other = parse("auto", text), parse("auto", painted)
    assert (other.tool, other.items, other.findings) == (one.tool, one.items, one.findings)
