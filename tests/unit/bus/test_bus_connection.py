"""The connection supervisor against a real server: what a writer is told, and that nothing ends it.

Each weakness of nats-py that was seen on 2.16 has a test here that fails when the bus inherits it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from aegis_bus import errors, link, metrics
from aegis_bus.connection import Bus, Msg
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer, free_port
from harness.bus import MakeBus, create_streams
from harness.waiting import until


def restart(server: NatsServer) -> None:
    server.kill9()
    server.start()


# --- the first connection ----------------------------------------------------------------------------------------------------


async def test_a_dead_server_is_named_with_tries_and_seconds() -> None:
    """nats-py never returns from a first connect with endless attempts."""
    url = f"nats://127.0.0.1:{free_port()}"
    began = time.monotonic()
    with pytest.raises(errors.Unreachable, match=rf"^E101 cannot reach the bus at {url} \(.*refused.* after \d+ tries, \d+ s\)\. Is it up\?"):
        await Bus.connect(Identity.new(), [url], timeout=1.5)
    assert time.monotonic() - began > 1.4


async def test_a_server_that_accepts_and_says_nothing_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        with pytest.raises(errors.Unreachable, match=r"^E101"):
            await Bus.connect(Identity.new(), [f"nats://127.0.0.1:{port}"], timeout=0.7)
    finally:
        listener.close()


async def test_the_second_server_is_used_when_the_first_is_dead(nats_server: NatsServer) -> None:
    dead = f"nats://127.0.0.1:{free_port()}"
    async with await Bus.connect(Identity.new(), [dead, nats_server.url], timeout=5) as bus:
        assert bus.connected


async def test_a_bus_waits_for_a_server_that_comes_later(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, port=free_port())
    connecting = asyncio.create_task(Bus.connect(Identity.new(), [server.url], timeout=20))
    await asyncio.sleep(0)
    await asyncio.to_thread(server.start)
    try:
        await (await connecting).close()
    finally:
        server.stop()


# --- staying connected -------------------------------------------------------------------------------------------------------


async def test_callbacks_that_raise_never_stop_the_reconnecting(nats_server: NatsServer, make_bus: MakeBus) -> None:
    """An exception in a callback of nats-py stops its reconnecting for ever."""
    calls: list[str] = []

    async def on_connected() -> None:
        calls.append("connected")
        raise RuntimeError("boom")

    def on_closed(reason: str) -> None:
        calls.append(reason)
        raise RuntimeError("boom")

    bus = await make_bus(on_connected=on_connected, on_closed=on_closed)
    for generation in (2, 3):
        restart(nats_server)
        await until(lambda generation=generation: bus.generation == generation and bus.connected)
    await until(lambda: calls == ["connected", "lost"] * 2 + ["connected"], what=str(calls))


async def test_a_reader_that_dies_inside_the_client_is_noticed_and_rebuilt(make_bus: MakeBus) -> None:
    """nats-py logs an unexpected exception of its read loop and stays "connected" for ever."""
    bus = await make_bus()

    async def broken(_: bytes) -> None:
        raise RuntimeError("parser bug")

    assert bus._link is not None
    bus._link._client._ps.parse = broken
    bus.core("any", b"")
    with pytest.raises(errors.BusError):
        await bus.request("nobody", b"", timeout=1)
    await until(lambda: bus.generation == 2 and bus.connected)


async def test_a_server_that_stops_answering_is_left_and_found_again(
    nats_server: NatsServer, make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-open link: nothing is refused, nothing answers. The pings find it."""
    monkeypatch.setattr(link, "PING_INTERVAL", 0.2)
    monkeypatch.setattr("aegis_bus.supervisor.DIAL_TIMEOUT", 0.5)
    bus = await make_bus()
    assert nats_server.process is not None
    os.kill(nats_server.process.pid, signal.SIGSTOP)
    try:
        await until(lambda: not bus.connected, timeout=5)
    finally:
        os.kill(nats_server.process.pid, signal.SIGCONT)
    await bus.wait_connected(10)


async def test_many_clients_do_not_come_back_at_one_moment(nats_server: NatsServer, make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegis_bus.supervisor.FIRST_WAIT", 1.0)
    buses = [await make_bus() for _ in range(20)]
    back: list[float] = []
    for bus in buses:
        bus._on_connected = lambda: back.append(time.monotonic())
    restart(nats_server)
    await until(lambda: len(back) == 20, timeout=15)
    assert max(back) - min(back) > 0.3  # 20 draws from [0, 1] s that are closer: 1e-7


async def test_close_while_the_server_is_away_returns(nats_server: NatsServer, make_bus: MakeBus) -> None:
    """drain() of nats-py raises or hangs while reconnecting."""
    bus = await make_bus()

    async def on_msg(_: Msg) -> None: ...

    await bus.subscribe("a.b", on_msg)
    nats_server.kill9()
    await until(lambda: not bus.connected)
    async with asyncio.timeout(30):
        await bus.close(grace=2)
    assert bus.closed_reason == "closed"


async def test_close_lets_the_handler_finish_and_sends_what_it_says(make_bus: MakeBus) -> None:
    served, caller = await make_bus(), await make_bus()
    begun = asyncio.Event()

    async def slow(msg: Msg) -> None:
        begun.set()
        await asyncio.sleep(0.3)
        await msg.respond(b"done")

    await served.subscribe("slow", slow)
    answer = asyncio.create_task(caller.request("slow", b"", timeout=5))
    await begun.wait()
    await served.close()
    assert await answer == b"done"


# --- subscriptions and requests ----------------------------------------------------------------------------------------------


async def test_subscriptions_live_on_after_kill_9_of_the_server(nats_server: NatsServer, make_bus: MakeBus) -> None:
    bus, other = await make_bus(), await make_bus()
    seen: list[bytes] = []

    async def on_msg(msg: Msg) -> None:
        seen.append(msg.data)

    await bus.subscribe("a.*", on_msg)
    assert other.core("a.1", b"before")
    await until(lambda: seen == [b"before"])
    restart(nats_server)
    await until(lambda: bus.generation == 2 and bus.connected and other.generation == 2 and other.connected)
    assert other.core("a.2", b"after")
    await until(lambda: seen == [b"before", b"after"])


async def test_a_handler_that_raises_or_is_slow_stops_neither_itself_nor_others(make_bus: MakeBus) -> None:
    bus = await make_bus()
    good: list[bytes] = []
    block = asyncio.Event()

    async def bad(_: Msg) -> None:
        raise RuntimeError("boom")

    async def stuck(_: Msg) -> None:
        await block.wait()

    async def fine(msg: Msg) -> None:
        good.append(msg.data)

    for subject, handler in (("x.bad", bad), ("x.stuck", stuck), ("x.>", fine)):
        await bus.subscribe(subject, handler)
    for n in range(3):
        bus.core("x.bad", str(n).encode())
        bus.core("x.stuck", str(n).encode())
    await until(lambda: len(good) == 6)
    block.set()


async def test_a_handler_too_slow_loses_its_own_messages_and_they_are_counted(make_bus: MakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegis_bus.subscription.QUEUE", 10)
    bus = await make_bus(name="slowtest")
    begun, release, seen = asyncio.Event(), asyncio.Event(), []

    async def stuck(msg: Msg) -> None:
        begun.set()
        await release.wait()
        seen.append(msg.data)

    await bus.subscribe("flood", stuck)
    bus.core("flood", b"")
    await begun.wait()
    for _ in range(49):
        bus.core("flood", b"")
    counter = metrics.SLOW.labels("slowtest")
    await until(lambda: counter._value.get() == 39)  # one with the handler, ten waiting
    release.set()
    await until(lambda: len(seen) == 11)


async def test_a_plain_function_is_called_as_messages_arrive_and_one_that_raises_hears_the_next(make_bus: MakeBus) -> None:
    bus = await make_bus(name="plain-1")
    heard: list[bytes] = []

    def hear(msg: Msg) -> None:
        heard.append(msg.data)
        if msg.data == b"bad":
            raise ValueError("bad")

    sub = await bus.subscribe("a.*", hear)
    errors_before = metrics.HANDLER_ERRORS.labels("plain")._value.get()
    for data in (b"1", b"bad", b"2"):
        bus.core("a.b", data)
    await until(lambda: len(heard) == 3)
    assert heard == [b"1", b"bad", b"2"]
    assert metrics.HANDLER_ERRORS.labels("plain")._value.get() == errors_before + 1
    assert not sub._tasks
    with pytest.raises(TypeError, match=r"handler of a\.c .* no workers"):
        await bus.subscribe("a.c", hear, workers=2)


async def test_request_and_reply_and_nobody_there(make_bus: MakeBus) -> None:
    bus, other = await make_bus(), await make_bus()

    async def echo(msg: Msg) -> None:
        await msg.respond(b"<" + msg.data + b">")

    await other.subscribe("echo", echo, queue="q")
    assert await bus.request("echo", b"hi") == b"<hi>"
    with pytest.raises(errors.Unreachable, match="nobody answers on nothing"):
        await bus.request("nothing", b"", timeout=2)

    async def mute(_: Msg) -> None: ...

    await other.subscribe("mute", mute)
    with pytest.raises(errors.UnknownResult, match=r"mute: no answer within 0\.2 s"):
        await bus.request("mute", b"", timeout=0.2)


async def test_a_request_in_flight_fails_at_once_when_the_connection_breaks(nats_server: NatsServer, make_bus: MakeBus) -> None:
    bus, other = await make_bus(), await make_bus()
    arrived = asyncio.Event()

    async def mute(_: Msg) -> None:
        arrived.set()

    await other.subscribe("mute", mute)
    request = asyncio.create_task(bus.request("mute", b"", timeout=30))
    await arrived.wait()
    nats_server.kill9()
    with pytest.raises(errors.UnknownResult, match="connection was lost"):  # and not "no answer within 30 s"
        await request


async def test_core_messages_are_dropped_not_kept_while_there_is_no_connection(nats_server: NatsServer, make_bus: MakeBus) -> None:
    """nats-py buffers them and sends stale heartbeats after the reconnect."""
    bus, other = await make_bus(), await make_bus()
    seen: list[bytes] = []

    async def on_msg(msg: Msg) -> None:
        seen.append(msg.data)

    await other.subscribe("hb", on_msg)
    nats_server.kill9()
    await until(lambda: not bus.connected)
    assert bus.core("hb", b"stale") is False
    nats_server.start()
    await until(lambda: bus.connected and other.connected)
    assert bus.core("hb", b"fresh") is True
    await until(lambda: seen == [b"fresh"], what=str(seen))


async def test_too_large_a_message_is_refused_before_it_is_sent_and_the_connection_stays(bus: Bus) -> None:
    """The server closes the connection for it, and nats-py stays closed."""
    with pytest.raises(errors.Rejected, match=r"aegis\.job\.x\.event: 3\d{5} bytes, the bus takes 262144; not sent"):
        await bus.publish("aegis.job.x.event", b"x" * 300_000)
    assert bus.core("any", b"x" * 300_000) is False
    with pytest.raises(errors.Rejected):
        await bus.publish("aegis.job.x.event", b"x" * (262_144 - 20), msg_id="auto")  # the headers count too
    assert (await bus.publish("aegis.job.x.event", b"small")).seq == 1
    assert bus.generation == 1


# --- many publishes over a crash ---------------------------------------------------------------------------------------------


async def test_publishes_with_ids_over_kill_9_are_stored_exactly_once(nats_server: NatsServer, bus: Bus) -> None:
    acked: list[int] = []
    total = 400

    async def publisher(start: int) -> None:
        for n in range(start, total, 4):
            ack = await bus.publish("aegis.job.x.event", str(n).encode(), msg_id="auto", timeout=30)
            acked.append(ack.seq)

    writers = asyncio.gather(*(publisher(start) for start in range(4)))
    for fraction in (0.2, 0.5, 0.8):
        await until(lambda fraction=fraction: len(acked) >= total * fraction, timeout=30)
        await asyncio.to_thread(restart, nats_server)
    await writers
    info: dict[str, Any] = await bus.js_api("STREAM.INFO.EVENTS")
    assert info["state"]["messages"] == total == len(set(acked))


async def test_a_dropped_bus_leaves_no_tasks(nats_server: NatsServer) -> None:
    before = asyncio.all_tasks()
    bus = await Bus.connect(Identity.new(), [nats_server.url])
    await create_streams(bus, {"EVENTS"})
    await bus.close()
    await until(lambda: asyncio.all_tasks() <= before, what="tasks left")


async def test_handlers_run_side_by_side_up_to_their_number_and_one_after_another_by_default(nats_server: NatsServer) -> None:
    bus = await Bus.connect(Identity.new(), [nats_server.url])
    running, most = {"a": 0, "b": 0}, {"a": 0, "b": 0}
    go_on = asyncio.Event()
    handled = 0

    async def handler(msg: Msg) -> None:
        nonlocal handled
        running[msg.subject] += 1
        most[msg.subject] = max(most[msg.subject], running[msg.subject])
        await go_on.wait()
        running[msg.subject] -= 1
        handled += 1

    sub = await bus.subscribe("a", handler, workers=3)
    await bus.subscribe("b", handler)
    assert not sub._tasks
    for _ in range(5):
        bus.core("a", b"")
        bus.core("b", b"")
    await until(lambda: running == {"a": 3, "b": 1}, what="three and one at work")
    go_on.set()
    await until(lambda: handled == 10, what="all handled")
    assert most == {"a": 3, "b": 1}
    await bus.close()


async def test_tls_with_the_sites_own_ca_and_not_without(tmp_path: Path) -> None:
    from aegis_credentials.setup import create_site

    site = create_site(tmp_path / "site")
    tls = f'tls {{ cert_file: "{site.server_pem}", key_file: "{site.server_key}" }}'
    with NatsServer(tmp_path / "nats", extra=tls) as server:
        url = server.url.replace("nats://", "tls://")
        async with await Bus.connect(Identity.new(), [url], tls_ca=str(site.ca_pem)) as bus:
            assert bus.connected
        with pytest.raises(errors.Unreachable, match="certificate verify failed"):
            await Bus.connect(Identity.new(), [url], timeout=4)
