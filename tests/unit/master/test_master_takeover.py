"""Ownership: one owner at a time, takeover in the middle of anything, nothing lost and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aegis_bus.connection import Bus
from aegis_bus.jobstore import JobStore
from aegis_master.ownership import rank
from aegis_proto.state import JobSpec
from harness.masters import InProcess, events_of, state_of, submit, table, until_phase, write_era
from harness.simagent import Behaviour, SimPlatform
from harness.waiting import until

MakeBus = Callable[..., Awaitable[Bus]]
SPEC = JobSpec("take", ("python", "train.py"), workers=3, maxRetry=2)


async def masters(bus: Bus, make_bus: MakeBus, count: int) -> list[InProcess]:
    await write_era(bus)
    return [await InProcess(await make_bus(name=f"master-m{i}"), f"m{i}").start() for i in range(count)]


def owner(running: list[InProcess], name: str) -> InProcess:
    return next(master for master in running if master.master.replica == name)


async def test_a_master_that_dies_in_the_middle_of_troubleshooting_is_replaced_and_nothing_is_counted_twice(bus: Bus, make_bus: MakeBus) -> None:
    running = await masters(bus, make_bus, 2)
    reply = await submit(bus, SPEC)
    platform = await SimPlatform(bus, reply.job, reply.uid, behaviour=Behaviour(check_for=0.05)).start()
    await until_phase(bus, reply.job, "RunCommand", incarnation=0)
    for agent in platform.agents.values():
        agent.behaviour = Behaviour(check_for=1.0)
    await platform.agents[1].fail(message="ValueError")
    loaded = await until_phase(bus, reply.job, "Troubleshooting")
    first = loaded.state.head.owner
    began = asyncio.get_running_loop().time()
    await owner(running, first.replica).crash()

    async def another() -> bool:
        return (await state_of(bus, reply.job)).state.head.owner.replica not in ("", first.replica)

    await until(another, 10, "another owner")
    print(f"takeover in {asyncio.get_running_loop().time() - began:.2f} s of a lease of 2 s")
    loaded = await until_phase(bus, reply.job, "RunCommand", incarnation=1)
    assert table(loaded) == "1:1:1"
    assert loaded.state.head.owner.term == first.term + 1
    for agent in platform.agents.values():
        await agent.finish()
    loaded = await until_phase(bus, reply.job, "Succeed")
    events = await events_of(bus, reply.job)
    assert [event.retries for event in events if event.counted] == ["0:1:0"]
    await platform.stop()


async def test_a_clean_end_gives_jobs_away_at_once(bus: Bus, make_bus: MakeBus) -> None:
    running = await masters(bus, make_bus, 2)
    reply = await submit(bus, SPEC)
    platform = await SimPlatform(bus, reply.job, reply.uid).start()
    loaded = await until_phase(bus, reply.job, "RunCommand")
    leaving = owner(running, loaded.state.head.owner.replica)
    began = asyncio.get_running_loop().time()
    await leaving.stop()

    async def another() -> bool:
        replica = (await state_of(bus, reply.job)).state.head.owner.replica
        return replica not in ("", leaving.master.replica)

    await until(another, 5, "another owner")
    assert asyncio.get_running_loop().time() - began < 1.0
    assert (await state_of(bus, reply.job)).state.head.phase.value == "RunCommand"
    await platform.stop()


async def test_two_replicas_that_both_believe_to_own_a_job_write_one_history(bus: Bus, make_bus: MakeBus) -> None:
    running = await masters(bus, make_bus, 2)
    reply = await submit(bus, SPEC)
    platform = await SimPlatform(bus, reply.job, reply.uid, behaviour=Behaviour(check_for=0.02)).start()
    await until_phase(bus, reply.job, "RunCommand", incarnation=0)
    # Take the job away again and again, without asking any lease, while failures are counted.
    stores = [JobStore(master.bus) for master in running]
    stop = asyncio.Event()

    async def thief() -> None:
        turn = taken_so_far = 0
        while not stop.is_set():
            master = running[turn % 2]
            turn += 1
            loaded = await stores[turn % 2].load(reply.job)
            if loaded is None or loaded.state.head.phase.terminal:
                return
            try:
                taken = await master.master.store.take_over(loaded, master.master.replica)
            except Exception:  # the owner was faster
                await asyncio.sleep(0.01)
                continue
            master.master.ownership.own(taken)
            taken_so_far += 1
            await asyncio.sleep(0.01 if taken_so_far < 10 else 0.5)  # then the job gets on, however slow this machine is

    stealing = asyncio.create_task(thief())
    await platform.agents[0].fail()
    await until_phase(bus, reply.job, "RunCommand", incarnation=1)
    await platform.kill(2)
    await until_phase(bus, reply.job, "RunCommand", incarnation=2)
    stop.set()
    await stealing
    loaded = await state_of(bus, reply.job)
    assert table(loaded) == "2:2:2"
    assert loaded.state.head.owner.term > 5
    events = await events_of(bus, reply.job)
    unique = {event.eventId: event for event in events}
    assert sorted(event.retries for event in unique.values() if event.counted) == ["1:0:0", "1:1:2"]
    await platform.stop()


async def test_every_job_of_a_dead_replica_gets_an_owner_and_they_are_shared_out(bus: Bus, make_bus: MakeBus) -> None:
    running = await masters(bus, make_bus, 3)
    jobs = [(await submit(bus, JobSpec(f"many{i}", ("true",), workers=1))).job for i in range(12)]
    dead = running[0]
    # All belong to one replica, which dies.
    for job in jobs:
        loaded = await state_of(bus, job)
        if loaded.state.head.owner.replica != "m0":
            dead.master.ownership.own(await dead.master.store.take_over(loaded, "m0"))
    await dead.crash()

    async def owners() -> set[str]:
        return {(await state_of(bus, job)).state.head.owner.replica for job in jobs}

    async def shared() -> bool:
        return await owners() == {"m1", "m2"}

    await until(shared, 10, "all jobs owned by the other two")


def test_the_order_of_taking_is_the_same_for_everybody_and_even() -> None:
    live = [f"m{i}" for i in range(4)]
    first = dict.fromkeys(live, 0)
    for job in (f"job-{i}" for i in range(400)):
        ranks = {replica: rank(job, replica, live) for replica in live}
        assert sorted(ranks.values()) == [0, 1, 2, 3]
        first[min(ranks, key=lambda replica: ranks[replica])] += 1
    assert all(60 <= count <= 140 for count in first.values()), first
