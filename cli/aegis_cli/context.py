"""Which bus a command speaks to, and as whom. Owns `~/.config/aegis/contexts.yaml` (0600).

Order: `--context` · `AEGIS_CONTEXT` · `AEGIS_BUS_SERVERS` with `AEGIS_BUS_CREDS` · the context in use (`aegis context use`) · the stack of this user.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aegis_cli.errors import CliError
from aegis_cli.slurm.folder import CA, CREDS, Folder
from aegis_cli.stack import client, place


@dataclass(frozen=True)
class Target:
    """A bus and the credentials for it. `name` is what messages call it."""

    name: str
    servers: tuple[str, ...]
    creds: str = ""
    ca: str = ""
    namespace: str = ""
    stack: Path | None = None
    """Set when it is the stack of this user."""


def contexts_file(environ: Mapping[str, str] | None = None) -> Path:
    env = os.environ if environ is None else environ
    return Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config") / "aegis" / "contexts.yaml"


def load() -> tuple[dict[str, Target], str]:
    """All contexts, and the name of the one in use ("" = none)."""
    import yaml

    path = contexts_file()
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}, ""
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise CliError("E130", f"{path}: {' '.join(str(error).split())[:200]}") from None
    document = {} if document is None else document
    found = document.get("contexts") or {} if isinstance(document, dict) else None
    if not isinstance(found, dict):
        raise CliError("E130", f"{path}: expected a mapping with current and contexts (aegis context add writes it)")
    contexts = {}
    for name, body in found.items():
        try:
            if isinstance(body["servers"], str):
                raise TypeError("servers")
            contexts[str(name)] = Target(
                str(name), tuple(body["servers"]), str(body.get("creds", "")), str(body.get("ca", "")), str(body.get("namespace", ""))
            )
        except (KeyError, TypeError, AttributeError):
            raise CliError("E130", f'{path}: context "{name}" needs servers (a list), and may have creds, ca, namespace') from None
    return contexts, str(document.get("current") or "")


def store(contexts: Mapping[str, Target], current: str) -> None:
    """Write the file, whole or not at all."""
    import yaml

    path = contexts_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    body: dict[str, Any] = {"current": current, "contexts": {}}
    for name, target in sorted(contexts.items()):
        fields = {key: value for key, value in asdict(target).items() if value and key not in ("name", "stack")}
        body["contexts"][name] = {**fields, "servers": list(target.servers)}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts.")
    with os.fdopen(handle, "w") as file:
        yaml.safe_dump(body, file, sort_keys=False)
    os.replace(temporary, path)


def resolve(name: str = "", environ: Mapping[str, str] | None = None) -> Target | None:
    """The target by the order above; None when nothing is configured and no stack runs. E104 for a context that does not exist."""
    env = os.environ if environ is None else environ
    wanted = name or env.get("AEGIS_CONTEXT", "")
    if not wanted and env.get("AEGIS_BUS_SERVERS"):
        servers = tuple(part.strip() for part in env["AEGIS_BUS_SERVERS"].split(",") if part.strip())
        return Target("environment", servers, env.get("AEGIS_BUS_CREDS", ""), env.get("AEGIS_BUS_TLS_CA", ""))
    contexts, current = load()
    wanted = wanted or current
    if wanted:
        allocation = of_allocation(wanted) if wanted not in contexts else None
        if allocation is not None:
            return allocation
        if wanted not in contexts:
            known = ", ".join(sorted(contexts)) or "none"
            raise CliError(
                "E104", f'no context "{wanted}" in {contexts_file()} (known: {known})', hint="aegis context add NAME --server URL --creds FILE"
            )
        return contexts[wanted]
    base = place.base_dir()
    info = client.running(base)
    if info and info.get("state") == "up":
        return of_stack(base, info)
    return None


def of_allocation(name: str) -> Target | None:
    """The stack of a Slurm job that was submitted from this folder: context `slurm-48213`."""
    if not name.startswith("slurm-"):
        return None
    folder = Folder(Path.cwd() / ".aegis" / name)
    endpoint = folder.endpoint()
    return None if endpoint is None else Target(name, endpoint.servers, str(folder.path / CREDS), str(folder.path / CA))


def of_stack(base: Path, info: Mapping[str, Any]) -> Target:
    """The target that a running stack is."""
    return Target("stack", tuple(info["servers"]), str(info["creds"]), str(info.get("ca", "")), stack=base)
