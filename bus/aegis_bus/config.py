"""Configuration: read once, validated, and every value knows where it came from.

flag > environment > `--config`/AEGIS_CONFIG > ./aegis.toml > ~/.config/aegis/aegis.toml > /etc/aegis/aegis.toml > default.
Errors are E130 and name file and line, or the variable, and the nearest key. The settings themselves are data: `settings.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from aegis_bus.settings import (
    SECTIONS,
    UNTRUSTED_MAY_NOT_SET,
    ActionsSettings,
    BusSettings,
    CheckpointSettings,
    CredentialsSettings,
    HangSettings,
    JobControllerSettings,
    JobSettings,
    LemonSettings,
    LognexusSettings,
    LogsSettings,
    MasterSettings,
    NetmonSettings,
    NotifySettings,
    ServiceSettings,
    SlurmSettings,
    masked,
)

SYSTEM_FILE = Path("/etc/aegis/aegis.toml")
_UNITS = {"ms": 0.001, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\Z")


class ConfigError(ValueError):
    """E130. The message names where, what, what was expected and the nearest key."""

    code = "E130"


@dataclass(frozen=True)
class Config:
    """All settings. `origins` maps "job.maxRetry" to where its value came from ("default", "aegis.toml:12", "AEGIS_JOB_MAX_RETRY", "flag")."""

    bus: BusSettings = field(default_factory=BusSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    master: MasterSettings = field(default_factory=MasterSettings)
    credentials: CredentialsSettings = field(default_factory=CredentialsSettings)
    jobcontroller: JobControllerSettings = field(default_factory=JobControllerSettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    lognexus: LognexusSettings = field(default_factory=LognexusSettings)
    netmon: NetmonSettings = field(default_factory=NetmonSettings)
    lemon: LemonSettings = field(default_factory=LemonSettings)
    job: JobSettings = field(default_factory=JobSettings)
    hang: HangSettings = field(default_factory=HangSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    actions: ActionsSettings = field(default_factory=ActionsSettings)
    logs: LogsSettings = field(default_factory=LogsSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def origin(self, key: str) -> str:
        return self.origins.get(key, "default")

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(key, value, origin) of every setting, for `aegis config show --origin`. Secrets are masked."""
        for key, (section, name, item) in KEYS.items():
            yield key, masked(getattr(getattr(self, section), name), whole="secret" in item.metadata), self.origin(key)


def camel(name: str) -> str:
    """`max_retry` -> `maxRetry`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


KEYS: dict[str, tuple[str, str, dataclasses.Field[Any]]] = {
    f"{section}.{camel(item.name)}": (section, item.name, item) for section, kind in SECTIONS.items() for item in dataclasses.fields(kind)
}
"""Key in the file -> (section, field name, field)."""
VARIABLES: dict[str, str] = {f"AEGIS_{section.upper()}_{name.upper()}": key for key, (section, name, _) in KEYS.items()}
"""Environment variable -> key."""


def parse_duration(value: object) -> float:
    """Seconds of 600, "600", "10min", "500ms", "2 h", "7d". ValueError on anything else, negative numbers included."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    match = _DURATION.match(value.strip().lower()) if isinstance(value, str) else None
    if match is None or (match[2] and match[2] not in _UNITS):
        raise ValueError("a duration such as 10min, 90s, 24h or a number of seconds")
    return float(match[1]) * _UNITS.get(match[2], 1)


def _parse(item: dataclasses.Field[Any], hint: object, value: object) -> Any:
    """The value of a field; ValueError says what was expected."""
    kind = item.metadata.get("kind")
    text = value.strip() if isinstance(value, str) else None
    if kind == "duration":
        return parse_duration(value)
    if kind == "share":
        number = float(text.rstrip("%")) / (100 if text.endswith("%") else 1) if text is not None and re.match(r"[\d.]+\s*%?\Z", text) else value
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 1:
            return float(number)
        raise ValueError("a share from 0 to 1, or 0% to 100%")
    if kind == "number":
        number = float(text) if text is not None and re.match(r"\d+(\.\d*)?\Z", text) else value
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf:
            return float(number)
        raise ValueError("a number of at least 0")
    if kind == "choice":
        if text in item.metadata["options"]:
            return text
        raise ValueError("one of " + ", ".join(item.metadata["options"]))
    if hint is bool:
        known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
        if isinstance(value, bool):
            return value
        if text is not None and text.lower() in known:
            return known[text.lower()]
        raise ValueError("true or false")
    if hint is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if text is not None and re.match(r"-?\d+\Z", text):
            return int(text)
        raise ValueError("a whole number")
    if hint == tuple[str, ...]:
        if text is not None:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return tuple(value)
        raise ValueError("a list of texts")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("a text")
    return str(value)


_HINTS = {section: get_type_hints(kind) for section, kind in SECTIONS.items()}


def parse_value(key: str, value: object, where: str) -> Any:
    """The typed value of `key`, or E130 that names `where` it came from."""
    section, name, item = KEYS[key]
    try:
        return _parse(item, _HINTS[section][name], value)
    except ValueError as error:
        raise ConfigError(f"E130 {where}: {key} = {_show(value)}: expected {error}") from None


def _show(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _nearest(word: str, known: Mapping[str, object] | list[str], cutoff: float = 0.6) -> str:
    close = difflib.get_close_matches(word.lower(), [key.lower() for key in known], n=1, cutoff=cutoff)
    return next((key for key in known if close and key.lower() == close[0]), "")


def _unknown(key: str, value: object, where: str) -> ConfigError:
    nearest = _nearest(key, KEYS) or _nearest(key.rpartition(".")[2], {k.rpartition(".")[2]: k for k in KEYS})
    nearest = nearest if nearest in KEYS else next((k for k in KEYS if nearest and k.endswith("." + nearest)), "")
    message = f"E130 {where}: unknown key {key}."
    if nearest:
        message += f" Did you mean {nearest}?"
        try:
            parsed = _parse(KEYS[nearest][2], _HINTS[KEYS[nearest][0]][KEYS[nearest][1]], value)
            unit = " s" if KEYS[nearest][2].metadata.get("kind") == "duration" else ""
            message += f" (value {_show(value)} would be read as {parsed:.10g}{unit})" if unit else ""
        except ValueError:
            pass
    else:
        message += " See aegis config show"
    return ConfigError(message)


def _line_of(text: str, section: str, key: str = "") -> int:
    """Line of `[section]`, or of `key` in it; 0 when it is written in some other form."""
    current, found = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if match := re.match(r"\[\s*\"?([\w.-]+)\"?\s*\]", stripped):
            current = match[1]
            if current == section and not found:
                found = number
                if not key:
                    return number
        elif re.match(rf"(?:\"?{re.escape(section)}\"?\s*\.\s*)?\"?{re.escape(key)}\"?\s*=", stripped) and key:
            if current == section or stripped.replace('"', "").startswith(f"{section}."):
                return number
        elif not current and re.match(rf"\"?{re.escape(section)}\"?\s*[.=]", stripped):
            found = found or number
    return found


def _read_file(path: Path, shown: str, trusted: bool) -> Iterator[tuple[str, Any, str]]:
    """(key, value, origin) of one file."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"E130 {shown}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"E130 {shown}: not TOML: {error}") from None
    for section, table in tree.items():
        where = f"{shown}:{_line_of(text, section)}"
        if section not in SECTIONS:
            nearest = _nearest(section, SECTIONS)
            hint = f" Did you mean [{nearest}]?" if nearest else f" Known: {', '.join(SECTIONS)}"
            raise ConfigError(f"E130 {where}: unknown section [{section}].{hint}")
        if not isinstance(table, dict):
            raise ConfigError(f"E130 {where}: [{section}] is a section, not a value")
        if not trusted and table and section in UNTRUSTED_MAY_NOT_SET:
            raise ConfigError(
                f"E130 {where}: [{section}] may not be set by the file of the working folder (a cloned folder is not trusted). "
                "Put it into ~/.config/aegis/aegis.toml, or name the file with --config"
            )
        for name, value in table.items():
            key, where = f"{section}.{name}", f"{shown}:{_line_of(text, section, name)}"
            if key not in KEYS:
                raise _unknown(key, value, where)
            yield key, parse_value(key, value, where), where


def _read_environment(env: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """Known variables; one that looks like a known one misspelt is an error, any other AEGIS_ variable is somebody else's."""
    for variable in sorted(env):
        if variable in VARIABLES:
            key = VARIABLES[variable]
            yield key, parse_value(key, env[variable], variable), variable
        elif variable.startswith("AEGIS_") and variable.split("_")[1].lower() in SECTIONS and (nearest := _nearest(variable, VARIABLES, cutoff=0.88)):
            raise ConfigError(f"E130 environment: unknown variable {variable}. Did you mean {nearest}?")


def load(
    flags: Mapping[str, object] | None = None,
    *,
    config_file: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    home: Path | None = None,
    system_file: Path = SYSTEM_FILE,
) -> Config:
    """The configuration of this process. `flags`: {"job.maxRetry": 5} from the command line (None values are skipped). ConfigError (E130)."""
    env = os.environ if env is None else env
    if cwd is None:
        try:
            cwd = Path.cwd()
        except FileNotFoundError:  # removed under us: no file is found there
            cwd = Path("/nonexistent")
    home = Path(env.get("HOME", "/nonexistent")) if home is None else home
    named = config_file or env.get("AEGIS_CONFIG") or None
    files: list[tuple[Path, str, bool]] = [
        (system_file, str(system_file), True),
        (home / ".config" / "aegis" / "aegis.toml", "~/.config/aegis/aegis.toml", True),
        (cwd / "aegis.toml", "aegis.toml", False),
    ]
    if named:
        if not Path(cwd / named).exists():
            raise ConfigError(f"E130 {'--config' if config_file else 'AEGIS_CONFIG'}: there is no file {named}")
        files.append((Path(cwd / named), named, True))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for path, shown, trusted in files:
        if path.exists():
            for key, value, where in _read_file(path, shown, trusted):
                values[key], origins[key] = value, where
    for key, value, where in _read_environment(env):
        values[key], origins[key] = value, where
    for key, raw in (flags or {}).items():
        if raw is not None:
            if key not in KEYS:
                raise _unknown(key, raw, "flag")
            values[key], origins[key] = parse_value(key, raw, "flag"), "flag"
    sections: dict[str, Any] = {}
    for section, kind in SECTIONS.items():
        mine = {KEYS[key][1]: value for key, value in values.items() if KEYS[key][0] == section}
        sections[section] = kind(**mine)
    return Config(**sections, origins=origins)
