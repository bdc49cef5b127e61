"""Runs a command as the first process of a pid namespace, in a mount namespace with these mounts; exits as a container runtime reports it (128 + n).

container.py 'SOURCE=TARGET,...' COMMAND ARG...        root; TARGETs lie below /run, which is empty but for them
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

NEWNS, NEWPID, REC, PRIVATE, BIND, PDEATHSIG = 0x20000, 0x20000000, 0x4000, 1 << 18, 0x1000, 1
libc = ctypes.CDLL(None, use_errno=True)


def call(code: int, what: str) -> None:
    if code != 0:
        sys.exit(f"container: {what}: {os.strerror(ctypes.get_errno())}")


def mount(source: str, target: str, kind: str, flags: int) -> None:
    call(libc.mount(source.encode(), target.encode(), kind.encode(), flags, None), f"mount {target}")


def main() -> None:
    mounts, argv = [pair.split("=") for pair in sys.argv[1].split(",")], sys.argv[2:]
    call(libc.unshare(NEWNS | NEWPID), "unshare")
    child = os.fork()
    if child == 0:
        libc.prctl(PDEATHSIG, signal.SIGKILL)
        mount("none", "/", "", REC | PRIVATE)
        mount("proc", "/proc", "proc", 0)
        mount("tmpfs", "/run", "tmpfs", 0)
        for source, target in mounts:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(source):
                os.makedirs(target, exist_ok=True)
            else:
                with open(target, "w"):
                    pass
            mount(source, target, "", BIND)
        os.execvp(argv[0], argv)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
