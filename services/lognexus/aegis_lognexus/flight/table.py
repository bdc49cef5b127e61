"""The rank x (group, seq) table: all dumps of a set joined on their groups.

Groups are joined on (name, member set), because local ids differ from rank to rank and a split may use a name again. Ranks without a dump
are rows too, with an unknown high-water mark. Reads Dumps; owns nothing outside.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aegis_lognexus.flight.decode import DONE, P2P, STARTED
from aegis_lognexus.flight.dump import CPU_BACKENDS, Dump, Kind

Ints = npt.NDArray[np.int64]
ABSENT, PENDING, RUNNING, FINISHED = 0, 1, 2, 3
UNKNOWN = -1
MAX_CELLS = 64_000_000  # of all groups together; about 1 GB
MAX_COLUMNS = 200_000
MAX_WORLD = 200_000
SPARSE = 64  # ranks for each dump that is there, where nothing tells how many there are
# One member can finish these before another has joined; every other collective needs all members.
_ONE_SIDED = frozenset({"send", "recv", "broadcast", "broadcastoop", "reduce", "reduceoop", "scatter", "gather", "coalesced", ""})


@dataclass(slots=True)
class Group:
    """One communicator. Arrays have a row per member, columns are seqs base, base+1, ...

    enq: highest seq the member is known to have entered, UNKNOWN where nothing tells. done: highest seq it knows to be complete,
    claims: the same by its own word alone. kind and site: indices into the table's lists, -1 where the cell is empty. created: ns, 0 where empty.
    """

    gid: int
    name: str
    desc: str
    members: tuple[int, ...]  # in the order of group ranks
    known: bool  # told by the dumps' configuration; else inferred from who used it
    rows: Ints
    p2p: bool = False
    base: int = 0
    enq: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    done: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    claims: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    kind: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    site: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 0), np.int32))
    state: npt.NDArray[np.int8] = field(default_factory=lambda: np.empty((0, 0), np.int8))
    created: Ints = field(default_factory=lambda: np.empty((0, 0), np.int64))

    @property
    def title(self) -> str:
        return f"{self.label} [{self.name}]"

    @property
    def label(self) -> str:
        """The description, or the name where the program gave none."""
        return self.desc if self.desc not in ("", "undefined") else self.name

    def row(self, rank: int) -> int:
        at = int(np.searchsorted(self.rows, rank))
        return at if at < len(self.rows) and self.rows[at] == rank else -1


@dataclass(slots=True)
class Entries:
    """One rank's entries with global indices; `pending` lists the unfinished ones in recording order."""

    gid: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int32]
    seq: Ints
    p2p_seq: Ints
    created: Ints
    p2p: npt.NDArray[np.bool_]
    done: npt.NDArray[np.bool_]
    pending: Ints


@dataclass(slots=True)
class Table:
    world: tuple[int, ...]
    dumps: Mapping[int, Dump]
    groups: list[Group]
    kinds: list[Kind]
    sites: list[str]
    entries: dict[int, Entries]
    failed: list[tuple[int, int]]  # (rank, gid): an operation marked complete that some member never entered
    one_sided: frozenset[int]  # groups with operations that one member can finish before another has joined
    unmapped: list[int]  # ranks of whose status a part could not be joined to a group

    @property
    def accelerated(self) -> bool:
        """Some entry comes from a backend that runs on the device (anything but gloo, mpi, ucc)."""
        return any(k.backend not in CPU_BACKENDS for k in self.kinds)


def build(dumps: Mapping[int, Dump]) -> Table:
    readable = {r: d for r, d in dumps.items() if d.readable}
    world = _world(dumps)
    kinds: dict[Kind, int] = {}
    sites: dict[str, int] = {}
    groups: list[Group] = []
    index: dict[tuple[str, tuple[int, ...] | None], int] = {}
    users: dict[int, set[int]] = defaultdict(set)
    maps: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]] = {}
    status: dict[int, dict[int, tuple[int, int, int]]] = {}
    unmapped: list[int] = []
    parsed: dict[str, tuple[int, ...]] = {}

    def group_of(dump: Dump, name: str, desc: str) -> int:
        members = _members(dump, name, desc, world, parsed)
        key = (name, members)
        if key not in index:
            index[key] = len(groups)
            rows = np.array(sorted(members or ()), np.int64)
            groups.append(Group(len(groups), name, desc, members or (), members is not None, rows))
        return index[key]

    usual = _usual_descs(readable)
    for rank, dump in readable.items():
        gmap = np.array([group_of(dump, n, d) for n, d in dump.groups], np.int32)
        kmap = np.array([kinds.setdefault(k, len(kinds)) for k in dump.kinds], np.int32)
        smap = np.array([sites.setdefault(s, len(sites)) for s in dump.sites], np.int32)
        maps[rank] = gmap, kmap, smap
        for g in gmap.tolist():
            users[g].add(rank)
        named = _status_names(dump, usual)
        if len(named) < len(dump.status):
            unmapped.append(rank)
        status[rank] = {}
        for local, (name, desc) in named.items():
            g = group_of(dump, name, desc)
            users[g].add(rank)
            status[rank][g] = dump.status[local]
    for g in groups:
        if not g.known:
            g.members = tuple(sorted(users[g.gid]))
            g.rows = np.array(g.members, np.int64)
    needs_all = np.array([k.op not in _ONE_SIDED for k in kinds], np.bool_)
    entries = {r: _entries(d, *maps[r][:2]) for r, d in readable.items()}
    _mark_p2p(groups, entries)
    _watermarks(groups, readable, entries, status, set(unmapped))
    failed = _finish(groups, entries, status, needs_all)
    has_sites = bool(sites)
    smaps = {r: m[2] for r, m in maps.items()} if has_sites else None
    cells = MAX_CELLS
    for g in groups:
        _fill(g, readable, entries, smaps, cells)
        cells -= g.state.size
    one_sided = frozenset(gid for e in entries.values() for gid in _distinct(e.gid[~needs_all[e.kind]]))
    return Table(world, dumps, groups, list(kinds), list(sites), entries, failed, one_sided, unmapped)


def parse_ranks(text: str) -> tuple[int, ...]:
    """ "[0, 1, 2]" to (0, 1, 2); () where nothing sensible is written."""
    return tuple(dict.fromkeys(n for x in re.findall(r"\d{1,7}", text) if (n := int(x)) < MAX_WORLD))


def _world(dumps: Mapping[int, Dump]) -> tuple[int, ...]:
    """Every rank that some dump names. Where only a rank count can be seen, 0 .. highest dump."""
    told: set[int] = set()
    for text in {ranks for d in dumps.values() for _, ranks in d.config.values()}:
        told.update(parse_ranks(text))
    if not told and dumps and max(dumps) < SPARSE * len(dumps) + SPARSE:  # a number further off is no rank of this job
        told.update(range(min(max(dumps) + 1, MAX_WORLD)))
    return tuple(sorted(told | set(dumps)))


def _is_default(name: str, desc: str) -> bool:
    return desc == "default_pg" or name in ("", "default_pg") or (name == "0" and not desc)


def _members(dump: Dump, name: str, desc: str, world: tuple[int, ...], parsed: dict[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    told = dump.config.get(name)
    if told is None and _is_default(name, desc) and len(dump.config) == 1:
        told = dump.config.get("")  # gloo writes one entry without a name
    if told is not None:
        if told[1] not in parsed:
            parsed[told[1]] = parse_ranks(told[1])
        if parsed[told[1]]:
            return parsed[told[1]]
    return world if _is_default(name, desc) else None


def _usual_descs(dumps: Mapping[int, Dump]) -> dict[str, str]:
    """{local group id: description}, as far as all ranks whose entries tell agree: they create their groups in one order."""
    told: dict[str, set[str]] = defaultdict(set)
    for d in dumps.values():
        for local, g in d.local.items():
            told[local].add(d.groups[g][1])
    return {local: descs.pop() for local, descs in told.items() if len(descs) == 1}


def _status_names(dump: Dump, usual: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """{local group id: (name, desc)} for the status table: from the entries, else by order of creation, else as other ranks have it.

    Names and local ids both rise with creation, so where a dump lists as many groups as it has statuses the two lists run in parallel;
    that is used only if every id the entries do tell agrees. The others' word counts where one group of this rank has that description.
    """
    exact = {local: dump.groups[g] for local, g in dump.local.items() if local in dump.status}
    if len(exact) == len(dump.status):
        return exact
    names = list(dump.config)
    ids = list(dump.status)
    if len(names) == len(ids) and all(n.isdecimal() for n in names) and all(i.isdecimal() for i in ids):
        pairs = {i: (n, dump.config[n][0]) for i, n in zip(sorted(ids, key=int), sorted(names, key=int), strict=True)}
        if all(pairs[i][0] == g[0] for i, g in exact.items()):
            return pairs
    by_desc: dict[str, list[str]] = defaultdict(list)
    for name, (desc, _) in dump.config.items():
        by_desc[desc].append(name)
    for local in dump.status:
        if local not in exact and (known := usual.get(local)) and len(found := by_desc.get(known, [])) == 1:
            exact[local] = (found[0], known)
    if "0" in dump.status and "0" not in exact and ("" in dump.config or "0" in dump.config):
        exact["0"] = ("0", dump.config["0"][0] if "0" in dump.config else "default_pg")
    return exact


def _entries(dump: Dump, gmap: npt.NDArray[np.int32], kmap: npt.NDArray[np.int32]) -> Entries:
    c = dump.columns
    flags = c["flags"]
    empty = np.empty(0, np.int64)
    if not len(dump):
        none = np.empty(0, np.bool_)
        return Entries(empty.astype(np.int32), empty.astype(np.int32), empty, empty, empty, none, none, empty)
    return Entries(gmap[c["group"]], kmap[c["kind"]], c["seq"], c["p2p_seq"], c["created"], (flags & P2P) != 0, (flags & DONE) != 0, empty)


def _mark_p2p(groups: list[Group], entries: Mapping[int, Entries]) -> None:
    """Groups that carry sends and receives: their status counts both kinds, so it cannot be compared between ranks."""
    used: set[int] = set()
    for e in entries.values():
        if e.p2p.any():
            used.update(_distinct(e.gid[e.p2p]))
    descs = {groups[g].desc for g in used} - {"", "undefined", "default_pg"}
    for g in groups:
        g.p2p = g.gid in used or g.desc in descs


def _watermarks(
    groups: list[Group],
    dumps: Mapping[int, Dump],
    entries: Mapping[int, Entries],
    status: Mapping[int, dict[int, tuple[int, int, int]]],
    unmapped: set[int],
) -> None:
    for g in groups:
        g.enq = np.full(len(g.rows), UNKNOWN, np.int64)
        g.done = np.full(len(g.rows), UNKNOWN, np.int64)
        for row, rank in enumerate(g.rows.tolist()):
            if rank not in dumps:
                continue
            told = status[rank].get(g.gid)
            if told is not None and not g.p2p:
                g.enq[row], g.done[row] = max(told[0], 0), max(told[2], 0)
            elif told is None and not dumps[rank].oldest and rank not in unmapped and not (g.p2p and not len(dumps[rank])):
                g.enq[row] = g.done[row] = 0  # the whole history is here, and this group is not in it
    for rank, e in entries.items():
        real = e.done & ~e.p2p
        for gid in _distinct(e.gid):
            row = groups[gid].row(rank)
            if row >= 0:
                here = e.gid == gid
                groups[gid].enq[row] = max(int(groups[gid].enq[row]), int(e.seq[here].max()))
                groups[gid].done[row] = max(int(groups[gid].done[row]), int(e.seq[here & real].max(initial=UNKNOWN)))


def _distinct(gids: npt.NDArray[np.int32]) -> list[int]:
    """The distinct values of small non-negative numbers, without a sort."""
    return np.nonzero(np.bincount(gids))[0].tolist() if gids.size else []


def _finish(
    groups: list[Group],
    entries: Mapping[int, Entries],
    status: Mapping[int, dict[int, tuple[int, int, int]]],
    needs_all: npt.NDArray[np.bool_],
) -> list[tuple[int, int]]:
    """Settle what is done: the status table counts too, and what a known member never entered cannot have completed (it failed)."""
    low = np.full(len(groups), np.iinfo(np.int64).max, np.int64)
    for g in groups:
        if (known := g.enq[g.enq != UNKNOWN]).size:
            low[g.gid] = known.min()
    failed: list[tuple[int, int]] = []
    for rank, e in entries.items():
        told = np.full(len(groups), UNKNOWN, np.int64)
        for gid, (_, _, completed) in status[rank].items():
            if not groups[gid].p2p:
                told[gid] = completed
        if not len(e.seq):
            continue
        e.done |= (e.seq <= told[e.gid]) & ~e.p2p
        false = e.done & ~e.p2p & (e.seq > low[e.gid]) & needs_all[e.kind]
        if false.any():
            e.done &= ~false
            failed.extend((rank, gid) for gid in np.unique(e.gid[false]).tolist())
        e.pending = np.nonzero(~e.done)[0].astype(np.int64)
    for g in groups:
        g.claims, g.done = g.done, np.minimum(g.done, low[g.gid])
    return failed


def _fill(g: Group, dumps: Mapping[int, Dump], entries: Mapping[int, Entries], smaps: Mapping[int, Any] | None, cells: int) -> None:
    """`cells` limits the width: numbers in a dump are a tenant's, and may lie as far apart as they like."""
    parts: list[tuple[int, Any, int]] = []
    tops, lows = [], []
    for row, rank in enumerate(g.rows.tolist()):
        e = entries.get(rank)
        if e is None or not len(e.seq):
            continue
        at = np.nonzero((e.gid == g.gid) & ~e.p2p)[0]
        if at.size:
            parts.append((row, at, rank))
            tops.append(int(e.seq[at].max()))
            lows.append(int(e.seq[at].min()))
    if not parts:
        return
    high = min(max(tops), int(np.median(tops)) + MAX_COLUMNS // 2)
    held_most = max(at.size for _, at, _ in parts)
    width = min(high - min(lows) + 1, MAX_COLUMNS, 4 * held_most + 4096, max(1, cells // len(g.rows)))
    g.base = high - width + 1
    shape = (len(g.rows), max(width, 1))
    g.kind = np.full(shape, -1, np.int32)
    g.state = np.zeros(shape, np.int8)
    g.created = np.zeros(shape, np.int64)
    if smaps is not None:
        g.site = np.full(shape, -1, np.int32)
    for row, held, rank in parts:
        e = entries[rank]
        at = held[(e.seq[held] >= g.base) & (e.seq[held] <= high)]
        col = e.seq[at] - g.base
        g.kind[row, col] = e.kind[at]
        g.created[row, col] = e.created[at]
        started = (dumps[rank].columns["flags"][at] & STARTED) != 0
        g.state[row, col] = np.where(e.done[at], FINISHED, np.where(started, RUNNING, PENDING))
        if smaps is not None and len(smaps[rank]):
            local = dumps[rank].columns["site"][at]
            g.site[row, col] = np.where(local >= 0, smaps[rank][local], -1)


def majority(values: list[int]) -> tuple[int, list[int]]:
    """(most frequent value, positions that differ). A tie for the first place has no majority: (-1, all positions)."""
    counted = Counter(values).most_common(2)
    if len(counted) > 1 and counted[0][1] == counted[1][1]:
        return -1, list(range(len(values)))
    return counted[0][0], [i for i, v in enumerate(values) if v != counted[0][0]]
