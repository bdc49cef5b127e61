"""The main of a service, as a process: it says where it listens, drains within its grace, and its exit code tells how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.waiting import until_sync

MAIN = """
import asyncio, logging, os, sys, time
import structlog
from aegis_bus import errors
from aegis_bus.config import load
from aegis_bus.crashpoint import crashpoint
from aegis_bus.service import Service, run_service

async def start(service):
    log = structlog.get_logger()
    {body}

sys.exit(run_service("demo", start, load(env=dict(os.environ), flags={{"service.drainGrace": {grace}, "service.replica": "demo-1"}})))
"""


class Process:
    def __init__(self, body: str, grace: float = 10.0, **env: str) -> None:
        code = MAIN.format(body=body.replace("\n", "\n    "), grace=grace)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
        self.process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[dict[str, Any]] = []

    def line(self, event: str) -> dict[str, Any]:
        """The next log line that contains `event`; every line must be JSON."""
        assert self.process.stderr is not None
        for text in self.process.stderr:
            self.lines.append(json.loads(text))
            if event in self.lines[-1]["event"]:
                return self.lines[-1]
        raise AssertionError(f"no line with {event!r} in {self.lines}")

    def url(self) -> str:
        return str(self.line("demo started")["event"].split()[-1].removesuffix("/metrics"))

    def end(self) -> int:
        assert self.process.stderr is not None
        self.lines += [json.loads(text) for text in self.process.stderr]
        return self.process.wait(20)


@pytest.fixture
def run() -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(body: str, grace: float = 10.0, **env: str) -> Process:
        made.append(Process(body, grace, **env))
        return made[-1]

    yield make
    for item in made:
        if item.process.poll() is None:
            item.process.kill()
            item.process.wait()
        assert item.process.stderr is not None
        item.process.stderr.close()


Run = Callable[..., Process]


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_sigterm_drains_and_ends_with_0(run: Run) -> None:
    service = run(
        """log.info("up", n=1)
await service.stopping.wait()
await asyncio.sleep(0.3)
log.info("drained")"""
    )
    service.url()
    assert service.line("up")["n"] == 1
    service.process.send_signal(signal.SIGTERM)
    assert service.end() == 0
    line = next(line for line in service.lines if line["event"] == "drained")
    assert (line["service"], line["replica"], line["level"]) == ("demo", "demo-1", "info")


def test_what_does_not_drain_is_cut_off_at_the_grace(run: Run) -> None:
    service = run("await asyncio.Event().wait()", grace=0.4)
    service.url()
    service.process.send_signal(signal.SIGTERM)
    assert service.end() == 1
    assert any("did not stop within 0.4 s" in line["event"] for line in service.lines)


def test_a_second_signal_does_not_wait(run: Run) -> None:
    service = run("await asyncio.Event().wait()", grace=60)
    service.url()
    service.process.send_signal(signal.SIGINT)
    service.line("SIGINT: stopping")
    service.process.send_signal(signal.SIGINT)
    assert service.end() == 1


def test_metrics_and_health(run: Run) -> None:
    service = run(
        """from aegis_bus import metrics
service.health["bus"] = lambda: os.path.exists(os.environ["FLAG"])
await service.stopping.wait()""",
        FLAG="/nonexistent/flag",
    )
    url = service.url()
    assert fetch(f"{url}/healthz") == (503, '{"bus": false, "running": true}\n')
    status, text = fetch(f"{url}/metrics")
    assert status == 200
    assert 'aegis_service_ready{service="demo"} 0.0' in text
    assert "# TYPE aegis_bus_connected gauge" in text and "aegis_loop_lag_seconds_bucket" in text
    assert fetch(f"{url}/nothing")[0] == 404


def test_rubbish_on_the_port_harms_nobody(run: Run) -> None:
    import socket

    service = run('service.health["x"] = lambda: True\nawait service.stopping.wait()')
    url = service.url()
    host, port = url.removeprefix("http://").split(":")
    for rubbish in (b"\r\n\r\n", b"\xff" * 20000 + b"\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b""):
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(rubbish)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    assert fetch(f"{url}/healthz")[0] == 200


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        ('raise errors.unreachable(["nats://x:1"], "connection refused", 3, 4.0)', 5, "E101 cannot reach the bus at nats://x:1"),
        ('raise errors.refused("alice", "expired", 7200)', 4, 'E102 your credentials "alice" expired 2 h ago'),
        ('raise errors.not_allowed("alice", "publish to", "a.b")', 4, 'E103 "alice" may not publish to a.b'),
        ('raise RuntimeError("boom")', 1, "demo failed"),
        ('service.spawn(asyncio.sleep(0, 1/0), "t")', 1, "demo failed"),
        ("return", 0, "demo ended"),
    ],
)
def test_how_it_ended_is_in_the_exit_code_and_the_log(run: Run, body: str, code: int, word: str) -> None:
    service = run(body)
    assert service.end() == code
    assert any(word in line["event"] for line in service.lines), service.lines


def test_a_failed_background_task_ends_the_service(run: Run) -> None:
    service = run(
        """async def bad():
    raise RuntimeError("boom")
service.spawn(bad(), "watcher")
await service.stopping.wait()"""
    )
    assert service.end() == 1
    line = next(line for line in service.lines if line["event"] == "task watcher failed")
    assert "boom" in line["exception"]


def test_a_blocked_event_loop_is_noticed(run: Run) -> None:
    service = run(
        """service.lag.threshold = 0.2
await asyncio.sleep(0.6)
time.sleep(1.0)
await asyncio.sleep(0.6)
assert service.lag.last_at > float("-inf")"""
    )
    assert service.end() == 0
    assert any("event loop was blocked" in line["event"] for line in service.lines)


def test_lines_of_the_standard_library_and_secrets(run: Run) -> None:
    service = run('logging.getLogger("lib").warning("seed %s", "SUAM" + "A" * 54)')
    assert service.end() == 0
    line = next(line for line in service.lines if line.get("logger") == "lib")
    assert line["event"] == "seed [secret]" and line["level"] == "warning"


def test_a_crashpoint_kills_at_the_named_time_and_only_then(run: Run) -> None:
    body = 'for n in range(5):\n    log.info(f"pass {n}")\n    crashpoint("a.b")'
    assert run(body).end() == 0
    assert run(body, AEGIS_CRASH_AT="a.c,x.y:2").end() == 0
    crashed = run(body, AEGIS_CRASH_AT="z, a.b:3")
    assert crashed.end() == -signal.SIGKILL
    assert [line["event"] for line in crashed.lines if line["event"].startswith("pass")] == ["pass 0", "pass 1", "pass 2"]


def test_a_taken_port_is_named(run: Run) -> None:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        service = run("return", AEGIS_SERVICE_PORT=str(sock.getsockname()[1]))
        assert service.end() == 1
    assert any("address already in use" in line["event"] for line in service.lines)


def test_the_port_closes_with_the_service(run: Run) -> None:
    service = run("await service.stopping.wait()")
    url = service.url()
    service.process.send_signal(signal.SIGTERM)
    assert service.end() == 0

    def refused() -> bool:
        try:
            fetch(url)
        except OSError:
            return True
        return False

    until_sync(refused)
