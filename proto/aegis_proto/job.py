"""The job specification from outside: one file (YAML or JSON) for all platforms, and what is refused, with which words.

Owns: `parse` (text -> JobSpec), `validate` (JobSpec -> problems), the bounds. Reads and writes nothing. A problem names the field, the value,
what was expected and what to do; its code is one that `aegis explain` knows.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from aegis_proto.ids import is_id, nearest_id
from aegis_proto.state import JobSpec

MAX_WORKERS = 20_000
MAX_RETRY = 1_000_000
MAX_NPROC = 1_024
MAX_SPEC_BYTES = 48 * 1024
"""Encoded size of a specification: it must fit one message, and one slot of a node."""

RANGES: dict[str, tuple[float, float, str]] = {
    "workers": (1, MAX_WORKERS, ""),
    "nprocPerNode": (1, MAX_NPROC, ""),
    "maxRetry": (0, MAX_RETRY, ""),
    "spares": (0, MAX_WORKERS, ""),
    "maxUncounted": (1, 1_000, ""),
    "priority": (-1_000_000, 1_000_000, ""),
    "retryResetAfter": (0, 366 * 86400, " s"),
    "stopGrace": (0, 3600, " s"),
    "preemptGrace": (0, 86400, " s"),
    "hangTimeout": (1, 7 * 86400, " s"),
    "noProgressRuns": (0, 1_000, ""),
    "slowNodeWait": (1, 30 * 86400, " s"),
    "hangSilence": (0, 7 * 86400, " s"),
    "firstStepTimeout": (1, 7 * 86400, " s"),
    "placingTimeout": (1, 30 * 86400, " s"),
    "pendingTimeout": (1, 30 * 86400, " s"),
    "roundTimeout": (1, 86400, " s"),
}
"""field -> (lowest, highest, unit)."""

ALIASES = {"jobName": "name", "workerNum": "workers", "MaxRetry": "maxRetry"}
"""Names of the seed and of other job kinds -> ours."""

KUBERNETES_ONLY = ("template", "suspend", "cleanPodPolicy", "ttlSecondsAfterFinished")
"""Fields of an AegisJob that say how a cluster runs it: one file serves all platforms, the others pass these over."""
CLUSTER_LABEL = "aegis.train/cluster"
"""Label of a job that lives in a Kubernetes cluster: the cluster's id. No other platform, and no other cluster, places it."""

RISK = ("low", "normal", "high")
ACTIONS = ("observe", "advise", "act")
"""What may be done to nodes, strictest first."""
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LABEL = re.compile(r"[A-Za-z0-9._/ +:@-]{0,63}\Z")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|sec|m|min|h|d)?\Z")
_UNIT = {None: 1.0, "ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_FIELDS = tuple(field.name for field in msgspec.structs.fields(JobSpec))
_DURATIONS = tuple(name for name, (_, _, unit) in RANGES.items() if unit)


class Problem(msgspec.Struct, frozen=True):
    """One thing wrong with a specification. `message` begins with the code and reads as a whole."""

    code: str
    field: str
    message: str


class SpecError(ValueError):
    """A specification was refused; `problems` has all the reasons, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.message for problem in self.problems))


def duration(value: object, field: str = "duration") -> float:
    """Seconds of `600`, `"10min"`, `"1.5h"`; ValueError names the field and the forms."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _DURATION.match(str(value).strip())
    if match is None:
        raise ValueError(f'E117 {field} "{value}": write seconds, or a number with ms, s, min, h or d (10min)')
    return float(match[1]) * _UNIT[match[2]]


def validate(spec: JobSpec) -> list[Problem]:
    """Everything that is wrong with `spec`; empty when it may be submitted."""
    problems: list[Problem] = []

    def bad(code: str, field: str, text: str) -> None:
        problems.append(Problem(code, field, f"{code} {text}"))

    for what, value in (("job name", spec.name), ("namespace", spec.namespace)):
        if not is_id(value):
            bad("E110", what.split()[-1], f'{what} "{value}": use a-z, 0-9 and -, at most 40. Nearest: {nearest_id(value)}')
    for name, (low, high, unit) in RANGES.items():
        value = getattr(spec, name)
        if not math.isfinite(value) or not low <= value <= high:
            bad("E116", name, f"{name} {_number(value)}{unit} is out of range: {low} to {high}{unit}")
    if not spec.command or not spec.command[0].strip():
        bad("E116", "command", "command is empty: give the command line that one worker runs, for example: python train.py")
    if any("\0" in text for text in (*spec.command, spec.cwd, spec.checkpointDir, *spec.env, *spec.env.values())):
        bad("E116", "command", "command, cwd and env must not contain NUL characters")
    texts = (*spec.command, spec.cwd, spec.checkpointDir, *spec.env, *spec.env.values(), *spec.labels, *spec.labels.values())
    if broken := next((text for text in texts if not _is_utf8(text)), None):
        bad("E116", "command", f"{ascii(broken)[:80]} is not UTF-8: command, cwd, env and labels are texts")
    for key in spec.env:
        if _ENV.match(key) is None:
            bad("E116", "env", f'env "{key}": a variable name is letters, digits and _, not beginning with a digit')
        elif key.startswith("AEGIS_"):
            bad("E116", "env", f'env "{key}": names beginning with AEGIS_ are set by Aegis itself; choose another')
    if spec.riskTolerance not in RISK:
        bad("E116", "riskTolerance", f'riskTolerance "{spec.riskTolerance}": expected one of {", ".join(RISK)}')
    if spec.actions not in ACTIONS:
        bad("E116", "actions", f'actions "{spec.actions}": expected one of {", ".join(ACTIONS)}')
    for field in ("nodes", "exclude"):
        for node in getattr(spec, field):
            if not is_id(node):
                bad("E110", field, f'{field} "{node}": a node id is a-z, 0-9 and -, at most 40. Nearest: {nearest_id(node)}')
    low_port, high_port = spec.masterPortRange
    if not 1 <= low_port <= high_port <= 65535:
        bad("E116", "masterPortRange", f"masterPortRange {low_port}-{high_port} is out of range: two ports, 1 to 65535, low first")
    for field in ("gpuType", "cluster", "user", "family"):
        if _LABEL.match(getattr(spec, field)) is None:
            bad("E116", field, f'{field} "{getattr(spec, field)[:80]}": letters, digits and ._/ +:@-, at most 63')
    restarts = nested_restarts(spec.command, spec.env)
    if restarts:
        launcher, count = restarts
        bad(
            "E112",
            "command",
            f"the command starts {launcher} --max-restarts={count}: two budgets would multiply. "
            f"Set it to 0, or drop {launcher} and use --nproc-per-node {nested_nproc(spec.command) or max(1, spec.nprocPerNode)}",
        )
    if not problems and (size := len(msgspec.json.encode(spec))) > MAX_SPEC_BYTES:
        do = f"put large values into files the workers can read{_largest(spec.env)}"
        bad("E116", "env", f"the specification has {size} bytes, at most {MAX_SPEC_BYTES}: {do}")
    return problems


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _largest(env: Mapping[str, str]) -> str:
    """The variables that make a specification large, for its error message."""
    large = sorted(((len(value), key) for key, value in env.items() if len(value) > 1024), reverse=True)[:3]
    return f" (env: {', '.join(f'{key} {size}' for size, key in large)})" if large else ""


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"


LAUNCHERS = {
    ("torchrun",): "torchrun",
    ("-m", "torch.distributed.run"): "torchrun",
    ("-m", "torch.distributed.launch"): "torchrun",
    ("accelerate", "launch"): "accelerate",
    ("accelerate-launch",): "accelerate",
    ("-m", "accelerate.commands.launch"): "accelerate",
}
"""How a launcher that can restart workers by itself begins -> its name."""
PER_NODE = ("--nproc-per-node", "--nproc-per-machine")


def _launcher(command: Sequence[str]) -> tuple[str, list[str]]:
    """(name, the words behind it) of the launcher that the command starts, also out of `sh -c "..."`; ("", []) when it starts none."""
    words = list(command)
    if len(words) == 3 and words[0].rsplit("/", 1)[-1] in ("sh", "bash") and words[1].endswith("c"):
        try:
            words = shlex.split(words[2])
        except ValueError:
            return "", []
    for i in range(len(words)):
        for begin, name in LAUNCHERS.items():
            if (words[i].rsplit("/", 1)[-1], *words[i + 1 : i + len(begin)]) == begin:
                return name, words[i + len(begin) :]
    return "", []


def _option(words: Sequence[str], *names: str) -> str:
    """Value of an option, `--a-b=x`, `--a-b x` or `--a_b x`; "" when it is not given."""
    for i, word in enumerate(words):
        flag, sign, value = word.partition("=")
        if flag.replace("_", "-") in names:
            return value if sign else (words[i + 1] if i + 1 < len(words) else "")
    return ""


def nested_restarts(command: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """(launcher, n) when the command starts torchrun or accelerate with n > 0 restarts of its own: an option or, for torchrun, PET_MAX_RESTARTS."""
    launcher, words = _launcher(command)
    text = _option(words, "--max-restarts") or ((env or {}).get("PET_MAX_RESTARTS", "") if launcher == "torchrun" else "")
    return (launcher, int(text)) if launcher and text.isdecimal() and int(text) > 0 else None


def nested_nproc(command: Sequence[str]) -> str:
    """Processes per node that the launcher in the command is told to start: a number, `auto`, or "" when it is not told."""
    text = _option(_launcher(command)[1], *PER_NODE)
    return "auto" if text in ("auto", "gpu") else (text if text.isdecimal() else "")


def parse(text: str | bytes, namespace: str = "") -> JobSpec:
    """A job file -> JobSpec, validated; SpecError with every problem. `namespace` fills an absent one.

    Two forms: the AegisJob object (`apiVersion`, `kind`, `metadata.name`, `spec`) or its fields flat.
    """
    import yaml  # only who reads files needs it (every JSON document is YAML)

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError([Problem("E117", "", f"E117 the job file is not YAML or JSON: {' '.join(str(error).split())[:300]}")]) from None
    except RecursionError:
        raise SpecError([Problem("E117", "", "E117 the job file is nested too deeply")]) from None
    return from_mapping(document, namespace)


def from_mapping(document: object, namespace: str = "") -> JobSpec:
    """A decoded job file -> JobSpec, validated; SpecError with every problem."""
    if not isinstance(document, Mapping):
        what = "empty" if document is None else type(document).__name__
        raise SpecError([Problem("E117", "", f"E117 a job file is a mapping of fields, this is {what}")])
    flat = _flatten(document)
    problems: list[Problem] = []
    fields: dict[str, Any] = {}
    for key, value in flat.items():
        name = ALIASES.get(key, key)
        if name not in _FIELDS:
            near = difflib.get_close_matches(str(name), [*_FIELDS, *ALIASES], 1)
            hint = f" Did you mean {near[0]}?" if near else f" Fields: {', '.join(_FIELDS)}"
            problems.append(Problem("E117", str(key), f"E117 unknown field {key}.{hint}"))
            continue
        try:
            fields[name] = _value(name, value)
        except ValueError as error:
            problems.append(Problem("E117", name, str(error)))
    if not fields.get("name"):
        problems.append(Problem("E110", "name", "E110 the job has no name: set metadata.name (or name)"))
    if problems:
        raise SpecError(problems)
    if namespace and not fields.get("namespace"):
        fields["namespace"] = namespace
    try:
        spec = msgspec.convert(fields, JobSpec)
    except msgspec.ValidationError as error:
        raise SpecError([Problem("E117", "", f"E117 {error}")]) from None
    if problems := validate(spec):
        raise SpecError(problems)
    return spec


def _flatten(document: Mapping[Any, Any]) -> dict[str, Any]:
    """The AegisJob object as flat fields; a flat file as it is."""
    if "kind" not in document and "spec" not in document:
        return {str(key): value for key, value in document.items()}
    api, kind = str(document.get("apiVersion", "aegis/v1")), str(document.get("kind", "AegisJob"))
    if kind != "AegisJob" or not re.match(r"aegis[a-z0-9.-]*/v1\Z", api):
        raise SpecError([Problem("E117", "kind", f'E117 "{kind}" of "{api}": expected kind AegisJob of aegis/v1')])
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    if not isinstance(metadata, Mapping) or not isinstance(spec, Mapping):
        raise SpecError([Problem("E117", "spec", "E117 metadata and spec are mappings of fields")])
    flat = {str(key): value for key, value in spec.items() if key not in KUBERNETES_ONLY}
    if "command" not in flat and (words := template_command(spec.get("template"))):
        flat["command"] = words
    for key in ("name", "namespace", "labels"):
        if metadata.get(key) and key not in flat:
            flat[key] = metadata[key]
    return flat


def template_command(template: object) -> list[str]:
    """The command line of the first container of a pod template, [] where it leaves that to its image."""
    for key in ("spec", "containers"):
        template = template.get(key) if isinstance(template, Mapping) else None
    first = template[0] if isinstance(template, Sequence) and template and isinstance(template[0], Mapping) else {}
    words = [*(first.get("command") or ()), *(first.get("args") or ())] if first.get("command") else []
    return [str(word) for word in words]


def _value(name: str, value: Any) -> Any:
    """One field as its type wants it: commands as argv, durations as seconds, numbers in `env` as text."""
    if name == "command":
        if isinstance(value, str):
            return ("sh", "-c", value)
        if isinstance(value, Sequence):
            return tuple(str(word) for word in value)
        raise ValueError(f"E117 command: expected a text or a list of words, not {type(value).__name__}")
    if name in _DURATIONS:
        return duration(value, name)
    if name in ("env", "labels"):
        if not isinstance(value, Mapping):
            raise ValueError(f"E117 {name}: expected a mapping of names to texts, not {type(value).__name__}")
        return {str(key): ("true" if item is True else "false" if item is False else str(item)) for key, item in value.items()}
    return value
