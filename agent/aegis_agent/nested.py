"""Launchers inside the user's command (torchrun, accelerate, deepspeed): recognised, so that they run once per worker. Pure; the table is data.

A nested launcher starts the local ranks itself. It learns the world from `PET_*` where it reads them, else from flags that are put behind its name
unless the user gave them. One that restarts by itself multiplies two budgets: warned of (E112).
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launcher:
    """One row of the table. `words` is how the command begins; `python` rows begin with an interpreter and `-m`."""

    name: str
    words: tuple[str, ...]
    python: bool = False
    pet: bool = True  # reads PET_*: torch.distributed.run, argparse_util.env
    flags: tuple[tuple[str, str], ...] = ()  # (flag, value template): added unless the user gave the flag


_ACCELERATE = (
    ("--num_machines", "{workers}"),
    ("--machine_rank", "{index}"),
    ("--num_processes", "{world}"),
    ("--main_process_ip", "{address}"),
    ("--main_process_port", "{port}"),
)
_DEEPSPEED = (("--master_addr", "{address}"), ("--master_port", "{port}"))

LAUNCHERS: tuple[Launcher, ...] = (
    Launcher("torchrun", ("torchrun",)),
    Launcher("torch.distributed.run", ("torch.distributed.run",), python=True),
    Launcher("torch.distributed.launch", ("torch.distributed.launch",), python=True),
    Launcher("torch.distributed.launcher", ("torch.distributed.launcher",), python=True),
    Launcher("accelerate", ("accelerate", "launch"), pet=False, flags=_ACCELERATE),
    Launcher("accelerate", ("accelerate-launch",), pet=False, flags=_ACCELERATE),
    Launcher("accelerate", ("accelerate.commands.launch",), python=True, pet=False, flags=_ACCELERATE),
    Launcher("deepspeed", ("deepspeed",), pet=False, flags=_DEEPSPEED),
    Launcher("deepspeed", ("deepspeed.launcher.runner",), python=True, pet=False, flags=_DEEPSPEED),
)

WRAPPERS: dict[str, tuple[str, ...]] = {
    # words that may stand before a command, and their options that take a value
    "exec": ("-a",),
    "env": ("-u", "-C", "-S"),
    "nohup": (),
    "time": (),
    "nice": ("-n",),
    "ionice": ("-c", "-n", "-p"),
    "taskset": (),
    "numactl": ("-N", "-m", "-C", "-i", "-l"),
    "stdbuf": ("-i", "-o", "-e"),
    "timeout": ("-s", "-k"),
    "setsid": (),
    "xvfb-run": (),
    "command": (),
}
ARGUMENT_FIRST = {"timeout", "taskset"}
"""Wrappers that take one plain argument before the command."""

# fmt: off
BUILTINS = frozenset(
    {
        ".", ":", "[", "[[", "alias", "bg", "break", "case", "cd", "command", "continue", "declare", "dirs", "echo", "esac", "eval", "exec",
        "exit", "export", "false", "fg", "fi", "for", "function", "getopts", "hash", "jobs", "kill", "let", "local", "mapfile", "popd", "printf",
        "pushd", "pwd", "read", "readonly", "return", "select", "set", "shift", "shopt", "source", "test", "time", "times", "trap", "true",
        "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait", "done", "in",
    }
)
# fmt: on
"""Words a shell knows itself."""

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python([0-9.]*)$")
_SEPARATORS = frozenset((";", "&&", "||", "|", "&", "(", ")", "{", "}", "\n", "if", "then", "else", "do", "while", "!"))
_RESTARTS = re.compile(r"--max[-_]restarts?(?:=(.*))?$")
_NPROC = re.compile(r"--nproc[-_]per[-_]node(?:=(.*))?$")


@dataclass(frozen=True, slots=True)
class Nested:
    """A launcher found in the command. `word` is the text of its last own word; `given` the words behind it."""

    name: str
    pet: bool
    flags: tuple[tuple[str, str], ...]
    head: tuple[str, ...]
    given: tuple[str, ...]
    max_restarts: str | None

    @property
    def warning(self) -> str | None:
        """E112, when the launcher would restart by itself."""
        if self.max_restarts in (None, "", "0"):
            return None
        return (
            f"E112 the command starts {self.name} --max-restarts={self.max_restarts}: two budgets would multiply. "
            f"Set it to 0, or drop {self.name} and use --nproc-per-node {_option(self.given, _NPROC) or 'N'}"
        )


def _simple_commands(text: str) -> list[list[str]]:
    """Words of every simple command of a shell text, in order. A text that cannot be parsed has none."""
    lexer = shlex.shlex(text.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word in _SEPARATORS or set(word) <= set(";&|()"):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:
        return []
    return [command for command in commands if command]


def _skip_wrappers(words: Sequence[str]) -> int:
    """Index of the command's own first word, behind assignments and wrappers."""
    at = 0
    while at < len(words):
        word = words[at].rpartition("/")[2]
        if _ASSIGNMENT.match(words[at]):
            at += 1
        elif word in WRAPPERS:
            valued, at = WRAPPERS[word], at + 1
            while at < len(words) and words[at].startswith("-"):
                at += 2 if words[at] in valued else 1
            if word in ARGUMENT_FIRST:
                at += 1
        else:
            return at
    return at


def _match(words: Sequence[str]) -> Nested | None:
    at = _skip_wrappers(words)
    rest = list(words[at:])
    if not rest:
        return None
    first = rest[0].rpartition("/")[2]
    module_at = None
    if _PYTHON.match(first):
        module_at = 1
        while module_at < len(rest) and rest[module_at].startswith("-") and rest[module_at] != "-m":
            module_at += 2 if rest[module_at] in ("-X", "-W") else 1
        if module_at + 1 >= len(rest) or rest[module_at] != "-m":
            return None
        rest, first = rest[module_at + 1 :], rest[module_at + 1]
    for launcher in LAUNCHERS:
        if launcher.python != (module_at is not None):
            continue
        if (first, *rest[1 : len(launcher.words)]) == launcher.words:
            given = tuple(rest[len(launcher.words) :])
            return Nested(launcher.name, launcher.pet, launcher.flags, tuple(rest[: len(launcher.words)]), given, _option(given, _RESTARTS))
    return None


def _option(words: Sequence[str], wanted: re.Pattern[str]) -> str | None:
    """Value of an option, None when it is not given."""
    for at, word in enumerate(words):
        if not word.startswith("-"):
            continue
        if (match := wanted.match(word)) is not None:
            return match.group(1) if match.group(1) is not None else (words[at + 1] if at + 1 < len(words) else "")
    return None


def shell_text(argv: Sequence[str]) -> str | None:
    """The text of `sh -c TEXT` (any usual shell, any flags with c), else None."""
    if len(argv) >= 3 and argv[0].rpartition("/")[2] in ("sh", "bash", "dash", "zsh", "ksh") and re.fullmatch(r"-[a-z]*c", argv[1]):
        return argv[2]
    return None


def detect(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Nested | None:
    """The nested launcher that `argv` starts, directly or as a simple command of `sh -c TEXT`; None when there is none."""
    text = shell_text(argv)
    commands = _simple_commands(text) if text is not None else [list(argv)]
    for words in commands:
        found = _match(words)
        if found is not None:
            restarts = found.max_restarts if found.max_restarts is not None else (environ or {}).get("PET_MAX_RESTARTS")
            return Nested(found.name, found.pet, found.flags, found.head, found.given, restarts)
    return None


def unknown_word(argv: Sequence[str], path: str) -> str:
    """The first command word of `argv` (or of its shell text) that neither a shell knows nor `path` holds; "" when there is none."""
    text = shell_text(argv)
    for words in _simple_commands(text) if text is not None else [list(argv)]:
        at = _skip_wrappers(words)
        word = words[at] if at < len(words) else ""
        if word and not set(word) & set("/$`*=~\"'") and word not in BUILTINS and shutil.which(word, path=path) is None:
            return word
    return ""


def _gave(given: Sequence[str], flag: str) -> bool:
    spellings = {flag, flag.replace("_", "-"), "--" + flag[2:].replace("-", "_")}
    return any(word.partition("=")[0] in spellings for word in given)


def with_flags(argv: Sequence[str], nested: Nested, values: Mapping[str, object]) -> list[str]:
    """`argv` with the flags that tell the launcher its world, put right behind its name. Unchanged when the launcher reads `PET_*`,
    when the user gave the flags, or when the place cannot be found for sure in a shell text."""
    added = [word for flag, template in nested.flags if not _gave(nested.given, flag) for word in (flag, template.format(**values))]
    if not added:
        return list(argv)
    text = shell_text(argv)
    if text is None:
        for at in range(len(argv) - len(nested.head) + 1):
            if tuple(argv[at : at + len(nested.head)]) == nested.head:
                end = at + len(nested.head)
                return [*argv[:end], *added, *argv[end:]]
        return list(argv)
    places = list(re.finditer(r"(?<![\w./-])" + r"\s+".join(re.escape(word) for word in nested.head) + r"(?![\w./-])", text))
    if len(places) != 1:
        return list(argv)
    end = places[0].end()
    return [*argv[:2], text[:end] + " " + shlex.join(added) + text[end:], *argv[3:]]
