"""Which ports of a node are judged at all, and what is slower than it should be: by the manifest, by the peers, by what a link did before."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from aegis_netmon import kept, transport, watch
from aegis_netmon.correlate import Incident
from aegis_netmon.expected import Expected, Seen
from aegis_netmon.fabricpoll import Reading
from aegis_netmon.hostpoll import NodePoll, PortPoll
from aegis_netmon.hosts import HostPort, Hosts
from aegis_netmon.incidents import KeptIncidents
from aegis_netmon.picture import JobUse, Picture
from aegis_netmon.series import Poll
from aegis_netmon.topology import Fabric, build
from aegis_netmon.watch import LinkVerdict, Watch, step

INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"


def port(node: str, device: str, at: float, layer: str = INFINIBAND, *, up: bool = True, gbps: float = 400.0, **counts: int) -> PortPoll:
    name = f"{node}/{device}"
    return PortPoll(Seen(node, device, 1, up, layer, gbps), Poll(name, 1, at, {"symbol_error": 0, "carrier_down": 0, **counts}), "", "", None, "")


def told(hosts: Hosts, at: float, *ports: PortPoll) -> None:
    for node in sorted({one.seen.node for one in ports}):
        hosts.take(NodePoll(node, at, 10.0, 1.0, tuple(one for one in ports if one.seen.node == node)))
    hosts.expect(at)


def state(hosts: Hosts, node: str, device: str) -> tuple[str, list[str]]:
    found = hosts.ports[node, device, 1].health
    assert found is not None
    return found.state, [finding.code for finding in found.findings]


def flapping(hosts: Hosts, layers: Sequence[str]) -> None:
    """Three nodes with a port that is fine and one that goes down in every other poll, loses its carrier and drops packets."""
    for n in range(8):
        for node in ("n1", "n2", "n3"):
            bad = port(node, "mlx5_bond_0", 5000.0 + 60 * n, layers[1], up=n % 2 == 0, carrier_down=n, port_rcv_errors=50 * n, rnr_nak_retry_err=n)
            told(hosts, 5000.0 + 60 * n, port(node, "mlx5_0", 5000.0 + 60 * n, layers[0]), bad)


def test_an_ethernet_port_beside_infiniband_is_read_and_never_judged_nor_of_a_job_nor_the_network_of_a_failure() -> None:
    hosts, picture = Hosts(), Picture(Hosts())
    picture.hosts = hosts
    flapping(hosts, (INFINIBAND, ETHERNET))
    picture.placed([JobUse("big-1", "default", ("n1", "n2"))])
    picture.round(5420.0)
    assert state(hosts, "n1", "mlx5_bond_0") == ("unknown", ["not_judged"])
    assert {key for key, line in picture.lines.items() if line.state in watch.ALARMS} == set()
    assert picture.uses["big-1"].links == {"n1-mlx5_0-1", "n2-mlx5_0-1"}
    failed = Incident("big-1-1", 5421.0, ("n1",), None, "big-1", 1, nodes=("n1", "n2"))
    assert transport.of_incident(failed, (), picture).cause == "unknown"
    again = Hosts()
    kept.give_back(kept.gather(hosts, Watch(), KeptIncidents(), 1, ""), again)
    assert state(again, "n1", "mlx5_bond_0") == ("unknown", ["not_judged"])


@pytest.mark.parametrize(
    ("layers", "manifest"), [((ETHERNET, ETHERNET), ()), ((INFINIBAND, ETHERNET), (Expected("mlx5_0"), Expected("mlx5_bond_0")))]
)
def test_a_roce_node_s_ports_and_those_that_the_manifest_names_are_judged(layers: Sequence[str], manifest: Sequence[Expected]) -> None:
    hosts = Hosts(manifest)
    flapping(hosts, layers)
    found, codes = state(hosts, "n1", "mlx5_bond_0")
    assert found in ("down", "flapping") and {"receiver_not_ready", "link_went_down"} <= set(codes)


def test_a_layer_that_cannot_be_read_for_once_makes_no_management_port_of_the_others() -> None:
    hosts = Hosts()
    told(hosts, 10.0, port("n1", "mlx5_0", 10.0, ETHERNET), port("n1", "mlx5_1", 10.0, ETHERNET))
    told(hosts, 20.0, port("n1", "mlx5_0", 20.0, ""), port("n1", "mlx5_1", 20.0, ETHERNET))
    assert {one.seen.device: (one.seen.layer, one.aside) for one in hosts.ports.values()} == {
        "mlx5_0": (ETHERNET, False),
        "mlx5_1": (ETHERNET, False),
    }


def nodes(hosts: Hosts, rates: Sequence[tuple[float, float]], at: float) -> HostPort:
    """Each node with the rates of its two ports; gives the first of the first."""
    told(hosts, at, *(port(f"n{n}", f"mlx5_{d}", at, gbps=rate) for n, both in enumerate(rates) for d, rate in enumerate(both)))
    return hosts.ports["n0", "mlx5_0", 1]


FAST = (400.0, 400.0)


@pytest.mark.parametrize(
    ("manifest", "rates", "found"),
    [
        ([Expected("mlx5_0", gbps=400)], [(200.0, 200.0), FAST], ("degraded", "200 Gb/s, expected 400")),
        ([], [(100.0, 400.0), *[FAST] * 4], ("watch", "100 Gb/s, 4 of 4 peers have more")),
        ([], [(100.0, 400.0), FAST, FAST], ("unproven", "")),
        ([], [(200.0, 200.0), *[FAST] * 40], ("unproven", "")),
        ([], [(200.0, 400.0)] * 3 + [FAST] * 5, ("unproven", "")),
        ([Expected("mlx5_0")], [(100.0, 400.0), *[FAST] * 4], ("unproven", "")),
    ],
    ids=["manifest", "peers", "too few", "a node of an older kind", "a device of another kind", "a manifest without rates"],
)
def test_a_port_that_came_up_slower_than_the_manifest_or_than_its_peers_and_its_node_is_told(
    manifest: list[Expected], rates: list[tuple[float, float]], found: tuple[str, str]
) -> None:
    hosts = Hosts(manifest)
    for at in (10.0, 20.0, 30.0):
        slow = nodes(hosts, rates, at)
    assert slow.health is not None
    assert (slow.health.state, "".join(one.story for one in slow.health.findings if one.code == "link_slow")) == found
    nodes(hosts, [FAST] * len(rates), 40.0)
    assert slow.health.state == "unproven"


def test_a_port_of_the_manifest_that_a_node_never_listed_is_down() -> None:
    hosts = Hosts([Expected("mlx5_0"), Expected("mlx5_1")])
    for at in (10.0, 20.0):
        told(hosts, at, port("n1", "mlx5_0", at))
    picture = Picture(hosts)
    picture.round(21.0)
    info = picture.info(picture.lines["n1-mlx5_1-1"], 21.0)
    assert (info.state, info.a, info.reason) == ("down", "n1 mlx5_1 port 1", "not there")
    told(hosts, 30.0, port("n1", "mlx5_0", 30.0), port("n1", "mlx5_1", 30.0))
    assert state(hosts, "n1", "mlx5_1") == ("unknown", []), "it is there now, and has been read once"


# --- the fabric's side ---------------------------------------------------------------------------------------------------------


def fabric(width: str = "4x", speed: str = "NDR") -> Fabric:
    ends = (("0xa", 1, "n1 mlx5_0", "0xb", 7, "leaf1"), ("0xb", 7, "leaf1", "0xa", 1, "n1 mlx5_0"))
    return build(
        [
            {
                **{"id": "", "kind": "link", "type": "CA" if guid == "0xa" else "SW", "guid": guid, "port": number, "name": name},
                **{"peer_guid": there, "peer_port": other, "peer": peer, "width": width, "speed": speed},
            }
            for guid, number, name, there, other, peer in ends
        ]
    )


def seen(at: float, made: Fabric, **more: object) -> Reading:
    (link,) = made.links.values()
    polls = tuple(Poll(*end, at, {"symbol_error": 0, "port_rcv_errors": 0}) for end in (link.a, link.b))
    return msgspec.structs.replace(Reading(at, made, polls), **more)


def play(*readings: Reading) -> LinkVerdict:
    state, verdicts = Watch(), list[LinkVerdict]()
    for each in readings:
        state, verdicts = step(state, each)
    return verdicts[0]


WEEK = 7 * 86400.0


def test_a_link_that_comes_back_on_one_lane_is_degraded_until_it_is_as_before_or_long_enough_so() -> None:
    first = [seen(0.0, fabric()), seen(60.0, fabric())]
    lame = play(*first, seen(120.0, fabric("1x")))
    assert (lame.state, lame.side.suspect) == ("degraded", "cable")
    assert lame.findings[0].story == "up at 1x NDR (106.25 Gb/s), 425 Gb/s before"
    assert play(*first, seen(120.0, fabric("1x")), seen(180.0, fabric())).state == "unproven"
    assert play(*first, *(seen(120.0 + n * WEEK / 2, fabric("1x")) for n in range(4))).state != "degraded"
    assert play(seen(0.0, fabric("4x", "EDR")), seen(60.0, fabric("4x", "EDR")), seen(120.0, fabric())).state == "unproven", "faster is fine"


def test_what_a_tool_says_of_a_link_that_could_be_faster_is_a_warning_and_its_bit_error_rates_count() -> None:
    made = fabric()
    told = play(*(seen(60.0 * n, made, below={(f"{0xB:016x}", 7): "leaf1 port 7: 4X 25.78125 Gbps, could be 53.125 Gbps"}) for n in range(3)))
    assert (told.state, [one.code for one in told.findings]) == ("watch", ["link_slow"])
    bad = play(*(seen(60.0 * n, made, optics={(f"{0xB:016x}", 7): {"symbol_ber": 3e-11, "effective_ber": 0.0}}) for n in range(3)))
    assert (bad.state, bad.end, [one.code for one in bad.findings]) == ("degraded", "leaf1 port 7", ["ber_high"])
    fine = play(*(seen(60.0 * n, made, optics={(f"{0xB:016x}", 7): {"symbol_ber": 0.0, "raw_ber": 1e-7}}) for n in range(3)))
    assert fine.state == "unproven"
