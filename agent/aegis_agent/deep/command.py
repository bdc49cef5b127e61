"""`aegis-agent check prolog|epilog`: a node before and after a job, for a scheduler's prolog and epilog; `check deep`: a node by itself.

aegis-agent check prolog [--job ID] [--state DIR] [--seconds S] [--json]
aegis-agent check epilog [--job ID] [--state DIR] [--seconds S] [--json]
aegis-agent check deep            [--state DIR] [--seconds S] [--json]

Runs the local checks and the deep tests; nothing deep runs while a GPU is used. The prolog keeps what it measured in DIR; the epilog of the same job
is compared with it, and `deep` with what this node could do when it was well. Exit codes: 0 well, 1 a check failed or was refused, or something
got worse; 2 usage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from aegis_proto.messages import CheckResult

from aegis_agent.checks import meeting
from aegis_agent.checks.registry import Check, Context, accelerators, named, run_check, run_checks
from aegis_agent.checks.running import Program, boot, run_program
from aegis_agent.deep import baseline
from aegis_agent.deep.compare import compare
from aegis_agent.handover import now_ms, write_whole
from aegis_agent.reaper import Reaper

FOLDER = Path(__file__).resolve().parent
LOCAL = ("io", "gpu", "runtime", "rdma", "memory", "power")
TESTS = ("memory", "compute", "copy")
MARGIN = 120.0
"""Seconds a deep test may take beyond what it was given: an interpreter, torch, a large memory filled once."""
KINDS = (
    ("/dev/nvidiactl", "cuda"),
    ("/dev/kfd", "cuda"),
    ("/dev/mxcd", "cuda"),
    ("/dev/davinci_manager", "npu"),
    ("/dev/mtgpu.0", "musa"),
    ("/dev/cambricon_ctl", "mlu"),
)
"""Device node of a driver -> torch's name of its devices."""
KEEP_SECONDS = 30 * 86400.0


def main(verb: str, argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"aegis-agent check {verb}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("AEGIS_JOB") or ""
    if verb != "deep":
        parser.add_argument("--job", default=job, help="whose prolog and epilog this is (default: $SLURM_JOB_ID, $AEGIS_JOB)")
    parser.add_argument("--state", type=Path, default=default_state(), metavar="DIR", help="where what was measured is kept")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="for each deep test (default 2); 60 and more is a burn")
    parser.add_argument("--json", action="store_true", help="one CheckResult a line")
    given = parser.parse_args(argv)
    if verb != "deep" and not re.fullmatch(r"[\w.-]{1,128}", given.job):
        parser.error("--job ID is needed: letters, digits, dot, dash, underscore")
    if not 0.1 <= given.seconds <= 86400:
        parser.error("--seconds: between 0.1 and 86400")
    results = asyncio.run(examine(given.seconds, os.environ))
    if verb == "deep":
        if any(result.CheckType.startswith("deep-") for result in results):
            results = [*results, baseline.judge(given.state / baseline.FILE, results)]
    elif verb == "prolog":
        keep(given.state / f"prolog-{given.job}.json", results)
    else:
        kept = given.state / f"prolog-{given.job}.json"
        results = [*results, against(kept, results)]
        kept.unlink(missing_ok=True)
    for result in results:
        word = "fail" if not result.Pass else "warn" if result.code else "ok"
        text = f"{word:<4}  {result.CheckType}: {result.Result} ({result.duration:.2f} s)"
        print(msgspec.json.encode(result).decode() if given.json else text)
    return 0 if all(result.Pass for result in results) else 1


def default_state() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/aegis/checks")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "aegis" / "checks"


def keep(path: Path, results: Sequence[CheckResult]) -> None:
    """What the prolog measured; of others, what is older than 30 days goes."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(results))
        for old in path.parent.glob("prolog-*.json"):
            if time.time() - old.stat().st_mtime > KEEP_SECONDS:
                old.unlink(missing_ok=True)
    except OSError as error:
        sys.stderr.write(f"aegis-agent: {path}: {error.strerror}; the epilog will have nothing to compare with\n")


def against(path: Path, results: Sequence[CheckResult]) -> CheckResult:
    """The result `epilog`: after against before."""
    try:
        before = msgspec.json.decode(path.read_bytes(), type=list[CheckResult])
    except (OSError, msgspec.MsgspecError):
        return CheckResult("epilog", True, f"nothing to compare with: no prolog of this job at {path}", now_ms())
    findings = compare(before, results)
    failed = any(finding.severity == "critical" for finding in findings)
    said = "; ".join(f"{finding.severity} {finding.code} {finding.item}: {finding.evidence}" for finding in findings[:16])
    return CheckResult("epilog", not failed, said or "as before the job", now_ms(), code=findings[0].code if findings else "")


async def examine(seconds: float, environ: Mapping[str, str]) -> list[CheckResult]:
    """The local checks side by side, then the deep tests one after the other: each has the node for itself."""
    reaper = Reaper()
    reaper.open()
    scope = f"check.{os.getpid()}.0"
    context = Context("", os.getcwd(), os.getpid())
    try:
        local = [check for name in LOCAL if (check := named(name)) is not None]
        results = await run_checks(reaper, local, context, environ, scope=scope)
        if accelerators():
            busy = await run_check(reaper, Check("deep", "aegis_agent.deep.busy", 30.0), context, environ, f"{scope}.busy")
            if not busy.Pass:
                return [*results, msgspec.structs.replace(busy, Result=f"refused, the deep tests take all of a GPU: {busy.Result}")]
        python = environ.get("AEGIS_CHECKS_PYTHON") or shutil.which("python3", path=environ.get("PATH")) or sys.executable
        kind = next((kind for node, kind in KINDS if os.path.exists(node)), "cpu")
        for test in TESTS:
            for where in ("cpu",) if kind == "cpu" else ("cpu", kind):
                name = f"deep-{test}" if where == "cpu" else f"deep-{test}-{where}"
                told = json.dumps({"test": test, "seconds": seconds, "kind": where}).encode()
                program = Program(boot(FOLDER, "aegis_deep", python), told, ((name, seconds + MARGIN),))
                results += await run_program(reaper, program, environ, f"{scope}.{name}")
        results += await meeting.by_hand(reaper, environ, scope, long=seconds)
        return results
    finally:
        reaper.close()
