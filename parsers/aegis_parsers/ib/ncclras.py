"""NCCL RAS reports, JSON (`ncclras -f json`) and text: ranks that are missing or behind. Further evidence, never a verdict alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .. import jsontext
from ..schema import Draft

STATE = re.compile(r"^\s*(?P<group>\d+)\s+\d+\s+\S+\s+\S+\s+(?P<size>\d+)\s+\d+\s+(?P<state>[A-Z]+)\s+(?P<errors>OK|INCOMPLETE|MISMATCH|[A-Z]+)\s*$")
MOST = re.compile(r"^\s*\d+ ranks? ha(?:ve|s) launched up to operation (?P<op>\d+)")
COMM = re.compile(r"^#(?P<comm>\S+) \((?P<hash>[0-9a-f]+)\) (?P<state>[A-Z]+)$")
BEHIND = re.compile(r"^\s*Rank (?P<rank>\d+) has launched up to operation (?P<op>\d+)(?: -- (?P<where>.*))?")
MISSING = re.compile(r"^\s*Rank (?P<rank>\d+) -- (?P<where>GPU.*)")
PROCESS = re.compile(r"^\s*Process (?P<pid>\d+) on node (?P<node>\S+)(?: managing GPU (?P<gpu>\S+))?")
PROSE = re.compile(
    r"^\s*(?:#+ |Group |# |\d+ (?:rank|job process|process)|Missing communicator|Communicator ranks"
    r"|INCOMPLETE|DEAD|MISMATCH|Errors|Warnings|Job summary|Communicators|=|-|$)|\s+#\s+in group"
)


def looks(text: str) -> bool:
    return bool(
        re.search(r'"communicators"\s*:|"missing_ranks(?:_count)?"\s*:|^\s*Group\s+Comms\s+Nodes\s+Ranks|^#\d+-\d+ \([0-9a-f]+\) [A-Z]+$', text, re.M)
    )


def read(draft: Draft, text: str) -> None:
    if re.search(r"^\s*\{", text):
        for document in jsontext.documents(draft, text):
            read_report(draft, document)
        return
    read_text(draft, text)


def read_report(draft: Draft, report: Any) -> None:
    comms = report.get("communicators") if isinstance(report, dict) else None
    if not isinstance(comms, list):
        draft.unread("no communicators in the report")
        return
    for comm in (c for c in comms if isinstance(c, dict)):
        name = str(comm.get("hash"))
        ranks = [rank for rank in comm.get("ranks") or [] if isinstance(rank, dict)]
        counts = {str(r.get("rank")): r["collective_counts"] for r in ranks if isinstance(r.get("collective_counts"), dict)}
        draft.item(name, "communicator", size=comm.get("size"), ranks=len(ranks), missing=comm.get("missing_ranks_count"), counts=counts)
        for lost in comm.get("missing_ranks") or []:
            if isinstance(lost, dict):
                dead = " considered dead" if lost.get("considered_dead") else ""
                draft.finding(
                    "nccl_rank_missing", "warning", f"{name}/rank{lost.get('rank')}", f"rank {lost.get('rank')} on {lost.get('host')}{dead}"
                )
        for rank, late in behind(counts).items():
            draft.finding("nccl_rank_behind", "warning", f"{name}/rank{rank}", f"rank {rank}: {late.op} {late.launched}, others up to {late.others}")


def read_text(draft: Draft, text: str) -> None:
    comm = "communicator"
    for line in text.split("\n"):
        if match := STATE.match(line):
            draft.item(f"group{match['group']}", "group", state=match["state"], errors=match["errors"])
        elif match := COMM.match(line.strip()):
            comm = match["hash"]
        elif match := BEHIND.match(line):
            draft.finding("nccl_rank_behind", "warning", f"{comm}/rank{match['rank']}", line)
        elif match := MISSING.match(line):
            draft.finding("nccl_rank_missing", "warning", f"{comm}/rank{match['rank']}", line)
        elif match := PROCESS.match(line):
            draft.finding("nccl_process_missing", "warning", f"{match['node']}/gpu{match['gpu'] or '?'}", line)
        elif not PROSE.search(line):
            draft.unread("line not understood", line)


# --- as figures ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Late:
    """A rank that has launched fewer operations than others of its communicator. `op` "" where the report does not say which."""

    op: str
    launched: int
    others: int


@dataclass(frozen=True, slots=True)
class Communicator:
    """`size` 0: not told. `behind` and `missing` by rank within it."""

    name: str
    size: int = 0
    behind: dict[int, Late] = field(default_factory=dict)
    missing: tuple[int, ...] = ()


def behind(counts: Mapping[str, Mapping[str, Any]]) -> dict[str, Late]:
    """Rank -> where it is behind, of {rank: {operation: launched}}; of several operations the one it is furthest behind in."""
    out: dict[str, Late] = {}
    for op in sorted({op for done in counts.values() for op in done}):
        done = {rank: number for rank, ops in counts.items() if isinstance(number := ops.get(op), int)}
        usual = Counter(done.values()).most_common(1)[0][0] if done else 0
        most, least = max(done.values(), default=0), min(done.values(), default=0)
        for rank, number in done.items():
            late = Late(op, number, most)
            if number < most and (number != usual or number == least) and (rank not in out or most - number > out[rank].others - out[rank].launched):
                out[rank] = late
    return out


def communicators(text: str) -> list[Communicator]:
    """What a report says of who is behind, or missing, in each communicator; nothing of what is no report. Never raises for content."""
    if text.lstrip().startswith("{"):
        try:
            report = msgspec.json.decode(text.encode(errors="replace"))
        except (msgspec.MsgspecError, RecursionError):
            return []
        comms = report.get("communicators") if isinstance(report, dict) else None
        return [_communicator(comm) for comm in comms if isinstance(comm, dict)] if isinstance(comms, list) else []
    return _of_text(text)


def _communicator(comm: dict[str, Any]) -> Communicator:
    ranks = [rank for rank in _rows(comm, "ranks") if isinstance(rank.get("rank"), int)]
    counts = {str(rank["rank"]): rank["collective_counts"] for rank in ranks if isinstance(rank.get("collective_counts"), dict)}
    missing = sorted(rank["rank"] for rank in _rows(comm, "missing_ranks") if isinstance(rank.get("rank"), int))
    size = comm.get("size")
    late = {int(rank): found for rank, found in behind(counts).items()}
    return Communicator(str(comm.get("hash"))[:64], size if isinstance(size, int) else 0, late, tuple(missing))


def _rows(comm: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = comm.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _of_text(text: str) -> list[Communicator]:
    sizes: dict[str, int] = {}
    late: dict[str, dict[int, Late]] = {}
    missing: dict[str, set[int]] = {}
    comm, most = "", 0
    for line in text.split("\n"):
        if match := STATE.match(line):
            sizes[match["group"]] = int(match["size"])
        elif match := COMM.match(line.strip()):
            comm, most = match["comm"], 0
            late.setdefault(comm, {})
            missing.setdefault(comm, set())
        elif match := MOST.match(line):
            most = max(most, int(match["op"]))
        elif comm and (match := BEHIND.match(line)):
            late[comm][int(match["rank"])] = Late("", int(match["op"]), most)
        elif comm and (match := MISSING.match(line)):
            missing[comm].add(int(match["rank"]))
    out = []
    for name, ranks in late.items():
        top = max((found.others for found in ranks.values()), default=0)
        below = {rank: found for rank, found in ranks.items() if found.launched < top}
        out.append(Communicator(name, sizes.get(name.partition("-")[0], 0), below, tuple(sorted(missing[name]))))
    return out or [Communicator(group, size) for group, size in sizes.items()]
