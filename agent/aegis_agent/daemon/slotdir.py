"""The directory of one slot, `<state>/slots/<i>/`: what the daemon must still know after it was killed, and what people read afterwards.

Owns   `record.json` (this daemon's memory of the slot), `slot.json` (0600: the agent's task, with its join token), `agent.log` and its rotations;
       `logs/` is written by the agent (`<incarnation>/rank<r>.log`), and moved to `logs.1` when another worker comes.
       `held.json` (0600) is what the daemon tells when the store has lost the record of a slot: the job, its specification and its deed.
Reads  `status.json` and `exit.json`, written by the agent. All files are replaced by rename, so that a reader never sees half of one.
"""

from __future__ import annotations

import os
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from aegis_proto.messages import Held, Slot, SlotStatus

from aegis_agent.handover import EXIT_FILE, LOG_DIR, STATUS_FILE

LOG_BYTES = 16 << 20
"""Size at which agent.log is rotated."""
LOG_FILES = 3
HELD_FILE = "held.json"
HOLDER_FILE = "logs-of"
"""Whose logs lie in `logs/`."""
LAST_WORD = 600
"""Bytes of an agent's last word that are passed on: a status is one message of at most 32 KB for all (at most 32) slots."""
MESSAGE = 200
WORD_BYTES = 1 << 16


class Stage(StrEnum):
    STARTING = "starting"  # intent on disk; a process may or may not exist
    RUNNING = "running"
    GONE = "gone"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a slot holds or held last. `pid` and `start` name the agent's process within `bootId`."""

    job: str
    uid: str
    pod: str
    attempt: int
    stage: Stage = Stage.STARTING
    pid: int = 0
    start: int = 0
    bootId: str = ""
    at: int = 0  # ms: start, then end
    since: int = 0  # ms by the server's clock: when the slot that asked for it was stored
    seq: int = 0  # as what number of the stream
    grace: float = 20.0  # seconds between SIGTERM and SIGKILL when the slot says stop
    exitCode: int | None = None
    signal: int = 0
    plain: bool = False
    lastWord: str = ""
    clean: bool = True
    message: str = ""
    notStarted: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.uid, self.pod, self.attempt)

    @property
    def prefix(self) -> str:
        """Begin of every scope of this attempt."""
        return f"{self.uid}.{self.pod}.{self.attempt}."


class Word(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the daemon needs of `handover.Exit` and `handover.Status`; `text` is the file as it was, `last` says that it was the exit file."""

    uid: str = ""
    pod: str = ""
    attempt: int = 0
    code: int | None = None
    signal: int = 0
    plain: bool = False
    message: str = ""
    text: str = ""
    last: bool = False


def slot_key(slot: Slot) -> tuple[str, str, int]:
    """The key (uid, pod, attempt) a slot asks for; ("", "", 0) when it is to be empty."""
    return (slot.uid, slot.pod, slot.attempt) if slot.job else ("", "", 0)


class SlotDir:
    """Files of slot `name` under `state` (0700)."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self.path = (state / "slots" / name).resolve()
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def slot_file(self) -> Path:
        return self.path / "slot.json"

    @property
    def log(self) -> Path:
        return self.path / "agent.log"

    def write(self, name: str, data: bytes) -> None:
        """Replace a file, mode 0600."""
        target = self.path / name
        temporary = target.with_name(f".{name}.new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        temporary.replace(target)

    def load(self) -> Record | None:
        """The record, None when there is none. A file that is not ours (version, damage) counts as none: the sweep before a start cleans up."""
        try:
            return msgspec.json.decode((self.path / "record.json").read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def forget(self) -> None:
        (self.path / "record.json").unlink(missing_ok=True)

    def hold(self, slot: Slot) -> None:
        """Keep what the slot says of its job, without the token; forget it when the slot holds nobody any more, or nobody for long."""
        if slot.job and not slot.stop and slot.deed:
            held = Held(slot.job, slot.uid, slot.namespace, slot.pod, slot.attempt, slot.workers, slot.era, slot.deed, slot.spec)
            self.write(HELD_FILE, msgspec.json.encode(held))
        else:
            (self.path / HELD_FILE).unlink(missing_ok=True)

    def held(self, record: Record) -> Held | None:
        """What was kept of the very worker of `record`."""
        try:
            held = msgspec.json.decode((self.path / HELD_FILE).read_bytes(), type=Held)
        except (FileNotFoundError, msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return held if (held.uid, held.pod, held.attempt) == record.key else None

    def save(self, record: Record) -> Record:
        self.write("record.json", msgspec.json.encode(record))
        return record

    def prepare(self, task: bytes, holder: str) -> None:
        """Ready for a new agent: its order, a fresh log, the last word of the one before moved aside; and the logs of its ranks, when they are of
        another worker than `holder` (job and place): all attempts of one worker share a folder, by incarnation."""
        for name in (EXIT_FILE, STATUS_FILE):
            if (self.path / name).exists():
                (self.path / name).replace(self.path / f"previous-{name}")
        if self.log.exists() and self.log.stat().st_size:
            self._shift("agent.log")
            self.log.rename(self.path / "agent.log.1")
        if self._holder() != holder:
            self._shift(LOG_DIR)
            if (self.path / LOG_DIR).exists():
                (self.path / LOG_DIR).rename(self.path / f"{LOG_DIR}.1")
            self.write(HOLDER_FILE, holder.encode())
        self.write("slot.json", task)

    def _holder(self) -> str:
        try:
            return (self.path / HOLDER_FILE).read_text()
        except OSError:
            return ""

    def _shift(self, name: str) -> None:
        """Make room for a new `<name>.1`; of LOG_FILES the oldest goes. Nothing is shifted while there is nothing to put there."""
        if not (self.path / name).exists():
            return
        shutil.rmtree(self.path / f"{name}.{LOG_FILES}", ignore_errors=True)
        for n in range(LOG_FILES - 1, 0, -1):
            old = self.path / f"{name}.{n}"
            if old.exists():
                old.replace(self.path / f"{name}.{n + 1}")

    def open_log(self) -> int:
        """File descriptor for an agent's stdout and stderr. Append mode, so that rotation by truncating works while the agent holds it."""
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def rotate_log(self) -> bool:
        """Copy and truncate a log that grew too large (the agent keeps its descriptor over the death of this daemon, so it cannot be renamed)."""
        try:
            if self.log.stat().st_size < LOG_BYTES:
                return False
        except FileNotFoundError:
            return False
        self._shift("agent.log")
        with self.log.open("rb+") as source, (self.path / "agent.log.1").open("wb") as copy:
            while block := source.read(1 << 20):
                copy.write(block)
            source.truncate(0)
        return True

    def status_changed(self) -> float:
        """Time at which the agent last wrote its status, 0.0 before it did."""
        try:
            return (self.path / STATUS_FILE).stat().st_mtime
        except OSError:
            return 0.0

    def word(self, record: Record) -> Word:
        """What the agent of this record said: `exit.json`, else `status.json`. Nothing, when the file is of another attempt or not readable."""
        for name in (EXIT_FILE, STATUS_FILE):
            word = self._word(name)
            if word.text and (not word.uid or (word.uid, word.pod, word.attempt) == record.key):
                return word
        return Word()

    def _word(self, name: str) -> Word:
        try:
            with (self.path / name).open("rb") as file:
                data = file.read(WORD_BYTES)
            word = msgspec.json.decode(data, type=Word)
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            return Word()
        text = data.strip()[:LAST_WORD].decode(errors="replace")
        return msgspec.structs.replace(word, text=text, message=word.message[:MESSAGE], last=name == EXIT_FILE)


def status_of(name: str, record: Record | None) -> SlotStatus:
    """What is told of a slot. A starting agent is told as running only once its pid is known: before that the slot is as it was, empty."""
    if record is None or record.stage is Stage.STARTING:
        return SlotStatus(name)
    values: dict[str, Any] = {
        field: getattr(record, field)
        for field in ("job", "uid", "pod", "attempt", "pid", "exitCode", "signal", "at", "plain", "lastWord", "clean", "message", "notStarted")
    }
    return SlotStatus(name, state=record.stage.value, **values)
