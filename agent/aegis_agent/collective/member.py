"""One worker in the meeting: finds the hub, imports torch once, forks a child for each test and ends it when its time is over.

A child that hangs in a driver is killed and is a result; this process never touches a device, so that it can always fork and always answer.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import select
import signal
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from . import environment
from .wire import Lines, keep_alive, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNREACHED = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EHOSTDOWN)
"""What says something about the way to w0. A refused connection does not: w0 may have begun late, or be done."""
TRY_SECONDS = 5.0
MARGIN = 2.0
NOISE = re.compile(r"\[/[^\]]*\]\s*|This is typically caused by.*|Check the logs of.*|Exception raised from .*")
"""What torch says around the fact."""
SIOCGIFADDR = 0x8915
"""ioctl: the IPv4 address of an interface (linux/sockios.h)."""
MOST_TEXT = 300
PR_SET_PDEATHSIG = 1
"""linux/prctl.h; of the thread that forks, and this process forks in its first."""


class Missed(Exception):
    """No meeting. `way`: the way to w0 is at fault (or one of its ends), not the time."""

    def __init__(self, text: str, way: bool) -> None:
        super().__init__(text)
        self.way = way


class Member:
    def __init__(self, told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
        self.told = told
        self.say = say
        self.sock: socket.socket | None = None
        self.lines = Lines()
        self.env = environment.collect()

    def run(self) -> None:
        self.meet()
        if "torch" in self.env:
            self.send(self.prepare())
        for message in self.messages():
            if "line" in message:
                self.say(message["line"])
            elif "test" in message:
                self.send({"done": message["test"], **self.test(message)})
            elif "bye" in message:
                return

    # --- the hub ----------------------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Connect and say hello. Raises Missed."""
        host, port = self.told["hub"]
        until = time.monotonic() + self.told["meet"]
        way, last = False, "no time was left"
        pause = 0.02
        while time.monotonic() < until:
            try:
                sock = socket.create_connection((host, port), min(TRY_SECONDS, max(0.1, until - time.monotonic())))
                sock.settimeout(None)
                keep_alive(sock)
                self.sock = sock
                self.send({"hello": self.told["index"], "key": self.told["key"], "env": self.env, "torch": "torch" in self.env})
                return
            except OSError as error:
                way, last = isinstance(error, socket.timeout) or error.errno in UNREACHED, error.strerror or str(error)
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)
        raise Missed(f"w0 at {host}:{port}: {last}", way)

    def send(self, message: dict[str, Any]) -> None:
        assert self.sock is not None
        self.sock.sendall(pack(message))

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the hub says. Raises Missed when it is gone, or says nothing for too long."""
        assert self.sock is not None
        self.sock.settimeout(self.told["patience"])
        while True:
            try:
                data = self.sock.recv(65536)
            except socket.timeout:  # noqa: UP041 (another class before Python 3.10)
                raise Missed("w0 says nothing any more", True) from None
            except OSError as error:
                raise Missed(f"the connection to w0 broke: {error.strerror or error}", True) from None
            if not data:
                raise Missed("w0 has left the meeting", False)
            yield from self.lines.feed(data)

    # --- torch ------------------------------------------------------------------------------------------------------------------

    def prepare(self) -> dict[str, Any]:
        """Import torch; on w0, host the store. What this worker can offer."""
        try:
            import torch.distributed as dist
        except BaseException as error:
            return {"ready": 1, "ok": False, "error": last_line(error)}
        if not dist.is_available():
            return {"ready": 1, "ok": False, "error": "torch was built without torch.distributed"}
        device, backend = ("cpu", "gloo") if self.told.get("cpu") else environment.backend_here(self.env)
        ready = {"ready": 1, "ok": True, "device": device, "backend": backend, "locals": self.told["nproc"] if device != "cpu" else 1}
        if self.told["index"] == 0:
            port = self.host_store(dist)
            ready.update({"store": [self.told["hub"][0], port]} if port else {"ok": False, "error": "no port for the store of the collectives"})
        return ready

    def host_store(self, dist: Any) -> int:
        """A child that serves the store of all tests; its port, 0 when none could be had. It ends with this process."""
        ours, theirs = socket.socketpair()
        me = os.getpid()
        if os.fork() == 0:
            ours.close()
            alone(self.sock, me)
            try:
                for port in self.told["ports"]:
                    try:
                        store = dist.TCPStore(self.told["hub"][0], port, None, True, wait_for_workers=False)
                    except (RuntimeError, OSError, ValueError):
                        continue
                    theirs.sendall(b"%d\n" % port)
                    theirs.recv(1)  # until the other end is closed
                    del store
                    break
            finally:
                os._exit(0)
        theirs.close()
        self.store = ours
        ours.settimeout(20.0)
        try:
            return int(ours.recv(32) or b"0")
        except (OSError, ValueError):
            return 0

    def test(self, test: dict[str, Any]) -> dict[str, Any]:
        """Run this worker's ranks of one test, each in a child; the first that fails speaks for all."""
        if test.get("by_route") and self.sock is not None:
            test["interface"] = interface_of(self.sock.getsockname()[0])
        ends: dict[int, Child] = {}
        for local in range(test["locals"]):
            child = Child(test, local, self.sock)
            ends[child.fd] = child
        until = time.monotonic() + test["seconds"] + MARGIN
        while any(child.answer is None for child in ends.values()) and time.monotonic() < until:
            waiting = [fd for fd, child in ends.items() if child.answer is None]
            for fd in select.select(waiting, [], [], max(0.0, until - time.monotonic()))[0]:
                ends[fd].read()
        answers = [child.end() for child in ends.values()]
        return next((answer for answer in answers if not answer["ok"]), answers[0])


class Child:
    """One rank of a test."""

    def __init__(self, test: dict[str, Any], local: int, hub: socket.socket | None) -> None:
        self.answer: dict[str, Any] | None = None
        self.stage = "start"
        self.buffer = b""
        self.fd, out = os.pipe()
        me = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.fd)
            alone(hub, me)
            work(test, local, out)
        os.close(out)

    def read(self) -> None:
        data = os.read(self.fd, 65536)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "stage" in said:
                self.stage = said["stage"]
            else:
                self.answer = said
        if not data and self.answer is None:
            self.answer = {"ok": False, "text": f"died at {self.stage}"}

    def end(self) -> dict[str, Any]:
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        until = time.monotonic() + 1.0
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
            time.sleep(0.002)  # one that a driver holds is left to whoever ends this check
        os.close(self.fd)
        return self.answer or {"ok": False, "text": f"no end at {self.stage}"}


def end_with(parent: int) -> None:
    """In a child: it ends with its parent, however that ends: nobody else would end one that a driver holds."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def alone(hub: socket.socket | None, parent: int) -> None:
    """A child speaks only through its own pipe, and ends with its parent."""
    end_with(parent)
    if hub is not None:
        hub.close()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def work(test: dict[str, Any], local: int, out: int) -> None:
    """The life of a child. Does not return."""

    def tell(message: dict[str, Any]) -> None:
        os.write(out, json.dumps(message).encode() + b"\n")

    stage = ["start"]

    def say(name: str) -> None:
        stage[0] = name
        tell({"stage": name})

    try:
        from . import ranks

        ranks.one_thread()
        speed = ranks.run({**test, "rank": test["first"] + local, "local": local}, say)
        tell({"ok": True, "speed": speed})
    except BaseException as error:
        tell({"ok": False, "text": f"{stage[0]}: {last_line(error)}"})
    finally:
        os._exit(0)


def last_line(error: BaseException) -> str:
    """The error in one line, without where in its source torch raised it and what it advises."""
    text = NOISE.sub("", " ".join(str(error).split())).strip()
    return f"{type(error).__name__}: {text}"[:MOST_TEXT]


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address, "" when none can be told."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""
