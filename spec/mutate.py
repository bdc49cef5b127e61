"""`make spec-mutants`: every seeded fault is caught, and by the property that is named for it. Prints the table; exit 1 when one survives.

`mutants/mutants.toml` holds them: a fault is a few replacements in the text of a module (or of a .cfg), each of which must fit exactly `times` times.
The mutant must still translate and parse; it is checked with the constants of its `cfg` and with the one named property alone, so that nothing
else can claim the catch. `expect = "cfg"` means the check that configurations are complete; `expect = "translation"` the one that it is current.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import run
import tla

_HEALTHY: set[str] = set()
"""Configurations of liveness properties that hold without a fault."""
NOT_COUNTED = "does not count"
TABLE = tla.HERE / "mutants" / "mutants.toml"


@dataclass(frozen=True)
class Mutant:
    name: str
    what: str
    file: str
    cfg: str
    expect: str
    replacements: tuple[tuple[str, str, int], ...]
    constants: dict[str, str]
    module: str
    """The module that is checked, when the fault is in one that it extends."""


def load(path: Path = TABLE) -> list[Mutant]:
    with path.open("rb") as file:
        table = tomllib.load(file)
    return [
        Mutant(
            name,
            row["what"],
            row["file"],
            row.get("cfg", ""),
            row["expect"],
            tuple((r["old"], r["new"], r.get("times", 1)) for r in row.get("replace", ())),
            row.get("constants", {}),
            row.get("module", "") or Path(row["file"]).stem,
        )
        for name, row in table.items()
    ]


def seeded(mutant: Mutant, text: str) -> str:
    """The text with the fault in it. SpecError when a replacement does not fit: then the model has moved on and the mutant must follow."""
    algorithm, begin, rest = text.partition("\\* BEGIN TRANSLATION")
    translation, end, properties = rest.partition("\\* END TRANSLATION")
    if mutant.expect != "translation":
        translation = "\n"
    for old, new, times in mutant.replacements:
        found = algorithm.count(old) + properties.count(old)
        if found != times:
            raise tla.SpecError(f"mutant {mutant.name}: {found} times in {mutant.file}, expected {times}: {old!r}")
        algorithm, properties = algorithm.replace(old, new), properties.replace(old, new)
    return algorithm + begin + translation + end + properties


def forgotten(mutant: Mutant) -> list[str]:
    """The complaints that a configuration must cause from which these replacements take properties: of each by its name, and no other."""
    gone = {name for old, new, _ in mutant.replacements for name in set(re.findall(r"\w+", old)) - set(re.findall(r"\w+", new))}
    named = tla.properties_of((tla.HERE / f"{mutant.module}.tla").read_text())
    sorts = (("invariant", "INVARIANTS"), ("property", "ACTIONS"))
    return [f"{mutant.file} leaves out {sort} {name}" for sort, section in sorts for name in named[section] if name in gone]


def narrowed(config_text: str, mutant: Mutant, liveness: bool, action: bool) -> str:
    """The constants of the configuration, with the named property alone."""
    kept = re.split(r"^(?:INVARIANTS?|PROPERT(?:Y|IES))\b", config_text, maxsplit=1, flags=re.M)[0]
    for name, value in mutant.constants.items():
        kept, found = re.subn(rf"\b{name} = (\{{[^}}]*\}}|\w+)", f"{name} = {value}", kept)
        if found != 1:
            raise tla.SpecError(f"mutant {mutant.name}: no constant {name} in {mutant.cfg}.cfg")
    tail = re.findall(r"^CONSTRAINT .*$", config_text, flags=re.M)
    kind = "PROPERTY" if liveness or action else "INVARIANT"
    return kept + f"{kind} {mutant.expect}\n" + "\n".join(tail) + "\n"


@dataclass(frozen=True)
class Verdict:
    """`caught`: by the one that is named. `story`: TLC's counterexample."""

    caught: bool
    said: str
    seconds: float = 0.0
    distinct: int = 0
    story: str = ""


def verdict(mutant: Mutant, texts: dict[str, str]) -> Verdict:
    start = time.monotonic()
    if mutant.expect == "cfg":
        known = tla.configs()
        text = seeded(mutant, (tla.HERE / mutant.file).read_text())
        with tempfile.TemporaryDirectory(prefix="aegis-spec-") as folder:
            path = Path(folder) / mutant.file
            path.write_text(text)
            changed = tla.read_config(path, texts)
        said = tla.incomplete([changed if c.name == changed.name else c for c in known], texts)
        return Verdict(said == forgotten(mutant), said[0] if said else "nothing", time.monotonic() - start)
    module, faulty = mutant.module, Path(mutant.file).stem
    text = seeded(mutant, texts[faulty])
    if mutant.expect == "translation":
        said = run.stale_translations({faulty: text})
        return Verdict(bool(said), "translation not current" if said else "nothing", time.monotonic() - start)
    if tla.is_pluscal(text):
        text = tla.translate(text, faulty)
    named = tla.properties_of((texts | {faulty: text})[module])
    if not any(mutant.expect in names for names in named.values()):
        raise tla.SpecError(f"mutant {mutant.name}: {module} has no property {mutant.expect}")
    config_text = narrowed(
        (tla.HERE / f"{mutant.cfg}.cfg").read_text(), mutant, mutant.expect in named["LIVENESS"], mutant.expect in named["ACTIONS"]
    )
    if mutant.expect in named["LIVENESS"] and config_text not in _HEALTHY:
        # A liveness property that fails without the fault would be "caught" for nothing.
        if not tla.check(module, config_text, texts, timeout=120.0, small=True).passed:
            raise tla.SpecError(f"mutant {mutant.name}: {mutant.expect} fails without the fault too")
        _HEALTHY.add(config_text)
    result = tla.check(module, config_text, texts | {faulty: text}, timeout=120.0, small=True)
    if result.error:
        raise tla.SpecError(f"mutant {mutant.name}: does not run: {result.error}")
    said, seconds = result.violated or "survives", time.monotonic() - start
    return Verdict(result.violated == mutant.expect, said, seconds, result.distinct, tla.trace(result.output))


def unaimed(mutants: list[Mutant], found: list[tla.Config]) -> list[str]:
    """Complaints: each invariant and property that a configuration checks is what some seeded fault is caught by, in that module."""
    aimed = {(mutant.module, mutant.expect) for mutant in mutants}
    checked = {(config.module, name) for config in found if not config.name.endswith("Reached") for name in (*config.invariants, *config.properties)}
    return [f"no mutant of {module} is aimed at {name}" for module, name in sorted(checked - aimed)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*")
    parser.add_argument("--show", action="store_true", help="print the counterexamples")
    parser.add_argument("--processes", type=int, default=tla.PROCESSES, help="mutants to check side by side")
    options = parser.parse_args()
    if unknown := tla.unknown("mutant", options.only, [mutant.name for mutant in load()]):
        parser.error(unknown)
    tla.find_java(), tla.find_jar()
    texts = tla.modules()
    bad = unaimed(load(), tla.configs())
    for complaint in bad:
        print(f"FAILED {complaint}", file=sys.stderr)
    began = time.monotonic()
    missed: list[str] = []
    chosen = [mutant for mutant in load() if not options.only or mutant.name in options.only]

    def judged(mutant: Mutant) -> Verdict:
        try:
            return verdict(mutant, texts)
        except tla.SpecError as error:
            print(f"  {error}", file=sys.stderr)
            return Verdict(False, NOT_COUNTED)

    print(f"{'mutant':<26}{'module':<18}{'caught by':<26}{'states':>8}{'seconds':>9}  what is wrong")
    for mutant, found in zip(chosen, tla.side_by_side(judged, chosen, options.processes), strict=True):
        shown = mutant.expect if found.caught else found.said.upper() if found.said == NOT_COUNTED else f"SURVIVES ({found.said})"
        print(f"{mutant.name:<26}{mutant.file:<18}{shown:<26}{found.distinct:>8,}{found.seconds:>9.1f}  {mutant.what}", flush=True)
        if options.show:
            print(found.story)
        if not found.caught:
            missed.append(mutant.name)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught, {time.monotonic() - began:.0f} s")
    if missed:
        print(f"NOT CAUGHT: {' '.join(missed)}")
    return 1 if missed or bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except tla.SpecError as error:
        print(f"FAILED {error}", file=sys.stderr)
        sys.exit(1)
