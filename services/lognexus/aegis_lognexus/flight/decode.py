"""One flight-recorder file to compact columns; also the program of the reading child.

Reads: bytes of one dump (pickle of plain containers, or JSON), any schema minor, any backend prefix.
Writes: a header (plain JSON values) and numpy columns, one element per entry, in the order the rank recorded them.
Runs as a script in a process with limits (`reading.py`), so it imports nothing of Aegis. Whatever the file holds is data:
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
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

MAX_FILE_BYTES = 64 << 20
MAX_MEMORY_BYTES = 3 << 30
MAX_CPU_SECONDS = 60
DONE, STARTED, P2P, CONFLICT = 1, 2, 4, 8

COLUMNS: tuple[tuple[str, str], ...] = (
    ("group", "<i4"),  # index into header["groups"]
    ("kind", "<i4"),  # index into header["kinds"]
    ("site", "<i4"),  # index into header["sites"], -1 without stacks
    ("seq", "<i8"),  # collective_seq_id
    ("p2p_seq", "<i8"),
    ("created", "<i8"),  # ns since 1970
    ("completed", "<i8"),  # ns since 1970, 0 = not seen
    ("flags", "<u1"),  # DONE | STARTED | P2P | CONFLICT
)
Header = dict[str, Any]
Columns = dict[str, npt.NDArray[Any]]
_FIELDS = (
    "process_group",
    "profiling_name",
    "collective_seq_id",
    "p2p_seq_id",
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
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
_ROW = itemgetter(*_FIELDS)


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
    raw = json.loads(data.decode("utf-8-sig", "replace")) if text[:1] in (b"{", b"[") else PlainUnpickler(io.BytesIO(data)).load()
    if isinstance(raw, list):  # a bare list of entries
        raw = {"entries": raw}
    if not isinstance(raw, dict):
        raise ValueError(f"a flight record is a dictionary, this is a {type(raw).__name__}")
    if not {"entries", "pg_status", "pg_config", "version"} & raw.keys():
        raise ValueError("no entries, pg_status, pg_config or version: not a flight record")
    return raw


def columns_of(raw: dict[str, Any]) -> tuple[Header, Columns]:
    """Header and columns of a loaded dump. Unknown keys are ignored, absent ones read as 0; entries that are no dictionaries are counted as bad."""
    held = raw.get("entries") or []
    if not isinstance(held, list | tuple):
        raise ValueError("entries is not a list")
    entries = [e for e in held if isinstance(e, dict)]
    header: Header = {
        "version": _text(raw.get("version")),
        "config": _config(raw.get("pg_config")),
        "status": _status(raw.get("pg_status")),
        "bad_entries": len(held) - len(entries),
        "rank": raw["rank"] if isinstance(raw.get("rank"), int) else None,
    }
    rows: Iterable[tuple[Any, ...]]
    try:
        rows = list(map(_ROW, entries))
    except KeyError:
        rows = [tuple(e.get(f) for f in _FIELDS) for e in entries]
    cols = list(zip(*rows, strict=True)) or [()] * len(_FIELDS)
    by = dict(zip(_FIELDS, cols, strict=True))
    groups: dict[Any, int] = {}
    pairs = [g if type(g) is tuple else _pair(g) for g in by["process_group"]]
    group = [groups.setdefault(g, len(groups)) for g in pairs]
    kinds: dict[bytes, int] = {}
    shapes = zip(by["profiling_name"], by["input_sizes"], by["input_dtypes"], by["output_sizes"], by["output_dtypes"], strict=True)
    keys = map(marshal.dumps, shapes, itertools.repeat(2))
    kind = [kinds.setdefault(k, len(kinds)) for k in keys]
    sites: dict[str, int] = {}
    site = [sites.setdefault(s, len(sites)) if (s := _site(e.get("frames"))) else -1 for e in entries] if any("frames" in e for e in entries[:1]) else None
    n = len(entries)
    completed = _ints(by["time_discovered_completed_ns"])
    started = _ints(by["time_discovered_started_ns"]) > 0
    retired = np.fromiter((bool(x) for x in by["retired"]), np.bool_, n)
    finished = np.fromiter((s == "completed" for s in by["state"]), np.bool_, n)
    started |= np.fromiter((s == "started" for s in by["state"]), np.bool_, n)
    p2p = np.fromiter((bool(x) for x in by["is_p2p"]), np.bool_, n)
    if n and by["is_p2p"][0] is None:  # older schema: only the name tells
        names = [_text(x) for x in by["profiling_name"]]
        p2p = np.fromiter((":send " in x or ":recv " in x for x in names), np.bool_, n)
    done = retired | finished
    flags = done * DONE + started * STARTED + p2p * P2P + (finished & ~retired) * CONFLICT
    local: dict[str, int] = {}
    for pg_id, g in zip(by["pg_id"], group, strict=True):
        local[str(pg_id)] = g
    record = _ints(by["record_id"])
    columns: Columns = {
        "group": np.array(group, np.int32),
        "kind": np.array(kind, np.int32),
        "site": np.full(n, -1, np.int32) if site is None else np.array(site, np.int32),
        "seq": _ints(by["collective_seq_id"]),
        "p2p_seq": _ints(by["p2p_seq_id"]),
        "created": _ints(by["time_created_ns"]),
        "completed": completed,
        "flags": flags.astype(np.uint8),
    }
    if n > 1 and (np.diff(record) < 0).any():
        order = np.argsort(record, kind="stable")
        columns = {name: c[order] for name, c in columns.items()}
    header["groups"] = [[_text(a) for a in g[:2]] if isinstance(g, tuple) and len(g) > 1 else [_text(g), ""] for g in groups]
    header["kinds"] = [_kind(k) for k in kinds]
    header["sites"] = list(sites)
    header["local"] = local
    header["oldest"] = int(record.min()) if n else 0
    return header, columns


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
    return n if -(1 << 62) < n < 1 << 62 else 0


def _ints(col: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    if not col or col[0] is None:
        return np.fromiter((_int(x) for x in col), np.int64, len(col))
    try:
        return np.array(col, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.fromiter((_int(x) for x in col), np.int64, len(col))


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
    n = len(columns["seq"])
    head = json.dumps({**header, "n": n}).encode()
    body = b"".join(np.ascontiguousarray(columns[name], dtype=dtype).tobytes() for name, dtype in COLUMNS)
    return struct.pack("<BQQ", 1, len(head), len(body)) + head + body


def unpack(head: bytes, body: bytes) -> tuple[Header, Columns]:
    """Inverse of `pack`, checking every length. Raises ValueError."""
    header = json.loads(head)
    n = int(header["n"])
    columns: Columns = {}
    at = 0
    for name, dtype in COLUMNS:
        size = n * np.dtype(dtype).itemsize
        columns[name] = np.frombuffer(body, dtype, n, at)
        at += size
    if at != len(body):
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
