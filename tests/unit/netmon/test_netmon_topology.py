"""The fabric as a graph, the links of a job, the jobs of a link; adaptive routing as it is and not as one hopes."""

from __future__ import annotations

from pathlib import Path

import pytest
from aegis_netmon import routing, topology, users
from aegis_netmon.hosts import Hosts
from aegis_netmon.picture import Picture
from aegis_netmon.topology import Fabric
from aegis_netmon.watch import Watch
from aegis_parsers import parse
from aegis_parsers.schema import Item


@pytest.fixture(scope="module")
def fabric(shared: Path) -> Fabric:
    return topology.build(parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover_p.txt").read_text()).items)


@pytest.fixture(scope="module")
def tables(shared: Path) -> dict[str, dict[int, int]]:
    return users.routes(parse("dump_fts", (shared / "net/ibsim/dump_fts.txt").read_text()).items)


def named(fabric: Fabric, links: frozenset[str] | set[str]) -> set[str]:
    return {" - ".join(sorted((fabric.name(fabric.links[key].a), fabric.name(fabric.links[key].b)))) for key in links}


def link_of(fabric: Fabric, name: str, port: int) -> str:
    device = next(device.id for device in fabric.devices.values() if device.name == name)
    return next(key for key in fabric.of[device] if (device, port) in (fabric.links[key].a, fabric.links[key].b))


def test_every_listing_gives_the_same_fabric(shared: Path, fabric: Fabric) -> None:
    deep = topology.build(parse("ibnetdiscover", (shared / "net/ibsim/ibnetdiscover.txt").read_text()).items)
    lines = topology.build(parse("iblinkinfo", (shared / "net/ibsim/iblinkinfo_line.txt").read_text()).items)
    assert set(fabric.links) == set(deep.links) == set(lines.links)
    assert len(fabric.links) == 32
    for other in (deep, lines):
        assert {(d.id, d.name, d.kind, d.lid) for d in fabric.devices.values()} == {(d.id, d.name, d.kind, d.lid) for d in other.devices.values()}


def test_a_listing_that_names_peers_by_lid_alone_is_one_fabric_too(shared: Path) -> None:
    real = topology.build(parse("iblinkinfo", (shared / "net/iblinkinfo_real_edr_hdr.txt").read_text()).items)
    switch = "0c42a10300b95bfa"
    assert {port for link in real.links.values() for device, port in (link.a, link.b) if device == switch} == {1, 2, 3, 41}
    assert not real.down
    assert {device.name for device in real.devices.values() if device.kind == "host"} >= {"gpu-0 HCA-1", "gpu-1 HCA-1", "gpu-3 HCA-1"}


@pytest.mark.parametrize("name", ["ibnetdiscover_test.out", "ibnetdiscover_test2.out", "ibnetdiscover_test3.out"])
def test_parts_of_a_fabric_with_odd_names_are_a_graph(shared: Path, name: str) -> None:
    items = parse("ibnetdiscover", (shared / "net/ibnetdiscover" / name).read_text()).items
    made = topology.build(items)
    assert len(made.devices) >= len({item["guid"] for item in items})
    assert all(made.name(end) for link in made.links.values() for end in (link.a, link.b))


def test_hosts_leaves_and_spines_are_told_apart(fabric: Fabric) -> None:
    tiers = {fabric.devices[device].name.split(" ")[0][:4]: tier for device, tier in fabric.tiers.items()}
    assert tiers == {"node": 0, "leaf": 1, "spin": 2}
    assert {link.tier for link in fabric.links.values()} == {0, 1}


def test_an_unlinked_port_is_down_and_its_link_gone(shared: Path, fabric: Fabric) -> None:
    after = topology.build(parse("iblinkinfo", (shared / "net/ibsim/iblinkinfo_line_after_unlink.txt").read_text()).items)
    gone = link_of(fabric, "leaf2", 5)
    assert set(fabric.links) - set(after.links) == {gone}
    assert fabric.links[gone].a in after.down
    assert fabric.links[gone].b in after.down


def test_static_tables_say_exactly_which_links_a_job_crosses(fabric: Fabric, tables: dict[str, dict[int, int]]) -> None:
    used = users.use(fabric, ["node01", "node05"], tables)
    assert used.exact
    assert not used.broken
    bound = users.use(fabric, ["node01", "node05"])
    assert used.links < bound.links
    assert {fabric.links[key].tier for key in used.links} == {0, 1}
    assert {"leaf1 port 1 - node01 mlx5_0 port 1", "leaf2 port 1 - node05 mlx5_0 port 1"} <= named(fabric, used.links)


def test_adaptive_routing_may_use_every_shortest_path(fabric: Fabric, tables: dict[str, dict[int, int]]) -> None:
    used = users.use(fabric, ["node01", "node05"], tables, adaptive=True)
    assert not used.exact
    assert sum(fabric.links[key].tier == 1 for key in used.links) == 8


def test_a_job_under_one_leaf_uses_no_uplink(fabric: Fabric) -> None:
    used = users.use(fabric, ["node01", "node02"])
    assert used.exact
    assert {fabric.links[key].tier for key in used.links} == {0}


def test_a_host_that_the_fabric_does_not_show_is_named(fabric: Fabric) -> None:
    assert users.use(fabric, ["node01", "ghost"]).absent == ("ghost",)


def test_a_bad_link_names_the_jobs_it_touches_and_which_may_be(fabric: Fabric, tables: dict[str, dict[int, int]]) -> None:
    uses = {
        "near": users.use(fabric, ["node01", "node02"], tables),
        "far": users.use(fabric, ["node05", "node09"], tables),
        "maybe": users.use(fabric, ["node06", "node13"], tables, adaptive=True),
    }
    crossed = next(key for key in uses["far"].links if fabric.links[key].tier == 1 and key in uses["maybe"].links)
    picture = Picture(Hosts())
    picture.swept(Watch(links=fabric.links), fabric, ())
    picture.uses = uses
    assert [(row.job, row.certain) for row in picture.touched(picture.lines[crossed])] == [("far", True), ("maybe", False)]
    assert [row.job for row in picture.touched(picture.lines[link_of(fabric, "leaf1", 1)])] == ["near"]


def test_a_job_of_many_leaves_uses_every_way_up_and_no_link_of_hosts_that_are_not_its_own() -> None:
    """4,096 adapters under 128 leaves: neither each pair nor each leaf's own search is affordable."""
    items: list[Item] = []
    for leaf in range(128):
        items += [
            {
                "id": "",
                "kind": "link",
                "type": "CA",
                "guid": f"0xa{leaf:03x}{n:02x}",
                "port": 1,
                "lid": 1 + leaf * 32 + n,
                "name": f"n{leaf * 32 + n} mlx5_0",
                "peer_guid": f"0xb{leaf:03x}",
                "peer_port": n + 1,
                "peer": f"leaf{leaf}",
            }
            for n in range(32)
        ]
        items += [
            {
                "id": "",
                "kind": "link",
                "type": "SW",
                "guid": f"0xb{leaf:03x}",
                "port": 40 + n,
                "name": f"leaf{leaf}",
                "peer_guid": f"0xc{n:03x}",
                "peer_port": leaf + 1,
                "peer": f"spine{n}",
            }
            for n in range(8)
        ]
    made = topology.build(items)
    hosts = [f"n{n}" for n in range(4095)]
    ways = users.use(made, hosts)
    assert len(ways.links) == 4095 + 128 * 8 and not ways.exact
    leaves = {device.id: device.name for device in made.devices.values() if device.name.startswith("leaf")}
    tables = {
        guid: {lid: lid - 32 * int(name[4:]) if 0 < lid - 32 * int(name[4:]) <= 32 else 40 + lid % 8 for lid in range(1, 4097)}
        for guid, name in leaves.items()
    }
    tables |= {topology.guid(f"0xc{n:03x}"): {lid: 1 + (lid - 1) // 32 for lid in range(1, 4097)} for n in range(8)}
    static = users.use(made, hosts, tables)
    assert static.links == ways.links and static.exact and not static.broken
    two = users.use(made, ["n0", "n32"], tables)
    assert {made.name(made.links[key].a) for key in two.links if made.links[key].tier == 1} | {
        made.name(made.links[key].b) for key in two.links if made.links[key].tier == 1
    } >= {"leaf0 port 41", "leaf1 port 41"}
    assert len(two.links) == 4, "both by the one spine that their tables name"
    del tables[topology.guid("0xc001")]
    assert set(users.use(made, ["n0", "n32"], tables).broken) == {"spine1 -> n0 mlx5_0", "spine1 -> n32 mlx5_0"}


def test_the_daemons_know_better_than_descriptions_which_host_an_adapter_is(fabric: Fabric) -> None:
    device = next(device.id for device in fabric.devices.values() if device.name == "node01 mlx5_0")
    assert len(users.adapters(fabric, ["gpu-a"], {device: "gpu-a"})["gpu-a"]) == 1


def test_adaptive_routing_on_all_switches_is_on_and_on_some_is_not(shared: Path) -> None:
    text = parse("ibdiagnet", (shared / "net/logs/ibdiagnet_summary_lines.txt").read_text())
    assert routing.read(text, 480, 0.0).state == "on"
    some = routing.read(text, 500, 0.0)
    assert (some.state, some.switches, some.of) == ("unknown", 480, 500)
    assert "which are off" in some.reason
    assert routing.read(text, None, 0.0).state == "unknown"


AR_INFO = """START_AR_INFO
NodeGUID,e,is_arn_sup,fr_enabled,by_sl_en,enable_by_sl_mask
0x1,{one},1,1,{some},{mask}
0x2,1,1,1,0,0xffff
END_AR_INFO
"""


@pytest.mark.parametrize(
    ("one", "some", "switches", "told"),
    [
        ("1", "0", 2, ("on", (), "on")),
        ("1", "1", 2, ("on", (), "off")),
        ("0", "0", 2, ("unknown", ("0000000000000001",), "unknown")),
        ("1", "0", 3, ("unknown", (), "unknown")),
        ("N/A", "0", 2, ("unknown", (), "unknown")),
    ],
)
def test_each_switch_s_own_state_and_levels_are_told_where_they_can_be_read(one: str, some: str, switches: int, told: tuple[object, ...]) -> None:
    read = routing.read(parse("ibdiagnet", AR_INFO.format(one=one, some=some, mask="0x0007")), switches, 1.0)
    assert (read.state, read.off, routing.level_state(read, 3)) == told
    assert read.reason.startswith(f"on for {read.switches} of {switches} switches")
    if some == "1":
        assert [note.text for note in routing.check_nccl({"NCCL_IB_SL": "3"}, read)] == [
            "service level 3 is outside the mask of 1 switches: static there although adaptive routing is on"
        ]


def test_what_was_not_printed_is_unknown_with_its_reason_and_a_static_engine_is_off() -> None:
    none = parse("ibdiagnet", "-I- nothing\n")
    assert routing.read(none, 4, 0.0).state == "unknown"
    assert "no line on adaptive routing" in routing.read(none, 4, 0.0).reason
    assert routing.read(none, 4, 0.0, engine="ftree").state == "off"
    assert routing.read(none, 4, 0.0, engine="ar_updn").state == "unknown"


def ar(state: routing.Switch3, masks: dict[str, int] | None = None) -> routing.AdaptiveState:
    return routing.AdaptiveState(state, 4 if state == "on" else 0, 4, "ibdiagnet", 0.0, "", masks or {})


@pytest.mark.parametrize(
    ("environ", "state", "names"),
    [
        ({}, ar("on"), []),
        ({"NCCL_IB_ADAPTIVE_ROUTING": "0"}, ar("on"), ["NCCL_IB_ADAPTIVE_ROUTING"]),
        ({"NCCL_IB_ADAPTIVE_ROUTING": "yes"}, ar("on"), ["NCCL_IB_ADAPTIVE_ROUTING"]),
        ({"NCCL_IB_SL": "3"}, ar("on", {"0x2/1": 0x1}), ["NCCL_IB_SL"]),
        ({"NCCL_IB_SL": "0"}, ar("on", {"0x2/1": 0xFFFF}), []),
        ({"NCCL_IB_TIMEOUT": "14"}, ar("off"), ["NCCL_IB_TIMEOUT"]),
    ],
)
def test_settings_of_a_job_are_checked_against_the_fabric(environ: dict[str, str], state: routing.AdaptiveState, names: list[str]) -> None:
    assert [note.name for note in routing.check_nccl(environ, state) if note.level == "warning"] == names


def test_a_service_level_outside_the_mask_is_static(shared: Path) -> None:
    parsed = parse("ibdiagnet", (shared / "net/ibdiagnet2_db_csv_format_only.csv").read_text())
    assert routing.read(parsed, 1, 0.0).masks == {"0x2/1": 0xFFFF}
    assert routing.level_state(ar("on", {"a": 0b10}), 1) == "on"
    assert routing.level_state(ar("on", {"a": 0b10, "b": 0b1}), 1) == "off"


BUSY = 100e9 * 60
"""Bits of a minute at half the rate of a 200 Gb/s link."""


def test_even_uplinks_prove_adaptive_routing_and_uneven_ones_the_contrary() -> None:
    assert routing.spread({str(n): BUSY for n in range(8)}, 60, 200).state == "even"
    assert routing.spread({str(n): BUSY * (n % 2) * 2 for n in range(8)}, 60, 200).state == "uneven"
    assert routing.spread({str(n): BUSY / 1e3 for n in range(8)}, 60, 200).state == "too_little"
    assert routing.spread({}, 60, 200).state == "unknown"


def test_a_dead_link_under_even_traffic_is_a_warning() -> None:
    dead = routing.spread({str(n): BUSY for n in range(7)}, 60, 200, down=["7"])
    assert dead.state == "even"
    assert "12% of the capacity is gone" in dead.warning
    silent = routing.spread({**{str(n): BUSY for n in range(7)}, "7": 0.0}, 60, 200, adaptive=True)
    assert silent.lost == ("7",)
    assert silent.warning
    assert not routing.spread({str(n): BUSY for n in range(8)}, 60, 200).warning


def test_mixed_and_unknown_firmware_is_named() -> None:
    found = routing.inventory({"sw1": "31.2012.1068", "sw2": "31.2012.1068", "sw3": "31.2010.0001", "old": "11.2008.2102", "what": "99.1"})
    assert found.odd == ("sw3: 31.2010.0001, most have 31.2012.1068",)
    assert [line.split(":")[0] for line in found.without] == ["old", "what"]


def test_the_tables_name_their_sources() -> None:
    assert all(row.source for row in routing.families())
    assert all(row.source for row in routing.settings().values())
