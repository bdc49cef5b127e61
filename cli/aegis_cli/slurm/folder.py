"""The folder that all nodes of an allocation see: `<submit folder>/.aegis/slurm-<job>/`, 0700, files 0600. Owns its layout.

endpoint.json   where the stack of the present start is, and the credentials of each node: written by the first node
operator.creds, ca.pem   for commands on another machine: `aegis -c slurm-<job> ...` in the submit folder
job.json        the job, where `aegis job script` wrote the batch script: written by that
ledger.json     budget and avoided nodes over all starts: written by the first node (by the second when the first is lost)
end.json        how a start ended: all others end by it
notice          made by the batch script when the time limit comes near: the training is to save, and the job to run again
left-<task>     that task of the present start has nothing that runs any more
exit            the exit code of the last start, one number: for the batch script, whose srun tells that of the worst task
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from aegis_cli.errors import CliError
from aegis_cli.slurm.ledger import Ledger
from aegis_cli.slurm.step import Step

T = TypeVar("T")
CREDS, CA = "operator.creds", "ca.pem"
ENDPOINT = ("endpoint.json", CREDS, CA)


class Endpoint(msgspec.Struct, frozen=True):
    """The stack of one start. `nodes`: Slurm's name -> id; `creds`: id -> text of its credentials."""

    restart: int
    servers: tuple[str, ...]
    ca: str
    operator: str
    nodes: dict[str, str]
    creds: dict[str, str]
    owner: str
    virtual: tuple[str, ...] = ()
    """Nodes (Slurm's names) that share a machine with another one."""


class End(msgspec.Struct, frozen=True):
    """How the start number `restart` ended."""

    restart: int
    code: int
    why: str = ""


class Folder:
    """See the module. Everything is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, step: Step) -> Folder:
        return cls(Path(step.folder).absolute() / ".aegis" / step.name)

    def make(self) -> None:
        """E122 when it cannot be made, or belongs to somebody else."""
        try:
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            info = self.path.lstat()
        except OSError as error:
            raise CliError(
                "E122", f"cannot make {self.path}: {error.strerror}", hint="submit from a folder that all nodes see and you may write"
            ) from None
        if info.st_uid != os.getuid() or info.st_mode & 0o077 or self.path.is_symlink():
            raise CliError("E122", f"{self.path} is not yours alone: credentials would lie in it. Remove it")

    def _write(self, name: str, data: bytes) -> None:
        partial = self.path / f".{name}.{secrets.token_hex(4)}"
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path / name)

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def write_endpoint(self, endpoint: Endpoint) -> None:
        self._write(CREDS, endpoint.operator.encode())
        self._write(CA, endpoint.ca.encode())
        self._write("endpoint.json", msgspec.json.encode(endpoint))

    def endpoint(self, restart: int | None = None) -> Endpoint | None:
        """Of that start (None: of any)."""
        found = self._read("endpoint.json", Endpoint)
        return found if found is not None and restart in (None, found.restart) else None

    def forget_endpoint(self) -> None:
        for name in ENDPOINT:
            (self.path / name).unlink(missing_ok=True)

    def write_ledger(self, ledger: Ledger) -> None:
        self._write("ledger.json", msgspec.json.format(msgspec.json.encode(ledger), indent=1))

    def ledger(self) -> Ledger:
        """A ledger that cannot be read is an error: a job without its budget would run for ever. E122."""
        path = self.path / "ledger.json"
        if not path.exists():
            return Ledger()
        found = self._read("ledger.json", Ledger)
        if found is None:
            raise CliError("E122", f"{path} cannot be read: it holds the budget of this job. Remove it to begin with a full one")
        return found

    def begin(self) -> None:
        """What an earlier start left behind tells nothing of this one. By the first node, before anybody else can be here."""
        self.forget_endpoint()
        for path in (self.path / "notice", self.path / "exit", *self.path.glob("left-*")):
            path.unlink(missing_ok=True)

    @property
    def noticed(self) -> bool:
        return (self.path / "notice").exists()

    def write_left(self, task: int) -> None:
        self._write(f"left-{task}", b"")

    def forget_left(self, task: int) -> None:
        (self.path / f"left-{task}").unlink(missing_ok=True)

    def left(self) -> int:
        """How many tasks have nothing that runs any more."""
        return len(list(self.path.glob("left-*")))

    def write_end(self, end: End) -> None:
        self._write("exit", f"{end.code}\n".encode())
        self._write("end.json", msgspec.json.encode(end))

    def end(self, restart: int) -> End | None:
        found = self._read("end.json", End)
        return found if found is not None and found.restart == restart else None
