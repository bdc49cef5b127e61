"""The agent's side of the warm standby: one interpreter that waits, what it is to import, and the processes it forks.

Owns the standby process (a helper: never ended with a run) and the records of what runs import (`warm-<n>.modules` in the state directory).
While a run is going, what its first local rank has imported from site packages is imported by the standby too; the next run is forked from it.
The forked process becomes this agent's own child, with everything that a cold start gives it. Whatever does not fit is started cold; a standby
that failed once is not tried again.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aegis_agent.env import FLIGHT_DUMP, FLIGHT_PIPE, RANK_NAMES, TORCHELASTIC_NAMES
from aegis_agent.procs import VARIABLE, live
from aegis_agent.reaper import Child, Reaper
from aegis_agent.warm.command import PythonCommand, python_command

PROGRAM = Path(__file__).with_name("interpreter.py")
VOLATILE = frozenset(
    (
        *RANK_NAMES,
        *TORCHELASTIC_NAMES,
        *(FLIGHT_DUMP[0], FLIGHT_PIPE[0]),
        *("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"),
        *("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_RDZV_ID", "AEGIS_INCARNATION", VARIABLE),
    )
)
"""Variables that differ between ranks or runs: a standby has none of them, and a package that reads one while it is imported is not preloaded."""
ROOM = 8192
"""Bytes of the environment that a forked process may have beyond the standby's, as /proc shows it."""
LOOK, QUIET = 1.0, 3.0
"""Seconds between two looks at what a run has imported, and without a new import before the standby follows."""
LOOK_LATER = 10.0
ANSWER = 2.0
"""Seconds a standby may take for a fork; then the command is started cold, and from then on always."""
MOST_TAINTED = 8
"""Packages that may prove unfit to be preloaded, each known by a standby started anew; then it is given up."""
EARLY = 30.0
"""A preloaded run that fails within so many seconds may have failed for being preloaded: the standby is given up."""


MOST_SAID = 1 << 20
"""Bytes of one message of an interpreter."""


class Nonsense(OSError):
    """The interpreter says what is no message of a standby."""


class Unusable(Exception):
    """The standby could not start this process; the text says why."""


class Standby:
    """`spawn` is as `Reaper.spawn`, or raises Unusable. `say(text)` tells people. Open it in the agent's main thread."""

    def __init__(self, reaper: Reaper, command: PythonCommand, env: Mapping[str, str], *, cwd: str, folder: Path, say: Callable[[str], None]) -> None:
        self.preloaded = 0
        """Modules that a process forked now would find imported."""
        self.bytes = 0
        self.given_up = ""
        """Why it is not used any more."""
        self._reaper = reaper
        self._command = command
        self._env = {name: value for name, value in env.items() if name not in VOLATILE}
        self._scope = env.get(VARIABLE, "")
        self._cwd = cwd or os.getcwd()
        self._folder = folder
        self._say = say
        self._names: dict[str, None] = {}  # what runs have imported, in order
        self._found: set[str] = set()  # the same, and what they only asked for
        self._tainted: set[str] = set()
        self._sent = 0
        self._records = 0
        self._record: Path | None = None
        self._seen = (0, 0.0)  # bytes of the record, when they were seen first
        self._child: Child | None = None
        self._link: socket.socket | None = None
        self._noise = -1
        self._idle = False
        self._up = False
        """It has said that it is there; since then it may be busy importing."""
        self._data = b""
        self._watching: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the interpreter; it has nothing imported yet."""
        self._start()
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="standby")

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._end()

    def give_up(self, why: str) -> None:
        """Cold from now on."""
        if not self.given_up:
            self.given_up = why
            self._say(f"warm standby given up: {why}. Restarts are cold from now on")
            self.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        program = os.memfd_create("standby", os.MFD_CLOEXEC)
        try:
            os.write(program, PROGRAM.read_bytes())
            os.lseek(program, 0, os.SEEK_SET)
            words = [*self._command.interpreter, "-"]
            have = sum(len(os.fsencode(word)) + 1 for word in words)
            want = sum(len(os.fsencode(word)) + 1 for word in self._command.words)
            if want > have:
                words.append("-" * (want - have - 1))
            env = {**self._env, "AEGIS_WARM_FD": str(theirs.fileno()), "AEGIS_WARM_VOLATILE": ",".join(sorted(VOLATILE))}
            env[VARIABLE] = f"{self._scope}-" + "." * ROOM
            self._child = self._reaper.spawn(
                words, env=env, cwd=self._cwd, stdin=program, stdout=writing, stderr=writing, pass_fds=(theirs.fileno(),), helper=True
            )
        except OSError as error:
            ours.close()
            os.close(reading)
            self.given_up = str(error)
            return
        finally:
            theirs.close()
            os.close(writing)
            os.close(program)
        self._link, self._noise, self._idle, self._up, self._data, self._sent, self.preloaded = ours, reading, False, False, b"", 0, 0
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._heard)
        loop.add_reader(reading, self._overheard, reading)

    def _end(self) -> None:
        self._idle, self.preloaded = False, 0
        if self._link is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._link)
            loop.remove_reader(self._noise)
            self._link.close()
            os.close(self._noise)
            self._link = None
        if self._child is not None:
            self._child.signal_group(signal.SIGKILL)
            self._child = None

    def _overheard(self, fd: int) -> None:
        """What packages print while they are imported: nobody's output."""
        try:
            if not os.read(fd, 65536):
                asyncio.get_running_loop().remove_reader(fd)
        except OSError:
            pass

    # --- words ------------------------------------------------------------------------------------------------------------------

    def _send(self, order: dict[str, Any], fds: Sequence[int] = ()) -> None:
        assert self._link is not None
        data = json.dumps(order).encode()
        self._link.settimeout(ANSWER)
        self._link.sendmsg([struct.pack("!I", len(data))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        self._link.sendall(data)
        self._idle = False

    def _heard(self) -> None:
        assert self._link is not None
        try:
            more = self._link.recv(65536, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            more = b""
        if not more:
            self.give_up("the interpreter ended")
            return
        self._data += more
        try:
            while (message := self._next()) is not None:
                self._take(message)
        except Nonsense as error:
            self.give_up(str(error))

    def _next(self) -> dict[str, Any] | None:
        if len(self._data) < 4:
            return None
        size = struct.unpack("!I", self._data[:4])[0]
        if size > MOST_SAID:
            raise Nonsense("its words are none of a standby")
        if len(self._data) < 4 + size:
            return None
        try:
            message = json.loads(self._data[4 : 4 + size])
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not isinstance(message.get("is"), str):
            raise Nonsense("its words are none of a standby")
        self._data = self._data[4 + size :]
        return message

    def _take(self, message: dict[str, Any]) -> None:
        try:
            self._learn(message)
        except (KeyError, TypeError, ValueError):
            raise Nonsense("its words are none of a standby") from None

    def _learn(self, message: dict[str, Any]) -> None:
        what = message["is"]
        if what == "up":
            self._idle = self._up = True
        elif what == "loaded":
            self._idle = True
            before, self.preloaded, self.bytes = self.preloaded, int(message["modules"]), int(message["bytes"])
            if self.preloaded > before:
                self._say(f"warm standby ready: {self.preloaded} modules, {self.bytes >> 20} MiB, {message['seconds']:.1f} s beside the run")
        elif what == "tainted":
            self._tainted.add(message["name"])
            if len(self._tainted) > MOST_TAINTED:
                self.give_up(f"{message['name']} {message['why']}")
            else:
                self._end()
                self._start()

    # --- following the run ------------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self.given_up:
            await asyncio.sleep(LOOK_LATER if self.preloaded else LOOK)
            if self._record is None or not self._idle:
                continue
            try:
                size = self._record.stat().st_size
            except OSError:
                continue
            now = time.monotonic()
            if size != self._seen[0]:
                self._seen = (size, now)
            elif now - self._seen[1] >= QUIET:
                self._read(self._record)
                if len(self._names) > self._sent:
                    self._load()

    def _read(self, record: Path) -> None:
        try:
            lines = record.read_text(errors="replace").split()
        except OSError:
            return
        self._names.update(dict.fromkeys(line[1:] for line in lines if line.startswith("+")))
        if lines and not lines[-1].startswith("+"):  # nothing was looked for after it that would have told
            self._names[lines[-1]] = None
        self._found.update(line for line in lines if not line.startswith("+"))

    def _load(self) -> None:
        self._sent = len(self._names)
        unfit = tuple(f"{name}." for name in self._tainted)
        names = [name for name in self._names if name not in self._tainted and not name.startswith(unfit)]
        try:
            self._send({"do": "load", "names": names, "seen": sorted(self._found)})
        except OSError as error:
            self.give_up(f"the interpreter does not listen: {error}")

    # --- starting -----------------------------------------------------------------------------------------------------------------

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        cgroup_procs: str | None = None,
        helper: bool = False,
        record: bool = False,
    ) -> Child:
        """Start `argv` out of the standby. `record`: what it imports is to be preloaded for the next run."""
        command = python_command(argv)
        if self.given_up or self._link is None:
            raise Unusable(self.given_up or "no interpreter waits")
        if command is None or command.interpreter != self._command.interpreter:
            raise Unusable("not a plain python script of the same interpreter")
        if not self._idle and not self._up:
            self._wait_up()
        if not self._idle:
            raise Unusable("it is not ready")
        order: dict[str, Any] = {"do": "run", "words": command.words, "script": command.script, "env": dict(env), "agent": os.getpid()}
        order |= {"cwd": os.path.abspath(cwd or self._cwd), "cgroup": cgroup_procs or "", "record": ""}
        if record:
            self._records += 1
            self._record = self._folder / f"warm-{self._records}.modules"
            self._seen = (0, 0.0)
            order["record"] = str(self._record)
        pipes = _Pipes(stdin, stdout, stderr)
        try:
            self._send(order, pipes.theirs)
            pid = self._wait_forked()
            child = self._reaper.adopt(pid, pipes.stdout, pipes.stderr, helper=helper)
            os.write(pipes.go, b"g")
            pipes.keep()
            return child
        except OSError as error:
            self.give_up(f"a process could not be forked from it: {error}")
            raise Unusable(self.given_up) from None
        finally:
            pipes.close()

    def _wait_up(self) -> None:
        """The first run begins right after the agent: what it imports should be noted. Blocks, for the start of an interpreter."""
        until = time.monotonic() + ANSWER
        try:
            while self._link is not None and not self._idle:
                self._read_more(until)
                while (message := self._next()) is not None:
                    self._take(message)
        except Nonsense as error:
            self.give_up(str(error))
        except OSError:
            return

    def _read_more(self, until: float) -> None:
        assert self._link is not None
        ready, _, _ = select.select([self._link], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise OSError(f"no answer within {ANSWER:g} s")
        more = self._link.recv(65536)
        if not more:
            raise OSError("the interpreter ended")
        self._data += more

    def _wait_forked(self) -> int:
        """The pid of the new process, or Unusable. Blocks, for milliseconds."""
        until = time.monotonic() + ANSWER
        while True:
            while (message := self._next()) is not None:
                if message["is"] == "forked":
                    pid = message.get("pid")
                    found = live(pid) if isinstance(pid, int) else None
                    if found is None or found.parent != os.getpid():
                        raise Nonsense("what it forked is no child of this agent")
                    self._idle = True
                    return found.pid
                if message["is"] == "refused":  # packages or the script have changed: begin anew, with what is there now
                    self._end()
                    self._start()
                    raise Unusable(str(message.get("why")))
                if message["is"] == "failed":
                    raise OSError(str(message.get("why")))
                self._take(message)
            self._read_more(until)


class _Pipes:
    """The descriptors of one start: what the process gets, what we keep; as `subprocess.Popen` would make them."""

    def __init__(self, stdin: int | None, stdout: int | None, stderr: int | None) -> None:
        self._ours: list[Any] = []
        self._opened: list[int] = []
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._opened.append(null)
        self.stdout, out = self._end(stdout, null, 1)
        self.stderr, err = self._end(stderr, null, 2)
        reading, self.go = os.pipe()
        self._opened += [reading, self.go]
        source = null if stdin in (subprocess.DEVNULL, subprocess.PIPE) else 0 if stdin is None else stdin
        self.theirs = (source, out, err, reading)

    def _end(self, wanted: int | None, null: int, number: int) -> tuple[Any, int]:
        if wanted is None:
            return None, number
        if wanted == subprocess.DEVNULL:
            return None, null
        if wanted != subprocess.PIPE:
            return None, wanted
        reading, writing = os.pipe()
        ours = open(reading, "rb", buffering=0)  # noqa: SIM115 (handed on)
        self._ours.append(ours)
        self._opened.append(writing)
        return ours, writing

    def keep(self) -> None:
        self._ours.clear()

    def close(self) -> None:
        for ours in self._ours:
            ours.close()
        for fd in self._opened:
            os.close(fd)
        self._opened.clear()


def run(standby: Standby | None, reaper: Reaper, argv: Sequence[str], *, env: Mapping[str, str], **options: Any) -> tuple[Child, bool]:
    """Start `argv` as `Reaper.spawn(argv, env=env, **options)`, out of the standby where that is possible; (child, whether it was).

    For a check: `argv` is `[python, script, ...]` of the user's python. OSError when it cannot be started at all.
    """
    if standby is not None:
        try:
            return standby.spawn(argv, env=env, **options), True
        except Unusable:
            pass
    options.pop("record", None)
    return reaper.spawn(argv, env=env, **options), False
