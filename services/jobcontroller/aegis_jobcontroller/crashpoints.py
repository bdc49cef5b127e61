"""Points at which a test may kill the job controller, in the order in which one placement passes them."""

from __future__ import annotations

CRASHPOINTS: dict[str, str] = {
    "jobcontroller.before-place": "the plan is made, nothing is written",
    "jobcontroller.after-place": "place and slot are written, this process does not know it yet",
    "jobcontroller.before-fact": "a fact holds, nobody was told",
    "jobcontroller.after-fact": "the fact is stored, this process does not know it yet",
    "jobcontroller.before-release": "a worker is gone, its slot still names it",
    "jobcontroller.after-release": "the slot is empty, the place is not retired",
}
"""Name -> what is true at this point."""
