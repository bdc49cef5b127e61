"""All benches, one after the other, on this machine: each prints its own table and bar. `make bench`.

    python bench/run_all.py [NAME ...]

Each script stands alone (`python bench/NAME.py --help`). They start real servers on loopback, are bounded in time, and end what they started.
Run them on a quiet machine: medians and ratios travel, absolute times do not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("AEGIS_SHARED_DATA") or HERE.parents[1] / "shared/data") / "fr"
"""Genuine flight records with their truth, where they are at hand."""
BENCHES: dict[str, tuple[str, ...]] = {
    "machine_step": (),
    "fabric_model": (),
    "port_counters": (),
    "port_reading": (),
    "netmon_scale": (),
    "commit_scale": (),
    "order_scale": (),
    "agent_rest": (),
    "agent_rest:monitors": ("--monitors",),
    "agent_times": (),
    "agent_folder": (),
    "saver": (),
    "recovery": (),
    "checks": (),
    "all_at_once": (),
    "lemon_lanl": (),
    "lemon_detect": (),
    "lemon_scale": (),
    "classify": (),
    "log_store": ("--seconds", "20"),
    "log_road": (),
    "log_road:kill": ("--seconds", "20", "--kill"),
    "flight": ("--compare",),
    "flight:large": ("--ranks", "4096", "--side", "64"),
    **({"flight:genuine": ("--scenarios", str(DATA))} if DATA.is_dir() else {}),
    "recording": (),
    "ettr_whole": (),
}
"""Script (before the colon) -> arguments; roughly by how long they take."""


def main() -> int:
    wanted = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    failed = []
    for name in wanted:
        print(f"== {name} (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)", flush=True)
        began = time.monotonic()
        code = subprocess.run([sys.executable, str(HERE / f"{name.partition(':')[0]}.py"), *BENCHES[name]], check=False).returncode
        print(f"== {name}: {'ok' if code == 0 else f'exit {code}'} in {time.monotonic() - began:.0f} s\n", flush=True)
        if code:
            failed.append(name)
    if failed:
        print(f"not as promised, or not measured: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
