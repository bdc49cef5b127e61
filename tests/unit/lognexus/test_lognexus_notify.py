"""People are told of a failure once, where they are; an address and its secret are shown to nobody."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_lognexus import notify
from aegis_lognexus.notify import BadAddress, Notifier, addresses, message
from aegis_proto import messages, subjects
from aegis_proto.messages import LeaseData, Verdict
from harness.waiting import until
from prometheus_client import REGISTRY

pytest.importorskip("apprise")
JOB = "digits-abc123"


class Receiver(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[dict[str, str]] = []
        self.refuse = 0


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refuse:
            self.server.refuse -= 1
            self.send_response(503)
        else:
            self.server.got.append(body)
            self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def verdict(incarnation: int, job: str = JOB) -> Verdict:
    said = dict(sentence="w1 on n1: GPU hardware", sentenceZh="GPU 硬件故障", nodes=("n1",))
    return Verdict(f"{job}-{incarnation}", "lognexus", "gpu_hw", job=job, incarnation=incarnation, **said)  # type: ignore[arg-type]


async def tell(bus: Bus, told: Verdict) -> int:
    return (await bus.publish(subjects.verdict("lognexus", "job", told.id), messages.encode(told))).seq


async def test_each_incident_is_told_once_also_over_a_restart_and_a_receiver_that_is_away(
    bus: Bus, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "TRIES", (0.0, 0.05, 0.05))
    url = f"json://127.0.0.1:{receiver.server_port}/hook"
    await tell(bus, verdict(0))  # before anybody listened: over

    def make() -> asyncio.Task[None]:
        return asyncio.create_task(Notifier(bus, "logs-1", tmp_path, [url], lambda job: job == JOB, lambda: "e1").run())

    task = make()
    await until((tmp_path / "notify.json").exists, 10)
    receiver.refuse = 2
    await tell(bus, verdict(1))
    await tell(bus, verdict(7, "other-000001"))
    await until(lambda: len(receiver.got) == 1, 20, "the first incident")
    assert receiver.got[0]["title"] == f"Aegis: {JOB} failed (gpu_hw), incarnation 1"
    assert receiver.got[0]["type"] == "failure"
    for part in ("GPU hardware", "GPU 硬件故障", "Nodes: n1", f"aegis job why {JOB}"):
        assert part in receiver.got[0]["message"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await tell(bus, verdict(1))  # told again by whoever judged it
    await tell(bus, verdict(2))  # while nobody listened
    task = make()
    await until(lambda: len(receiver.got) == 2, 20, "the second incident")
    assert receiver.got[1]["title"].endswith("incarnation 2")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await bus.publish(subjects.lease("logs-2"), messages.encode(LeaseData("logs-2", "lognexus", host="elsewhere", pid=1)))
    over = await tell(bus, verdict(3))  # the other replica had the job
    task = make()
    await until(lambda: json.loads((tmp_path / "notify.json").read_bytes())["seq"] >= over, 10, "it has begun")
    await tell(bus, verdict(4))
    await until(lambda: len(receiver.got) == 3, 20, "the fourth incident")
    assert receiver.got[2]["title"].endswith("incarnation 4")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_who_was_told_is_not_told_again_because_another_is_away(
    bus: Bus, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "TRIES", (0.0, 0.05, 0.05))
    with socket.socket() as taken:  # bound and not listening: every connection is refused
        taken.bind(("127.0.0.1", 0))
        urls = [f"json://127.0.0.1:{receiver.server_port}/hook", f"json://127.0.0.1:{taken.getsockname()[1]}/hook"]
        task = asyncio.create_task(Notifier(bus, "logs-1", tmp_path, urls, lambda job: job == JOB, lambda: "e1").run())
        await until((tmp_path / "notify.json").exists, 10)
        failed = REGISTRY.get_sample_value("aegis_notifications_total", {"result": "failed"}) or 0
        await tell(bus, verdict(1))
        await until(lambda: REGISTRY.get_sample_value("aegis_notifications_total", {"result": "failed"}) == failed + 1, 20, "the last try")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(receiver.got) == 1


def test_an_address_that_is_none_is_refused_without_showing_its_secret() -> None:
    with pytest.raises(BadAddress) as caught:
        addresses(["json://127.0.0.1/", "nonsense://user:s3cret@host"])
    assert "number 2" in str(caught.value) and "s3cret" not in str(caught.value) and "E130" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/",
        "feishu://abcdefghijklmnop0123456789",
        "dingtalk://abcdefghij0123456789abcdefghij01",
        "wecombot://abcdefgh-0123-4567-89ab-cdefghijklmn",
        "mailto://user:pass@example.com",
    ],
)
def test_each_kind_of_address_that_the_documentation_names_is_one(url: str) -> None:
    assert len(addresses([url])) == 1


def test_a_long_sentence_fits_a_message() -> None:
    title, text = message(Verdict("x-0", "lognexus", "user_code", sentence="x" * 10_000, job="x"))
    assert len(text) <= 3000 and len(title) < 200
