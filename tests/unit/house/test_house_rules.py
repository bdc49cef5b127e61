"""The rules of the house (CONTRIBUTING.md): who may import whom, and what a pure module may not know."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from aegis_cli.offline import CORES

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "aegis_proto": ROOT / "proto/aegis_proto",
    "aegis_bus": ROOT / "bus/aegis_bus",
    "aegis_parsers": ROOT / "parsers/aegis_parsers",
    "aegis_agent": ROOT / "agent/aegis_agent",
    "aegis_cli": ROOT / "cli/aegis_cli",
    **{folder.name: folder for folder in ROOT.glob("services/*/aegis_*")},
}
SHARED = {"aegis_proto", "aegis_bus", "aegis_parsers"}
MAY_IMPORT = {
    "aegis_proto": set(),
    "aegis_parsers": {"aegis_proto"},
    "aegis_bus": {"aegis_proto"},
    "aegis_cli": {*SHARED, "aegis_credentials"},  # `aegis setup` makes the site; everything else goes over the bus
}
"""Every other package: what all share, and itself."""
OFFLINE = {"aegis_lognexus", "aegis_lemon", "aegis_netmon"}
"""Packages whose pure core the command line may run by itself, for commands without a service; only by `aegis_cli.offline.core`, when needed."""
PURE = {
    "aegis_master": [
        *("machine", "transitions", "counting", "rounds", "orders", "places", "reports", "asked", "draft", "ledger", "story", "events"),
        *("invariants", "judge", "intake", "stall", "levels", "exclusion"),
    ],
    "aegis_jobcontroller": [
        *("plan", "facts", "pending", "world", "lost", "checked"),
        *(f"kubernetes/{name}" for name in ("resources", "seen", "plan", "facts", "status", "manifest", "projection", "events")),
    ],
    "aegis_lognexus": ["evidence", "readings", "looks", "across", "verdict", "share"],
    "aegis_lemon": ["watch/collector", "watch/cases", "watch/risk", "ettr/heads"],
    "aegis_agent": ["orders", "env", "nested", "mode", "progress", "stacks"],
    "aegis_cli": ["convert", *(f"slurm/{name}" for name in ("step", "ledger", "ending", "script"))],
    "aegis_netmon": [
        *("series", "rates", "ber", "flaps", "health", "expected", "limits", "topology", "users", "routing"),
        *("correlate", "pairs", "transport", "fabricpoll", "dbcsv", "watch", "sensors", "uplinks", "rollout", "hostpoll", "ufmlog"),
        *("hosts", "picture", "verdicts", "incidents", "kept"),
    ],
}
"""Decisions: no clock, no loop, no bus, no files, no randomness of their own (a random.Random may be an argument)."""
FORBIDDEN = {"asyncio", "nats", "time", "secrets", "socket", "subprocess", "threading", "aegis_bus", "pathlib", "os", "uuid"}


def imports(path: Path, package: str) -> Iterator[str]:
    """Modules that a file imports, as full names; imports for types only do not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(ast.Module(node.body, []))
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or package if node.level == 0 else package


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_imports_only_what_it_may(package: str) -> None:
    allowed = MAY_IMPORT.get(package, SHARED) | {package}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in PACKAGES[package].rglob("*.py")
        for name in imports(path, package)
        if name.split(".")[0].startswith("aegis_") and name.split(".")[0] not in allowed
    ]
    assert not wrong, wrong


def test_the_command_line_runs_only_declared_cores_by_itself() -> None:
    assert set(CORES) == OFFLINE
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(CORES.values()) <= set(extras)
    by_name = [path for path in PACKAGES["aegis_cli"].rglob("*.py") if "import_module" in path.read_text()]
    others = [str(path.relative_to(ROOT)) for path in by_name if path.name != "offline.py"]
    assert not others, f"imports by name outside aegis_cli.offline: {others}"


@pytest.mark.parametrize(("package", "module"), [(p, m) for p, modules in PURE.items() for m in modules])
def test_a_pure_module_knows_no_clock_no_loop_and_no_bus(package: str, module: str) -> None:
    path = PACKAGES[package] / f"{module}.py"
    wrong = [name for name in imports(path, package) if name.split(".")[0] in FORBIDDEN]
    assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"
    assert ".now(" not in path.read_text(), f"{path.relative_to(ROOT)} reads the clock"


def test_every_package_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    missing = [str(path.relative_to(ROOT)) for path in PACKAGES.values() if f'"{path.relative_to(ROOT)}"' not in text]
    assert not missing, f"not in pyproject.toml: {missing}"


def test_no_file_has_grown_past_its_noun() -> None:
    """About 400 lines: then it holds two nouns."""
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if "_pb" not in path.parts and (lines := len(path.read_text().splitlines())) > 440
    }
    assert not long, f"split by noun: {long}"


def test_files_of_tests_have_names_of_their_own() -> None:
    """Two of one name cannot be collected in one run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, twice


def test_a_page_that_is_cited_is_here() -> None:
    """Of code and pages: who reads the name of one finds it. It may be named as from the root, from beside it, or from docs/."""
    kinds = {".py", ".md", ".tla", ".proto", ".toml", ".yaml", ".sh", ".mk", ".txt"}
    folders = [*PACKAGES.values(), *(ROOT / name for name in ("proto", "spec", "docs", "tests", "bench", "deploy"))]
    found = {path for folder in folders for path in folder.rglob("*") if path.suffix in kinds} | set(ROOT.glob("*.md"))
    gone = []
    for path in sorted(found):
        for cited in re.findall(r"(?<![\w/.:-])[\w./-]*\w\.md\b", path.read_text()):
            if not any((folder / cited).exists() for folder in (ROOT, path.parent, ROOT / "docs", ROOT / "docs/decisions")):
                gone.append(f"{path.relative_to(ROOT)} cites {cited}")
    assert not gone, gone
