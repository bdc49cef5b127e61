"""Whatever tool read the fabric, it ends in the same series."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from aegis_bus.settings import NetmonSettings
from aegis_netmon import collect, dbcsv, fabricpoll, flaps, reports, ufmlog, watch
from aegis_netmon.series import observe, series
from aegis_netmon.sweeping import zone_of
from aegis_netmon.topology import Link
from aegis_netmon.watch import Watch
from aegis_parsers import parse

HEAD = "2024-05-06 07:08:0{n}.123 [{n}] [{code}] WARNING [Link] IBPort [default / fc6a1c0300244e00] [dev_id: fc6a1c0300244e00]: {text}"
BODY = "({way}: (Switch:T3:1/17/1)9c0591030090e000:33 - (Switch:T4:1/4/2)fc6a1c0300244e00:8"


def test_64_bit_errors_alone_are_used_where_the_device_has_them(shared: Path) -> None:
    extended = parse("perfquery", (shared / "net/perfquery/perfquery_0x506b4b03005c2740.out").read_text())
    (poll,) = fabricpoll.of_perfquery(1.0, None, extended, {2052: "506b4b03005c2740"})
    assert poll.wide
    assert poll.values["port_xmit_discards"] == 20046
    assert {row.bits for row in series(observe(None, poll))} == {64}


def test_where_there_are_none_the_classic_ones_stand_beside_the_64_bit_traffic(shared: Path) -> None:
    classic = parse("perfquery", (shared / "net/ibsim/perfquery_saturated.txt").read_text())
    extended = parse("perfquery", (shared / "net/ibsim/perfquery_x_nocounters2.txt").read_text())
    (poll,) = fabricpoll.of_perfquery(1.0, classic, extended, {6: "0000000000200003"})
    assert not poll.wide
    states = {row.name: (row.bits, row.state) for row in series(observe(None, poll))}
    assert states["symbol_error"] == (16, "saturated")
    assert states["port_xmit_data"] == (64, "baseline")
    assert poll.values["port_xmit_data"] == 18288


def test_a_lid_that_nobody_knows_is_left_out(shared: Path) -> None:
    classic = parse("perfquery", (shared / "net/ibsim/perfquery_clean.txt").read_text())
    assert fabricpoll.of_perfquery(1.0, classic, None, {}) == []


def test_columns_of_ibdiagnet_go_by_their_names(shared: Path) -> None:
    (poll,) = dbcsv.polls_of(1.0, parse("ibdiagnet", (shared / "net/ibdiagnet2_db_csv_format_only.csv").read_text()))
    assert (poll.guid, poll.port, poll.wide) == ("0000000000000001", 1, True)
    assert dict(poll.values) == {
        "link_downed": 1,
        "link_error_recovery": 0,
        "port_rcv_errors": 0,
        "port_xmit_discards": 0,
        "port_xmit_packets": 1000,
        "port_xmit_wait": 10,
    }


DB_CSV = """START_NODES
NodeDesc,NumPorts,NodeType,SystemImageGUID,NodeGUID,PortGUID
"leaf1",36,2,0x20,0x20,0x20
"n1 mlx5_0",1,1,0x10,0x10,0x11
END_NODES

START_PORTS
NodeGuid,PortGuid,PortNum
0x10,0x11,1
0x20,0x20,7
END_PORTS

START_LINKS
NodeGuid1,PortNum1,NodeGuid2,PortNum2
0x20,7,0x10,1
END_LINKS

START_PM_INFO
NodeGUID,PortNumber,LinkDownedCounterExt,PortRcvErrorsExt,PortXmitDiscardsExt
0x20,7,0,{errors},0
0x10,1,0,0,0
END_PM_INFO
"""


def test_a_report_of_ibdiagnet_is_a_sweep_where_nobody_may_sweep(tmp_path: Path) -> None:
    state, states = Watch(), []
    for at, errors in ((0.0, 5), (60.0, 5), (120.0, 70_000)):
        reading = dbcsv.reading(at, parse("ibdiagnet", DB_CSV.format(errors=errors)))
        assert reading is not None and not reading.partial
        state, (verdict,) = watch.step(state, reading)
        states.append(verdict.state)
    assert states[-1] == "watch" and "watch" not in states[:-1]
    assert (verdict.end, verdict.at_fault) == ("leaf1 port 7", "n1 mlx5_0 port 1")
    assert {end[0] for end in (state.links[verdict.link].a, state.links[verdict.link].b)} == {f"{0x20:016x}", f"{0x11:016x}"}, "the port's GUID"
    seen = reports.Reports(str(tmp_path))
    (tmp_path / "ibdiagnet2.db_csv").write_text(DB_CSV.format(errors=0))
    told = seen.reading(seen.look())
    assert told is not None and len(told.fabric.links) == 1
    assert seen.reading(seen.look()) is None


def test_links_that_ufm_saw_go_and_come_are_dips_of_both_ends() -> None:
    lines = [HEAD.format(n=n, code=code, text=BODY.format(way=way)) for n, code, way in ((1, 329, "Link went down"), (5, 328, "Link went up"))]
    dips = list(ufmlog.dips(parse("ufm", "\n".join(lines))))
    assert {end for end, _ in dips} == {("9c0591030090e000", 33), ("fc6a1c0300244e00", 8)}
    link = Link("l", ("9c0591030090e000", 33), ("fc6a1c0300244e00", 8))
    swept = flaps.observe(flaps.History(), dips[0][1].start + 60, True)
    state = Watch({"l": link}, flaps={"l": swept})
    for _ in range(2):
        state = watch.dipped(state, dips)
    (dip,) = state.flaps["l"].dips
    assert (dip.end or 0) - dip.start == pytest.approx(4.0), "between two sweeps, told by both ends, read twice: one"
    assert flaps.judge(state.flaps["l"], swept.at).state == "was_down"


def test_what_a_switch_calls_faulty_is_told_until_a_report_says_that_it_is_well(shared: Path, tmp_path: Path) -> None:
    text = (shared / "net/ibswinfo_test1.out").read_text()
    seen = reports.Reports(str(tmp_path))
    told = []
    for name, said in (("sw.txt", text), ("sw2.txt", text.replace("| ERROR", "| OK"))):
        (tmp_path / name).write_text(said)
        os.utime(tmp_path / name, (len(told) + 1,) * 2)
        seen.look()
        told.append(seen.faults())
    assert told == [[("1c34da0300010540", "fan status ERROR")], []]


def test_a_log_that_grows_tells_only_what_is_new(tmp_path: Path) -> None:
    lines = [HEAD.format(n=n, code=116, text="(Switch:T4:1/4/2)fc6a1c0300244e00:8 port xmit discards") for n in (1, 5)]
    seen = reports.Reports(str(tmp_path))
    counts = []
    for n in (1, 2):
        (tmp_path / "event.log").write_text("\n".join(lines[:n]))
        counts.append(len(seen.events(seen.look())))
    assert counts == [1, 1]


def test_a_port_at_its_cap_is_asked_for_its_64_bit_counters_from_then_on(shared: Path, tmp_path: Path) -> None:
    """leaf2 port 5 stands at 65535 and its device has the wide ones; leaf3 port 7 stands at no cap and is never asked."""
    net, asked = shared / "net", tmp_path / "asked"
    cases = (
        f'"ibnetdiscover -p") cat {net}/ibsim/ibnetdiscover_p.txt;;"ibnetdiscover") cat {net}/ibsim/ibnetdiscover.txt;;'
        f'"ibqueryerrors --counters") cat {net}/ibsim/ibqueryerrors_r_data.txt;;"ibqueryerrors") cat {net}/ibsim/ibqueryerrors.txt;;'
        f'perfquery*) echo "$*" >> {asked}; sed "s/Lid 2052 port 1/Lid $3 port $4/" {net}/perfquery/perfquery_0x506b4b03005c2740.out;;'
    )
    tool = tmp_path / "tool"
    tool.write_text(f'#!/bin/sh\ncase "$*" in {cases} esac\n')
    tool.chmod(0o700)
    reader = collect.FabricReader((str(tool),), budget=20.0)
    for at in (0.0, 60.0):
        polls = {(poll.guid, poll.port): poll for poll in reader.read(at).polls}
        assert polls["0000000000200003", 5].wide and polls["0000000000200003", 5].values["port_xmit_discards"] == 20046
        assert not polls["0000000000200004", 7].wide
    rows = (line.split() for line in (net / "ibsim/ibnetdiscover_p.txt").read_text().split("\n"))
    lid = next(row[1] for row in rows if row[:1] == ["SW"] and row[3] == "0x0000000000200003")
    assert asked.read_text().split("\n")[:-1] == [f"perfquery -x {lid} 5"] * 2


def test_counters_that_ufm_alarmed_on_are_events_and_bodies_without_a_time_are_none(shared: Path) -> None:
    line = HEAD.format(n=3, code=116, text="(Switch:T4:1/4/2)fc6a1c0300244e00:8 port xmit discards")
    (event,) = ufmlog.events(parse("ufm", line), timezone(timedelta(hours=2)))
    assert event.at == datetime(2024, 5, 6, 5, 8, 3, 123000, UTC).timestamp()
    assert zone_of(NetmonSettings()) is UTC
    with pytest.raises(ValueError, match=r"netmon\.ufmZone"):
        zone_of(NetmonSettings(ufm_zone="Mars/Olympus"))
    assert (event.end, event.counter) == (("fc6a1c0300244e00", 8), "port_xmit_discards")
    assert list(ufmlog.events(parse("ufm", (shared / "net/logs/ufm_events.txt").read_text()))) == []
