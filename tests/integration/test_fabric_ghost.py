"""The ghost over a live bus: a job that times out now and then, with other ranks in other racks each time, ends at one line card with a slow fan.

A director of four line cards over four leaves, simulated, swept by the real tools; half-way the service is replaced by one that never ran. A week is
a dozen sweeps here, and the slack between a port's event and a failure half a second instead of a minute.
"""

from __future__ import annotations

import os
import random
import re
import signal
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.jobstore import JobStore
from aegis_bus.natsserver import NatsServer
from aegis_proto import messages, subjects
from aegis_proto.api import read_reply
from aegis_proto.messages import JobEvent, Verdict
from aegis_proto.net import LinksAnswer, LinksQuery
from aegis_proto.state import JobState, Pod
from harness.netservice import Process
from harness.site import A, job_state
from harness.waiting import until
from support import ibsim

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(ibsim.missing()), reason=f"NO FABRIC: {', '.join(ibsim.missing())} missing (ibsim-utils, opensm, infiniband-diags)"),
]
CARDS = 4
GHOST = 3
WEEKS = 10
A_WEEK = 12
MOST = 8
"""Weeks that must be seen: a burst while the counters are being read is dated to the sweep after it."""
LIMITS = "[common]\nslack_s = 0.5\nlag_s = 0.5\nsettle_s = 8.0\n"
NODES = ("node01", "node02", "node05", "node06", "node07")
"""Of the job: under two leaves, ports 1 to 4 of every card."""


def card(number: int) -> str:
    return f"MF0;core1:CS8500/L{number}/U1"


class Director:
    """What its cards count and how they turn their fans; every write of a file is whole."""

    def __init__(self, fabric: ibsim.SimFabric, folder: Path) -> None:
        self._fabric, self._folder = fabric, folder
        (folder / "reports").mkdir()
        self._counts: dict[tuple[int, int], int] = {}

    def burst(self, number: int, port: int) -> None:
        """Some thousand packets dropped at once."""
        self._counts[number, port] = count = self._counts.get((number, port), 0) + 3000
        self._fabric.set(card(number), port, "PortXmitDiscards", count)

    def turn(self, number: int, rpm: int, celsius: int) -> None:
        """Fan 3 of a card, and its chip."""
        fans = "".join(f"fan#{n} (rpm) | {rpm if n == 3 else 8400 + n}\n" for n in range(1, 5))
        (self._folder / "new").write_text(f"Card {number}\n=====\nfirmware version | 27.2010.1\ntemperature (C) | {celsius}\nfan status | OK\n{fans}")
        os.replace(self._folder / "new", self._folder / f"reports/core1_L{number}.ibswinfo.txt")


async def links(bus: Bus) -> LinksAnswer | None:
    try:
        asked = await bus.request(subjects.rpc_query("netmon", "links"), messages.encode(LinksQuery(True, limit=500)), timeout=3.0)
    except BusError:
        return None
    return read_reply(LinksAnswer, asked)


async def sweeps(bus: Bus, count: int) -> None:
    """So many more sweeps."""
    seen: set[int] = set()

    async def swept() -> bool:
        answer = await links(bus)
        if answer is not None and answer.fabric.swept:
            seen.add(answer.fabric.swept)
        return len(seen) > count

    await until(swept, 60.0 + 5 * count, f"{count} sweeps")


async def test_timeouts_of_other_ranks_each_time_end_at_one_line_card_with_a_slow_fan(
    bus: Bus, nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    (tmp_path / "limits.toml").write_text(LIMITS)
    made = job_state(A, "uid-a", len(NODES))
    await JobStore(bus).create(JobState(made.head, (tuple(Pod(node=node) for node in NODES),), made.spec))
    rng = random.Random(7)
    with ibsim.fabric(tmp_path_factory.mktemp("director"), [card(n) for n in range(1, CARDS + 1)]) as fabric:
        director = Director(fabric, tmp_path)
        for number in range(1, CARDS + 1):
            director.turn(number, 8400, 61)
        env = {name: fabric.env[name] for name in ("IBSIM_SOCKNAME", "PATH", "OSM_CACHE_DIR", "OSM_TMP_DIR")}
        told = {"FABRIC": "true", "PREFIX": "ibsim-run", "SWEEP": "0.1", "KEEP": "1.0"}
        told |= {"LIMITS": str(tmp_path / "limits.toml"), "REPORTS": str(tmp_path / "reports")}
        settings = {f"AEGIS_NETMON_{name}": value for name, value in told.items()}
        process = await Process(nats_server.url, tmp_path, "net-1", **env, **settings).start()
        try:

            async def whole() -> bool:
                answer = await links(bus)
                return answer is not None and answer.fabric.links == 4 * (4 + 2 * CARDS) and not answer.fabric.partial

            await until(whole, 90, "the whole fabric")
            await sweeps(bus, 3)

            async def fail(incarnation: int, cause: str, node: str) -> None:
                event = JobEvent(f"e{incarnation}", A, "default", "counted", "", incarnation, 1, "Troubleshooting", "hung", "w0", node, counted=True)
                await bus.publish(subjects.job_event(A), messages.encode(event))
                verdict = Verdict(f"{A}-{incarnation}", "lognexus", cause, job=A, incarnation=incarnation, nodes=(node,))
                await bus.publish(subjects.verdict("lognexus", "job", verdict.id), messages.encode(verdict))

            for week in range(WEEKS):
                if week == WEEKS // 2:
                    await process.end(signal.SIGKILL)
                    process = await Process(nats_server.url, tmp_path, "net-2", **env, **settings).start()
                    await sweeps(bus, 2)
                director.turn(GHOST, 4100, 92)
                director.burst(GHOST, rng.randint(1, 4))
                await fail(2 * week + 1, "unknown", NODES[week % len(NODES)])
                await sweeps(bus, A_WEEK // 3)
                director.turn(GHOST, 8400, 61)
                await sweeps(bus, A_WEEK // 3)
                director.burst(rng.choice([1, 2, 4]), rng.randint(1, 8))
                await sweeps(bus, A_WEEK // 6)
                await fail(2 * week + 2, "user_code", rng.choice(NODES))
                await sweeps(bus, A_WEEK // 6)

            async def named() -> str:
                answer = await links(bus)
                found = answer.fabric.common if answer is not None else ""
                return found if f"of {WEEKS} incidents" in found else ""

            common = await until(named, 60, f"what all weeks have in common; log: {(tmp_path / 'net-2.log').read_text()[-3000:]}")
            hits = re.match(rf"(\d+) of {WEEKS} incidents coincide with card core1/L{GHOST}, cause: slow fan fan3;", common)
            assert hits is not None and int(hits[1]) >= MOST, common
            stored = await bus.get("EVENTS", subjects.verdict("netmon", "link", f"part-card-core1_L{GHOST}"))
            assert stored is not None
            verdict = messages.decode(Verdict, stored.data)
            words = "\n".join(verdict.evidence)
            assert "port_xmit_discards" in words and "not one node" in words and "chip was at 92 C" in words
            info = await bus.js_api("STREAM.INFO.EVENTS", {"subjects_filter": "aegis.verdict.netmon.link.*"})
            assert [one for one in info["state"]["subjects"] if ".part-" in one] == [subjects.verdict("netmon", "link", f"part-card-core1_L{GHOST}")]
        finally:
            await process.kill9()
