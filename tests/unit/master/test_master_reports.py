"""Reports as they really come: malformed, doubled, late, lost, in floods."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aegis_bus.connection import Bus
from aegis_proto import messages, subjects
from aegis_proto.api import DeadLetter, Events, EventsRequest, read_reply
from aegis_proto.messages import Era
from aegis_proto.phases import FactKind
from aegis_proto.state import JobSpec
from harness.masters import InProcess, events_of, state_of, submit, table, until_phase, write_era
from harness.simagent import Behaviour, SimPlatform
from harness.waiting import until

MakeBus = Callable[..., Awaitable[Bus]]
SPEC = JobSpec("rep", ("python", "train.py"), workers=3, maxRetry=3)


async def running(bus: Bus, make_bus: MakeBus, **behaviour: object) -> tuple[InProcess, SimPlatform, str]:
    await write_era(bus)
    master = await InProcess(await make_bus(name="master-m1"), "m1").start()
    reply = await submit(bus, SPEC)
    platform = await SimPlatform(bus, reply.job, reply.uid, behaviour=Behaviour(**behaviour)).start()  # type: ignore[arg-type]
    await until_phase(bus, reply.job, "RunCommand", incarnation=0)
    return master, platform, reply.job


async def test_malformed_messages_go_to_the_dead_letters_and_the_job_goes_on(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus)
    bad = [b"", b"not json", b"{}", b"\xff\xff", b'{"AegisName":1}', b"[" * 7000]
    for body in bad:
        await bus.publish(subjects.report(job, "w0", "finish"), body)
    await bus.publish(subjects.fact(job, "w1"), b"nonsense")
    await bus.publish(subjects.report(job, "w9", "finish"), bad[1])
    last = await bus.publish(subjects.report(job, "w2", "shout"), bad[2])

    async def letters() -> list[DeadLetter]:
        found = []
        for seq in range(1, 50):
            item = await bus.get_seq("DLQ", seq)
            if item is None:
                break
            assert item.subject == subjects.dlq("master", "REPORTS", job)
            found.append(messages.decode(DeadLetter, item.data))
        return found if len(found) >= len(bad) + 3 else []

    found = await until(letters, 5, "dead letters")
    assert len(found) == len(bad) + 3
    assert [letter.data for letter in found[: len(bad)]] == bad
    assert all(letter.reason for letter in found)

    async def passed() -> bool:
        return (await state_of(bus, job)).state.head.cursor >= last.seq

    await until(passed, 5, "cursor past the bad messages")
    for agent in platform.agents.values():
        await agent.finish()
    await until_phase(bus, job, "Succeed")
    await platform.stop()


async def test_the_same_failure_delivered_twice_late_and_by_three_witnesses_counts_once(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus, check_for=0.2)
    agent = platform.agents[1]
    body = messages.encode(agent.message(messages.MessageType.ERROR, "command", messages.ErrorData("error", 1, message="once")))
    for msg_id in ("one", "two", "three"):
        await bus.publish(subjects.report(job, "w1", "error"), body, msg_id=f"{job}-{msg_id}")
    collateral = platform.agents[2].message(messages.MessageType.ERROR, "command", messages.ErrorData("collateral", 1))
    await bus.publish(subjects.report(job, "w2", "error"), messages.encode(collateral))
    loaded = await until_phase(bus, job, "RunCommand", incarnation=1)
    assert table(loaded) == "1:1:1"
    await bus.publish(subjects.report(job, "w1", "error"), body)  # late: of the run before
    await platform.agents[0].finish()

    async def heard() -> bool:
        return (await state_of(bus, job)).state.pod(0).finished

    await until(heard, 5, "the report after the late one")
    loaded = await state_of(bus, job)
    assert (table(loaded), loaded.state.head.phase.value, loaded.state.head.recoverCount) == ("1:1:1", "RunCommand", 1)
    assert [event.retries for event in await events_of(bus, job) if event.counted] == ["0:1:0"]
    await platform.stop()


async def test_a_pod_killed_after_its_peers_felt_it_holds_the_count(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus, check_for=0.5)
    dead = platform.agents[0]
    await dead.kill()
    died = int(time.time() * 1000)
    await platform.agents[1].fail(reason="collateral")
    await until_phase(bus, job, "Troubleshooting")
    fact = messages.Fact(FactKind.GONE, platform.uid, 1, "node0", None, 9, died)
    await bus.publish(subjects.fact(job, "w0"), messages.encode(fact))
    loaded = await until_phase(bus, job, "RunCommand", incarnation=1)
    assert (table(loaded), loaded.state.head.recoverCount) == ("1:1:1", 1)
    moved = [event for event in await events_of(bus, job) if event.cause == "moved"]
    assert len(moved) == 1
    await platform.stop()


async def test_a_silent_worker_that_another_misses_is_replaced_and_counted_once(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus, heartbeat=0.2, check_for=0.1)
    await platform.kill(2, tell=False)
    await platform.agents[0].fail(reason="collateral", message="connection reset by peer")
    loaded = await until_phase(bus, job, "RunCommand", incarnation=1, timeout=30)
    assert loaded.state.pod(2).attempt == 2
    assert (table(loaded), loaded.state.head.recoverCount) == ("1:1:1", 1)
    await platform.stop()


async def test_a_silent_worker_alone_is_suspect_and_nothing_stops(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus, heartbeat=0.2)
    agent = platform.agents[1]
    agent.beat = lambda: None  # type: ignore[method-assign]

    async def suspected() -> bool:
        return (await state_of(bus, job)).state.pod(1).suspect

    await until(suspected, 10, "w1 suspect")
    loaded = await state_of(bus, job)
    assert (loaded.state.head.phase.value, loaded.state.head.incarnation, table(loaded)) == ("RunCommand", 0, "0:0:0")
    del agent.beat

    async def trusted() -> bool:
        return not (await state_of(bus, job)).state.pod(1).suspect

    await until(trusted, 10, "w1 heard again")
    assert (await state_of(bus, job)).state.head.phase.value == "RunCommand"
    await platform.stop()


async def test_a_deadline_is_neither_shortened_nor_lengthened_by_a_takeover(bus: Bus, make_bus: MakeBus) -> None:
    await write_era(bus)
    masters = {name: await InProcess(await make_bus(name=f"master-{name}"), name).start() for name in ("m1", "m2")}
    reply = await submit(bus, JobSpec("late", ("true",), workers=1, placingTimeout=5.0))
    loaded = await state_of(bus, reply.job)
    await masters[loaded.state.head.owner.replica].crash()
    loaded = await until_phase(bus, reply.job, "Failed", timeout=15)
    head = loaded.state.head
    assert head.failedReason is not None
    assert head.failedReason.value == "placing"
    waited = (head.recent[-1].timeStamp - head.createdAt) / 1000
    assert 4.9 <= waited <= 5.7, waited


async def test_an_order_that_nobody_acknowledged_is_published_again_a_bounded_number_of_times(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus, acks=False)
    views: list[int] = []

    async def on_view(msg: object) -> None:
        head = messages.decode(type(platform.head), msg.data)  # type: ignore[attr-defined,arg-type]
        views.append(head.order.seqNum)

    before = (await state_of(bus, job)).state.head.order.seqNum
    await bus.subscribe(subjects.view_job_state(job), on_view)
    await until(lambda: views.count(before) >= 3, 10, "three repeats")
    await platform.agents[0].fail()
    await until_phase(bus, job, "RunCommand", incarnation=1)
    assert views.count(before) <= 5
    await platform.stop()


async def test_a_new_era_takes_a_running_job_over_without_touching_it(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus)
    await platform.agents[0].fail()
    await until_phase(bus, job, "RunCommand", incarnation=1)
    await until(lambda: all(agent.running == 1 for agent in platform.agents.values()), 5, "all run")
    before = {index: [order for order in agent.orders if order[0] == "stop"] for index, agent in platform.agents.items()}
    await bus.publish(subjects.ERA, messages.encode(Era("era2", reason="restored")))

    async def adopted() -> bool:
        head = (await state_of(bus, job)).state.head
        return head.era == "era2" and head.phase.value == "RunCommand"

    await until(adopted, 10, "adopted in the new era")
    loaded = await state_of(bus, job)
    assert (loaded.state.head.incarnation, table(loaded)) == (1, "1:1:1")
    assert all(agent.running == 1 for agent in platform.agents.values())
    assert {index: [order for order in agent.orders if order[0] == "stop"] for index, agent in platform.agents.items()} == before
    for agent in platform.agents.values():
        await agent.finish()
    await until_phase(bus, job, "Succeed")
    await platform.stop()


async def test_a_checkpoint_told_by_heartbeat_is_a_safe_point_of_the_job(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus, heartbeat=0.1)
    platform.agents[1].checkpoint = 40

    async def saved() -> bool:
        return (await state_of(bus, job)).state.head.checkpointStep == 40

    await until(saved, 5, "the checkpoint in the head")
    assert (await state_of(bus, job)).state.head.phase == "RunCommand"
    await platform.stop()


async def test_an_event_of_a_newer_version_hides_no_other_and_hangs_nobody(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus)
    shown = await events_of(bus, job)
    await bus.publish(subjects.job_event(job), b'{"eventId":"x","v":99}')
    asked = messages.encode(EventsRequest(job, afterSeq=-1))
    answer = read_reply(Events, await bus.request(subjects.rpc_query("master", "events"), asked, timeout=5.0))
    assert len(answer.items) >= len(shown) > 0
    assert not answer.more
    await platform.stop()


async def test_a_dead_letter_that_cannot_be_stored_does_not_stop_the_job(bus: Bus, make_bus: MakeBus) -> None:
    _, platform, job = await running(bus, make_bus)
    await bus.js_api("STREAM.DELETE.DLQ")
    last = await bus.publish(subjects.report(job, "w0", "finish"), b"not json")

    async def passed() -> bool:
        return (await state_of(bus, job)).state.head.cursor >= last.seq

    await until(passed, 15, "cursor past the bad message")
    for agent in platform.agents.values():
        await agent.finish()
    await until_phase(bus, job, "Succeed")
    await platform.stop()
