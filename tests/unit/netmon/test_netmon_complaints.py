"""What users of other network monitors complained about, one test each, in the order of the collected list (numbers are its rows)."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aegis_agent.daemon.ports import message
from aegis_netmon import flaps, hostpoll, pairs, transport, verdicts
from aegis_netmon.collect import PORTS, FabricReader
from aegis_netmon.correlate import PortEvent
from aegis_netmon.expected import Seen, fabric_ports
from aegis_netmon.flaps import Dip, History
from aegis_netmon.health import judge
from aegis_netmon.hostpoll import NodePoll, PortPoll
from aegis_netmon.hosts import Hosts
from aegis_netmon.picture import JobUse, Picture
from aegis_netmon.series import Poll, observe
from aegis_netmon.topology import build
from aegis_parsers import parse
from aegis_parsers.ib import counters
from aegis_parsers.ib.live import PortReading, Reader, own_noise, port_guid

FLOOD = "mlx5_core 0000:05:00.0: mlx5_cmd_out_err:835:(pid 18360): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2)"


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """Makes ports of a false /sys/class/infiniband."""

    def make(device: str, port: int = 1, *, pci: str = "", **files: str) -> Path:
        folder = tmp_path / device / "ports" / str(port)
        everything = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
            "lid": "0x4",
        } | files
        everything |= {"counters/symbol_error": "3", "hw_counters/packet_seq_err": "7"}
        for name, text in everything.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n")
        if pci:
            (tmp_path / device / "device").symlink_to(f"../../../{pci}")
        return tmp_path

    return make


def refusing(*parts: str, code: int = errno.EINVAL) -> tuple[Callable[[str], str], list[str]]:
    """Reads files, except those whose path holds one of the parts; and the list of all that was opened."""
    opened: list[str] = []

    def read(path: str) -> str:
        opened.append(path)
        if any(part in path for part in parts):
            raise OSError(code, "refused")
        return Path(path).read_text()

    return read, opened


def test_row_1_bandwidth_is_octets_and_not_a_quarter_of_them() -> None:
    port = observe(observe(None, Poll("0x1", 1, 0.0, {"port_xmit_data": 0})), Poll("0x1", 1, 1.0, {"port_xmit_data": 12_500_000_000 // 4}))
    assert port.steps[-1].xmit_bits == 100e9


def test_row_2_no_pma_and_missing_files_are_unknown_and_nothing_else_is_lost(tree: Callable[..., Path]) -> None:
    root = tree("mlx4_0", **{"counters/link_downed": "N/A (no PMA)", "counters/port_rcv_errors": "5"})
    (port,) = Reader(root).poll()
    assert port.counters == {"link_downed": None, "port_rcv_errors": 5, "symbol_error": 3, "packet_seq_err": 7}
    dump = parse(
        "sysfs", "mlx4_0/ports/1/counters/link_downed:N/A (no PMA)\nmlx4_0/ports/1/counters/port_rcv_errors:5\nmlx4_0/ports/1/state:4: ACTIVE"
    )
    assert dump.items[0]["counters"] == {"port_rcv_errors": 5}
    assert dump.health == "unknown"


def test_row_3_a_port_that_answers_einval_costs_nobody_else_a_metric(tree: Callable[..., Path]) -> None:
    tree("mlx5_0")
    root = tree("mlx5_1")
    read, opened = refusing("mlx5_1/ports/1/counters", "mlx5_1/ports/1/hw_counters")
    reader = Reader(root, open_text=read)
    first = {port.device: port for port in reader.poll()}
    assert first["mlx5_0"].counters["symbol_error"] == 3
    assert first["mlx5_1"].note == "every counter failed"
    opened.clear()
    assert {port.device: port.note for port in reader.poll()}["mlx5_1"].startswith("left alone")
    assert not [path for path in opened if "mlx5_1" in path]
    notes = [next(port.note for port in reader.poll() if port.device == "mlx5_1") for _ in range(4)]
    assert [note == "every counter failed" for note in notes] == [True, False, False, True]


def test_row_4_a_device_whose_reading_floods_the_kernel_log_is_left_alone_and_the_line_is_our_own(tree: Callable[..., Path]) -> None:
    root = tree("mlx5_2", pci="0000:05:00.0")
    pci = own_noise(FLOOD)
    assert pci == "0000:05:00.0"
    assert own_noise("mlx5_core 0000:05:00.0: Detected insufficient power on the PCIe slot (27W).") is None
    read, opened = refusing()
    reader = Reader(root, open_text=read)
    assert reader.stop(pci) == "mlx5_2"
    assert [port.note for port in reader.poll()] == ["left alone: reading it floods the kernel log"]
    assert not opened
    assert parse("dmesg", FLOOD).findings == ()


def test_row_5_an_excluded_device_is_not_opened(tree: Callable[..., Path]) -> None:
    tree("mlx5_0")
    root = tree("mlx5_bond_0")
    read, opened = refusing()
    assert [port.device for port in Reader(root, ("mlx5_bond*",), read).poll()] == ["mlx5_0"]
    assert not [path for path in opened if "bond" in path]


def test_row_6_a_port_without_a_readable_rate_is_read_all_the_same(tree: Callable[..., Path]) -> None:
    read, _ = refusing("/rate")
    (port,) = Reader(tree("mana_0"), open_text=read).poll()
    assert (port.gbps, port.state, port.counters["symbol_error"]) == (None, "ACTIVE", 3)


def test_row_7_omni_path_is_called_unsupported_and_not_broken(tree: Callable[..., Path]) -> None:
    (port,) = Reader(tree("hfi1_0")).poll()
    assert (port.layer, port.note) == ("OmniPath", "unsupported: Omni-Path")
    assert fabric_ports([Seen("n0", "hfi1_0", 1, False, "OmniPath")]) == []


def test_row_8_hw_counters_have_a_unit_and_a_meaning(shared: Path) -> None:
    items = parse("sysfs", (shared / "net/sysfs/h100_sys_class_infiniband.json").read_text()).items
    seen = {name for item in items if isinstance(item.get("counters"), dict) for name in item["counters"]}  # type: ignore[union-attr]
    assert {"packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans"} <= seen
    unknown = {name for name in seen if (row := counters.known(name)) is None or not row.unit or not row.meaning}
    assert not unknown


def test_row_9_adapters_are_read_like_switches_and_the_summary_is_held_against_what_was_read(shared: Path) -> None:
    parsed = parse("ibqueryerrors", (shared / "net/ibsim/ibqueryerrors.txt").read_text())
    nodes = {item["node"] for item in parsed.items if item["kind"] == "port"}
    assert nodes == {"node06 mlx5_0", "leaf3", "leaf2"}
    text = (shared / "net/ibsim/ibqueryerrors.txt").read_text()
    cut = "\n".join(line for line in text.split("\n") if "node06" not in line and "0x10000b" not in line)
    found = [finding.evidence for finding in parse("ibqueryerrors", cut).findings if finding.code == "listing_incomplete"]
    assert found == ["3 bad nodes by the summary, 2 listed"]
    assert "listing_incomplete" not in {finding.code for finding in parsed.findings}


def test_row_10_dead_paths_do_not_spend_more_than_the_budget_and_what_is_missing_is_listed(shared: Path, tmp_path: Path) -> None:
    """A scan that dead paths make slow is ended: the whole lines that it printed until then count, a port that is not in them is unknown, not zero,
    and devices of which no port answered are named."""
    net, tool = shared / "net/ibsim", tmp_path / "tool"
    data = [f"   GUID 0x200003 port {n}: [PortXmitData == 7 (28.000)]" for n in (5, 6)]
    (tmp_path / "data").write_text("\n".join((*data, "", "## Summary: 22 nodes checked, 0 bad nodes found", "")))
    cut = [f"   GUID 0x200004 port {n}: [PortXmitDiscards == {count}]" for n, count in ((7, 1234), (8, 5))]
    (tmp_path / "cut").write_text("\n".join(('Errors for "leaf3"', *cut, "   GUID 0x200004 port 6: [PortXmitDisc")))
    graph = f'"ibnetdiscover -p") cat {net}/ibnetdiscover_p.txt;;ibnetdiscover) cat {net}/ibnetdiscover.txt;;'
    tool.write_text(f'#!/bin/sh\ncase "$*" in {graph}*counters) cat {tmp_path}/data;;*) cat {tmp_path}/cut; sleep 100;; esac\n')
    tool.chmod(0o700)
    begun = time.monotonic()
    FabricReader((str(tool),)).run(PORTS, begun + 100)
    budget = round(max(1.0, 30 * (time.monotonic() - begun)), 1)  # three tools end before the one that does not, however slow this machine is
    begun = time.monotonic()
    made = FabricReader((str(tool),), budget=budget).read(0.0)
    assert len(made.fabric.links) == 32 and time.monotonic() - begun < 20 * budget
    assert any(f"no answer within the budget of {budget:g} s: cut off" in what for what in made.partial)
    assert {(made.fabric.name((poll.guid, poll.port)), *poll.values.values()) for poll in made.polls if "symbol_error" not in poll.values} == {
        ("leaf2 port 5", 7),
        ("leaf2 port 6", 7),
        ("leaf3 port 7", 1234),
        ("leaf3 port 8", 5),
    }
    assert any("60 ports did not answer" in what and "leaf1 port 1" in what for what in made.partial)
    assert any("of 20 devices no port answered: leaf1, leaf4, node01" in what for what in made.partial)


def test_row_11_a_host_s_own_fast_polls_and_the_slow_sweep_of_the_fabric_are_about_one_port(shared: Path) -> None:
    fabric = build(parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover_p.txt").read_text()).items)
    port = PortReading(
        "mlx5_0", 1, port_guid("fe80:0000:0000:0000:0000:0000:0010:000b"), "ACTIVE", "LinkUp", 10.0, "InfiniBand", 12, {"symbol_error": 0}
    )
    (told,) = hostpoll.read("node06", 1.0, message("boot", 1000, [port])).ports
    assert told.poll is not None and fabric.name((told.poll.guid, told.poll.port)) == "node06 mlx5_0 port 1"


def test_row_12_a_flap_clears_by_itself_after_a_stable_time() -> None:
    dips = tuple(Dip(at, at + 30) for at in (0.0, 1000.0, 2000.0))
    assert flaps.judge(History(True, dips), 3000.0).state == "flapping"
    assert flaps.judge(History(True, dips), 2030.0 + 6 * 3600).state == "up"


def test_row_13_a_drop_stays_visible_when_the_link_is_back() -> None:
    history = flaps.observe(flaps.observe(flaps.observe(History(), 0.0, True), 10.0, False), 310.0, True)
    verdict = flaps.judge(history, 311.0)
    assert (verdict.state, verdict.longest) == ("was_down", 300.0)
    assert [finding.code for finding in judge(observe(None, Poll("0x1", 1, 0.0, {})), verdict).findings] == ["link_was_down"]


def test_row_14_it_is_the_delta_of_link_downed_that_counts_and_not_its_value() -> None:
    old = observe(observe(None, Poll("0x1", 1, 0.0, {"link_downed": 200}, "a")), Poll("0x1", 1, 10.0, {"link_downed": 200}, "a"))
    assert judge(old, flaps.FlapVerdict("up")).findings == ()
    new = observe(old, Poll("0x1", 1, 20.0, {"link_downed": 201}, "a"))
    assert [finding.story for finding in judge(new, flaps.FlapVerdict("up")).findings] == ["link_downed rose by 1 in 20 s"]


def test_row_15_a_link_that_breaks_between_two_active_tests_is_told_with_the_job_on_it() -> None:
    picture = Picture(Hosts())
    picture.placed([JobUse("big-1", "default", ("n1", "n2"))])
    for at, errors in ((0.0, 0), (10.0, 0), (20.0, 700)):
        seen = Seen("n1", "mlx5_0", 1, True, "InfiniBand", 400.0)
        poll = Poll("00000000000000a1", 1, at, {"port_rcv_errors": errors, "port_rcv_packets": int(at) * 1000, "port_rcv_data": int(at) * 10**9})
        picture.hosts.take(NodePoll("n1", at, 10.0, None, (PortPoll(seen, poll, poll.guid, "", None, ""),)))
        picture.round(at)
    (line,) = picture.lines.values()
    told = verdicts.of_link(picture.info(line, 20.0), 20_000)
    assert (told.state, told.cause) == ("degraded", "network")
    assert "hits big-1" in told.sentence and "port_rcv_errors" in told.sentence


def test_row_16_a_slow_pair_of_fast_nodes_is_a_matter_of_routes() -> None:
    verdict = pairs.judge({("1", "2"): 12.0, ("1", "3"): 24.0, ("2", "4"): 24.5, ("3", "4"): 24.0})
    assert verdict.nodes == {}
    assert verdict.routes == (("1", "2"),)


def test_row_17_a_node_that_halves_every_pair_is_slow_itself() -> None:
    names = "abcdef"
    measured = {(x, y): (11.0 if "c" in (x, y) else 23.0) for n, x in enumerate(names) for y in names[n + 1 :]}
    verdict = pairs.judge(measured)
    assert verdict.nodes == {"c": pytest.approx(0.478, abs=0.01)}
    assert not verdict.routes


def test_row_16_with_too_few_pairs_the_answer_is_what_to_measure() -> None:
    verdict = pairs.judge({("1", "2"): 12.0, ("3", "4"): 24.0})
    assert not verdict.nodes
    assert ("1", "3") in verdict.unclear["1", "2"]


@pytest.mark.parametrize(
    ("at", "worked", "dips", "cause", "network"),
    [
        (5.0, False, [], "connectivity", False),
        (5000.0, True, [Dip(4960.0, None)], "link", True),
        (5000.0, True, [], "unknown", False),
    ],
)
def test_row_18_error_12_at_launch_is_connectivity_and_later_needs_a_port_event(
    at: float, worked: bool, dips: list[Dip], cause: str, network: bool
) -> None:
    verdict = transport.judge(at, started=0.0, worked=worked, dips={"n1/mlx5_0": dips})
    assert (verdict.cause, verdict.network) == (cause, network)


def test_row_18_the_death_of_the_peer_and_a_counter_of_either_end_are_told_apart() -> None:
    event = PortEvent(4995.0, 10.0, ("leaf1", 4), "symbol_error", 900)
    assert transport.judge(5000.0, started=0.0, worked=True, dips={}, peer_died=4970.0).cause == "peer"
    found = transport.judge(5000.0, started=0.0, worked=True, dips={}, events=[event], peer_died=4970.0)
    assert (found.cause, found.network) == ("link", True)
    assert "symbol_error of leaf1 port 4 rose by 900" in found.reason


def test_row_19_a_flap_is_held_against_what_the_transport_bears() -> None:
    assert round(flaps.retry_seconds()) == 30
    long = transport.judge(100.0, started=0.0, worked=True, dips={"p": [Dip(50.0, 95.0)]})
    assert "longer than NCCL_IB_TIMEOUT 20 x NCCL_IB_RETRY_CNT 7 bears (30 s)" in long.reason
    short = transport.judge(100.0, started=0.0, worked=True, dips={"p": [Dip(80.0, 92.0)]})
    assert "should have borne" in short.reason


def test_all_pairs_of_hundreds_of_nodes_and_thousands_of_lone_pairs_are_judged_at_once() -> None:
    slow = {f"n{n}" for n in range(0, 240, 30)}
    names = [f"n{n}" for n in range(240)]
    every = {(one, other): 10.0 if {one, other} & slow else 23.0 for nth, one in enumerate(names) for other in names[nth + 1 :]}
    lone = {(f"a{n}", f"b{n}"): 10.0 if n % 3 == 0 else 23.0 for n in range(6000)}
    begun = time.process_time()
    assert set(pairs.judge(every).nodes) == slow
    assert len(pairs.judge(lone).unclear) == 2000
    assert time.process_time() - begun < 2.0
