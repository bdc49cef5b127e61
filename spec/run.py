"""`make spec`: translations are current, configurations are complete, TLC holds every model. Prints one table; exit 1 on any complaint.

Reads `spec/*.tla`, `spec/*.cfg`; writes nothing but `--report FILE` (JSON).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import tla

SEED = {"AegisSeed": 26_778, "AegisPhase": 26_778, "AegisMessages": 44_826}
"""Distinct states that the first seed prints for its own P0 and P1 models."""


def stale_translations(texts: dict[str, str]) -> list[str]:
    """Modules whose checked-in translation is not what the translator makes of their algorithm."""
    written = [name for name, text in texts.items() if tla.is_pluscal(text)]
    fresh = tla.side_by_side(lambda name: tla.translate(texts[name], name), written, tla.PROCESSES)
    return [name for name, text in zip(written, fresh, strict=True) if text != texts[name]]


def wrap(label: str, names: tuple[str, ...]) -> str:
    return f"    {label}: {' '.join(names)}" if names else ""


def complain(complaints: list[str]) -> int:
    for complaint in complaints:
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="configurations to run (default: all)")
    parser.add_argument("--processes", type=int, default=tla.PROCESSES, help="models to run side by side")
    parser.add_argument("--translate", action="store_true", help="write fresh translations into the modules first")
    parser.add_argument("--report", type=Path, help="write the table as JSON")
    parser.add_argument("--list", action="store_true", help="name the configurations, check them and the translations; run no model")
    options = parser.parse_args()
    if unknown := tla.unknown("configuration", options.only, [config.name for config in tla.configs()]):
        parser.error(unknown)
    texts = tla.modules()
    if options.translate:
        for name, text in texts.items():
            if tla.is_pluscal(text):
                (tla.HERE / f"{name}.tla").write_text(tla.translate(text, name))
        texts = tla.modules()
    complaints = [f"{name}.tla: the translation is not current; run `spec/run.py --translate`" for name in stale_translations(texts)]
    found = tla.configs()
    complaints += tla.incomplete(found, texts)
    if options.list:
        print("\n".join(f"{config.name:<22}of {config.module}" for config in found))
        print(f"{sum(map(tla.is_pluscal, texts.values()))} translations, {len(found)} configurations: {len(complaints) or 'no'} complaints")
        return complain(complaints)
    began = time.monotonic()
    print(f"{'model':<22}{'distinct':>10}{'seed':>9}{'depth':>7}{'seconds':>9}  result")
    rows = []
    chosen = [config for config in found if not options.only or config.name in options.only]
    results = tla.side_by_side(
        lambda config: tla.check(config.module, (tla.HERE / f"{config.name}.cfg").read_text(), texts), chosen, options.processes
    )
    for config, result in zip(chosen, results, strict=True):
        reached = config.name.endswith("Reached")
        passed = bool(result.violated) if reached else result.passed
        said = "reached" if reached and passed else "holds" if passed else (result.violated and f"VIOLATED: {result.violated}") or result.error
        seed = SEED.get(config.name)
        print(f"{config.name:<22}{result.distinct:>10,}{f'{seed:,}' if seed else '':>9}{result.depth:>7}{result.seconds:>9.1f}  {said}")
        for line in filter(None, (wrap("invariants", config.invariants), wrap("properties", config.properties))):
            print(line, flush=True)
        if not passed:
            complaints.append(f"{config.name}: {said}\n{tla.trace(result.output)}")
        row = {key: value for key, value in asdict(result).items() if key != "output"}
        rows.append({"model": config.name, "seed": seed, "passed": passed, **row, "invariants": config.invariants, "properties": config.properties})
    held = sum(row["passed"] for row in rows)
    print(f"{held} of {len(rows)} models hold, {sum(row['distinct'] for row in rows):,} distinct states, {time.monotonic() - began:.0f} s")
    if options.report:
        options.report.write_text(json.dumps({"models": rows, "complaints": complaints}, indent=1) + "\n")
    return complain(complaints)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except tla.SpecError as error:
        print(f"FAILED {error}", file=sys.stderr)
        sys.exit(1)
