"""A host's ports become series under the same name as the fabric side's, and what was not read says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from aegis_agent.daemon.ports import message
from aegis_netmon import hostpoll
from aegis_netmon.hostpoll import NodePoll
from aegis_netmon.hosts import Hosts
from aegis_parsers.ib.live import PortReading, Reader, port_guid
from aegis_proto.messages import BadMessage, decode, encode
from aegis_proto.net import NodePorts, PortCounts


def travelled(node: str, at: float, boot: str, ports: list[PortReading]) -> NodePoll:
    """A reading as the service has it: told by the daemon, encoded, decoded."""
    return hostpoll.read(node, at, decode(NodePorts, encode(message(boot, int(at * 1000), ports))))


@pytest.mark.parametrize(
    ("gid", "guid"),
    [
        ("fe80:0000:0000:0000:b83f:d203:0012:3456", "b83fd20300123456"),
        ("fe80:0000:0000:0000:0000:0000:0000:0000", None),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_the_guid_of_a_port_is_that_of_its_first_gid(gid: str | None, guid: str | None) -> None:
    assert port_guid(gid) == guid


def test_a_node_is_one_message_with_its_counters_states_and_what_was_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "mlx5_0/ports/1"
    for name, text in {
        "state": "4: ACTIVE",
        "link_layer": "InfiniBand",
        "rate": "400 Gb/sec (4X NDR)",
        "gids/0": "fe80:0000:0000:0000:0000:0000:0010:000b",
        "counters/symbol_error": "3",
        "hw_counters/lifespan": "12",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (tmp_path / "hfi1_0/ports/1").mkdir(parents=True)
    (folder / "counters/link_downed").write_text("N/A (no PMA)")
    made = travelled("node06", 5.0, "boot-1", Reader(tmp_path).poll())
    load = (tmp_path / "mlx5_0/ports").stat().st_ino
    polls = [port.poll for port in made.ports if port.poll is not None]
    assert [(poll.guid, poll.port, dict(poll.values), poll.boot) for poll in polls] == [
        ("000000000010000b", 1, {"symbol_error": 3, "link_downed": None}, f"boot-1.{load}")
    ]
    assert [(port.seen.device, port.seen.up, port.seen.gbps, port.seen.layer) for port in made.ports] == [
        ("hfi1_0", None, None, "OmniPath"),
        ("mlx5_0", True, 400.0, "InfiniBand"),
    ]
    assert [port.note for port in made.ports] == ["unsupported: Omni-Path", ""]


def test_a_port_without_a_guid_has_a_series_of_its_own() -> None:
    port = PortReading("rxe0", 1, None, "ACTIVE", None, None, "Ethernet", None, {"sent_pkts": 7})
    (one,) = travelled("n1", 0.0, "", [port]).ports
    assert one.poll is not None and one.poll.guid == "n1/rxe0"


@pytest.mark.parametrize(
    "told",
    [
        NodePorts("b", 0, ("symbol_error", "symbol_error")),
        NodePorts("b", 0, ("a b",)),
        NodePorts("b", 0, ("x",), (PortCounts("mlx5_0", 1, values=(1, 2)),)),
        NodePorts("b", 0, ("x",), (PortCounts("mlx5_0", 1, values=(-7,)),)),
        NodePorts("b", 0, (), (PortCounts("../x", 1),)),
        NodePorts("b", 0, (), (PortCounts("mlx5_0", 1, "not hex"),)),
        NodePorts("b", 0, (), (PortCounts("mlx5_0", 1),) * 300),
    ],
)
def test_what_is_no_poll_is_refused_whole(told: NodePorts) -> None:
    with pytest.raises(BadMessage):
        hostpoll.read("n1", 1.0, told)


def test_where_there_is_no_infiniband_there_are_no_ports(tmp_path: Path) -> None:
    assert Reader(tmp_path / "nothing").poll() == []


def test_a_roce_port_that_loses_its_carrier_has_a_dip(tmp_path: Path) -> None:
    folder, net = tmp_path / "infiniband/mlx5_0/ports/1", tmp_path / "net/eth4"
    for name, text in {"state": "4: ACTIVE", "link_layer": "Ethernet", "gid_attrs/ndevs/0": "eth4", "hw_counters/np_cnp_sent": "0"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    net.mkdir(parents=True)
    hosts, reader = Hosts(), Reader(tmp_path / "infiniband")
    for n, count in enumerate((7, 7, 9)):
        (net / "carrier_down_count").write_text(f"{count}\n")
        hosts.take(travelled("n1", 10.0 * n, "boot", reader.poll()))
    (port,) = hosts.ports.values()
    assert port.health is not None and (port.health.state, port.health.flap.dips, port.flap.dips[0].downs) == ("watch", 1, 2)
    assert "carrier_down rose by 2 in 20 s" in {finding.story for finding in port.health.findings}
    (folder / "gid_attrs/ndevs/0").write_text("../../etc")
    assert "carrier_down" not in reader.poll()[0].counters
