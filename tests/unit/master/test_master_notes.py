"""Notes: what is no transition is told with its own time, and with the reason of who asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from aegis_bus.connection import Bus
from aegis_master import events, machine
from aegis_master.effects import merged
from aegis_master.publish import note_event, rfc3339
from aegis_proto import subjects
from aegis_proto.api import ActionRequest
from aegis_proto.messages import encode
from aegis_proto.state import JobSpec, JobState
from harness.masters import InProcess, events_of, submit, until_phase, write_era
from harness.simagent import SimPlatform
from harness.waiting import until

BEGAN = 1_795_984_000_000


def running() -> JobState:
    """A job of one worker in RunCommand since two seconds after its beginning."""
    state = machine.create("demo-1", JobSpec("demo", ("true",)), "uid", "era1", BEGAN)
    state, _ = machine.step(state, events.PodReady(0, 1, "boot", node="n1"), BEGAN + 1000)
    state, _ = machine.step(state, events.Finished(0, 1, "boot", 0, state.head.seqNum), BEGAN + 2000)
    assert state.head.phase == "RunCommand"
    return state


def test_a_note_has_the_time_at_which_it_was_taken_not_that_of_the_last_transition() -> None:
    state, effects = machine.step(running(), events.SettingChanged(5, "ann", "a long run"), BEGAN + 60_000)
    (note,) = merged(tuple(effect for effect in effects if isinstance(effect, events.Note)))
    event = note_event(state.head, note, 0)
    assert state.head.recent[-1].timeStamp == BEGAN + 2000
    assert event.time == rfc3339(BEGAN + 60_000)
    assert event.message == "max-retry 5 by ann: a long run"


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        (events.StopAsked("ann", "no budget"), "stopped: by ann: no budget"),
        (events.SuspendAsked("ann", "maintenance"), "suspended: by ann: maintenance"),
        (events.RestartAsked("ann", "new driver"), "restart asked, not counted: by ann: new driver"),
        (events.RestartAsked("", "new driver"), "restart asked, not counted: new driver"),
    ],
    ids=["stop", "suspend", "restart", "nobody-named"],
)
def test_the_reason_of_a_wish_stands_in_the_story(wish: events.Event, text: str) -> None:
    state, _ = machine.step(running(), wish, BEGAN + 60_000)
    assert state.head.recent[-1].message == text


@pytest.mark.parametrize("verb", ["suspend", "restart", "set"])
async def test_a_reason_given_to_any_verb_comes_out_as_an_event(bus: Bus, make_bus: Callable[..., Awaitable[Bus]], verb: str) -> None:
    await write_era(bus)
    await InProcess(await make_bus(name="master-m0"), "m0").start()
    reply = await submit(bus, JobSpec("why", ("true",), workers=1, maxRetry=2))
    platform = await SimPlatform(bus, reply.job, reply.uid).start()
    await until_phase(bus, reply.job, "RunCommand")
    settings = {"max-retry": "7"} if verb == "set" else {}
    request = ActionRequest(reply.job, "11111111-2222", "ann", f"because of {verb}", None, settings)
    await bus.request(subjects.rpc_do("master", verb, "default"), encode(request), timeout=5.0)

    async def told() -> bool:
        return any(f"by ann: because of {verb}" in event.message for event in await events_of(bus, reply.job))

    await until(told, 10, "the reason as an event")
    await platform.stop()
