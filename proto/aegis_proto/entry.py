"""What is said of one subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One subject. `address` with {parameters}; `subject` a real one; `payload` None = bytes; `example` the payload as a struct."""

    address: str
    subject: str
    says: str
    payload: type[Any] | None = None
    example: Any = None
    reply: type[Any] | None = None
    answer: Any = None
    reserved: bool = False
    """Stream and rights are there; nothing of this release publishes it."""
