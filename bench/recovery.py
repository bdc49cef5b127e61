"""kill -9 of one rank -> first step of all ranks, Aegis (cold, and with --warm) beside torchrun and ft_launcher, interleaved in one run.

    python bench/recovery.py [--rounds 20] [--ranks 2] [--json FILE] [--ft-launcher FOLDER]

FOLDER holds an unpacked nvidia-resiliency-ext (`pip install --no-deps --target FOLDER nvidia-resiliency-ext==0.4.1 defusedxml`).
All run the same unchanged script (`train_ddp.py`, gloo, CPU). The kill comes after 20 steps; with --warm not before the standby says that it
is ready. torchrun and ft_launcher run with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: with its default, torch 2.13 meets the dead incarnation's keys
again and burns restarts. Printed, as medians over the rounds (seconds):

    total     kill -> first step of all ranks of the next incarnation
    respawn   kill -> last new process exists: the launcher's own share
    checks    the part of respawn that Aegis spent in its checks (torchrun makes none)
    imports, pg, step   the rest, paid by every launcher
    memory    MiB of the standby that waits (shared with the ranks forked from it)

"restarts" is how many incarnations one kill cost: 1 is right. Stops only the processes that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
CHECKS = re.compile(r"troubleshoot: \d+ checks in ([0-9.]+) s")
"""What an agent says of a round of checks; `run -v` shows the agents' own words."""
READY = re.compile(r"warm standby ready: (\d+) modules, (\d+) MiB")
BAR = 0.3
"""Seconds of respawn, less the checks, that Aegis may take: median."""
COLD, WARM = 1.0, 0.2
"""Shares of torchrun's total that Aegis may take, cold and warm, beside its checks: median."""
LIMIT = 120.0  # seconds a phase of one run may take


def launchers(ranks: int, ft_launcher: Path | None = None) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name -> (command, extra environment)."""
    script = str(HERE / "train_ddp.py")
    aegis = [sys.executable, "-m", "aegis_cli", "run", "-v", "--nproc-per-node", str(ranks)]
    found: dict[str, tuple[list[str], dict[str, str]]] = {
        "torchrun": (
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=3", script],
            {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        ),
        "aegis": ([*aegis, "--", sys.executable, script], {}),
        "aegis-warm": ([*aegis, "--warm", "--", sys.executable, script], {}),
    }
    if ft_launcher is not None:
        words = ["--standalone", "--nnodes=1", f"--nproc-per-node={ranks}", "--max-restarts=3", "--ignore-missing-fault-tol-cfg", script]
        path = os.pathsep.join([str(ft_launcher), *filter(None, [os.environ.get("PYTHONPATH")])])
        module = "nvidia_resiliency_ext.fault_tolerance.launcher"
        found["ft_launcher"] = ([sys.executable, "-m", module, *words], {"PYTHONPATH": path, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    return found


def events(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in folder.glob("ev.*.jsonl"):
        found += [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return found


def stepping(folder: Path, ranks: int, at_least: int, without: frozenset[int] = frozenset()) -> dict[int, list[dict[str, Any]]]:
    """Steps by pid, once `ranks` processes outside `without` made `at_least` steps each; else {}."""
    by_pid: dict[int, list[dict[str, Any]]] = {}
    for e in events(folder):
        if e["ev"] == "step" and e["pid"] not in without:
            by_pid.setdefault(e["pid"], []).append(e)
    full = {pid: steps for pid, steps in by_pid.items() if len(steps) >= at_least}
    return full if len(full) >= ranks else {}


def wait_for(what: str, condition: Callable[[], Any], launcher: subprocess.Popen[bytes]) -> Any:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        if value := condition():
            return value
        if launcher.poll() is not None:
            raise RuntimeError(f"launcher left with {launcher.returncode} while waiting for {what}")
        time.sleep(0.01)
    raise RuntimeError(f"no {what} within {LIMIT:.0f} s")


def one_run(name: str, command: list[str], extra: dict[str, str], ranks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as text:
        folder = Path(text)
        env = {**os.environ, "BENCH_DIR": text, "OMP_NUM_THREADS": "1", **extra}
        with (folder / "launcher.log").open("wb") as log:
            started = time.time()
            launcher = subprocess.Popen(
                [part.replace("{dir}", text) for part in command], env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        result: dict[str, Any] = {"name": name}
        try:
            first = wait_for("20 steps of all ranks", lambda: stepping(folder, ranks, 20), launcher)
            result["start"] = max(steps[0]["t"] for steps in first.values()) - started
            if name == "aegis-warm":
                ready = wait_for("standby", lambda: READY.search((folder / "launcher.log").read_text(errors="replace")), launcher)
                result["memory"] = float(ready[2])
            old = frozenset(first)
            victim = next(pid for pid, steps in first.items() if steps[0]["rank"] == 1)
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            new = wait_for("first step after the restart", lambda: stepping(folder, ranks, 1, old), launcher)
            seen = [e for e in events(folder) if e["pid"] in new]
            spawned = max(e["t_spawn"] for e in seen if e["ev"] == "spawn")
            imported = max(e["t"] for e in seen if e["ev"] == "imported")
            group = max(e["t"] for e in seen if e["ev"] == "pg")
            stepped = max(steps[0]["t"] for steps in new.values())
            result |= {
                "total": stepped - killed,
                "respawn": spawned - killed,
                "imports": imported - spawned,
                "pg": group - imported,
                "step": stepped - group,
                "restarts": max(int(e["inc"]) for e in seen),
                "checks": 0.0,
            }
        except RuntimeError as error:
            result["error"] = f"{error}: {(folder / 'launcher.log').read_text(errors='replace')[-600:]}"
        finally:
            stop(launcher, folder)
        spent = CHECKS.findall((folder / "launcher.log").read_text(errors="replace"))
        if spent and "total" in result:
            result["checks"] = float(spent[-1])
        return result


def stop(launcher: subprocess.Popen[bytes], folder: Path) -> None:
    """SIGTERM, then SIGKILL to what is left of this run: its own descendants and the processes that carry its folder."""
    try:
        children = psutil.Process(launcher.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    if launcher.poll() is None:
        launcher.terminate()
        try:
            launcher.wait(40)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
    ours = [psutil.Process(e["pid"]) for e in events(folder) if e["ev"] == "spawn" and psutil.pid_exists(e["pid"])]
    for process in [*children, *ours]:
        try:
            if process.is_running() and process.environ().get("BENCH_DIR") == str(folder):
                process.kill()
        except psutil.Error:
            continue


def table(results: list[dict[str, Any]]) -> str:
    columns = ["total", "respawn", "checks", "imports", "pg", "step", "start", "memory"]
    lines = [f"{'launcher':<12} {'ok':>5} {'1 restart':>9} " + " ".join(f"{c:>8}" for c in columns)]
    for name in dict.fromkeys(r["name"] for r in results):
        rows = [r for r in results if r["name"] == name]
        good = [r for r in rows if "total" in r]
        once = sum(r["restarts"] == 1 for r in good)
        cells = " ".join(f"{statistics.median(r[c] for r in good):8.3f}" if good and c in good[0] else f"{'-':>8}" for c in columns)
        lines.append(f"{name:<12} {len(good)}/{len(rows):<3} {once:>6}/{len(rows)} {cells}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ft-launcher", type=Path)
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    for _ in range(args.rounds):
        for name, (command, extra) in launchers(args.ranks, args.ft_launcher).items():
            if args.only in ("", name):
                results.append(one_run(name, command, extra, args.ranks))
                print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in results[-1].items()}), flush=True)
    print(table(results))
    by_name = {name: [r for r in results if r["name"] == name and "total" in r] for name in launchers(args.ranks, args.ft_launcher)}
    good = by_name["aegis"]
    missed = args.only in ("", "aegis") and not good
    if good:
        share = statistics.median(r["respawn"] - r["checks"] for r in good)
        once = sum(r["restarts"] == 1 for r in good)
        print(f"aegis: respawn less checks, median {share:.3f} s (bar {BAR}); one kill cost one restart in {once} of {len(good)}")
        missed = share > BAR or once < len(good)
    base = statistics.median(r["total"] for r in by_name["torchrun"]) if by_name["torchrun"] else 0.0
    for name, share in (("aegis", COLD), ("aegis-warm", WARM)) if base else ():
        if rows := by_name[name]:
            took = statistics.median(r["total"] - r["checks"] for r in rows)
            print(
                f"{name}: kill -> first step of all ranks less checks, median {took:.3f} s = {took / base:.2f} x torchrun's {base:.3f} (bar {share})"
            )
            missed = missed or took > share * base
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return 0 if all("total" in r for r in results) and not missed else 1


if __name__ == "__main__":
    sys.exit(main())
