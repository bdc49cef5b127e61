"""Leases say who lives: no longer than the TTL after a death, not at all after a clean stop."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from aegis_bus import errors
from aegis_bus.connection import Bus
from aegis_bus.lease import Lease, live_replicas
from aegis_bus.natsserver import NatsServer
from aegis_proto import messages, subjects
from aegis_proto.messages import LeaseData
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


async def test_a_name_that_another_process_renews_is_taken(bus: Bus) -> None:
    async def other() -> None:
        while True:
            await bus.publish(subjects.lease("m1"), messages.encode(LeaseData("m1", "master", host="elsewhere", pid=7)), ttl=2.0)
            await asyncio.sleep(0.3)

    renewing = asyncio.create_task(other())
    await until(lambda: live_replicas(bus))
    lease = Lease(bus, "m1", ttl=2.0)
    with pytest.raises(errors.NameTaken, match=r'service.replica "m1": another master of this name runs \(pid 7 on elsewhere\)'):
        await lease.start()
    assert (await live_replicas(bus))["m1"].pid == 7
    renewing.cancel()
    await lease.start()  # the other has ended: its lease ends too
    assert (await live_replicas(bus))["m1"].pid != 7
    await lease.stop()


async def test_a_predecessor_that_died_on_this_machine_is_not_waited_for(bus: Bus) -> None:
    dead = await asyncio.create_subprocess_exec("true")
    await dead.wait()
    await bus.publish(subjects.lease("m1"), messages.encode(LeaseData("m1", host=socket.gethostname(), pid=dead.pid)))
    lease = Lease(bus, "m1", ttl=60.0)
    async with asyncio.timeout(5):
        await lease.start()
    await lease.stop()
