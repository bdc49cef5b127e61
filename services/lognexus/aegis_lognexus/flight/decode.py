"""One flight-recorder file to compact columns; also the program of the reading child.

Reads: bytes of one dump (pickle of plain containers, or JSON), any schema minor, any backend prefix.
Writes: a header (plain JSON values) and columns, one element per entry, in the order the rank recorded them.
Runs as a script in a process with limits (`reading.py`), so it imports nothing but the standard library. Whatever the file holds is data:
the unpickler refuses every class, so a file can at worst waste the child's own time and memory.
"""

from __future__ import annotations

import gc
import io
import itertools
import json
import marshal
import os
import pickle
import resource
import struct
import sys
from array import array
from collections.abc import Sequence
from operator import gt
from typing import Any, NoReturn, TypeAlias

MAX_FILE_BYTES = 64 << 20
MAX_MEMORY_BYTES = 3 << 30
MAX_CPU_SECONDS = 60
MAX_ENTRIES = 1 << 18
"""The last ones of a dump that are read: in a pickle a few bytes stand for as many as one likes."""
MAX_INT = 1 << 62
DONE, STARTED, P2P, CONFLICT = 1, 2, 4, 8

# Name and type (of `array`, native byte order) of each column.
COLUMNS: tuple[tuple[str, str], ...] = (
    ("group", "i"),  # index into header["groups"]
    ("kind", "i"),  # index into header["kinds"]
    ("site", "i"),  # index into header["sites"], -1 without stacks
    ("seq", "q"),  # collective_seq_id
    ("p2p_seq", "q"),
    ("created", "q"),  # ns since 1970
    ("flags", "B"),  # DONE | STARTED | P2P | CONFLICT
)
Header = dict[str, Any]
Columns: TypeAlias = "dict[str, array[Any]]"
_FIELDS = (
    "process_group",
    "profiling_name",
    "collective_seq_id",
    "p2p_seq_id",
    "time_created_ns",
    "state",
    "retired",
    "is_p2p",
    "pg_id",
    "record_id",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "output_dtypes",
)


class RefusedClass(ValueError):
    """A pickle asked for a class or function; flight records never need one."""


class PlainUnpickler(pickle.Unpickler):
    """Loads containers, text, numbers; refuses every class and every persistent id."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedClass(f"the file asks for {module[:60]}.{name[:60]}")

    def persistent_load(self, pid: object) -> NoReturn:
        raise RefusedClass("the file asks for a persistent object")


def load(data: bytes) -> dict[str, Any]:
    """The dump's top dictionary. Raises ValueError (RefusedClass for a class) or what the parsers raise."""
    if not data.strip(b"\0 \r\n\t"):
        raise EOFError("the file is empty")
    text = data.lstrip(b"\xef\xbb\xbf \r\n\t")
    if text[:1] in (b"{", b"["):
        raw = json.loads(data.decode("utf-8-sig", "replace"))
    else:  # a buffered reader is peeked into; a bare BytesIO costs twice the time
        raw = PlainUnpickler(io.BufferedReader(io.BytesIO(data), 1 << 20)).load()
    if isinstance(raw, list):  # a bare list of entries
        raw = {"entries": raw}
    if not isinstance(raw, dict):
        raise ValueError(f"a flight record is a dictionary, this is a {type(raw).__name__}")
    if not {"entries", "pg_status", "pg_config", "version"} & raw.keys():
        raise ValueError("no entries, pg_status, pg_config or version: not a flight record")
    return raw


def columns_of(raw: dict[str, Any]) -> tuple[Header, Columns]:
    """Header and columns of a loaded dump. Unknown keys are ignored, absent ones read as 0; entries that are none are counted as bad."""
    held = raw.get("entries") or []
    if not isinstance(held, list | tuple):
        raise ValueError("entries is not a list")
    held = held[-MAX_ENTRIES:]
    entries = [e for e in held if isinstance(e, dict)]
    try:
        return _columns(raw, entries, len(held))
    except TypeError:  # some field is not of its type: a dictionary for a state, a list in a group's name
        return _columns(raw, list(filter(_sound, entries)), len(held))


def _columns(raw: dict[str, Any], entries: list[dict[str, Any]], held: int) -> tuple[Header, Columns]:
    header: Header = {
        "version": _text(raw.get("version")),
        "config": _config(raw.get("pg_config")),
        "status": _status(raw.get("pg_status")),
        "bad_entries": held - len(entries),
        "rank": raw["rank"] if isinstance(raw.get("rank"), int) else None,
    }
    try:
        by = {f: [e[f] for e in entries] for f in _FIELDS}
    except KeyError:
        by = {f: [e.get(f) for e in entries] for f in _FIELDS}
    groups: dict[Any, int] = {}
    pairs = [g if type(g) is tuple else _pair(g) for g in by["process_group"]]
    group = [groups.setdefault(g, len(groups)) for g in pairs]
    kinds: dict[bytes, int] = {}
    shapes = zip(by["profiling_name"], by["input_sizes"], by["input_dtypes"], by["output_sizes"], by["output_dtypes"], strict=True)
    keys = map(marshal.dumps, shapes, itertools.repeat(2))
    kind = [kinds.setdefault(k, len(kinds)) for k in keys]
    sites: dict[str, int] = {}
    site: list[int] | None = None
    if any("frames" in e for e in (*entries[:1], *entries[-1:])):
        texts = [_site(e.get("frames")) for e in entries]
        site = [sites.setdefault(t, len(sites)) if t else -1 for t in texts]
    n = len(entries)
    p2p: Sequence[Any] = by["is_p2p"]
    if n and p2p[0] is None:  # older schema: only the name tells
        p2p = [":send " in x or ":recv " in x for x in map(_text, by["profiling_name"])]
    told = _Flags()
    flags = [told[t] for t in zip(by["state"], by["retired"], p2p, strict=True)]
    local = {str(pg_id): g for pg_id, g in dict(zip(by["pg_id"], group, strict=True)).items()}
    record = _ints(by["record_id"])
    columns: Columns = {
        "group": array("i", group),
        "kind": array("i", kind),
        "site": array("i", [-1]) * n if site is None else array("i", site),
        "seq": _ints(by["collective_seq_id"]),
        "p2p_seq": _ints(by["p2p_seq_id"]),
        "created": _ints(by["time_created_ns"]),
        "flags": array("B", flags),
    }
    if any(map(gt, record, record[1:])):
        order = sorted(range(n), key=record.__getitem__)
        columns = {name: array(c.typecode, [c[i] for i in order]) for name, c in columns.items()}
    header["groups"] = [[_text(a) for a in g[:2]] if isinstance(g, tuple) and len(g) > 1 else [_text(g), ""] for g in groups]
    header["kinds"] = [_kind(k) for k in kinds]
    header["sites"] = list(sites)
    header["local"] = local
    header["oldest"] = min(record, default=0)
    return header, columns


def _sound(e: dict[str, Any]) -> bool:
    """Are the fields that are looked up in tables plain values?"""
    group = e.get("process_group")
    plain = [*(e.get(f) for f in ("state", "retired", "is_p2p", "pg_id")), *(group if isinstance(group, list | tuple) else (group,))]
    return all(isinstance(x, str | int | float | None) for x in plain)


class _Flags(dict[tuple[Any, Any, Any], int]):
    """(state, retired, is_p2p) to flags; there are only a few combinations."""

    def __missing__(self, key: tuple[Any, Any, Any]) -> int:
        state, retired, p2p = key
        finished = state == "completed"
        flags = (DONE if retired or finished else 0) | (STARTED if state == "started" else 0) | (P2P if p2p else 0)
        self[key] = flags | (CONFLICT if finished and not retired else 0)
        return self[key]


def _text(x: object) -> str:
    return str(x)[:400] if isinstance(x, str | int) else ""


def _pair(g: object) -> tuple[str, str]:
    if isinstance(g, list | tuple):
        return (_text(g[0]) if g else "", _text(g[1]) if len(g) > 1 else "")
    return (_text(g), "")


def _int(x: object) -> int:
    try:
        n = int(x) if isinstance(x, int | float | str) else 0
    except (ValueError, OverflowError):
        return 0
    return n if -MAX_INT <= n <= MAX_INT else 0


def _ints(col: list[Any]) -> array[int]:
    try:
        return array("q", col)
    except (TypeError, OverflowError):
        return array("q", [_int(x) for x in col])


def _kind(key: bytes) -> list[Any]:
    name, *rest = marshal.loads(key)
    return [_text(name), *(_plain(x) for x in rest)]


def _plain(x: object, depth: int = 0) -> Any:
    if isinstance(x, list | tuple) and depth < 4:
        return [_plain(y, depth + 1) for y in x[:4096]]
    return x if isinstance(x, int) else _text(x)


def _config(raw: object) -> dict[str, list[str]]:
    """{name: [desc, ranks as written]}; ranks stay text, because ten thousand ranks in a thousand dumps are parsed once, not each time."""
    found: dict[str, list[str]] = {}
    if isinstance(raw, dict):
        for name, value in raw.items():
            if isinstance(value, dict):
                ranks = value.get("ranks")
                found[_text(name)] = [_text(value.get("desc")), ranks if isinstance(ranks, str) else json.dumps(_plain(ranks))]
    return found


def _status(raw: object) -> dict[str, list[int]]:
    """{local group id: [last enqueued, last started, last completed]}"""
    found: dict[str, list[int]] = {}
    if isinstance(raw, dict):
        for pg_id, value in raw.items():
            if isinstance(value, dict):
                found[_text(pg_id)] = [_int(value.get(f"last_{k}_collective", -1)) for k in ("enqueued", "started", "completed")]
    return found


def _site(frames: object) -> str:
    """The user's stack as text: frames above the first one that is not torch's own, innermost first."""
    if not isinstance(frames, list | tuple):
        return ""
    parts: list[str] = []
    for f in frames[:64]:
        if not isinstance(f, dict):
            continue
        filename = _text(f.get("filename"))
        if not parts and ("torch/" in filename or filename.startswith("<")):
            continue
        parts.append(f"{filename}:{_int(f.get('line'))} {_text(f.get('name'))}")
    return " < ".join(parts[:12])


def pack(header: Header, columns: Columns) -> bytes:
    """Wire form between child and parent: length, JSON header, raw columns. The parent never unpickles."""
    head = json.dumps({**header, "n": len(columns["seq"])}).encode()
    body = b"".join([columns[name].tobytes() for name, _ in COLUMNS])
    return struct.pack("<BQQ", 1, len(head), len(body)) + head + body


def unpack(head: bytes, body: bytes) -> tuple[Header, dict[str, memoryview]]:
    """Inverse of `pack`, without a copy, checking every length. Raises ValueError."""
    header = json.loads(head)
    n = int(header["n"])
    view = memoryview(body)
    columns: dict[str, memoryview] = {}
    at = 0
    for name, code in COLUMNS:
        size = n * array(code).itemsize
        columns[name] = view[at : at + size]
        at += size
    if n < 0 or at != len(body):
        raise ValueError("the child's answer has a wrong length")
    return header, columns


def _limit_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + MAX_CPU_SECONDS, resource.RLIM_INFINITY))


def _answer(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as f:
            data = f.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES >> 20} MB")
        return pack(*columns_of(load(data)))
    except RefusedClass as e:
        state, note = "refused", str(e)
    except (EOFError, pickle.UnpicklingError, json.JSONDecodeError) as e:
        state, note = "truncated", str(e)
    except MemoryError:
        state, note = "refused", "needs more memory than a flight record may"
    except Exception as e:  # a hostile file may raise anything; it is told, never followed
        state, note = "unreadable", f"{type(e).__name__}: {e}"
    head = json.dumps({"state": state, "note": note[:200]}).encode()
    return struct.pack("<BQQ", 0, len(head), 0) + head


def serve() -> None:
    """Child: one path a line on stdin, one packed answer each on stdout."""
    gc.disable()  # a dump is one tree without cycles; collecting while it grows costs more than reading it
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    out = sys.stdout.buffer
    for n, line in enumerate(sys.stdin.buffer):
        _limit_cpu()
        if n % 64 == 63:
            gc.collect()  # a hostile file may hold a cycle
        out.write(_answer(json.loads(line)))
        out.flush()


if __name__ == "__main__":
    serve()
