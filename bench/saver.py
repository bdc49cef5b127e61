"""What a save costs the training: `aegis_saver` beside a plain full save (torch.distributed.checkpoint.save), in one process, on this machine.

    python bench/saver.py [--mib 256] [--saves 6] [--changed 0.25]

A model of `mib` MiB of which the share `changed` trains (with AdamW: two more values for each). Printed: what the training waits for (stall, s) and
what is written (MiB), the first save and the median of the later ones, for both; and whether what is loaded is equal to the bit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def written(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--saves", type=int, default=6)
    parser.add_argument("--changed", type=float, default=0.25)
    given = parser.parse_args()
    os.environ["AEGIS_CONTROL_SOCKET"] = ""
    import torch
    import torch.distributed.checkpoint as dcp
    from aegis_saver import Saver

    checkpoint: Any = dcp
    layers = 16
    width = int((given.mib * 2**20 / 4 / layers) ** 0.5)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    for k, layer in enumerate(model):
        layer.requires_grad_(k >= layers * (1 - given.changed))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as name:
        saver = Saver(Path(name) / "ours", model=model, optimizer=optimizer)
        rows: dict[str, list[tuple[float, float]]] = {"plain": [], "saver": []}
        before = 0.0
        for k in range(given.saves):
            step()
            began = time.monotonic()
            checkpoint.save(saver._state(), checkpoint_id=Path(name) / "plain" / str(k), no_dist=True)
            rows["plain"].append((time.monotonic() - began, written(Path(name) / "plain" / str(k))))
            saver.save(k)
            stall = saver.stall
            for _ in range(10):  # the training goes on
                step()
            saver.wait()
            total = written(Path(name) / "ours")
            rows["saver"].append((stall, total - before))
            before = total
        last = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in saver._copies.items()}
        Saver(Path(name) / "ours", model=model, optimizer=optimizer).start()
        equal = all(torch.equal(value, last[key]) for key, value in saver._state().items() if isinstance(value, torch.Tensor))
    print(f"{'':<8} {'first stall':>12} {'later stall':>12} {'first MiB':>10} {'later MiB':>10}")
    for who, got in rows.items():
        later = [statistics.median(row[i] for row in got[1:]) for i in (0, 1)]
        print(f"{who:<8} {got[0][0]:>10.3f} s {later[0]:>10.3f} s {got[0][1]:>10.1f} {later[1]:>10.1f}")
    print(f"loaded equal to the bit: {'yes' if equal else 'NO'}; model {given.mib} MiB, {given.changed:.0%} of it trains")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
