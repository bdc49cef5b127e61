"""NCCL RAS reports, JSON (`ncclras -f json`) and text: ranks that are missing or behind. Further evidence, never a verdict alone."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from .. import jsontext
from ..schema import Draft

STATE = re.compile(r"^\s*(?P<group>\d+)\s+\d+\s+\S+\s+\S+\s+\d+\s+\d+\s+(?P<state>[A-Z]+)\s+(?P<errors>OK|INCOMPLETE|MISMATCH|[A-Z]+)\s*$")
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
        for op in sorted({op for done in counts.values() for op in done}):
            done = {rank: number for rank, ops in counts.items() if isinstance(number := ops.get(op), int)}
            usual = Counter(done.values()).most_common(1)
            for rank, number in done.items():
                if number < max(done.values()) and (number != usual[0][0] or number == min(done.values())):
                    draft.finding(
                        "nccl_rank_behind", "warning", f"{name}/rank{rank}", f"rank {rank}: {op} {number}, others up to {max(done.values())}"
                    )


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
