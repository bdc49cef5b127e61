"""What a simulated world replaces in the real code: clocks, randomness, the nats-py client. Nothing else is replaced by default.

`installed(world clock, rng)` sets the names in every `aegis_*` module that imported one of them, and puts them back.
"""

from __future__ import annotations

import asyncio
import asyncio.mixins
import functools
import operator
import random
import secrets
import sys
import time
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import aegis_bus.connection
import aegis_bus.identity
import aegis_bus.link
import aegis_bus.subscription
import msgspec
import prometheus_client
import prometheus_client.metrics
from aegis_proto import messages
from aegis_proto.state import Head, HeadView, JobSpec
from simulation import client
from simulation.loop import PROCESS, START, Loop
from simulation.timeouts import timeout


class Clock:
    """Stands for the module `time`. Wall clocks of machines may be wrong; the monotonic one is everybody's."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.monotonic = self.perf_counter = functools.partial(operator.attrgetter("now"), loop)

    def time(self) -> float:
        process = PROCESS.get()
        return START + self._loop.now + (process.skew if process is not None else 0.0)

    def time_ns(self) -> int:
        return int(self.time() * 1e9)


class Secrets:
    """Stands for the module `secrets`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._n = 0

    def token_hex(self, nbytes: int = 32) -> str:
        """Nobody guesses here: it is enough that no two are the same."""
        self._n += 1
        return f"{self._n:x}".zfill(2 * nbytes)

    def randbelow(self, limit: int) -> int:
        return self._rng.randrange(limit)


class Randomness:
    """Stands for the module `random`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.uniform, self.random, self.choice, self.sample = rng.uniform, rng.random, rng.choice, rng.sample
        self.randint, self.shuffle, self.randrange = rng.randint, rng.shuffle, rng.randrange

    def Random(self, seed: object = None) -> random.Random:
        return random.Random(self._rng.getrandbits(64) if seed is None else seed)


class Identity:
    """Who a simulated process is on the bus: a name, no keys."""

    jwt = ""
    tags: tuple[str, ...] = ()
    expires = None

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.public = f"U{number:08X}"

    def expired(self, now: float | None = None) -> bool:
        return False

    def sign(self, data: bytes) -> bytes:
        return b""


_labels = prometheus_client.metrics.MetricWrapperBase.labels


def labels(metric: Any, *values: Any, **named: Any) -> Any:
    """What `labels` of a metric gave for the same values before; the real one takes a lock and makes strings each time."""
    if named:
        return _labels(metric, *values, **named)
    known = metric.__dict__.setdefault("_simulated", {})
    found = known.get(values)
    if found is None:
        found = known[values] = _labels(metric, *values)
    return found


def headers_of(msg: client.Msg) -> client.Headers:
    """As of `aegis_bus.link`: the simulated client names all headers by strings."""
    return msg.headers or {}


def unmeasured(metric: Any, amount: float = 1.0) -> None:
    """Stands for `inc`, `dec`, `set` and `observe` of metrics: nobody scrapes a simulated process."""


MEASURES = (
    (prometheus_client.Counter, "inc"),
    (prometheus_client.Gauge, "inc"),
    (prometheus_client.Gauge, "dec"),
    (prometheus_client.Gauge, "set"),
    (prometheus_client.Histogram, "observe"),
)


class Remembered:
    """A decoder that knows what it has decoded: many processes of a world read the same, and it is frozen."""

    def __init__(self, kind: type) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._known: dict[bytes, Any] = {}

    def decode(self, data: Any) -> Any:
        data = bytes(data)
        found = self._known.get(data)
        if found is None:
            found = self._known[data] = self._decode(data)
        return found


READ_BY_MANY = (Head, HeadView, JobSpec, messages.LeaseData, messages.Era, messages.Place, messages.Slot, messages.NodeSpec, messages.NodeStatus)


class OrderedSet(dict[Any, None]):
    """A set that is walked in the order of insertion: two runs of one seed must not differ by addresses in memory."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)


class Bus(aegis_bus.connection.Bus):
    """The real Bus; only its sets keep an order."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._subs = OrderedSet()  # type: ignore[assignment]
        self._tasks = OrderedSet()  # type: ignore[assignment]
        self._core = OrderedSet()  # type: ignore[assignment]
        self._retired = OrderedSet()  # type: ignore[assignment]


_numbers = [0]


def new_identity(jwt: str = "") -> Identity:
    _numbers[0] += 1
    process = PROCESS.get()
    return Identity(process.name if process is not None else "?", _numbers[0])


@functools.lru_cache(maxsize=1)
def _users(modules: int) -> list[tuple[ModuleType, ModuleType]]:
    """Each module of Aegis that uses `time`, `secrets` or `random`, with the one it uses. `modules`: how many are loaded, as far as is known."""
    return [
        (module, real)
        for name, module in list(sys.modules.items())
        if name.startswith("aegis_")
        for real in (time, secrets, random)
        if module.__dict__.get(real.__name__) is real
    ]


@contextmanager
def installed(network: client.Network, rng: random.Random) -> Iterator[None]:
    """The world of `network` is the one that runs. Not to be nested."""
    assert client.NETWORK is None
    _numbers[0] = 0
    stand_ins = {time: Clock(network.loop), secrets: Secrets(rng), random: Randomness(rng)}
    saved: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        saved.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    for module, real in _users(len(sys.modules)):
        put(module, real.__name__, stand_ins[real])
    put(messages, "_decoders", {**messages._decoders, **{kind: Remembered(kind) for kind in READ_BY_MANY}})
    put(asyncio, "timeout", timeout)
    put(asyncio.mixins._LoopBoundMixin, "_get_loop", lambda self: events._get_running_loop())
    put(prometheus_client.metrics.MetricWrapperBase, "labels", labels)
    for kind, verb in MEASURES:
        put(kind, verb, unmeasured)
    put(aegis_bus.link, "headers_of", headers_of)
    put(aegis_bus.subscription, "headers_of", headers_of)
    put(aegis_bus.link, "Client", client.Client)
    put(aegis_bus.connection, "Bus", Bus)
    put(aegis_bus.identity.Identity, "new", staticmethod(new_identity))
    client.NETWORK = network
    try:
        yield
    finally:
        client.NETWORK = None
        for owner, name, value in reversed(saved):
            setattr(owner, name, value)
