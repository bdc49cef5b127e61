"""How this agent starts another process of its own: the same interpreter, and as deaf to the training's Python settings as it is itself."""

from __future__ import annotations

import sys


def python() -> list[str]:
    """Words before `-m MODULE`. An agent that was installed as a folder is isolated (-I), and so is what it starts; modules in the folder in which
    the training runs are never ours (-P)."""
    return [sys.executable, "-I" if sys.flags.isolated else "-P"]
