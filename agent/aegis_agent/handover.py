"""What passes between whoever starts a worker (the node daemon, a pod, a person) and the worker: the task in, status and end out.

Reads the task from a file, from stdin or from the environment; writes `status.json` and `exit.json` in the state directory, and the
termination file of the platform where one is named. Every write is whole: a temporary file, then a rename.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from aegis_proto.ids import node_id
from aegis_proto.state import JobSpec

EXIT_FILE = "exit.json"
STATUS_FILE = "status.json"
CONTROL_SOCKET = "control.sock"
LOG_DIR = "logs"
FLIGHT_DIR = "flight"

REQUEUE = 75
"""Exit code: infrastructure; starting the worker again (a new attempt) may help."""
LEAVE = 1
"""Exit code of a worker that was told to leave. Alone it accuses nobody."""
CANNOT_RUN, NOT_FOUND = 126, 127
"""Exit codes of a command that could not be started: the user's, not counted, not retried."""


class WorkerTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything a worker needs to know. `job == ""`: nobody manages it, the command runs as it is.

    `token` is the join token of exactly (uid, pod, attempt); `credentials` is host:port of the gRPC service, `tlsCa` a path;
    `plainAddr`/`plainPort` are what the platform alone can say about w0; `index` is only for a task without a job.
    """

    spec: JobSpec
    job: str = ""
    uid: str = ""
    namespace: str = "default"
    pod: str = "w0"
    attempt: int = 1
    workers: int = 1
    token: str = ""
    credentials: str = ""
    tlsCa: str = ""
    plainAddr: str = ""
    plainPort: int = 0
    node: str = ""
    address: str = ""  # where the other workers reach this one; "" = found by the route to the bus
    stateDir: str = ""
    terminationFile: str = ""
    servers: tuple[str, ...] = ()  # a bus that asks for no credentials (tests, benches): no enrolment
    raw: bool = False  # output of the command as it is, without a prefix
    stamp: bool = False  # the prefix of each line carries its time: logs of several workers are read as one
    baseline: str = ""  # file of what this node's links could do (deep.baseline); "" = nobody keeps it
    tokenFile: str = ""  # read at every try where there is no `token`: the platform may write it late


class Exit(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last word of a worker. `code` is what the process leaves with; `signal` what ended the command, if one did."""

    code: int
    signal: int = 0
    reason: str = ""  # phases.LostReason, or finished, ordered, superseded ...
    at: int = 0  # ms since 1970
    plain: bool = False
    message: str = ""
    uid: str = ""
    pod: str = ""
    attempt: int = 0
    incarnation: int = -1
    clean: bool = True  # every process of the command is verified gone
    childCode: int | None = None


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker is doing now, for its node daemon and for `aegis-agent ctl status`. Rewritten on every change."""

    pid: int
    boot: str
    uid: str = ""
    pod: str = ""
    attempt: int = 0
    plain: bool = False
    managed: bool = False  # it was connected to the bus at least once
    connected: bool = False
    running: bool = False
    incarnation: int = 0
    seqNum: int = 0
    phase: str = ""
    step: int = -1
    why: str = ""  # why it is plain, or not connected
    at: int = 0  # ms since 1970


class BadTask(ValueError):
    """The task cannot be read; the message names the field."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read_task(source: str) -> WorkerTask:
    """The task in file `source`, or on stdin for `-`. The file is removed: it carries a token."""
    if source == "-":
        data = sys.stdin.buffer.read()
    else:
        data = Path(source).read_bytes()
        Path(source).unlink(missing_ok=True)
    try:
        return msgspec.json.decode(data, type=WorkerTask)
    except msgspec.MsgspecError as error:
        raise BadTask(f"task {source}: {error}") from None


def task_from_environment(spec: JobSpec, environ: dict[str, str]) -> WorkerTask:
    """The task of a worker that is the entry point of a container: `AEGIS_JOB`, `AEGIS_UID`, `AEGIS_POD`, `AEGIS_ATTEMPT`, `AEGIS_WORKERS`,
    `AEGIS_NAMESPACE`, `AEGIS_JOIN_TOKEN` (or `AEGIS_JOIN_TOKEN_FILE`), `AEGIS_CREDENTIALS`, `AEGIS_TLS_CA`, `AEGIS_PLAIN_ADDR`, `AEGIS_PLAIN_PORT`,
    `AEGIS_NODE`, `AEGIS_AGENT_ADDRESS`, `AEGIS_AGENT_STATE`, `AEGIS_TERMINATION_FILE`. Without `AEGIS_JOB`: nobody manages it."""

    def number(name: str, default: int) -> int:
        text = environ.get(name, "")
        try:
            return int(text) if text else default
        except ValueError:
            raise BadTask(f"E130 {name}={text!r}: a whole number is needed") from None

    token = environ.get("AEGIS_JOIN_TOKEN", "")
    token_file = environ.get("AEGIS_JOIN_TOKEN_FILE", "")
    if not token and token_file:
        token = read_token(token_file)
        if not token:
            sys.stderr.write(f"aegis-agent: AEGIS_JOIN_TOKEN_FILE={token_file}: no token there yet; it is looked for again\n")
    return WorkerTask(
        spec=spec,
        job=environ.get("AEGIS_JOB", ""),
        uid=environ.get("AEGIS_UID", ""),
        namespace=environ.get("AEGIS_NAMESPACE", "default"),
        pod=environ.get("AEGIS_POD", "w0"),
        attempt=number("AEGIS_ATTEMPT", 1),
        workers=number("AEGIS_WORKERS", spec.workers),
        token=token,
        tokenFile=token_file,
        credentials=environ.get("AEGIS_CREDENTIALS", ""),
        tlsCa=environ.get("AEGIS_TLS_CA", ""),
        plainAddr=environ.get("AEGIS_PLAIN_ADDR", ""),
        plainPort=number("AEGIS_PLAIN_PORT", 0),
        node=node_id(environ["AEGIS_NODE"]) if environ.get("AEGIS_NODE") else "",
        address=environ.get("AEGIS_AGENT_ADDRESS", ""),
        stateDir=environ.get("AEGIS_AGENT_STATE", ""),
        terminationFile=environ.get("AEGIS_TERMINATION_FILE", ""),
        raw=environ.get("AEGIS_AGENT_RAW", "") == "1",
    )


def read_token(path: str) -> str:
    """The join token in a file, "" while there is none."""
    try:
        return Path(path).read_text().strip() if path else ""
    except (OSError, UnicodeDecodeError):
        return ""


def write_whole(path: Path, data: bytes) -> None:
    """Replace `path` in one step. Where its directory cannot be written (a mounted single file), write in place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        path.write_bytes(data)


def write_status(state_dir: Path, status: Status) -> None:
    write_whole(state_dir / STATUS_FILE, msgspec.json.encode(status))


def write_exit(state_dir: Path | None, termination_file: str, last: Exit) -> None:
    """The end, in `exit.json` and in the platform's termination file (Kubernetes shows 4,096 bytes of it). Never raises."""
    data = msgspec.json.encode(last)
    targets = ([state_dir / EXIT_FILE] if state_dir else []) + ([Path(termination_file)] if termination_file else [])
    for path in targets:
        try:
            write_whole(path, data)
        except OSError as error:
            sys.stderr.write(f"aegis-agent: cannot write {path}: {error.strerror}\n")


def read_exit(state_dir: Path) -> Exit | None:
    """The end of the worker that used `state_dir`, or None while there is none."""
    try:
        return msgspec.json.decode((state_dir / EXIT_FILE).read_bytes(), type=Exit)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None


def read_status(state_dir: Path) -> Status | None:
    try:
        return msgspec.json.decode((state_dir / STATUS_FILE).read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
