"""The fabric model at size: seconds and memory of one run, per routing. Prints JSON lines; ends with 1 when a run takes more than a minute.

python bench/fabric_model.py [--gpus 16384]
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from aegis_netmon.sim.experiment import Setup, run
from aegis_netmon.sim.routes import DELAYED, IDEAL

LIMIT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=16384)
    gpus = parser.parse_args().gpus
    longest = 0.0
    for groups in (1, gpus // 16):
        for routing, switch in (("static", IDEAL), ("ecmp", IDEAL), ("adaptive", IDEAL), ("adaptive", DELAYED)):
            setup = Setup(gpus=gpus, groups=groups, bad_links=1, placement="random", routing=routing, switch=switch)
            begun = time.perf_counter()
            result = run(setup)
            longest = max(longest, took := time.perf_counter() - begun)
            row = {
                "gpus": gpus,
                "groups": groups,
                "routing": routing,
                "stale": switch.stale,
                "seconds": round(took, 2),
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                "bandwidth_gbps": result.bandwidth_gbps,
                "spread": result.spread,
            }
            print(json.dumps(row), flush=True)
    return int(longest > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
