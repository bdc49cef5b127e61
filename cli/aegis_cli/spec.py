"""From the options of `run` and `job submit` to a job specification, or the error that says what is wrong with them."""

from __future__ import annotations

import getpass
import glob
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aegis_bus.config import Config
from aegis_proto import job
from aegis_proto.ids import nearest_id
from aegis_proto.state import JobSpec

from aegis_cli.errors import CliError, from_text

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
NOT_PASSED = re.compile(
    r"AEGIS_.*|_|SHLVL|OLDPWD|PWD|BASH_FUNC.*|LS_COLORS|SSH_.*|SLURM_.*|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PET_.*|TORCHELASTIC_.*"
)
"""What of the caller's environment a local job does not get: it describes this shell, or another launcher's ranks."""


@dataclass(frozen=True)
class Wishes:
    """Options of `run` and `job submit`; None = not given."""

    command: tuple[str, ...] = ()
    file: Path | None = None
    name: str | None = None
    workers: int | None = None
    nproc: str | None = None
    max_retry: int | None = None
    spares: int | None = None
    env: tuple[str, ...] = ()
    checkpoint_dir: str | None = None
    stop_grace: str | None = None
    warm: bool | None = None


def gpus() -> int:
    """GPUs of this machine, by their device files (no driver call)."""
    return len([path for path in glob.glob("/dev/nvidia[0-9]*") if path[len("/dev/nvidia") :].isdigit()])


FROM_CONFIG = {
    "job.maxRetry": "maxRetry",
    "job.retryResetAfter": "retryResetAfter",
    "job.spares": "spares",
    "job.nprocPerNode": "nprocPerNode",
    "job.stopGrace": "stopGrace",
    "job.preemptGrace": "preemptGrace",
    "job.placingTimeout": "placingTimeout",
    "job.pendingTimeout": "pendingTimeout",
    "job.roundTimeout": "roundTimeout",
    "hang.timeout": "hangTimeout",
    "hang.firstStep": "firstStepTimeout",
    "hang.silence": "hangSilence",
    "job.noProgressRuns": "noProgressRuns",
    "checkpoint.dir": "checkpointDir",
    "checkpoint.waitForSlowNode": "slowNodeWait",
}
"""Setting -> field of a job that it is the default of."""


def defaults(config: Config) -> dict[str, object]:
    """Fields of a job that the configuration sets (not its own defaults: those are the specification's too)."""
    found: dict[str, object] = {}
    for key, value, origin in config.rows():
        if key in FROM_CONFIG and origin != "default" and not (key == "checkpoint.dir" and value == "auto"):
            found[FROM_CONFIG[key]] = _nproc(str(value)) if key == "job.nprocPerNode" else value
    return found


def build(wishes: Wishes, namespace: str, environ: Mapping[str, str] | None = None, configured: Mapping[str, object] | None = None) -> JobSpec:
    """The specification: options win over the file, the file over the configuration. `environ`: pass this environment on (a job on this machine);
    None = only --env.

    Raises: CliError E107 (usage), E110, E112, E116, E117.
    """
    if wishes.file is None and not wishes.command:
        raise CliError("E107", "no command: aegis run -- python train.py, or aegis run -f job.yaml", exit=2)
    if wishes.file is not None and wishes.command:
        raise CliError("E107", "both a job file and a command: give one of them", exit=2)
    if wishes.file is not None:
        base, named = _from_file(wishes.file, namespace)
    else:
        base, named = JobSpec(name="", command=wishes.command, namespace=namespace), set()
    changes: dict[str, object] = {field: value for field, value in (configured or {}).items() if field not in named}
    if wishes.name is not None:
        changes["name"] = wishes.name
    elif not base.name:
        changes["name"] = default_name(wishes.command)
    for field, value in (
        ("workers", wishes.workers),
        ("maxRetry", wishes.max_retry),
        ("spares", wishes.spares),
        ("checkpointDir", wishes.checkpoint_dir),
        ("warm", wishes.warm),
    ):
        if value is not None:
            changes[field] = value
    if wishes.nproc is not None:
        changes["nprocPerNode"] = _nproc(wishes.nproc)
    if wishes.stop_grace is not None:
        try:
            changes["stopGrace"] = job.duration(wishes.stop_grace, "--grace")
        except ValueError as error:
            raise CliError("E116", str(error).removeprefix("E117 ")) from None
    # What is no text (bytes of another encoding) cannot travel: the training runs without it, as without other launchers' ranks.
    passed = {key: value for key, value in (environ or {}).items() if _ENV.match(key) and not NOT_PASSED.fullmatch(key) and _is_text(value)}
    changes["env"] = {**passed, **base.env, **_pairs(wishes.env)}
    if not base.cwd:
        try:
            changes["cwd"] = os.getcwd()
        except FileNotFoundError:
            raise CliError("E116", "the working directory is gone: cd to one that exists, or name cwd in a job file") from None
    if not base.user:
        changes["user"] = user()
    spec = msgspec.structs.replace(base, **changes)
    problems = job.validate(spec)
    if problems:
        first = problems[0]
        text = "\n".join(problem.message if i else problem.message.removeprefix(f"{first.code} ") for i, problem in enumerate(problems))
        raise CliError(first.code, text, field=first.field)
    return spec


def _from_file(path: Path, namespace: str) -> tuple[JobSpec, set[str]]:
    """The specification in a job file, and the fields it names."""
    import yaml

    try:
        text = path.read_text() if str(path) != "-" else sys.stdin.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError("E117", f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        found = job.parse(text, namespace)
    except job.SpecError as error:
        raise from_text(f"{error.problems[0].code} {path}: {str(error).removeprefix(error.problems[0].code + ' ')}", "E117") from None
    document = yaml.safe_load(text)
    flat = {**document, **(document.get("spec") or {})}
    return found, {job.ALIASES.get(str(key), str(key)) for key in flat}


def _is_text(value: str) -> bool:
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def default_name(command: Sequence[str]) -> str:
    """The script's name, else the program's: `python train.py` is `train`."""
    for word in command:
        if word.endswith((".py", ".sh")):
            return nearest_id(Path(word).stem)[:32]
    return nearest_id(Path(command[0]).name if command else "job")[:32]


def _nproc(text: str) -> int:
    if text == "auto":
        return max(gpus(), 1)
    if not re.fullmatch(r"-?\d+", text):
        raise CliError("E116", f'--nproc-per-node "{text}": a number, or auto (one per GPU)')
    return int(text)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign:
            value = os.environ.get(key, "")
        pairs[key] = value
    return pairs


def user() -> str:
    """Name of who calls, as a job may carry it; the number of one without a name (a uid that only a container knows)."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
    return re.sub(r"[^A-Za-z0-9._/ +:@-]", "-", name)[:63]
