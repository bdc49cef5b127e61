"""A report of ibdiagnet is read by the names of its sections and columns, whatever version wrote them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from aegis_netmon import dbcsv, reports, routing
from aegis_netmon.correlate import Sensor
from aegis_parsers import parse

NODES = 'START_NODES\nNodeDesc,NumPorts,NodeType,NodeGUID\n"MF0;core1:CS8500/L6/U1",40,2,0x20\n"n1 mlx5_0",1,1,0x10\nEND_NODES\n'
SWITCH, HOST = f"{0x20:016x}", f"{0x11:016x}"
PORTS = "START_PORTS\nNodeGuid,PortGuid,PortNum\n0x10,0x11,1\n0x20,0x20,7\nEND_PORTS\n"
LINKS = "START_LINKS\nNodeGuid1,PortNum1,NodeGuid2,PortNum2\n0x20,7,0x10,1\nEND_LINKS\n"


def section(name: str, *lines: str) -> str:
    return "\n".join((f"START_{name}", *lines, f"END_{name}", ""))


@pytest.mark.parametrize(
    ("columns", "row", "wide", "values"),
    [
        ("LinkDownedCounter,SymbolErrorCounter", "255,65535", False, {"link_downed": 255, "symbol_error": 65535}),
        ("LinkDownedCounter,LinkDownedCounterExt", "255,300", True, {"link_downed": 300}),
        ("LinkDownedCounterExt,LinkDownedCounter", "300,255", True, {"link_downed": 300}),
        ("linkdownedcounterext,PORTXMITDISCARDSEXT", "0x12c,0x0", True, {"link_downed": 300, "port_xmit_discards": 0}),
        ("LinkDownedCounter,LinkDownedCounterExt", "7,0xfffffffffffffffe", False, {"link_downed": 7}),
        ("LinkDownedCounterExt,LinkDownedCounter", "18446744073709551615,7", False, {"link_downed": 7}),
        ("LinkDownedCounter,LinkDownedCounterExt", "7,N/A", False, {"link_downed": 7}),
        ("LinkDownedCounter", "N/A", False, {"link_downed": None}),
        ("PortXmitData,PortXmitDataExtended,Whatever", "4294967295,99999999999,5", False, {"port_xmit_data": 99999999999}),
        ("PortUniCastXmitPkts,VL15DroppedExt,", "5,6,", True, {"unicast_xmit_packets": 5, "VL15_dropped": 6}),
    ],
)
def test_a_counter_is_one_series_in_any_spelling_and_the_wide_one_is_it_where_both_stand(
    columns: str, row: str, wide: bool, values: dict[str, int | None]
) -> None:
    for head, end in (("NodeGUID,PortGUID,PortNumber", "0x20,0x20,7"), ("nodeguid,PORTNUM", "0x0000000000000020,7")):
        parsed = parse("auto", "# Running version: 2.9.0\n\n" + section("PM_INFO", f"{head},{columns}", f"{end},{row}"))
        assert (parsed.tool, parsed.unreadable) == ("ibdiagnet", ())
        (poll,) = dbcsv.polls_of(1.0, parsed)
        assert (poll.guid, poll.port, poll.wide, dict(poll.values)) == (SWITCH, 7, wide, values)


def test_a_row_that_names_no_port_is_left_out_and_the_rest_is_read() -> None:
    text = section("PM_INFO", "NodeGUID,PortNumber,PortRcvErrorsExt", "0x20,x,1", "0x20,7,3", ",7,4", "# a remark", "0x20,8")
    parsed = parse("ibdiagnet", text)
    assert [(poll.port, poll.values) for poll in dbcsv.polls_of(1.0, parsed)] == [(7, {"port_rcv_errors": 3})]
    assert len(parsed.unreadable) == 1


PHY = "NodeGuid,PortGuid,PortNum," + ",".join(f"field{n}" for n in range(18))


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        (section("PHY_DB16", PHY, "0x10,0x11,1," + "0," * 12 + "3,9,15,255,2,11"), {"raw_ber": 3e-9, "effective_ber": 0.0, "symbol_ber": 2e-11}),
        (section("PHY_DB16", PHY, "0x10,0x11,1," + "0," * 12 + "0x3,0x9,N/A,N/A,15,254"), {"raw_ber": 3e-9, "symbol_ber": 0.0}),
        (
            section("PHY_DB9", "NodeGuid,PortNum,raw_ber_magnitude,raw_ber_coef,effective_ber_magnitude,effective_ber_coef", "0x10,1,8,4,255,15"),
            {"raw_ber": 4e-8, "effective_ber": 0.0},
        ),
        (section("PHY_DB16", PHY, "0x10,0x11,1," + "0," * 12 + "9,99999,0,0,7,x"), {"effective_ber": 0.0}),
        (section("PHY_DB12", PHY, "0x10,0x11,1," + "0," * 12 + "3,9,15,255,2,11"), {}),
    ],
)
def test_bit_error_rates_are_mantissa_and_exponent_and_fifteen_to_the_minus_255_is_none(text: str, rates: dict[str, float]) -> None:
    found = dbcsv.optics(parse("ibdiagnet", NODES + PORTS + text)).get((HOST, 1), {})
    assert found == {name: pytest.approx(value) for name, value in rates.items()}


DUMP = """# This file was generated
Ty : # : #IB : GUID : LID : Sta : PhysSta : LWA : LSA : Conn LID (#) : FEC mode : RTR : Raw BER : Effective BER : Symbol BER : Symbol Err : Node Desc
SW : sw1p1 : 7 : 0x20 : 10 (0xa) : ACT : LINK_UP : 4x : 200 : 20 (0x14) : RS : NO-RTR : 1e-9 : 2e-13 : 15E-255 : 4 : "MF0;core1:CS8500/L6/U1"
CA : mlx5_0 : 1 : 0x10 : 20 (0x14) : ACT : LINK_UP : 4x : 200 : 10 (0xa) : RS : NO-RTR : N/A : N/A : 3e-11 : 9 : "n1 mlx5_0"
SW : sw1p2 : 8 : 0x20 : cut
"""


def test_the_wide_table_of_ibdiagnet_gives_bit_error_rates_too() -> None:
    parsed = parse("auto", DUMP)
    assert (parsed.tool, len(parsed.unreadable)) == ("ibdiagnet", 1)
    assert dbcsv.optics(parsed) == {
        (SWITCH, 7): {"raw_ber": 1e-9, "effective_ber": 2e-13, "symbol_ber": 0.0},
        (f"{0x10:016x}", 1): {"symbol_ber": 3e-11},
    }


INFO = "NodeGUID,FWInfo_SubMinor,FWInfo_Minor,FWInfo_Major,FWInfo_PSID,FWInfo_Extended_Major,FWInfo_Extended_Minor,FWInfo_Extended_SubMinor"


def test_firmware_fans_and_temperatures_are_read_by_whatever_columns_there_are(tmp_path: Path) -> None:
    text = NODES + section("NODES_INFO", INFO, "0x20,0x9,0x8,0x7,MT_1,0x1f,0x7dc,0x42c", "0x10,0x0006,0x29,0x1c,MT_2,0x0,0x0,0x0", "0x30,1,N/A,2,,,,")
    text += section("FANS_SPEED", "NodeGuid,FanIndex,MinSpeed,MaxSpeed,FanSpeed", "0x20,3,1000,20000,4100", "0x20,4,1000,20000,N/A")
    text += section("TEMP_SENSING", "NodeGUID,CurrentTemperature", "0x20,92", "0x10,61C", "0x10,N/A")
    (tmp_path / "ibdiagnet2.db_csv").write_text(text)
    seen = reports.Reports(str(tmp_path))
    changed = seen.look()
    assert changed == ["ibdiagnet2.db_csv"] and not seen.unread
    assert seen.firmware() == {"MF0;core1:CS8500/L6/U1": "31.2012.1068", "n1 mlx5_0": "28.41.0006"}
    assert [(one.part, one.kind, one.name, one.value) for one in seen.sensors(changed)] == [
        ("core1/L6", "fan", "fan3", 4100.0),
        ("core1/L6", "temperature", "chip", 92.0),
        (f"{0x10:016x}", "temperature", "chip", 61.0),
    ]
    assert routing.inventory(seen.firmware()).without == ()


def test_sections_in_any_order_and_of_any_version_are_one_reading() -> None:
    counts = section("PM_INFO", "NodeGUID,PortNumber,PortRcvErrorsExt,PortXmitDataExtended", "0x20,7,3,100", "0x10,1,0,100")
    other = section("CABLE_INFO", "NodeGuid,PortNum,PN,Temperature", '0x20,7,"MCP,1650",42C') + section("INDEX_TABLE", "Name,Offset", "NODES,0")
    parts = [NODES, PORTS, LINKS, counts, other]
    for seed in range(6):
        shuffled = random.Random(seed).sample(parts, len(parts))
        reading = dbcsv.reading(9.0, parse("auto", "\n".join(shuffled)))
        assert reading is not None and not reading.partial
        (link,) = reading.fabric.links.values()
        assert {link.a, link.b} == {(SWITCH, 7), (HOST, 1)}
        assert {(poll.guid, poll.values["port_rcv_errors"]) for poll in reading.polls} == {(SWITCH, 3), (HOST, 0)}


def test_a_report_that_is_cut_off_anywhere_raises_nothing_and_claims_nothing_of_what_is_missing() -> None:
    text = NODES + PORTS + LINKS + section("PM_INFO", "NodeGUID,PortNumber,PortRcvErrorsExt", "0x20,7,123", "0x10,1,45") + section("PHY_DB16", PHY)
    for end in range(len(text)):
        parsed = parse("ibdiagnet", text[:end])
        reading, _ = dbcsv.reading(1.0, parsed), [dbcsv.optics(parsed), dbcsv.firmware(parsed), list[Sensor](dbcsv.sensors(parsed, 1.0))]
        assert all(poll.values["port_rcv_errors"] in (123, 45) for poll in dbcsv.polls_of(1.0, parsed))
        if reading is not None:
            assert len(reading.fabric.links) == 1 and {one.kind for one in reading.fabric.devices.values()} == {"switch", "host"}
            assert bool(reading.polls) != bool(reading.partial)
