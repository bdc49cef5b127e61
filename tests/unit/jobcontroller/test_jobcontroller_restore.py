"""The store is replaced by a copy to which others have written before this replica is back: what it knew of the one before counts for nothing."""

from __future__ import annotations

import asyncio

from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_jobcontroller.cache import FILTERS, Cache
from aegis_proto import subjects
from aegis_proto.messages import Era, Taint, encode
from harness.bus import MakeBus, replaced_by
from harness.waiting import until


async def taint(bus: Bus, node: str) -> int:
    return (await bus.publish(subjects.node_taint(node), encode(Taint(node, True, "x", "alice")))).seq


async def test_a_copy_that_has_reached_the_number_that_was_due_is_read_anew(nats_server: NatsServer, bus: Bus, make_bus: MakeBus) -> None:
    await bus.publish(subjects.ERA, encode(Era("e1")))
    await taint(bus, "n1")
    copy = await replaced_by(nats_server, bus, None)
    seq = await taint(bus, "n2")
    mine = await make_bus()
    cache = Cache(mine)
    mine.on_link.append(cache.could_not_hear)
    tasks = [asyncio.ensure_future(work) for work in (*map(cache.follow, FILTERS), cache.reread_heads())]
    await until(lambda: cache.ready)
    assert cache.world().taints.keys() == {"n1", "n2"}
    async with mine._renewing:  # it is back last
        await replaced_by(nats_server, bus, copy)
        assert await taint(bus, "n3") == seq, "else this test shows nothing"
        await bus.publish(subjects.ERA, encode(Era("e2", reason="restored")))
    await until(lambda: cache.ready and cache.world().era == "e2")
    await until(lambda: cache.world().taints.keys() == {"n1", "n3"})
    await taint(bus, "n4")
    await until(lambda: cache.world().taints.keys() == {"n1", "n3", "n4"})
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
