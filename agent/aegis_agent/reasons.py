"""Why a run of the command ended, from its exit and the last lines of its stderr. Pure; the patterns are data.

Says only what this worker saw: `collateral` means that the words are those of a victim of a peer, never who the culprit is.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from aegis_proto.phases import LostReason

from aegis_agent.handover import CANNOT_RUN, NOT_FOUND

MESSAGE_LIMIT = 500
TOLD = 88
"""Characters that surely come through to the story of the job: the place of a longer message stands before its text."""
JUDGED = 50
"""Last lines whose words decide; those before are read for the traceback only."""
PORT_WINDOW = 30.0
"""Seconds after the start in which "address in use" means the port of the run, not one of the program's own."""

PORT_PATTERNS: tuple[str, ...] = (
    r"EADDRINUSE",
    r"[Aa]ddress already in use",
    r"server socket has failed to (bind|listen)",
    r"The server socket cannot be initialized",
)

COLLATERAL_PATTERNS: tuple[str, ...] = (
    # gloo
    r"[Cc]onnection closed by peer",
    r"[Cc]onnection reset by peer",
    r"gloo.*([Tt]imed out|[Tt]imeout)",
    r"Timed out waiting \d+ms for (recv|send) operation",
    r"Gloo connectFullMesh failed",
    r"Broken pipe",
    # c10d store
    r"DistStoreError",
    r"DistNetworkError",
    r"Timed out after \d+ seconds waiting for clients",
    r"wait timeout after \d+ms, keys:",
    r"(failed to recv|recvValue failed|sendBytes failed)",
    r"The client socket has (timed out|failed to connect)",
    # NCCL
    r"ncclRemoteError",
    r"remote process exited or there was a network error",
    r"Watchdog caught collective operation timeout",
    r"Some NCCL operations have failed or timed out",
    r"ncclInternalError.*(socket|[Pp]roxy)",
    r"NET/(IB|Socket|OFI).*(timeout|[Cc]onnection|closed)",
    r"NCCL communicator (was|is) aborted",
)
"""Words of a worker whose peer went away; each seen in torch 2.x, gloo or NCCL output."""

_PORT = re.compile("|".join(PORT_PATTERNS))
_COLLATERAL = re.compile("|".join(COLLATERAL_PATTERNS))
_EXCEPTION = re.compile(r"(?:\[rank\d+\]:\s*)?((?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure))(?:: ?(.*))?$")
_ANY_EXCEPTION = re.compile(r"(?:\[rank\d+\]:\s*)?([A-Za-z_]\w*(?:\.\w+)*)(?:: ?(.*))?$")
_INSIDE = re.compile(r"(?:\[rank\d+\]:)?\s{2,}\S")
_BEGIN = re.compile(r"\s*(?:\[rank\d+\]:\s*)?Traceback \(most recent call last\)")
_RANK = re.compile(r"\[rank(\d+)\]:")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d[\d.]*/|^<(?!string>|stdin>)")
"""Files that the user did not write: installed packages, the standard library, what is frozen into the interpreter."""
_FRAME = re.compile(r'^\s*(?:\[rank\d+\]:\s*)?File "([^"]+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Ending:
    """How the deciding process of a run ended. `code` as a shell shows it (128+n), `signal` n or 0."""

    code: int
    signal: int
    reason: LostReason
    message: str


def shell_code(returncode: int) -> int:
    """128+n for a process ended by signal n, else its exit code."""
    return 128 - returncode if returncode < 0 else returncode


def exception_line(lines: Sequence[str]) -> str:
    """The last exception of a traceback with the place in the user's code: `ValueError: bad shape (train.py:88)`; "" when there is none.

    The place is the innermost frame outside of installed packages and the standard library; where there is none, the innermost frame.
    """
    for at in range(len(lines) - 1, -1, -1):
        found = _raised(lines, at)
        if found is None:
            continue
        place = _place(lines, at)
        where = f" ({os.path.basename(place[0])}:{place[1]})" if place else ""
        name, text = found
        if len(name) + len(text) + len(where) <= TOLD:
            return (f"{name}: {text}" if text else name) + where
        return (f"{name}{where}: {text}" if text else name + where)[:MESSAGE_LIMIT]
    return ""


def _raised(lines: Sequence[str], at: int) -> tuple[str, str] | None:
    """(name, text) when line `at` names an exception: by the ending of its name, or, whatever its name, as the line that ends a traceback."""
    match = _EXCEPTION.match(lines[at])
    if match is None and at and _INSIDE.match(lines[at - 1]) and any(_FRAME.match(line) for line in lines[max(0, at - 4) : at]):
        match = _ANY_EXCEPTION.match(lines[at])
    return None if match is None else (match.group(1), (match.group(2) or "").strip())


def _place(lines: Sequence[str], at: int) -> tuple[str, str] | None:
    """(file, line number) that led to the exception of line `at`."""
    innermost = None
    for i in range(at - 1, -1, -1):
        if (frame := _FRAME.match(lines[i])) is not None:
            innermost = innermost or (frame.group(1), frame.group(2))
            if _LIBRARY.search(frame.group(1)) is None:
                return frame.group(1), frame.group(2)
        elif _BEGIN.match(lines[i]) or _EXCEPTION.match(lines[i]):
            break
    return innermost


def rank_in(lines: Sequence[str]) -> int:
    """The rank that a nested launcher put before the last line that carries one (`[rank3]: ValueError: ...`); -1 when none does."""
    for line in reversed(lines):
        if (match := _RANK.match(line)) is not None:
            return int(match.group(1))
    return -1


def error_file_message(text: str) -> str:
    """Message of a `TORCHELASTIC_ERROR_FILE` (written by torch's `@record`); "" when it holds none."""
    try:
        content = json.loads(text)
        message = content["message"]
        if isinstance(message, dict):
            stack = message.get("extraInfo", {}).get("py_callstack", "")
            return exception_line(str(stack).splitlines()) or str(message.get("message", ""))[:MESSAGE_LIMIT]
        return str(message)[:MESSAGE_LIMIT]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def printable(text: str) -> str:
    """One line without control characters: what a tenant printed is shown to people."""
    return "".join(char if char.isprintable() else " " for char in text.strip())[:MESSAGE_LIMIT]


def ending(
    returncode: int, tail: Sequence[str], ran_for: float, *, error_file: str = "", preempted: bool = False, not_found: str = "", rank: int = -1
) -> Ending:
    """Classify the end of a process: `returncode` (-n = signal n), the last lines of stderr, seconds it ran; `rank` >= 0 is named."""
    found = _ending(returncode, tail, ran_for, error_file, preempted, not_found)
    if rank < 0 or found.code in (CANNOT_RUN, NOT_FOUND):
        return found
    return replace(found, message=printable(f"rank {rank}: {found.message}"))


def _ending(returncode: int, tail: Sequence[str], ran_for: float, error_file: str, preempted: bool, not_found: str) -> Ending:  # noqa: PLR0917
    code, number = shell_code(returncode), max(-returncode, 0)
    line = error_file_message(error_file) if error_file else ""
    line = line or exception_line(tail) or (printable(tail[-1]) if tail else "")
    if preempted:
        return Ending(code, number, LostReason.PREEMPTED, printable(line or "stopped by a notice of preemption"))
    words = "\n".join(tail[-JUDGED:])
    if code in (CANNOT_RUN, NOT_FOUND) and number == 0:
        return Ending(code, 0, LostReason.ERROR, printable(not_found or line or f"exit {code}: the command cannot be started"))
    if number == 0 and ran_for <= PORT_WINDOW and _PORT.search(words):
        return Ending(code, 0, LostReason.PORT, printable(line))
    if _COLLATERAL.search(words) and number in (0, 6):
        return Ending(code, number, LostReason.COLLATERAL, printable(line))
    if number:
        import signal

        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return Ending(code, number, LostReason.SIGNAL, printable(f"killed by {name}" + (f"; last line: {line}" if line else "")))
    return Ending(code, 0, LostReason.ERROR, printable(line or f"exit {code}"))


# --- E111: the command is not there -------------------------------------------------------------------------------------------


_SHELL_NOT_FOUND = re.compile(r"(?:^|: )(?:line )?(?:\d+: )?(?:exec: )?([^\s:]+): (?:command )?not found")


def commands_in(path: str) -> list[str]:
    """Names of what can be run in `path` (as $PATH); folders that cannot be read are skipped."""
    names: set[str] = set()
    for folder in path.split(os.pathsep):
        try:
            names.update(os.listdir(folder or "."))
        except OSError:
            continue
    return sorted(names)


def _nearest(name: str, known: Iterable[str]) -> str:
    """`pyhton` -> `python`: the same letters in another order first, then the closest spelling."""
    names = list(known)
    same = [other for other in names if sorted(other) == sorted(name)]
    close = same or difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return close[0] if close else ""


def not_found_message(pod: str, node: str, name: str, code: int, environ: Mapping[str, str]) -> str:
    """E111, for a command that cannot be started (`code` 126 or 127)."""
    where = f"{pod} on {node}" if node else pod
    if code == CANNOT_RUN:
        return f'E111 {where}: "{name}" cannot be executed (exit 126; is it a program, and may it be run?). Not counted, not retried.'
    nearest = _nearest(name.rpartition("/")[2], commands_in(environ.get("PATH", "")))
    hint = f" Did you mean {nearest}?" if nearest else ""
    return f'E111 {where}: "{name}" not found in PATH (exit 127). Not counted, not retried.{hint}'


def missing_in_shell(tail: Sequence[str]) -> str:
    """The word a shell did not find, by its complaint (`sh: 1: pyhton: not found`); "" when it does not say."""
    for line in reversed(tail):
        if (match := _SHELL_NOT_FOUND.search(line)) is not None:
            return match.group(1)
    return ""
