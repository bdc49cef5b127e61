"""Lines of the workers on their way (`aegis.job.<j>.log.<pod>`, stream LOGS), and the question for them (`aegis.rpc.lognexus.query.logs`).

Reads and writes nothing. Whose lines they are is said by the subject, never by the body: job and pod are proved by the sender's rights.

| subject | who | request | reply |
|---|---|---|---|
| aegis.rpc.lognexus.query.logs[.<ns>] | reader | LogsQuery | LogsAnswer |
| aegis.rpc.lognexus.query.verdicts[.<ns>] | reader | VerdictsQuery | VerdictsAnswer |
"""

from __future__ import annotations

from typing import Literal

import msgspec

from aegis_proto import WIRE_VERSION
from aegis_proto.messages import Verdict

SERVICE = "lognexus"
MAX_BATCH = 60_000
"""Bytes of one message; the stream takes 65,536."""
PART = 16_000
"""Characters of one part: a longer line goes in several."""

LogKind = Literal["out", "err", "agent", "aegis"]
"""Standard output, standard error, the agent's own words, and an `AegisLog` as JSON."""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """One line, without its end; bytes that are no UTF-8 as `\\xff`. `more`: the line goes on in the next one of the same rank and kind."""

    at: int  # ms, by the worker's clock
    incarnation: int  # -1: before the first, or the agent's own words
    rank: int  # -1: no single rank (a nested launcher names its ranks itself)
    kind: LogKind
    text: str
    part: int = 0
    more: bool = False


class LogBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines of one start of one agent, in the order they were printed. Line k has the number first + k; numbers rise over all batches of a `boot`, so
    that nothing is kept twice and what is missing is seen."""

    uid: str
    attempt: int
    boot: str
    first: int
    lines: tuple[LogLine, ...] = ()
    node: str = ""
    dropped: int = 0  # lines given up before `first`, since the spool was full; numbers are not used for them
    v: int = WIRE_VERSION


class LogsQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines of a job. `tail` > 0: the last ones, before `start` of the answer before where that had no room for all; else from the oldest on, after
    `cursor` of the answer before. Empty = all."""

    job: str
    worker: str = ""
    rank: int | None = None
    incarnation: int | None = None
    kinds: tuple[LogKind, ...] = ()
    since: int = 0  # ms
    until: int = 0  # ms; 0 = no end
    grep: str = ""  # a regular expression
    tail: int = 100
    cursor: str = ""
    limit: int = 1000
    namespace: str = ""
    v: int = WIRE_VERSION
    level: str = ""  # debug | info | warning | error: lines that say this or worse
    before: str = ""  # with tail


class StoredLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line as it is kept: one JSON object per line of the store's files, and in answers. Joined from its parts."""

    time: str  # RFC 3339, UTC
    job: str
    worker: str
    rank: int
    incarnation: int
    kind: LogKind
    node: str
    attempt: int
    boot: str
    n: int  # number of the line, of its last part
    at: int  # ms
    message: str


class LogsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`cursor`: where to go on; `more`: there are more lines now, with `tail` before `start`. `dropped`: lines that never came. A line of
    more than 30,000 characters is cut, and says so: the files of the store have it whole."""

    lines: tuple[StoredLine, ...] = ()
    cursor: str = ""
    more: bool = False
    dropped: int = 0
    replica: str = ""
    v: int = WIRE_VERSION
    workers: tuple[str, ...] = ()  # with a question for a worker of whom there is nothing: those of whom there is something
    start: str = ""  # everything from there on was looked at


class VerdictsQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was found about the failures of a job: of its last 100 incarnations."""

    job: str
    v: int = WIRE_VERSION


class VerdictsAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """In the order of incarnations; the newest that one answer has room for."""

    items: tuple[Verdict, ...] = ()
    v: int = WIRE_VERSION
