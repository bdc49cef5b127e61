"""Which python a command line trains with, and whether that training uses torch: told from words and files, nothing is run.

Wrong only in one direction that matters: what cannot be told is "no torch", and then nobody meets. `AEGIS_CHECKS_COLLECTIVE` = always | never decides
where the guess does not fit, `AEGIS_CHECKS_PYTHON` names the interpreter. Reads the scripts of the command; writes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aegis_agent.aside import aside

PYTHON = re.compile(r"python(\d(\.\d+)?)?")
LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "ft_launcher", "dlrover-run", "composer", "colossalai"})
TORCH_NAMES = frozenset(
    {"torch", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "transformers", "megatron", "nemo", "composer", "colossalai"}
)
IMPORTS = re.compile(r"(?:^|;)[ \t]*(?:from[ \t]+([A-Za-z_][\w.]*)|import[ \t]+([A-Za-z_][^\n#;]*))", re.M)
MOST_FILES, MOST_BYTES = 64, 1 << 20
SECONDS = 5.0
"""That reading the scripts may take."""
SPLIT = re.compile(r"[\n;&|()]+")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`python` is a path, "" when the command names none."""

    python: str = ""
    torch: bool = False


async def read(command: Sequence[str], environ: Mapping[str, str], cwd: str, seconds: float = SECONDS) -> Interpreter:
    """`of_command` beside everything else: scripts on a file system that does not answer hold up nobody, and tell nothing."""
    try:
        return await aside("interpreter", lambda: of_command(command, environ, cwd), seconds)
    except TimeoutError:
        return Interpreter()


def of_command(command: Sequence[str], environ: Mapping[str, str], cwd: str) -> Interpreter:
    """The interpreter of a command line as a job has it (a shell's `-c` is looked into)."""
    wish = environ.get("AEGIS_CHECKS_COLLECTIVE", "auto")
    if wish == "never":
        return Interpreter()
    words = _words(command)
    python, launcher = "", False
    script: Path | None = None
    module = ""
    for at, word in enumerate(words):
        name = os.path.basename(word)
        if not python and PYTHON.fullmatch(name):
            python = _which(word, environ, cwd)
        elif not python and (name in LAUNCHERS or at == 0):
            python = _shebang(_which(word, environ, cwd))
            if name in LAUNCHERS:
                launcher = bool(python)
            elif python:
                script = Path(_which(word, environ, cwd))
        elif python and script is None and word.endswith(".py"):
            script = Path(cwd, word)
        elif python and words[at - 1] == "-m":
            module = word
        elif python and words[at - 1] == "-c" and names_torch(imported(word)):
            launcher = True
    python = environ.get("AEGIS_CHECKS_PYTHON") or python
    if not python:
        return Interpreter()
    uses = wish == "always" or launcher or module.partition(".")[0] in ("torch", "accelerate", "deepspeed", "lightning")
    if not uses and script is not None:
        uses = imports_torch(script)
    if not uses and module:
        found = [Path(cwd, *module.split(".")).with_suffix(".py"), Path(cwd, *module.split("."), "__main__.py")]
        uses = any(imports_torch(path) for path in found)
    return Interpreter(python, uses)


def _words(command: Sequence[str]) -> list[str]:
    """Words of the command; of a shell's text, those of all its simple commands."""
    words = list(command)
    if len(words) >= 3 and os.path.basename(words[0]) in ("sh", "bash", "dash", "zsh", "ash") and words[1].startswith("-") and "c" in words[1]:
        try:
            return shlex.split(words[2], comments=True)
        except ValueError:
            return SPLIT.sub(" ", words[2]).split()
    return words


def _which(word: str, environ: Mapping[str, str], cwd: str) -> str:
    if "/" in word:
        path = os.path.join(cwd, word)
        return path if os.access(path, os.X_OK) else ""
    return shutil.which(word, path=environ.get("PATH")) or ""


def _shebang(path: str) -> str:
    """The python that runs a script, "" when it is none."""
    try:
        with open(path, "rb") as file:
            first = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return ""
    words = first[2:].split() if first.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [shutil.which(words[-1]) or ""] if len(words) > 1 else []
    return words[0] if words and PYTHON.fullmatch(os.path.basename(words[0])) else ""


def imported(text: str) -> list[str]:
    """Modules that the text of a program imports, as they are written there (`import os, torch.nn as nn`: two)."""
    found = []
    for start, several in IMPORTS.findall(text):
        found += [start] if start else [part.split()[0] for part in several.split(",") if part.strip()]
    return found


def names_torch(names: Iterable[str]) -> bool:
    return any(name.partition(".")[0] in TORCH_NAMES for name in names)


def imports_torch(script: Path) -> bool:
    """Whether `script`, or a module beside it that it imports, names torch or what stands on it. Looks at 64 files at most."""
    folder, waiting = script.parent, [script]
    seen: set[Path] = set()
    while waiting and len(seen) < MOST_FILES:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            with open(path, errors="replace") as file:
                text = file.read(MOST_BYTES)
        except OSError:
            continue
        names = imported(text)
        if names_torch(names):
            return True
        for name in names:
            parts = name.split(".")
            beside = [folder.joinpath(*parts[: n + 1]) for n in range(len(parts))]
            waiting += [found for base in beside for found in (base.with_suffix(".py"), base / "__init__.py") if found.is_file()]
    return False
