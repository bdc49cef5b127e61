"""The guard: parent of the keeper and subreaper of everything below it, so that no process of a stack outlives the stack. Standard library only.

    python -m aegis_cli.stack.guard MARK KEEPER_COMMAND...

When the keeper ends, however it ends, all that is left below the guard is killed; then the guard ends with the keeper's code. Orphans come to it
because it is their subreaper, so nothing needs to be recognised. If the guard itself is killed, the keeper is told (PDEATHSIG) and ends the stack.

`end_marked` is the broom for the next user, should both have been killed at once: it finds processes by `AEGIS_STACK` in their environment.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

VARIABLE = "AEGIS_STACK"
SCOPE = "AEGIS_SCOPE"
"""What an agent marks the processes of its command with: UID.POD.ATTEMPT.INCARNATION, and itself with `agent` at the end."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument; no error: where it is missing, the broom still works."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def dies_with_parent(number: int = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn`: the child gets `number` when its parent dies, also when that happened just now."""
    parent, call = os.getpid(), ctypes.CDLL(None).prctl

    def apply() -> None:
        call(PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return apply


def processes() -> dict[int, int]:
    """pid -> parent of every process that is not a zombie."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                    text = file.read(1024)
            except OSError:
                continue
            state, parent = text[text.rfind(b")") + 2 :].split()[:2]
            if state not in (b"Z", b"X", b"x"):
                found[int(name)] = int(parent)
    return found


def below(roots: Iterable[int], procs: dict[int, int]) -> set[int]:
    """Everything that descends from `roots`, without them."""
    children: dict[int, list[int]] = {}
    for pid, parent in procs.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    stack = list(roots)
    while stack:
        new = [pid for pid in children.get(stack.pop(), ()) if pid not in found]
        found.update(new)
        stack += new
    return found


def marked(mark: str) -> set[int]:
    """Processes whose environment carries the mark, and everything below them."""
    wanted = f"{VARIABLE}={mark}".encode()
    return _carrying(lambda words: wanted in words)


def workers_of(uid: str) -> set[int]:
    """The processes of the commands of a job, and everything below them; not its agents, which see them end and say so."""
    begin, agent = f"{SCOPE}={uid}.".encode(), b".agent"
    return _carrying(lambda words: any(word.startswith(begin) and not word.endswith(agent) for word in words))


def _carrying(wanted: Callable[[list[bytes]], bool]) -> set[int]:
    procs, found = processes(), set[int]()
    for pid in procs:
        try:
            with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
                if wanted(file.read(1 << 20).split(b"\0")):
                    found.add(pid)
        except OSError:
            continue
    return (found | below(found, procs)) - {os.getpid()}


def kill_workers(uid: str) -> int:
    """SIGKILL to the processes of the commands of a job; how many there were."""
    found = workers_of(uid)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    return len(found)


def end_all(find: Callable[[], set[int]], timeout: float = 20.0) -> bool:
    """SIGKILL what `find` finds, until two looks in a row find nothing. False when something would not die."""
    deadline, empty = time.monotonic() + timeout, 0
    while empty < 2:
        found = find()
        if not found:
            empty += 1
            continue
        empty = 0
        if time.monotonic() > deadline:
            return False
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)
    return True


def end_marked(mark: str, timeout: float = 20.0) -> bool:
    """End every process that carries the mark."""
    return end_all(lambda: marked(mark), timeout)


def main(mark: str, command: list[str]) -> int:
    """Run the keeper; afterwards leave nothing."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.environ[VARIABLE] = mark
    locks = [int(fd) for fd in os.environ.pop("AEGIS_STACK_LOCK_FD", "").split() if fd]
    keeper = subprocess.Popen(command, pass_fds=locks, preexec_fn=dies_with_parent(signal.SIGTERM))  # noqa: PLW1509 - one thread
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: keeper.send_signal(signal.SIGTERM))
    status = 0
    while True:
        pid, raw = os.wait()
        if pid == keeper.pid:
            status = os.waitstatus_to_exitcode(raw)
            keeper.returncode = status
            break
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps what is killed now
    clean = end_all(lambda: below([os.getpid()], processes()))
    if not clean:
        print(f"guard: processes of stack {mark} would not die: {sorted(below([os.getpid()], processes()))}", file=sys.stderr)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
