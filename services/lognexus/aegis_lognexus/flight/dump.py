"""A rank's dump as the analyzer reads it: local tables and columns, or the reason why there are none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aegis_lognexus.flight.decode import COLUMNS, MAX_INT, Header, columns_of

# Evidence states of a dump.
OK, EMPTY, TRUNCATED, REFUSED, UNREADABLE = "ok", "empty", "truncated", "refused", "unreadable"

CPU_BACKENDS = frozenset({"gloo", "mpi", "ucc", ""})
Columns = dict[str, npt.NDArray[Any]]
_P2P = re.compile(r"(send|recv)\s+(\d+)\s*(?:->|<-)\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Kind:
    """What an entry calls: `op` without backend and underscores ("allreduce", "send"), sizes and types as text."""

    backend: str
    op: str
    label: str
    src: int = -1  # group ranks, for send and recv only
    dst: int = -1
    in_sizes: str = ""
    in_types: str = ""
    out_sizes: str = ""
    out_types: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's flight record. `state` is ok, empty, truncated, refused or unreadable; only ok has entries, empty may have a status.

    columns: see `decode.COLUMNS`, one element per entry in recording order. status: {local group id: (enqueued, started, completed)}.
    config: {group name: (description, ranks as text)}. local: {local group id: index into groups}. oldest: record id of the first entry held.
    """

    rank: int
    state: str = OK
    note: str = ""
    version: str = ""
    groups: tuple[tuple[str, str], ...] = ()
    kinds: tuple[Kind, ...] = ()
    sites: tuple[str, ...] = ()
    config: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    status: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    local: Mapping[str, int] = field(default_factory=dict)
    oldest: int = 0
    columns: Columns = field(default_factory=dict)

    @property
    def readable(self) -> bool:
        return self.state in (OK, EMPTY)

    def __len__(self) -> int:
        return len(self.columns["seq"]) if self.columns else 0


def from_parts(rank: int, header: Header, columns: Mapping[str, Any], interned: dict[str, str] | None = None) -> Dump:
    """Header and columns (of `decode.columns_of` or `decode.unpack`) to a Dump. `interned` shares long texts between dumps."""
    share = {} if interned is None else interned
    n = len(columns["seq"])
    status = {k: (v[0], v[1], v[2]) for k, v in header["status"].items()}
    note = f"{header['bad_entries']} entries are none" if header["bad_entries"] else ""
    return Dump(
        rank=rank,
        state=OK if n else EMPTY,
        note=note,
        version=header["version"],
        groups=tuple((share.setdefault(a, a), share.setdefault(b, b)) for a, b in header["groups"]),
        kinds=tuple(kind(k) for k in header["kinds"]),
        sites=tuple(share.setdefault(s, s) for s in header["sites"]),
        config={share.setdefault(k, k): (share.setdefault(v[0], v[0]), share.setdefault(v[1], v[1])) for k, v in header["config"].items()},
        status=status,
        local=header["local"],
        oldest=header["oldest"],
        columns={name: _numbers(columns[name], code) if n else np.empty(0, code) for name, code in COLUMNS},
    )


def _numbers(raw: Any, code: str) -> npt.NDArray[Any]:
    """A column without a copy; numbers so large that a difference could overflow are cut."""
    values = np.frombuffer(raw, code)
    return np.clip(values, -MAX_INT, MAX_INT) if code == "q" and (values.max() > MAX_INT or values.min() < -MAX_INT) else values


def from_mapping(rank: int, raw: dict[str, Any]) -> Dump:
    """A dump already loaded by a safe reader (tests, in-process snapshots). Raises ValueError where it is no flight record."""
    return from_parts(rank, *columns_of(raw))


def broken(rank: int, state: str, note: str) -> Dump:
    """A dump of which only its owner and the trouble are known."""
    return Dump(rank=rank, state=state, note=note, columns={name: np.empty(0, dtype) for name, dtype in COLUMNS})


def kind(parts: list[Any]) -> Kind:
    """[profiling name, input sizes, input types, output sizes, output types] to a Kind."""
    name, in_sizes, in_types, out_sizes, out_types = parts
    backend, colon, rest = str(name).partition(":")
    if not colon:
        backend, rest = "", str(name)
    found = _P2P.search(rest)
    src = dst = -1
    if found:  # "send 0->3" and "recv 3<-0": the first number is always the caller
        op, me, peer = found[1], int(found[2]), int(found[3])
        src, dst = (me, peer) if op == "send" else (peer, me)
    else:
        op = rest.replace("_", "").lower()
    sizes = [_sizes(x) for x in (in_sizes, out_sizes)]
    types = [",".join(str(t) for t in x) if isinstance(x, list) else "" for x in (in_types, out_types)]
    return Kind(backend, op, rest, src, dst, sizes[0], types[0], sizes[1], types[1])


def _sizes(x: object) -> str:
    """[[4096, 5120], [16]] to "4096x5120,16"."""
    if not isinstance(x, list):
        return ""
    return ",".join("x".join(str(n) for n in t) if isinstance(t, list) else str(t) for t in x)
