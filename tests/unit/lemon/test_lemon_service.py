"""lemon as it runs: with the rights of its role, on a real server, killed and started again; its history rebuilt from the streams."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_lemon.history import read
from aegis_proto import subjects
from aegis_proto.api import read_reply
from aegis_proto.deeptest import DeepTest, DeepTestDone
from aegis_proto.lemon import LemonAnswer, LemonQuery, RankingAnswer, RankingQuery, Risk
from aegis_proto.messages import CheckResult, JobEvent, NodeSpec, Taint, Verdict, decode, encode
from aegis_proto.runs import RunInfo
from aegis_proto.times import rfc3339
from harness.service import ServiceProcess, starting
from harness.site import Secured
from harness.waiting import until

T = TypeVar("T", bound=msgspec.Struct)
NODES, DAYS, BAD = 24, 20, "n7"


class Lemon(ServiceProcess):
    """One that may act, and looks often."""

    def __init__(self, url: str, folder: Path, creds: str = "", **env: str) -> None:
        super().__init__("aegis_lemon", url, folder, "lemon-1", creds, AEGIS_LEMON_ROUND="0.3", AEGIS_ACTIONS_MODE="act", **env)


Start = Callable[..., Awaitable[Lemon]]


@pytest_asyncio.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with starting(Lemon, tmp_path) as starter:
        yield starter


class Receiver(BaseHTTPRequestHandler):
    taken: ClassVar[list[tuple[str, dict[str, object]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.headers["Idempotency-Key"], json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def history(bus: Bus) -> None:
    """Twenty days: a job of six nodes every quarter day; those on the bad node lose it five times, under two users."""
    now = int(time.time() * 1000)
    lost = 0
    for number in range(DAYS * 4):
        begin, job = now - (DAYS * 86_400_000) + number * 21_600_000, f"job-{number:06d}"
        members = [f"n{1 + (number * 7 + k * 5) % NODES}" for k in range(6)]
        fails = BAD in members and lost < 5 and number % 3 == 0
        lost += fails
        run = RunInfo(",".join(members), f"user{number % 2}", f"family{number % 2}")
        told = [JobEvent(f"{job}-a", job, "default", "phase", rfc3339(begin), 0, 1, "RunCommand", run=run)]
        if fails:
            told.append(
                JobEvent(f"{job}-b", job, "default", "counted", rfc3339(begin + 9_000_000), 0, 2, "Restarting", "nodeLost", node=BAD, counted=True)
            )
        else:
            told.append(JobEvent(f"{job}-b", job, "default", "phase", rfc3339(begin + 20_000_000), 0, 2, "Succeed", "finish"))
        for one in told:
            await bus.publish(subjects.job_event(job), encode(one), msg_id=one.eventId)
    assert lost == 5


async def last(bus: Bus, stream: str, subject: str, kind: type[T]) -> T | None:
    stored = await bus.get(stream, subject)
    return decode(kind, stored.data) if stored is not None else None


async def test_a_bad_node_is_found_taken_out_tested_ticketed_and_given_back_through_kills_and_a_lost_folder(
    secured: Secured, start: Start, tmp_path: Path
) -> None:
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    master, fleet, reader, controller, admin = [
        await secured.bus(role, **tags)
        for role, tags in (("master", {}), ("node", {"node": BAD}), ("reader", {}), ("jobcontroller", {}), ("admin", {}))
    ]
    await history(master)
    await fleet.publish(subjects.node_spec(BAD), encode(NodeSpec(BAD, labels={"rack": "r1", "serial": "S1"})))
    state = tmp_path / "lemon"
    env = {"AEGIS_LEMON_STATE": str(state), "AEGIS_LEMON_WEBHOOK": f"http://127.0.0.1:{server.server_port}/t"}
    process = await start(secured.url, secured.creds("lemon"), **env)

    async def verdict() -> Verdict | None:
        return await last(admin, "EVENTS", subjects.verdict("lemon", "node", BAD), Verdict)

    async def when(state: str) -> Verdict:
        async def reached() -> Verdict | None:
            found = await verdict()
            return found if found is not None and found.state == state else None

        return await until(reached, 60, f"{state}; {process.log.read_text()[-2000:]}")  # type: ignore[no-any-return]

    async def asked(verb: str, query: object) -> bytes | None:
        try:
            return await reader.request(subjects.rpc_query("lemon", verb), encode(query), timeout=2.0)
        except BusError:
            return None

    drained = await when("drained")
    assert drained.accused == (BAD,) and "5 failures" in drained.sentence and drained.confidence > 0.9

    async def ordered() -> DeepTest | None:
        return await last(admin, "NODES", subjects.node_test(BAD), DeepTest)

    order = await until(ordered, 30, "the order")
    taint = await last(admin, "NODES", subjects.node_taint(BAD), Taint)
    assert taint is not None and taint.excluded and taint.verdict == drained.id and "5 failures" in taint.reason
    # Killed and started again it goes on with the same case: nothing is told or ordered twice.
    await process.kill9()
    await process.start()
    failed = DeepTestDone(order.id, BAD, "failed", results=(CheckResult("deep-memory", False, "3 wrong words"),), at=1)
    await fleet.publish(subjects.node_event(BAD, "test"), encode(failed))
    assert (await when("failed")).id == drained.id
    assert await ordered() == order
    await until(lambda: Receiver.taken, 30, "the webhook")
    assert Receiver.taken[0][0] == drained.id
    ticket = json.loads(next((state / "tickets").glob("*.json")).read_text())
    assert (ticket["node"], ticket["results"][0]["Result"]) == (BAD, "3 wrong words") and ticket["signals"]["multi_node_node_fails"] == 5

    async def ranked() -> RankingAnswer | None:
        data = await asked("ranking", RankingQuery())
        answer = read_reply(RankingAnswer, data) if data is not None else None
        return answer if answer is not None and answer.history.jobs == DAYS * 4 else None

    answer = await until(ranked, 30, "the ranking")
    assert [node.node for node in answer.nodes if node.flagged] == [BAD] and answer.nodes[0].state == "failed" and answer.nodes[0].risk > 0.9
    risk = await last(admin, "NODES", subjects.node_risk(BAD), Risk)
    assert risk is not None and risk.risk > 0.9

    # A person says that it is repaired: another long test, passed, gives it back.
    again = DeepTest("alice-1", "alice", at=int(time.time() * 1000))
    await controller.publish(subjects.node_test(BAD), encode(again))
    await fleet.publish(subjects.node_event(BAD, "test"), encode(DeepTestDone(again.id, BAD, "passed")))
    await when("probation")

    async def back() -> bool:
        found = await last(admin, "NODES", subjects.node_taint(BAD), Taint)
        return found is not None and not found.excluded

    await until(back, 30, "given back")

    async def why() -> LemonAnswer | None:
        data = await asked("node", LemonQuery(BAD))
        answer = read_reply(LemonAnswer, data) if data is not None else None
        return answer if answer is not None and not answer.node.flagged and answer.node.probation else None

    told = await until(why, 30, "its story")
    assert [one.state for one in told.verdicts] == ["drained", "failed", "probation"] and told.ticket and len(Receiver.taken) == 1
    assert 0.3 <= told.node.risk < 0.9

    # Its folder is lost: the history is made anew from the streams, and nothing is decided twice.
    before = read(state / "history")
    await process.kill9()
    (state / "history").rename(tmp_path / "lost")
    await process.start()

    async def rebuilt() -> bool:
        try:
            return read(state / "history").rows == before.rows
        except ValueError:
            return False

    await until(rebuilt, 30, "the history")
    await asyncio.gather(until(ranked, 30, "the ranking"))
    assert (await verdict()).state == "probation"  # type: ignore[union-attr]
    info = await admin.js_api("STREAM.INFO.EVENTS", {"subjects_filter": subjects.verdict("lemon", "node", "*")})
    assert info["state"]["subjects"] == {subjects.verdict("lemon", "node", BAD): 3}
    for bus in (master, fleet, reader, controller, admin):
        await bus.close()
    server.shutdown()
    server.server_close()


async def test_a_wrong_setting_ends_it_before_it_starts(start: Start, tmp_path: Path) -> None:
    wrong = await start("nats://127.0.0.1:1", AEGIS_LEMON_STATE=str(tmp_path), AEGIS_LEMON_DETECTOR="blam")
    assert wrong._process is not None
    assert await asyncio.wait_for(wrong._process.wait(), 60) == 2
    assert 'E130 lemon.detector "blam": expected one of blame' in wrong.log.read_text()
