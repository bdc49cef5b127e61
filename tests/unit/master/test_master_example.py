"""The worked example of the phase machine over real messages: a real server, a real master, simulated agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aegis_bus.connection import Bus
from aegis_proto.state import JobSpec
from harness.masters import InProcess, events_of, state_of, submit, table, until_phase, write_era
from harness.simagent import Behaviour, SimPlatform

MakeBus = Callable[..., Awaitable[Bus]]


async def test_the_worked_example_comes_out_exactly(bus: Bus, make_bus: MakeBus) -> None:
    await write_era(bus)
    master = await InProcess(await make_bus(name="master-m1"), "m1").start()
    reply = await submit(bus, JobSpec("example", ("python", "train.py"), workers=3, maxRetry=2))
    job = reply.job
    platform = await SimPlatform(bus, job, reply.uid, behaviour=Behaviour(check_for=0.05)).start()
    loaded = await until_phase(bus, job, "RunCommand", incarnation=0)
    assert table(loaded) == "0:0:0"

    # Worker 0 is killed: counted; other pods die while the job troubleshoots: not counted.
    platform.behaviours[(0, 2)] = Behaviour(check_for=1.0)
    await platform.kill(0)
    loaded = await until_phase(bus, job, "Troubleshooting")
    assert table(loaded) == "1:0:0"
    await platform.kill(1)
    await platform.kill(2)
    loaded = await until_phase(bus, job, "RunCommand", incarnation=1)
    assert table(loaded) == "1:1:1"

    platform.behaviour = Behaviour(check_for=0.5)
    for agent in platform.agents.values():
        agent.behaviour = platform.behaviour
    await platform.agents[1].fail(message="ValueError")
    loaded = await until_phase(bus, job, "Troubleshooting")
    assert table(loaded) == "1:2:1"
    loaded = await until_phase(bus, job, "RunCommand", incarnation=2)
    assert table(loaded) == "2:2:2"

    await platform.kill(2)
    loaded = await until_phase(bus, job, "Failed")
    assert table(loaded) == "2:2:3"
    head = loaded.state.head
    assert (head.recoverCount, head.shouldQuit, head.failedReason.value if head.failedReason else "") == (3, True, "budget")
    assert head.order.phase.value == "quit"

    events = await events_of(bus, job)
    assert len({event.eventId for event in events}) == len(events)
    assert [event.retries for event in events if event.counted] == ["1:0:0", "1:2:1", "2:2:3"]
    await platform.stop()
    await master.stop()
    assert (await state_of(bus, job)).state.head.phase.value == "Failed"
