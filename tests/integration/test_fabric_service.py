"""The service on a simulated fabric of 16 hosts, read by the real tools, over a real bus, beside daemons and a job.

What goes wrong is told within two sweeps, on the right port and side, with the job it hits; a healthy fabric says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_proto import messages, subjects
from aegis_proto.api import read_reply
from aegis_proto.messages import Verdict
from aegis_proto.net import JobLinksAnswer, JobLinksQuery, LinksAnswer, LinksQuery
from aegis_proto.state import JobState, Pod
from harness.netservice import Node, Process, Sysfs
from harness.site import A, job_state
from harness.waiting import until
from support import ibsim

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(ibsim.missing()), reason=f"NO FABRIC: {', '.join(ibsim.missing())} missing (ibsim-utils, opensm, infiniband-diags)"),
]
LIMITS = "[flap]\nmerge_s = 0.2\nhold_s = 2.0\n"
"""Seconds instead of minutes: the tests wait for them."""


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ibsim.SimFabric]:
    with ibsim.fabric(tmp_path_factory.mktemp("fabric")) as made:
        yield made


class Watched:
    """The service over that fabric, with one job on the hosts of two leaves."""

    def __init__(self, bus: Bus, fabric: ibsim.SimFabric, process: Process) -> None:
        self.bus, self.fabric, self.process = bus, fabric, process

    async def links(self, bad: bool = False) -> LinksAnswer | None:
        try:
            asked = await self.bus.request(subjects.rpc_query("netmon", "links"), messages.encode(LinksQuery(bad, limit=500)), timeout=3.0)
        except BusError:
            return None
        return read_reply(LinksAnswer, asked)

    async def sweeps(self, count: int) -> None:
        """So many more sweeps that begin from now on."""
        seen: set[int] = set()

        async def swept() -> bool:
            answer = await self.links(bad=True)
            if answer is not None and answer.fabric.swept:
                seen.add(answer.fabric.swept)
            return len(seen) > count

        await until(swept, 30.0 + count, f"{count} sweeps")

    async def link(self, *ends: str) -> str:
        """Id of the link between two ends."""
        answer = await self.links()
        assert answer is not None
        return next(link.link for link in answer.links if {link.a, link.b} == set(ends))

    async def verdict(self, link: str) -> Verdict | None:
        stored = await self.bus.get("EVENTS", subjects.verdict("netmon", "link", link))
        return messages.decode(Verdict, stored.data) if stored is not None else None

    async def within_two_sweeps(self, link: str, *states: str) -> Verdict:
        """The verdict of a link, after the sweep that was going on and two more."""
        before, seen = await self.verdict(link), set[int]()
        while True:
            found, answer = await self.verdict(link), await self.links(bad=True)
            if found is not None and found != before and (not states or found.state in states):
                return found
            if answer is not None:
                seen.add(answer.fabric.swept)
            assert len(seen) <= 4, f"{link}: {found} after {len(seen)} sweeps"
            await asyncio.sleep(0.02)


@pytest_asyncio.fixture
async def watched(bus: Bus, nats_server: NatsServer, fabric: ibsim.SimFabric, tmp_path: Path) -> AsyncIterator[Watched]:
    (tmp_path / "limits.toml").write_text(LIMITS)
    made = job_state(A, "uid-a", 5)
    pods = tuple(Pod(node=f"node{n:02}") for n in (1, 2, 5, 6, 7))
    await JobStore(bus).create(JobState(made.head, (pods,), made.spec))
    env = {name: fabric.env[name] for name in ("IBSIM_SOCKNAME", "PATH", "OSM_CACHE_DIR", "OSM_TMP_DIR")}
    settings = {"FABRIC": "true", "PREFIX": "ibsim-run", "SWEEP": "0.1", "LIMITS": str(tmp_path / "limits.toml")}
    process = Process(nats_server.url, tmp_path, **env, **{f"AEGIS_NETMON_{name}": value for name, value in settings.items()})
    watched = Watched(bus, fabric, await process.start())

    async def whole() -> bool:
        answer = await watched.links()
        return answer is not None and answer.total == 32 and not answer.fabric.partial and any(link.jobs for link in answer.links)

    await until(whole, 60, "the whole fabric with the job")
    await watched.sweeps(2)
    yield watched
    await process.kill9()


async def test_a_healthy_fabric_says_nothing_for_fifty_sweeps(watched: Watched) -> None:
    await watched.sweeps(50)
    info = await watched.bus.js_api("STREAM.INFO.EVENTS", {"subjects_filter": "aegis.verdict.>"})
    assert not info["state"].get("subjects")


async def test_what_goes_wrong_is_told_on_its_port_with_the_side_and_the_job(watched: Watched) -> None:
    sick = await watched.link("leaf2 port 5", "spine1 port 3")
    watched.fabric.set("leaf2", 5, "SymbolErrorCounter", 900)
    verdict = await watched.within_two_sweeps(sick)
    assert (verdict.state, verdict.suspects) == ("degraded", ("spine1 port 3",))
    assert "symbol_error rose by 900" in verdict.sentence and A in verdict.sentence
    job = read_reply(JobLinksAnswer, await watched.bus.request(subjects.rpc_query("netmon", "job"), messages.encode(JobLinksQuery(A)), timeout=3.0))
    assert (job.links[0].link, job.exact) == (sick, False), "whether routing is adaptive is not known: every shortest path counts"

    capped = await watched.link("leaf3 port 7", "spine2 port 5")
    watched.fabric.set("leaf3", 7, "SymbolErrorCounter", 70_000)
    verdict = await watched.within_two_sweeps(capped)
    assert any("rose by at least 65535" in line for line in verdict.evidence)


async def test_errors_at_a_host_name_its_node_and_its_leaf_s_transmitter(watched: Watched) -> None:
    link = await watched.link("node06 mlx5_0 port 1", "leaf2 port 2")
    watched.fabric.set("node06 mlx5_0", 1, "PortRcvErrors", 17)
    verdict = await watched.within_two_sweeps(link)
    assert verdict.suspects == ("leaf2 port 2",)
    assert "hits" in verdict.sentence and A in verdict.sentence


async def test_a_dead_link_and_one_that_comes_and_goes(watched: Watched) -> None:
    link = await watched.link("leaf1 port 8", "spine2 port 2")
    watched.fabric.unlink("leaf1", 8)
    verdict = await watched.within_two_sweeps(link, "down")
    assert verdict.suspects == ("the cable spine2 port 2 - leaf1 port 8",)
    states = ["down"]
    for _ in range(2):
        watched.fabric.relink("leaf1", 8)
        states.append((await watched.within_two_sweeps(link, "watch", "flapping")).state)
        if states[-1] == "watch":
            watched.fabric.unlink("leaf1", 8)
            states.append((await watched.within_two_sweeps(link, "down", "flapping")).state)
    assert states == ["down", "watch", "down", "watch", "flapping"]
    watched.fabric.relink("leaf1", 8)


async def test_a_host_s_own_counters_and_the_sweep_are_one_link(watched: Watched, tmp_path: Path) -> None:
    """The daemon of node09 tells of the port whose GUID the sweep knows: it is that port, and its faster counters count."""
    answer = await watched.links()
    assert answer is not None
    link = next(link for link in answer.links if "node09 mlx5_0 port 1" in (link.a, link.b))
    guid = link.guidA if link.a.startswith("node09") else link.guidB
    node = Node(watched.bus, "node09", Sysfs(tmp_path / "sysfs", int(guid, 16)))
    for _ in range(2):
        await node.poll()
        await asyncio.sleep(0.002)
    node.sysfs.count("mlx5_0", port_rcv_errors=400)
    await node.poll()
    verdict = await watched.within_two_sweeps(link.link)
    assert verdict.nodes == ("node09",)
    assert set(verdict.read) == {"host", "fabric"}
    after = await watched.links()
    assert after is not None and after.total == 32
