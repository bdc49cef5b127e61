"""Leases say who lives: no longer than the TTL after a death, not at all after a clean stop."""

from __future__ import annotations

import asyncio
import time

from aegis_bus.connection import Bus
from aegis_bus.lease import Lease, live_replicas
from aegis_bus.natsserver import NatsServer
from harness.bus import MakeBus
from harness.waiting import until


async def test_a_lease_lives_while_it_is_renewed_and_ends_with_a_clean_stop_at_once(bus: Bus) -> None:
    first, second = Lease(bus, "m1", "master", ttl=2.0), Lease(bus, "c1", "jobcontroller", ttl=2.0)
    await first.start()
    await second.start()
    began = time.monotonic()

    async def alive_for_two_ttls() -> bool:
        assert set(await live_replicas(bus)) == {"m1", "c1"}
        await asyncio.sleep(0.1)
        return time.monotonic() - began > 4.5

    await until(alive_for_two_ttls)
    live = await live_replicas(bus, "master")
    assert set(live) == {"m1"} and live["m1"].pid > 0 and live["m1"].reads >= 1
    assert not first.lost.is_set()
    await first.stop()
    assert set(await live_replicas(bus)) == {"c1"}
    await second.stop()
    assert await live_replicas(bus) == {}


async def test_a_dead_replica_is_gone_after_its_ttl(bus: Bus, make_bus: MakeBus) -> None:
    dying = await make_bus()
    lease = Lease(dying, "m1", ttl=2.0)
    await lease.start()
    assert lease._task is not None
    lease._task.cancel()  # as kill -9 would
    last = lease._renewed
    assert set(await live_replicas(bus)) == {"m1"}

    async def gone() -> bool:
        return not await live_replicas(bus)

    await until(gone)
    assert time.monotonic() - last > 1.0


async def test_a_replica_that_cannot_renew_knows_it_and_comes_back(nats_server: NatsServer, bus: Bus) -> None:
    lease = Lease(bus, "m1", ttl=2.0)
    await lease.start()
    nats_server.kill9()
    await until(lease.lost.is_set)
    nats_server.start()
    await until(lambda: not lease.lost.is_set())
    assert set(await live_replicas(bus)) == {"m1"}
    await lease.stop()


async def test_stopping_while_the_bus_is_away_returns(nats_server: NatsServer, bus: Bus) -> None:
    lease = Lease(bus, "m1", ttl=2.0)
    await lease.start()
    nats_server.kill9()
    await until(lambda: not bus.connected)
    async with asyncio.timeout(5):
        await lease.stop()


async def test_rubbish_in_a_lease_hides_nobody_else(bus: Bus) -> None:
    await bus.publish("aegis.lease.bad", b"{")
    lease = Lease(bus, "m1", ttl=2.0)
    await lease.start()
    assert set(await live_replicas(bus)) == {"m1"}
    await lease.stop()
