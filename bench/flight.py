"""Flight-record analysis: time and peak memory, and torch's own analyzer beside ours on the same files.

    python bench/flight.py [--ranks 4096] [--entries 2000] [--side 64] [--folder DIR] [--repeat 3]
    python bench/flight.py --compare [--ranks 64]      # both analyzers, 1+8+8 groups and one group
    python bench/flight.py --scenarios DIR             # each subfolder with dumps and truth.json: torchfrtrace's answer beside ours

Dumps are synthetic (`aegis_lognexus.flight.synthetic`): pickle, no stacks, one culprit. Prints one JSON object per measurement. The exit code is 1
where it is not as claimed: the right answer within 60 s and 4 GB (4,096 ranks, 2 cores); >= 15 x as fast as torch's on many groups and >= 5 x on one
(64 ranks); every scenario exact.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from aegis_lognexus.flight import Report, analyze, read_folder, synthetic

_OURS = """
import json, sys, time
t = time.perf_counter()
from aegis_lognexus.flight import analyze, read_folder
from pathlib import Path
r = analyze(read_folder(Path(sys.argv[1])))
print(json.dumps({"culprits": list(r.culprits), "cause": r.cause, "confidence": r.confidence, "inner": time.perf_counter() - t}))
"""


MOST_SECONDS, MOST_MB = 60.0, 4096
ROUNDS = 5
LEAST_FASTER = {8: 15.0, 0: 5.0}
"""By members of a small group (0: one group of all)."""


def _peak_mb() -> float:
    """Largest resident size of this process plus that of its largest child, MB (an upper bound for two equal children: counted twice below)."""
    own, child = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own + 2 * child


def _cpu() -> float:
    own, child = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + child.ru_utime + child.ru_stime


def scale(ranks: int, entries: int, side: int, folder: Path | None, repeat: int) -> bool:
    kept = True
    base = Path(tempfile.mkdtemp(prefix="aegis-fr-", dir=folder))
    culprit = ranks * 3 // 5
    try:
        started = time.perf_counter()
        size = synthetic.write(synthetic.Job(world=ranks, side=side, entries=entries, culprit=culprit), base)
        wrote = time.perf_counter() - started
        for _ in range(repeat):
            cpu, t0 = _cpu(), time.perf_counter()
            dumps = read_folder(base)
            t1 = time.perf_counter()
            report = analyze(dumps)
            t2 = time.perf_counter()
            told: dict[str, object] = {
                "ranks": ranks,
                "entries": sum(len(d) for d in dumps.values()),
                "groups": 1 + 2 * (ranks // side if side else 0),
                "mb": size >> 20,
            }
            told |= {"written_s": round(wrote, 1), "read_s": round(t1 - t0, 2), "analyze_s": round(t2 - t1, 2), "total_s": round(t2 - t0, 2)}
            told |= {"cpu_s": round(_cpu() - cpu, 1), "peak_mb": round(_peak_mb()), "right": report.culprits == (culprit,), "cause": report.cause}
            print(json.dumps(told), flush=True)
            kept = kept and report.culprits == (culprit,) and t2 - t0 <= MOST_SECONDS and _peak_mb() <= MOST_MB
            del dumps
    finally:
        shutil.rmtree(base)
    return kept


def _ours(folder: Path) -> tuple[float, float, dict[str, object]]:
    """(wall s, CPU s, answer) of a fresh process."""
    cpu, t0 = _cpu(), time.perf_counter()
    out = subprocess.run([sys.executable, "-c", _OURS, str(folder)], capture_output=True, text=True, check=True)
    return time.perf_counter() - t0, _cpu() - cpu, json.loads(out.stdout)


def _torch(folder: Path, prefix: str, limit: float = 900.0) -> tuple[float, float, str]:
    """(wall s, CPU s, last lines) of torchfrtrace in a fresh process; it needs every rank's dump."""
    cpu, t0 = _cpu(), time.perf_counter()
    tool = Path(sys.executable).parent / "torchfrtrace"
    out = subprocess.run([str(tool), "-p", prefix, str(folder)], capture_output=True, text=True, timeout=limit, check=False)
    return time.perf_counter() - t0, _cpu() - cpu, (out.stdout + out.stderr).strip()


def torch_culprits(text: str) -> list[int]:
    """The ranks torchfrtrace calls missing or mismatched; [] where it names none."""
    found: set[int] = set()
    for line in re.findall(r"missing ranks: \{([^}]*)\}", text) + re.findall(r"[Cc]ulprit rank:? (\d+)", text):
        found.update(int(x) for x in re.findall(r"\d+", line))
    return sorted(found)


def compare(ranks: int, entries: int) -> bool:
    """Medians of `ROUNDS` interleaved runs of both on the same files, the start of each process included."""
    kept = True
    for side, least in LEAST_FASTER.items():
        base = Path(tempfile.mkdtemp(prefix="aegis-fr-"))
        try:
            culprit = ranks * 3 // 5
            synthetic.write(synthetic.Job(world=ranks, side=side, entries=entries, culprit=culprit), base)
            rounds = [(_ours(base), _torch(base, "nccl_trace_rank_")) for _ in range(ROUNDS)]
            answer, text = rounds[-1][0][2], rounds[-1][1][2]
            wall, cpu, theirs_wall, theirs_cpu = (median(r[who][of] for r in rounds) for who in (0, 1) for of in (0, 1))
            told: dict[str, object] = {
                "ranks": ranks,
                "rounds": ROUNDS,
                "groups": f"1+{ranks // side}+{ranks // side}" if side else "1",
                "ours_s": round(wall, 2),
                "ours_cpu_s": round(cpu, 2),
            }
            told |= {"torchfrtrace_s": round(theirs_wall, 2), "torchfrtrace_cpu_s": round(theirs_cpu, 2), "faster": round(theirs_wall / wall, 1)}
            told |= {"faster_cpu": round(theirs_cpu / cpu, 1), "culprit": culprit, "ours": answer["culprits"], "torchfrtrace": torch_culprits(text)}
            print(json.dumps(told), flush=True)
            kept = kept and all(ours[2]["culprits"] == [culprit] for ours, _ in rounds) and theirs_wall >= least * wall
        finally:
            shutil.rmtree(base)
    return kept


def exact(truth: dict[str, Any], report: Report, transfers: bool) -> bool:
    """Culprits and cause as they are, or, where a send or a receive failed and the backend records none (`transfers`), what dumps can prove: nothing,
    or that one of several ranks that look alike, the true one among them, has not joined, with low confidence."""
    if not transfers and truth["cause"].startswith("p2p_"):
        several = set(truth["culprits"]) < set(report.culprits) and (report.cause, report.confidence) == ("not_joined", "low")
        return several or (report.verdict, report.culprits) == ("no_evidence", ())
    return (list(report.culprits), report.cause) == (truth["culprits"], truth["cause"])


def scenarios(folder: Path) -> bool:
    found = []
    for truth_file in sorted(folder.glob("**/truth.json")):
        truth = json.loads(truth_file.read_text())
        dumps = read_folder(truth_file.parent)
        report = analyze(dumps)
        transfers = any(kind.op in ("send", "recv") for dump in dumps.values() for kind in dump.kinds)
        found.append(exact(truth, report, transfers))
        told = {
            "scenario": truth_file.parent.name,
            "exact": found[-1],
            "truth": truth["culprits"],
            "ours": list(report.culprits),
            "cause": report.cause,
        }
        told |= {"true_cause": truth["cause"], "confidence": report.confidence}
        for kept in ("torchfrtrace.txt", "torchfrtrace_repaired.txt"):
            if (told_file := truth_file.parent / kept).exists():
                told[kept.removesuffix(".txt")] = torch_culprits(told_file.read_text(errors="replace"))
        print(json.dumps(told), flush=True)
    print(json.dumps({"scenarios": len(found), "exact": sum(found)}), flush=True)
    return bool(found) and all(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="default: 512, with --compare 64")
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--side", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--scenarios", type=Path)
    args = parser.parse_args()
    if args.scenarios:
        return 0 if scenarios(args.scenarios) else 1
    if args.compare:
        return 0 if compare(args.ranks or 64, args.entries) else 1
    return 0 if scale(args.ranks or 512, args.entries, args.side, args.folder, args.repeat) else 1


if __name__ == "__main__":
    sys.exit(main())
