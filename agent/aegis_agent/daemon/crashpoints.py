"""Points at which a test may kill the node daemon, in the order in which one placement passes them."""

from __future__ import annotations

CRASHPOINTS: dict[str, str] = {
    "daemon.before-intent": "the slot was read, nothing of it is on disk",
    "daemon.before-start": "the intent is on disk, no process exists",
    "daemon.after-start": "the agent runs, its pid is not on disk",
    "daemon.before-status": "a change is on disk, nobody was told",
    "daemon.after-status": "the change was told and acknowledged",
    "daemon.before-gone": "the agent and its scope are gone, the record still says running",
}
"""Name -> what is true at this point."""
