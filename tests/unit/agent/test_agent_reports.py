"""Reports arrive in order and once, over losses of the bus; an Error or a Finish is never dropped."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aegis_agent import reports
from aegis_agent.reports import Reports, fitted
from aegis_bus.connection import Bus
from aegis_bus.errors import NotAllowed, Rejected, Unreachable
from aegis_bus.natsserver import NatsServer
from aegis_proto import subjects
from aegis_proto.messages import MAX_REPORT, CheckResponse, CheckResult, ErrorData, FinishData, Message, decode, decode_data, raw
from aegis_proto.phases import MessageType
from agent_scripted_master import until
from harness.bus import create_streams

MakeBus = Callable[..., Awaitable[Bus]]


def message(kind: str, number: int, data: Any = None) -> Message:
    types = {"error": (MessageType.ERROR, "command"), "finish": (MessageType.FINISH, "command"), "ack": (MessageType.ACK, "command")}
    type_, phase = types[kind]
    default = {"error": ErrorData(), "finish": FinishData(), "ack": {}}[kind]
    return Message("job-1", "n", "w0", type_, phase, raw(data or default), seqNum=number)


def put(queue: Reports, kind: str, number: int) -> None:
    queue.put(subjects.report("job-1", "w0", kind), message(kind, number))


async def test_over_a_killed_server_they_arrive_in_order_and_once(nats_server: NatsServer, make_bus: MakeBus) -> None:
    bus = await make_bus(name="agent-1")
    await create_streams(bus, {"REPORTS"})

    async def publish(subject: str, data: bytes, msg_id: str) -> object:
        return await bus.publish(subject, data, msg_id=msg_id, timeout=2.0)

    queue = Reports(publish, lambda: bus.wait_connected(60))
    pump = asyncio.create_task(queue.pump())
    try:
        for number in range(40):
            put(queue, "error" if number % 2 else "ack", number)
            if number in (10, 25):
                await asyncio.to_thread(nats_server.kill9)
                await asyncio.to_thread(nats_server.start)
        assert await queue.flush(60.0) and queue.queued == 0
    finally:
        pump.cancel()
    info = json.loads(await bus.request("$JS.API.STREAM.INFO.REPORTS", b""))
    found = []
    for seq in range(1, info["state"]["last_seq"] + 1):
        found.append(decode(Message, await _read(bus, seq)).seqNum)
    assert found == list(range(40))


async def _read(bus: Bus, seq: int) -> bytes:
    answer = json.loads(await bus.request("$JS.API.STREAM.MSG.GET.REPORTS", json.dumps({"seq": seq}).encode()))
    return base64.b64decode(answer["message"]["data"])


class Away:
    """A bus that is away until told otherwise, and notes what reached it."""

    def __init__(self) -> None:
        self.here = asyncio.Event()
        self.got: list[int] = []
        self.refusals: list[Exception] = []

    async def publish(self, subject: str, data: bytes, msg_id: str) -> object:
        if self.refusals:
            raise self.refusals.pop(0)
        if not self.here.is_set():
            raise Unreachable("E101 away")
        self.got.append(decode(Message, data).seqNum)
        return None

    async def wait(self) -> None:
        await self.here.wait()


async def test_what_waits_is_bounded_but_an_error_or_a_finish_is_never_dropped() -> None:
    bus = Away()
    queue = Reports(bus.publish, bus.wait)
    pump = asyncio.create_task(queue.pump())
    kinds = {0: "error", 500: "finish", 501: "error"}
    vital = set(kinds)
    for number in range(1000):
        put(queue, kinds.get(number, "ack"), number)
    assert queue.queued <= reports.LIMIT + len(vital) + 1 and queue.dropped >= 1000 - reports.LIMIT - 3
    bus.here.set()
    assert await queue.flush(10.0)
    pump.cancel()
    assert vital <= set(bus.got) and bus.got == sorted(bus.got) and bus.got[-1] == 999


@pytest.mark.parametrize("refusal", [NotAllowed("E103"), Rejected("full")])
async def test_a_refused_error_is_tried_again_and_a_refused_ack_lets_the_others_pass(refusal: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "RETRY_FIRST", 0.001)
    bus = Away()
    bus.here.set()
    bus.refusals = [refusal, refusal, refusal]
    queue = Reports(bus.publish, bus.wait)
    pump = asyncio.create_task(queue.pump())
    put(queue, "ack", 1)
    put(queue, "error", 2)
    await until(lambda: bus.got == [2], "the error")
    assert queue.dropped == 1
    pump.cancel()


def put_late(queue: Reports, number: int) -> None:
    queue.put_late(subjects.report("job-1", "w0", "ack"), message("ack", number))


@pytest.mark.parametrize("answer", ["finish", "error"])
async def test_a_round_that_is_answered_at_once_costs_one_report(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "ACK_LATE", (0.05, 0.05))
    bus = Away()
    bus.here.set()
    queue = Reports(bus.publish, bus.wait)
    pump = asyncio.create_task(queue.pump())
    put_late(queue, 1)
    put(queue, answer, 1)
    put_late(queue, 2)
    await until(lambda: len(bus.got) == 2, "the acknowledgement of the next round")
    assert bus.got == [1, 2]
    pump.cancel()


async def test_only_the_newest_round_is_acknowledged_and_an_answer_of_another_does_not_stand_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "ACK_LATE", (0.05, 0.05))
    bus = Away()
    bus.here.set()
    queue = Reports(bus.publish, bus.wait)
    pump = asyncio.create_task(queue.pump())
    put_late(queue, 1)
    put_late(queue, 3)
    put(queue, "error", 2)  # of the run that the order stops
    await until(lambda: len(bus.got) == 2, "the acknowledgement")
    assert bus.got == [2, 3]
    pump.cancel()


async def test_ids_cannot_be_guessed_nor_repeat() -> None:
    ids: list[str] = []

    async def publish(subject: str, data: bytes, msg_id: str) -> object:
        ids.append(msg_id)
        return None

    for _ in range(2):
        queue = Reports(publish, Away().wait)
        pump = asyncio.create_task(queue.pump())
        put(queue, "ack", 1)
        put(queue, "ack", 2)
        assert await queue.flush(5.0)
        pump.cancel()
    assert len(set(ids)) == 4 and all(len(one.partition("-")[0]) == 32 for one in ids)


def test_a_report_fits_whatever_the_checks_wrote() -> None:
    results = tuple(
        CheckResult(f"check{number}", False, Result="x" * 5000, values={f"v{index}": float(index) for index in range(50)}) for number in range(12)
    )
    data = fitted(Message("job-1", "n", "w0", MessageType.FINISH, "troubleshoot", raw(CheckResponse(results=results, addr="a", port=1))))
    assert len(data) <= MAX_REPORT
    response = decode_data(decode(Message, data))
    assert isinstance(response, CheckResponse) and len(response.results) == 12 and response.port == 1
    long_error = fitted(message("error", 1, ErrorData(message="\u6f22" * 5000)))
    assert len(long_error) <= MAX_REPORT
