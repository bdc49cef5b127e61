"""Each backend gets every line, at least once and in order, whatever it answers in between; what it refuses for good is counted with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aegis_lognexus import metrics
from aegis_lognexus.sinks import Sender, read_answer, target
from aegis_lognexus.sinks import sender as sender_module
from aegis_lognexus.store import LogStore, StoreSettings
from harness.waiting import until
from log_batches import JOB, T0, batch, kept, stream

Reply = tuple[int, dict[str, str], bytes]


class Receiver:
    """A real HTTP server that answers what `replies` says, then 200. `got`: (path, headers, decoded body) of every request it took (2xx)."""

    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.got: list[tuple[str, dict[str, str], Any]] = []
        self.asked = 0
        self.rule: Callable[[Any], Reply | None] = lambda body: None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.asked += 1
                raw = gzip.decompress(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.loads(raw)
                status, headers, text = receiver.replies.popleft() if receiver.replies else receiver.rule(body) or (200, {}, b"")
                if status < 300:
                    receiver.got.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
                self.send_response(status)
                for key, value in {**headers, "Content-Length": str(len(text))}.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def messages(self, kind: str) -> list[str]:
        """Texts of all lines taken, in the order of arrival."""
        return [text for _, _, body in self.got for text in texts(kind, body)]


def texts(kind: str, body: Any) -> list[str]:
    match kind:
        case "openobserve":
            return [record["message"] for record in body]
        case "loki":
            return [json.loads(line)["message"] for stream in body["streams"] for _, line in stream["values"]]
        case _:
            return [record["body"]["stringValue"] for r in body["resourceLogs"] for s in r["scopeLogs"] for record in s["logRecords"]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LogStore]:
    made = LogStore(tmp_path / "store", StoreSettings(segment_bytes=5_000))
    yield made
    made.close()


@asynccontextmanager
async def sending(store: LogStore, url: str) -> AsyncIterator[Sender]:
    sender = Sender(store.folder, target(url), look_every=0.02, first_wait=0.02)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def fill(store: LogStore, count: int, start: int = 1, job: str = JOB) -> list[str]:
    lines = [f"line {n} \x1b[31m漢字" for n in range(start, start + count)]
    for n, text in enumerate(lines, start):
        store.append(job, "w0", batch(n, text, rank=3, incarnation=1), n)
    store.flush()
    return lines


KINDS = ["openobserve", "loki", "otlp"]


@pytest.mark.parametrize("kind", KINDS)
async def test_every_line_arrives_with_where_it_comes_from(kind: str, receiver: Receiver, store: LogStore) -> None:
    lines = fill(store, 30)
    async with sending(store, f"{kind}+http://127.0.0.1:{receiver.port}"):
        await until(lambda: receiver.messages(kind) == lines, 10, "all lines")
        more = fill(store, 5, 31)
        await until(lambda: receiver.messages(kind) == lines + more, 10, "the lines that came later")
    path, headers, body = receiver.got[0]
    assert headers["content-type"] == "application/json"
    if kind == "openobserve":
        assert path == "/api/default/aegis/_json"
        assert body[0] == {"_timestamp": (T0) * 1000, **json.loads(next(iter((store.folder / "jobs" / JOB / "00000001.jsonl").open())))}
    elif kind == "loki":
        assert path == "/loki/api/v1/push"
        assert body["streams"][0]["stream"] == {"service_name": "aegis", "aegis_job": JOB, "worker": "w0", "kind": "out"}
        stamp, line = body["streams"][0]["values"][0]
        assert (stamp, json.loads(line)["rank"], json.loads(line)["incarnation"], json.loads(line)["n"]) == (str(T0 * 1_000_000), 3, 1, 1)
    else:
        assert path == "/v1/logs"
        resource = {a["key"]: a["value"]["stringValue"] for a in body["resourceLogs"][0]["resource"]["attributes"]}
        assert resource == {"service.name": "aegis", "aegis.job": JOB, "aegis.worker": "w0", "host.name": "n1"}
        record = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
        assert record["timeUnixNano"] == str(T0 * 1_000_000)
        assert {"key": "rank", "value": {"intValue": "3"}} in record["attributes"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_backend_that_is_away_or_overloaded_gets_everything_later_in_order(kind: str, receiver: Receiver, store: LogStore) -> None:
    lines = fill(store, 40)
    receiver.replies += [
        (503, {}, b"busy"),
        (429, {"Retry-After": "0"}, b"slow down"),
        (500, {}, b""),
        (408, {}, b""),
        (401, {}, b"who?"),
        (404, {}, b""),
    ]
    async with sending(store, f"{kind}+http://127.0.0.1:{receiver.port}"):
        await until(lambda: receiver.messages(kind) == lines, 10, "all lines in spite of six refusals")
    assert receiver.asked >= 7


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_lost_while_nobody_listens_nor_across_a_restart(
    kind: str, store: LogStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "BATCH_LINES", 7)
    port = receiver.port
    lines = fill(store, 50)
    async with sending(store, f"{kind}+http://127.0.0.1:{port}"):
        await until(lambda: len(receiver.got) >= 2, 10, "some batches")
    taken = len(receiver.messages(kind))
    assert 14 <= taken <= 50
    receiver.replies.append((500, {}, b""))
    lines += fill(store, 20, 51)
    async with sending(store, f"{kind}+http://127.0.0.1:{port}"):
        await until(lambda: set(receiver.messages(kind)) == set(lines), 10, "the rest after the restart")
    arrived = receiver.messages(kind)
    assert len(arrived) - len(lines) <= 7, "at most the batch that was under way is sent twice"
    assert list(dict.fromkeys(arrived)) == lines


async def test_what_is_refused_for_good_is_counted_and_the_rest_goes_on(store: LogStore, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "BATCH_LINES", 10)
    lines = fill(store, 30)
    receiver.replies += [(200, {}, b""), (400, {}, b"entry too far behind")]
    url = f"loki+http://127.0.0.1:{receiver.port}"
    counter = metrics.SINK_REFUSED.labels(target(url).name, "400")
    before = counter._value.get()
    async with sending(store, url):
        await until(lambda: receiver.messages("loki") == lines[:10] + lines[20:], 10, "all but the refused batch")
    assert counter._value.get() - before == 10


async def test_a_batch_that_is_too_large_goes_in_smaller_ones_and_a_line_that_is_too_large_alone_is_dropped(
    store: LogStore, receiver: Receiver
) -> None:
    lines = fill(store, 20)
    receiver.rule = lambda body: (413, {}, b"") if len(body) > 3 or any("line 5 " in record["message"] for record in body) else None
    url = f"openobserve+http://127.0.0.1:{receiver.port}"
    async with sending(store, url):
        await until(lambda: receiver.messages("openobserve") == [line for line in lines if "line 5 " not in line], 10, "all but the large one")
    assert metrics.SINK_REFUSED.labels(target(url).name, "too large")._value.get() == 1


@pytest.mark.parametrize(
    ("kind", "body", "lost"),
    [
        ("openobserve", {"code": 200, "status": [{"name": "aegis", "successful": 3, "failed": 2, "error": "Too old data"}]}, 2),
        ("otlp", {"partialSuccess": {"rejectedLogRecords": "4", "errorMessage": "bad"}}, 4),
        ("otlp", {}, 0),
        ("otlp", {"partialSuccess": {"rejectedLogRecords": float("inf")}}, 0),
        ("openobserve", {"status": [{"failed": float("inf")}]}, 0),
        ("loki", "nonsense", 0),
        ("openobserve", {"status": "x"}, 0),
        ("openobserve", ["x"], 0),
    ],
)
def test_lines_refused_in_a_good_answer_are_counted(kind: str, body: Any, lost: int) -> None:
    answer = read_answer(kind, 200, {}, json.dumps(body).encode())
    assert (answer.verdict, answer.lost) == ("taken", lost)
    assert read_answer(kind, 204, {}, b"\xff not json").verdict == "taken"


@pytest.mark.parametrize("rejected", [10**9, -5])
async def test_a_backend_that_miscounts_ends_nothing(rejected: int, store: LogStore, receiver: Receiver) -> None:
    lines = fill(store, 3)
    receiver.replies.append((200, {}, json.dumps({"partialSuccess": {"rejectedLogRecords": rejected}}).encode()))
    async with sending(store, f"otlp+http://127.0.0.1:{receiver.port}"):
        await until(lambda: len(receiver.got) == 1, 10)
        lines += fill(store, 3, 4)
        await until(lambda: receiver.messages("otlp") == lines, 10, "the lines after it")


async def test_credentials_that_are_none_and_a_disk_that_refuses_are_waited_for(
    store: LogStore, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "auth"
    secret.write_text("Bearer one\nBearer two\n")
    lines = fill(store, 3)
    noted = sender_module.write_atomically
    refusals = iter([OSError(28, "No space left on device")])

    def full(path: Path, data: bytes) -> None:
        for error in refusals:
            raise error
        noted(path, data)

    monkeypatch.setattr(sender_module, "write_atomically", full)
    to = target(f"loki+http://127.0.0.1:{receiver.port}?auth_file={secret}")
    retries = metrics.SINK_RETRIES.labels(to.name)
    async with sending(store, f"loki+http://127.0.0.1:{receiver.port}?auth_file={secret}") as sender:
        await until(lambda: retries._value.get() >= 2, 10, "it asks again")
        secret.write_text("Bearer one\n")
        await until(lambda: receiver.messages("loki") == lines, 10, "all lines")
        lines += fill(store, 3, 4)
        await until(lambda: receiver.messages("loki") == lines, 10, "each once")
        await until(lambda: sender._path.exists() and json.loads(sender._path.read_bytes()) == sender._positions, 10, "how far it has come")


def test_a_backend_that_answers_byte_by_byte_is_left_after_the_deadline() -> None:
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        with server.accept()[0] as peer, contextlib.suppress(OSError):
            peer.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not over.wait(0.02):
                peer.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        end = threading.Timer(5.0, over.set)
        end.start()
        with contextlib.suppress(OSError, http.client.HTTPException):
            target(f"loki+http://127.0.0.1:{server.getsockname()[1]}").send(b"{}", timeout=0.3)
        end.cancel()
        assert not over.is_set(), "it waited until the backend ended"
        over.set()
        thread.join()


ANSWERS = {400: "refused", 422: "refused", 401: "setup", 404: "setup", 302: "setup", 413: "smaller", 429: "again", 503: "again"}


@pytest.mark.parametrize(("status", "verdict"), ANSWERS.items())
def test_what_an_answer_means(status: int, verdict: str) -> None:
    assert read_answer("loki", status, {"retry-after": "7"}, b"why").verdict == verdict
    assert read_answer("loki", 429, {"retry-after": "7"}, b"").wait == 7.0


async def test_credentials_are_sent_read_anew_and_never_shown(store: LogStore, receiver: Receiver, tmp_path: Path) -> None:
    secret = tmp_path / "auth"
    secret.write_text("Bearer first-secret\n")
    to = target(f"loki+http://127.0.0.1:{receiver.port}?auth_file={secret}&tenant=ml")
    fill(store, 1)
    async with sending(store, f"loki+http://127.0.0.1:{receiver.port}?auth_file={secret}&tenant=ml"):
        await until(lambda: len(receiver.got) == 1, 10)
        secret.write_text("Bearer second-secret\n")
        fill(store, 1, 2)
        await until(lambda: len(receiver.got) == 2, 10)
    assert [headers["authorization"] for _, headers, _ in receiver.got] == ["Bearer first-secret", "Bearer second-secret"]
    assert receiver.got[0][1]["x-scope-orgid"] == "ml"
    basic = target("openobserve+https://root:pass%21word@logs.corp/api/org/stream")
    for shown in (repr(to), str(basic), basic.name, f"{basic}"):
        assert "secret" not in shown and "word" not in shown and "root" not in shown
    assert (basic.path, basic.port, basic.basic) == ("/api/org/stream/_json", 443, "cm9vdDpwYXNzIXdvcmQ=")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://loki:3100", "expected one of"),
        ("kafka+http://x", "expected one of"),
        ("loki+ftp://x", "expected one of"),
        ("loki+http://u:hunter2@", "expected one of"),
        ("loki+http://x:99999", "port"),
        ("loki+http://x?colour=red", "unknown option colour"),
        ("loki+http://x?auth_file=/not/there", "auth_file /not/there is not there"),
    ],
)
def test_a_wrong_url_is_named_without_its_password(url: str, text: str) -> None:
    with pytest.raises(ValueError, match=text) as error:
        target(url)
    assert "hunter2" not in str(error.value)


async def test_all_jobs_are_sent_and_what_retention_took_is_passed_over(store: LogStore, receiver: Receiver) -> None:
    a = [text for start in (1, 21, 41) for text in fill(store, 20, start)]
    b = fill(store, 10, 1, "other-000000")
    (store.folder / "jobs" / JOB / "00000001.jsonl").unlink()
    left = [line.message for line in kept(store.folder)]
    assert 0 < len(left) < len(a)
    async with sending(store, f"otlp+http://127.0.0.1:{receiver.port}"):
        await until(lambda: sorted(receiver.messages("otlp")) == sorted(left + b), 10, "the rest of both")


async def test_lines_of_many_workers_arrive_joined(store: LogStore, receiver: Receiver) -> None:
    for seq, (pod, sent) in enumerate(stream(), 1):
        store.append(JOB, pod, sent, seq)
    store.flush()
    async with sending(store, f"openobserve+http://127.0.0.1:{receiver.port}"):
        await until(lambda: receiver.messages("openobserve") == [line.message for line in kept(store.folder)], 10, "all")
