"""What guards the rounds: a slow bus is no empty one, a history that cannot be read clears nobody, news is gathered, a namespace sees its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
from aegis_bus import ordered
from aegis_bus.errors import Unreachable
from aegis_bus.settings import LemonSettings
from aegis_lemon import api
from aegis_lemon.detect import Thresholds
from aegis_lemon.watch import rounds
from aegis_lemon.watch.collector import Collector, Run
from aegis_lemon.watch.fleet import Fleet
from aegis_lemon.watch.kept import Files
from aegis_lemon.watch.reading import Reading
from aegis_lemon.watch.rounds import How, Rounds, pause
from aegis_netmon.intake import Intake
from aegis_proto import subjects
from aegis_proto.api import ErrorReply
from aegis_proto.lemon import LemonAnswer, LemonFailure, LemonQuery
from aegis_proto.messages import encode
from harness.waiting import until


class SlowBus:
    """A stream with 40 messages, of which `pending` are for the reader; the consumer cannot be made before `open`."""

    def __init__(self, pending: int) -> None:
        self.pending, self.open = pending, asyncio.Event()
        self.asked = asyncio.Event()
        self.identity, self.generation, self.on_link = SimpleNamespace(public="K"), 1, list[Callable[[], None]]()

    async def js_api(self, subject: str, _: object = None) -> dict[str, Any]:
        if subject.startswith("STREAM.INFO."):
            return {"state": {"first_seq": 1, "last_seq": 40}}
        self.asked.set()
        if not self.open.is_set():
            raise Unreachable("E101 slow")
        return {"num_pending": self.pending}

    async def subscribe(self, *_: object, **__: object) -> SimpleNamespace:
        async def unsubscribe() -> None:
            pass

        return SimpleNamespace(unsubscribe=unsubscribe)

    def core(self, *_: object, **__: object) -> bool:
        return True


@pytest.mark.parametrize("service", ["lemon", "netmon"])
@pytest.mark.parametrize("pending", [0, 3])
async def test_silence_of_a_slow_bus_is_no_end_of_the_stream(monkeypatch: pytest.MonkeyPatch, service: str, pending: int) -> None:
    looks = 0

    async def wait(tasks: set[asyncio.Future[Any]], timeout: float) -> Any:
        nonlocal looks
        looks += 1
        return await real(tasks, timeout=timeout)

    real = asyncio.wait
    monkeypatch.setattr(ordered, "LOOK", 0.01)
    monkeypatch.setattr(asyncio, "wait", wait)
    bus: Any = SlowBus(pending)
    reads: Reading | Intake = Reading(bus, Collector(), 0) if service == "lemon" else Intake(bus, lambda _: None)
    task = asyncio.create_task(reads.run())
    try:
        await bus.asked.wait()
        begun = looks
        await until(lambda: looks > begun + 5, 30, "looks while there is no consumer")
        assert not reads.ready
        bus.open.set()
        begun = looks
        if pending:  # the server has told of them, they are on their way
            await until(lambda: looks > begun + 50, 30, "looks while something is to come")
            assert not reads.ready
        else:
            await until(lambda: reads.ready, 30, "ready")
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def test_steady_news_leaves_nine_tenths_of_the_time() -> None:
    assert (pause(0.01, 60), pause(2.0, 60), pause(30.0, 60), pause(1.0, 0.3)) == (5.0, 20.0, 60, 0.3)


def test_a_history_that_cannot_be_ranked_is_said_and_ends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise duckdb.OutOfMemoryException("no memory")

    monkeypatch.setattr(rounds, "read", broken)
    found = rounds.judge(tmp_path, [], How.of(LemonSettings(), Thresholds()), 1.0)
    assert found.ranking is None and "no memory" in found.note
    collector = Collector()
    collector.memory.open["j"] = Run("j", 0, 1.0, "n[1-")
    assert list(collector.running(2.0)) == []


async def test_one_namespace_sees_nobody_elses_names_and_a_slow_stream_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: Any = LemonSettings()
    nothing: Any = SimpleNamespace()
    one = Rounds(nothing, SimpleNamespace(collector=Collector()), nothing, nothing, settings=settings, mode="observe", slurm=None)  # type: ignore[arg-type]
    asked = api.Api(nothing, one, nothing, nothing, "r")
    full = LemonAnswer(api.LemonNode("n1"), failures=(LemonFailure(1, "multi", "ann", "llm"),), ticket="/var/t.json")

    async def node(_: object) -> LemonAnswer:
        return full

    monkeypatch.setattr(asked, "node", node)
    subject = subjects.rpc_query("lemon", "node")
    assert await asked.answer(subject, encode(LemonQuery("n1"))) == full
    narrow = await asked.answer(f"{subject}.team-a", encode(LemonQuery("n1")))
    assert isinstance(narrow, LemonAnswer) and narrow.failures == (LemonFailure(1, "multi"),) and not narrow.ticket

    async def slow(_: object) -> LemonAnswer:
        raise TimeoutError

    monkeypatch.setattr(asked, "node", slow)
    reply = await asked.answer(subject, encode(LemonQuery("n1")))
    assert isinstance(reply, ErrorReply) and reply.error.code == "E108"


async def test_what_is_heard_while_the_history_is_written_is_remembered_with_the_next_sequence(tmp_path: Path) -> None:
    collector = Collector()
    collector.memory.open["j"] = Run("j", 0, 1.0, "n1")
    heard: Any = SimpleNamespace(collector=collector, seq=7)
    files = Files(tmp_path)
    files.open("era")
    write = files.add

    def add(*what: Any) -> None:
        collector.memory.open["late"] = Run("late", 0, 2.0, "n1")
        heard.seq = 8
        write(*what)

    files.add = add  # type: ignore[method-assign]
    nothing: Any = SimpleNamespace()
    one = Rounds(nothing, heard, files, nothing, settings=LemonSettings(), mode="observe", slurm=None)
    await one._keep(Fleet(), 3.0)
    kept = Files(tmp_path).open("era")
    assert (kept.seq, set(kept.known().open)) == (7, {"j"})
    await one._keep(Fleet(), 3.0)
    kept = Files(tmp_path).open("era")
    assert (kept.seq, set(kept.known().open)) == (8, {"j", "late"})
