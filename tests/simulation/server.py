"""A nats-server with JetStream as far as Aegis uses one: the double that stands in for the real server in a simulated world.

Owns streams, subscriptions and consumers, all in memory; a "restart" keeps what the real one keeps on disk (streams, deduplication) and loses the
rest. The same contract tests run against this and against a real nats-server (`test_bus_contract`). What a client sees is in `client`.
"""

from __future__ import annotations

import base64
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from simulation.loop import START, Handle, Loop

if TYPE_CHECKING:
    from simulation.client import Client

Headers = dict[str, str]
json = msgspec.json.Encoder().encode
unjson = msgspec.json.Decoder().decode
OPEN_BATCHES = 50
BATCH_TIMEOUT = 10.0
DIRECT_SUBJECTS = 1024


@dataclass(slots=True)
class Message:
    seq: int
    subject: str
    data: bytes
    headers: Headers
    at_ms: int


@dataclass
class Stream:
    name: str
    config: dict[str, Any]
    messages: dict[int, Message] = field(default_factory=dict)
    by_subject: dict[str, list[int]] = field(default_factory=dict)
    last: int = 0
    dedup: dict[str, tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subjects: tuple[str, ...] = tuple(self.config.get("subjects", ()))
        self.largest: int = self.config.get("max_msg_size", -1)
        self.window: float = self.config.get("duplicate_window", 120_000_000_000) / 1e9
        self.republish: dict[str, str] | None = self.config.get("republish")
        self.most: int = self.config.get("max_msgs_per_subject", -1)

    @property
    def first(self) -> int:
        return next(iter(self.messages), self.last + 1 if self.last else 0)

    def copy(self) -> Stream:
        messages = {m.seq: Message(m.seq, m.subject, m.data, m.headers, m.at_ms) for m in self.messages.values()}
        by_subject = {subject: list(seqs) for subject, seqs in self.by_subject.items()}
        return Stream(self.name, self.config, messages, by_subject, self.last, dict(self.dedup))

    def last_of(self, subject: str) -> int:
        seqs = self.by_subject.get(subject)
        return seqs[-1] if seqs else 0

    def drop(self, seq: int) -> None:
        message = self.messages.pop(seq, None)
        if message is not None:
            seqs = self.by_subject[message.subject]
            seqs.remove(seq)
            if not seqs:
                del self.by_subject[message.subject]


@dataclass
class Pull:
    """A request that waits at a consumer."""

    reply: str
    left: int
    heartbeat: float
    active: float
    timers: list[Handle] = field(default_factory=list)


@dataclass
class Consumer:
    name: str
    stream: str
    patterns: tuple[str, ...]
    position: int
    """Sequence of the stream to look at next."""
    delivered: int = 0
    only: list[int] | None = None
    """Sequences to deliver, when it does not simply follow the stream."""
    pulls: list[Pull] = field(default_factory=list)

    def wants(self, subject: str) -> bool:
        return matches_any(self.patterns, subject)


@dataclass
class Batch:
    stream: str
    items: list[tuple[str, bytes, Headers]]
    timer: Handle


class Refused(Exception):
    """An error answer of JetStream."""

    def __init__(self, err_code: int, text: str, code: int = 400) -> None:
        super().__init__(text)
        self.body = {"error": {"code": code, "err_code": err_code, "description": text}}


@functools.lru_cache(maxsize=1 << 16)
def matches(pattern: str, subject: str) -> bool:
    """Remembered from world to world: their subjects are much the same."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > i
        if i >= len(tokens) or token not in ("*", tokens[i]):
            return False
    return len(wanted) == len(tokens)


@functools.lru_cache(maxsize=1 << 16)
def matches_any(patterns: tuple[str, ...], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)


@functools.lru_cache(maxsize=1 << 14)
def republished(source: str, dest: str, subject: str) -> str:
    """The subject under which a message of a stream that republishes `source` to `dest` is heard; "" when it is not."""
    if not matches(source, subject):
        return ""
    wanted, tokens = source.split("."), subject.split(".")
    if wanted[-1] == ">":
        return ".".join([*dest.split(".")[:-1], *tokens[len(wanted) - 1 :]])
    wild = [token for want, token in zip(wanted, tokens, strict=True) if want == "*"]
    for i, token in enumerate(wild, 1):
        dest = dest.replace(f"{{{{wildcard({i})}}}}", token)
    return dest


@functools.lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


@functools.lru_cache(maxsize=1024)
def stamp(ms: int) -> str:
    """RFC 3339, as the server writes it."""
    return f"{_second(ms // 1000)}.{ms % 1000:03d}000000Z"


def seconds(text: str) -> float:
    """`6s`, `1m`, or nanoseconds: a TTL."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)


Listener = tuple["Client", int, str]
"""A client, the id of its subscription, its queue group."""


class Server:
    """`handle` takes what a client sent, when it arrives; `deliver` of a client is told what it gets."""

    def __init__(self, loop: Loop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.down = False
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[tuple[str, str], Consumer] = {}
        self.clients: list[Client] = []
        self.on_stored: Callable[[Stream, list[Message], Client | None], None] = lambda stream, messages, client: None
        """Told of every accepted write (the messages of one batch together), before anybody is answered."""
        self.lose_delivery: Callable[[Client, str], bool] | None = None
        """Says whether a message on its way to a subscriber is lost (a slow consumer, a full buffer)."""
        self.lose_request: Callable[[str], bool] | None = None
        """Says whether what was sent to a subject never arrives."""
        self.again: Callable[[str], float | None] | None = None
        """Seconds after which a report to a subject is stored once more, as by a publisher whose ids have been forgotten; None: not at all."""
        self.dedup = True
        self._batches: dict[str, Batch] = {}
        self._listeners: dict[str, list[Listener]] = {}
        """Pattern -> who subscribed it."""
        self._patterns: dict[str, list[list[Listener]]] = {}
        """Subject -> the lists of `_listeners` that hear it; forgotten when there is a pattern never heard of before."""
        self._routes: dict[str, list[Listener]] = {}
        """Subject -> who hears it; forgotten when somebody comes or goes."""
        self._inboxes: dict[str, list[Listener]] = {}
        """`_INBOX.<key>.<token>` -> who subscribed it or something below; all other subjects are looked up in `_routes`."""
        self._stream_of: dict[str, Stream | None] = {}
        self._context = loop.context_of(None)

    @property
    def now_ms(self) -> int:
        return int((START + self.loop.now) * 1000)

    # --- life --------------------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Every connection ends; what is only in memory is lost."""
        self.down = True
        for client in list(self.clients):
            client.end("server stopped")
        for consumer in self.consumers.values():
            self._forget_pulls(consumer)
        self.consumers.clear()
        for batch in self._batches.values():
            batch.timer.cancel()
        self._batches.clear()

    def start(self) -> None:
        self.down = False

    def backup(self) -> dict[str, Stream]:
        """A copy of what is on disk now."""
        return {name: stream.copy() for name, stream in self.streams.items()}

    def restore(self, backup: dict[str, Stream]) -> None:
        """What is on disk is that copy from now on; its ids of messages are long forgotten. Only while down."""
        assert self.down
        self.streams = {name: stream.copy() for name, stream in backup.items()}
        self._stream_of.clear()
        for stream in self.streams.values():
            stream.dedup.clear()
            for message in list(stream.messages.values()):
                if "Nats-TTL" in message.headers:
                    self._expire_in(stream, message, seconds(message.headers["Nats-TTL"]))

    # --- who listens ---------------------------------------------------------------------------------------------------------------

    def subscribed(self, client: Client, sid: int, pattern: str, queue: str) -> None:
        if pattern.startswith("_INBOX."):
            self._inboxes.setdefault(pattern.rpartition(".")[0], []).append((client, sid, queue))
            return
        if pattern not in self._listeners:
            self._listeners[pattern] = []
            self._patterns.clear()
        self._listeners[pattern].append((client, sid, queue))
        self._routes.clear()

    def unsubscribed(self, client: Client, sid: int, pattern: str, queue: str) -> None:
        if pattern.startswith("_INBOX."):
            self._inboxes[pattern.rpartition(".")[0]].remove((client, sid, queue))
        else:
            self._listeners[pattern].remove((client, sid, queue))
            self._routes.clear()

    def _route(self, subject: str) -> Sequence[Listener]:
        if subject.startswith("_INBOX."):
            inbox, _, last = subject.rpartition(".")
            return self._inboxes.get(inbox, ()) if last else ()
        found = self._routes.get(subject)
        if found is None:
            heard = self._patterns.get(subject)
            if heard is None:
                heard = self._patterns[subject] = [who for pattern, who in self._listeners.items() if matches(pattern, subject)]
            found = self._routes[subject] = [listener for who in heard for listener in who]
        return found

    def _send(self, subject: str, data: bytes, headers: Headers | None, reply: str = "", to: str = "") -> int:
        """To everybody who listens on `to` (default: the subject itself); how many."""
        lose = self.lose_delivery
        groups: dict[str, list[Listener]] | None = None
        n = 0
        for entry in self._route(to or subject):
            client, sid, queue = entry
            if queue:
                groups = groups if groups is not None else {}
                groups.setdefault(queue, []).append(entry)
                continue
            n += 1
            if lose is None or not lose(client, subject):
                client.deliver(sid, subject, data, headers, reply)
        if groups is not None:
            for members in groups.values():
                client, sid, _ = self.rng.choice(members)
                n += 1
                client.deliver(sid, subject, data, headers, reply)
        return n

    # --- what clients send -----------------------------------------------------------------------------------------------------------

    def handle(self, client: Client | None, subject: str, data: bytes, headers: Headers | None, reply: str) -> None:
        """One message has arrived."""
        if client is not None and self.lose_request is not None and self.lose_request(subject):
            return
        if subject.startswith("$JS.API."):
            self._api(client, subject[8:], data, reply)
            return
        heard = self._send(subject, data, headers, reply)
        stream = self._holder(subject)
        if stream is not None:
            try:
                answer = self._publish(stream, client, subject, data, headers or {})
            except Refused as refused:
                answer = json(refused.body)
            if self.again is not None and stream.name == "REPORTS" and not subject.endswith(".fact.job"):
                late = self.again(subject)
                if late is not None:
                    self.loop.call_later(late, self._store_again, subject, data, context=self._context)
            if reply and answer is not None:
                self._send(reply, answer, None)
        elif reply and not heard:
            self._status(reply, "503", "No Responders")

    def _store_again(self, subject: str, data: bytes) -> None:
        stream = self._holder(subject)
        if stream is not None and not self.down:
            self._stored(stream, [self._append(stream, subject, data, {})], None)

    def _status(self, reply: str, status: str, description: str = "", **headers: str) -> None:
        told = {"Status": status}
        if description:
            told["Description"] = description
        for name, value in headers.items():
            told[name.replace("_", "-")] = value
        self._send(reply, b"", told)

    def _holder(self, subject: str) -> Stream | None:
        try:
            return self._stream_of[subject]
        except KeyError:
            found = None
            if not subject.startswith("_INBOX."):
                for stream in self.streams.values():
                    if matches_any(stream.subjects, subject):
                        found = stream
                        break
            self._stream_of[subject] = found
            return found

    def _publish(self, stream: Stream, client: Client | None, subject: str, data: bytes, headers: Headers) -> bytes | None:
        if 0 < stream.largest < len(data):
            raise Refused(10054, "message size exceeds maximum allowed")
        if "Nats-Batch-Id" in headers:
            return self._batch(stream, client, subject, data, headers)
        ident = headers.get("Nats-Msg-Id")
        if ident is not None and self.dedup:
            known = stream.dedup.get(ident)
            if known is not None and self.loop.now - known[1] < stream.window:
                return json({"stream": stream.name, "seq": known[0], "duplicate": True})
        self._check(stream, subject, headers, {})
        message = self._append(stream, subject, data, headers)
        if ident is not None:
            stream.dedup[ident] = (message.seq, self.loop.now)
        self._stored(stream, [message], client)
        return json({"stream": stream.name, "seq": message.seq})

    def _check(self, stream: Stream, subject: str, headers: Headers, staged: dict[str, int]) -> None:
        if "Nats-TTL" in headers and not stream.config.get("allow_msg_ttl"):
            raise Refused(10166, "per-message TTL is disabled")
        if "Nats-Rollup" in headers and not stream.config.get("allow_rollup_hdrs"):
            raise Refused(10111, "rollup not permitted")
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None:
            last = staged.get(subject, stream.last_of(subject))
            if last != int(expected):
                raise Refused(10071, f"wrong last sequence: {last}")

    def _batch(self, stream: Stream, client: Client | None, subject: str, data: bytes, headers: Headers) -> bytes | None:
        ident = headers["Nats-Batch-Id"]
        if not stream.config.get("allow_atomic"):
            raise Refused(10174, "atomic publish is disabled")
        number = int(headers["Nats-Batch-Sequence"])
        batch = self._batches.get(ident)
        if batch is None:
            if number != 1:
                raise Refused(10176, "atomic publish batch is incomplete")
            if sum(b.stream == stream.name for b in self._batches.values()) >= OPEN_BATCHES:
                raise Refused(10210, "atomic publish unsupported: too many open batches")
            timer = self.loop.call_later(BATCH_TIMEOUT, self._batches.pop, ident, None, context=self._context)
            batch = self._batches[ident] = Batch(stream.name, [], timer)
        if number != len(batch.items) + 1:
            self._end_batch(ident)
            raise Refused(10176, "atomic publish batch is incomplete")
        batch.items.append((subject, data, headers))
        if headers.get("Nats-Batch-Commit") != "1":
            return b""
        self._end_batch(ident)
        for item_subject, _, item_headers in batch.items:
            self._check(stream, item_subject, item_headers, {})
        messages = [self._append(stream, *item) for item in batch.items]
        self._stored(stream, messages, client)
        return json({"stream": stream.name, "seq": messages[-1].seq, "batch": ident, "count": len(messages)})

    def _end_batch(self, ident: str) -> None:
        self._batches.pop(ident).timer.cancel()

    # --- storing -------------------------------------------------------------------------------------------------------------------

    def _append(self, stream: Stream, subject: str, data: bytes, headers: Headers) -> Message:
        stream.last += 1
        if "Nats-Batch-Id" in headers:
            headers = {key: value for key, value in headers.items() if not key.startswith("Nats-Batch")}
        message = Message(stream.last, subject, data, headers, self.now_ms)
        stream.messages[message.seq] = message
        seqs = stream.by_subject.setdefault(subject, [])
        seqs.append(message.seq)
        if not headers and stream.most <= 0:
            return message
        most = 1 if headers.get("Nats-Rollup") == "sub" else stream.most
        while 0 < most < len(seqs):
            stream.drop(seqs[0])
        if "Nats-TTL" in headers:
            self._expire_in(stream, message, seconds(headers["Nats-TTL"]))
        return message

    def _stored(self, stream: Stream, messages: list[Message], client: Client | None) -> None:
        self.on_stored(stream, messages, client)
        if stream.republish:
            for message in messages:
                self._republish(stream, message)
        for consumer in [c for c in self.consumers.values() if c.pulls and c.stream == stream.name]:
            self._serve(consumer)

    def _expire_in(self, stream: Stream, message: Message, after: float) -> None:
        self.loop.call_later(after, self._expire, stream.name, message, context=self._context)

    def _expire(self, name: str, message: Message) -> None:
        stream = self.streams.get(name)
        if stream is None or stream.messages.get(message.seq) is not message:
            return
        was_last = stream.last_of(message.subject) == message.seq
        stream.drop(message.seq)
        marker = stream.config.get("subject_delete_marker_ttl")
        if was_last and marker and "Nats-Marker-Reason" not in message.headers:
            made = self._append(stream, message.subject, b"", {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": f"{int(marker / 1e9)}s"})
            self._stored(stream, [made], None)

    def _republish(self, stream: Stream, message: Message) -> None:
        assert stream.republish is not None
        target = republished(stream.republish["src"], stream.republish["dest"], message.subject)
        if not target or not self._route(target):
            return
        seqs = stream.by_subject.get(message.subject, [])
        told = {
            **message.headers,
            "Nats-Stream": stream.name,
            "Nats-Subject": message.subject,
            "Nats-Sequence": str(message.seq),
            "Nats-Time-Stamp": stamp(message.at_ms),
            "Nats-Last-Sequence": str(seqs[-2] if len(seqs) > 1 else 0),
        }
        self._send(target, message.data, told)

    # --- the API ---------------------------------------------------------------------------------------------------------------------

    def _api(self, client: Client | None, verb: str, data: bytes, reply: str) -> None:
        try:
            answer = self._answer(client, verb, data, reply)
        except Refused as refused:
            answer = refused.body
        if answer is not None and reply:
            self._send(reply, json(answer), None)

    def _find(self, name: str) -> Stream:
        if name not in self.streams:
            raise Refused(10059, "stream not found", 404)
        return self.streams[name]

    def _answer(self, client: Client | None, verb: str, data: bytes, reply: str) -> dict[str, Any] | None:
        tokens = verb.split(".")
        match tokens[:2]:
            case ["INFO"]:
                return {"memory": 0}
            case ["STREAM", "CREATE"]:
                config = unjson(data)
                self.streams[tokens[2]] = Stream(tokens[2], config)
                self._stream_of.clear()
                return {"config": config}
            case ["STREAM", "INFO"]:
                return self._info(self._find(tokens[2]), unjson(data) if data else {})
            case ["STREAM", "PURGE"]:
                return self._purge(self._find(tokens[2]), unjson(data) if data else {})
            case ["STREAM", "MSG"]:
                return self._msg_get(self._find(tokens[3]), unjson(data))
            case ["DIRECT", "GET"]:
                self._direct(tokens[2], ".".join(tokens[3:]), data, reply)
                return None
            case ["CONSUMER", "CREATE"]:
                return self._create_consumer(tokens[2], tokens[3], unjson(data)["config"])
            case ["CONSUMER", "DELETE"]:
                consumer = self.consumers.pop((tokens[2], tokens[3]), None)
                if consumer is None:
                    raise Refused(10014, "consumer not found", 404)
                for pull in consumer.pulls:
                    self._status(pull.reply, "409", "Consumer Deleted")
                self._forget_pulls(consumer)
                return {"success": True}
            case ["CONSUMER", "MSG"]:
                self._pull(tokens[3], tokens[4], unjson(data), reply)
                return None
        if reply:
            self._status(reply, "503", "No Responders")
        return None

    def _info(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = {
            "messages": len(stream.messages),
            "bytes": sum(len(m.data) for m in stream.messages.values()),
            "first_seq": stream.first,
            "last_seq": stream.last,
        }
        if wanted := body.get("subjects_filter"):
            state["subjects"] = {s: len(seqs) for s, seqs in stream.by_subject.items() if matches(wanted, s)}
        return {"config": stream.config, "state": state}

    def _purge(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        pattern = body.get("filter", ">")
        below = body.get("seq", stream.last + 1)
        gone = [seq for seq, m in stream.messages.items() if seq < below and matches(pattern, m.subject)]
        for seq in gone:
            stream.drop(seq)
        return {"success": True, "purged": len(gone)}

    def _msg_get(self, stream: Stream, body: dict[str, Any]) -> dict[str, Any]:
        seq = body.get("seq") or stream.last_of(body.get("last_by_subj", ""))
        message = stream.messages.get(seq)
        if message is None:
            raise Refused(10037, "no message found", 404)
        lines = "NATS/1.0\r\n" + "".join(f"{key}: {value}\r\n" for key, value in message.headers.items()) + "\r\n"
        body = {"subject": message.subject, "seq": message.seq, "data": base64.b64encode(message.data).decode(), "time": stamp(message.at_ms)}
        if message.headers:
            body["hdrs"] = base64.b64encode(lines.encode()).decode()
        return {"message": body}

    # --- Direct Get --------------------------------------------------------------------------------------------------------------------

    def _direct(self, name: str, subject: str, data: bytes, reply: str) -> None:
        stream = self.streams.get(name)
        if stream is None or not stream.config.get("allow_direct"):
            self._status(reply, "503", "No Responders")
            return
        if subject:
            self._direct_one(stream, stream.last_of(subject), reply)
            return
        body = unjson(data)
        if "multi_last" not in body:
            self._direct_one(stream, body.get("seq", 0), reply)
            return
        patterns = tuple(body["multi_last"])
        found = sorted([seqs[-1] for subject, seqs in stream.by_subject.items() if matches_any(patterns, subject)])
        if len(found) > DIRECT_SUBJECTS:
            self._status(reply, "413", "Too Many Results")
        elif not found:
            self._status(reply, "404", "No Results")
        else:
            before = 0
            for left, seq in zip(range(len(found) - 1, -1, -1), found, strict=True):
                self._direct_send(stream, stream.messages[seq], reply, {"Nats-Num-Pending": str(left), "Nats-Last-Sequence": str(before)})
                before = seq
            self._status(reply, "204", "EOB", Nats_Num_Pending="0", Nats_Last_Sequence=str(found[-1]), Nats_UpTo_Sequence=str(stream.last))

    def _direct_one(self, stream: Stream, seq: int, reply: str) -> None:
        message = stream.messages.get(seq)
        if message is None:
            self._status(reply, "404", "Message Not Found")
        else:
            self._direct_send(stream, message, reply)

    def _direct_send(self, stream: Stream, message: Message, reply: str, more: Headers | None = None) -> None:
        told = message.headers | {
            "Nats-Stream": stream.name,
            "Nats-Subject": message.subject,
            "Nats-Sequence": str(message.seq),
            "Nats-Time-Stamp": stamp(message.at_ms),
        }
        self._send(reply, message.data, told if more is None else told | more)

    # --- consumers ---------------------------------------------------------------------------------------------------------------------

    def _create_consumer(self, stream_name: str, name: str, config: dict[str, Any]) -> dict[str, Any]:
        stream = self._find(stream_name)
        consumer = Consumer(name, stream_name, tuple(config.get("filter_subjects", (">",))), max(1, config.get("opt_start_seq", 1)))
        if config["deliver_policy"] == "last_per_subject":
            consumer.only = sorted(seqs[-1] for subject, seqs in stream.by_subject.items() if consumer.wants(subject))
            consumer.position = stream.last + 1
        self.consumers[stream_name, name] = consumer
        return {"name": name, "stream_name": stream_name, "config": config, "num_pending": self._pending(stream, consumer)}

    def _pending(self, stream: Stream, consumer: Consumer) -> int:
        ahead = 0
        for seq in range(max(consumer.position, stream.first), stream.last + 1):
            message = stream.messages.get(seq)
            ahead += message is not None and consumer.wants(message.subject)
        return ahead + len(consumer.only or ())

    def _pull(self, stream: str, name: str, body: dict[str, Any], reply: str) -> None:
        consumer = self.consumers.get((stream, name))
        if consumer is None:
            self._status(reply, "503", "No Responders")
            return
        pull = Pull(reply, body["batch"], body.get("idle_heartbeat", 0) / 1e9, self.loop.now)
        consumer.pulls.append(pull)
        pull.timers.append(self.loop.call_later(body.get("expires", 60e9) / 1e9, self._expire_pull, consumer, pull, context=self._context))
        if pull.heartbeat:
            pull.timers.append(self.loop.call_later(pull.heartbeat, self._beat, consumer, pull, context=self._context))
        self._serve(consumer)

    def _forget_pulls(self, consumer: Consumer) -> None:
        for pull in consumer.pulls:
            for timer in pull.timers:
                timer.cancel()
        consumer.pulls.clear()

    def _expire_pull(self, consumer: Consumer, pull: Pull) -> None:
        self._end_pull(consumer, pull)
        self._status(pull.reply, "408", "Request Timeout", Nats_Pending_Messages=str(pull.left), Nats_Pending_Bytes="0")

    def _end_pull(self, consumer: Consumer, pull: Pull) -> None:
        for timer in pull.timers:
            timer.cancel()
        if pull in consumer.pulls:
            consumer.pulls.remove(pull)

    def _beat(self, consumer: Consumer, pull: Pull) -> None:
        idle = self.loop.now - pull.active
        if idle >= pull.heartbeat - 0.001:
            pull.active = self.loop.now
            idle = 0.0
            self._status(pull.reply, "100", "Idle Heartbeat", Nats_Last_Consumer=str(consumer.delivered), Nats_Last_Stream=str(consumer.position - 1))
        pull.timers[-1] = self.loop.call_later(pull.heartbeat - idle, self._beat, consumer, pull, context=self._context)

    def _next(self, stream: Stream, consumer: Consumer) -> Iterator[Message]:
        while consumer.only:
            message = stream.messages.get(consumer.only.pop(0))
            if message is not None:
                yield message
        while consumer.position <= stream.last:
            message = stream.messages.get(consumer.position)
            if message is None and consumer.position < stream.first:
                consumer.position = stream.first
                continue
            consumer.position += 1
            if message is not None and consumer.wants(message.subject):
                yield message

    def _serve(self, consumer: Consumer) -> None:
        stream = self.streams[consumer.stream]
        while consumer.pulls:
            pull = consumer.pulls[0]
            if not self._route(pull.reply):  # nobody waits any more
                self._end_pull(consumer, pull)
                continue
            message = next(self._next(stream, consumer), None)
            if message is None:
                return
            consumer.delivered += 1
            pull.left -= 1
            pull.active = self.loop.now
            tail = f"1.{message.seq}.{consumer.delivered}.{message.at_ms * 1_000_000}.{self._pending(stream, consumer)}"
            self._send(message.subject, message.data, message.headers, f"$JS.ACK.{consumer.stream}.{consumer.name}.{tail}", to=pull.reply)
            if pull.left <= 0:
                self._end_pull(consumer, pull)
