"""The named points between "report received" and "effect done" at which a master may die and nothing may be lost or happen twice.

Data only; the code calls `aegis_bus.crashpoint.crashpoint(name)` at each. Tests kill -9 the service at every one and compare story and counts.
"""

from __future__ import annotations

POINTS: dict[str, str] = {
    "master.received": "a report or fact was taken from REPORTS, nothing decoded yet",
    "master.decoded": "the batch is decoded into events, the machine has not seen them",
    "master.before-step": "just before machine.step of one event",
    "master.before-commit": "the new state exists in memory only",
    "master.after-commit": "the state (and the order in it) is stored, nobody here has acted on it",
    "master.before-event": "just before the first event of a commit is published",
    "master.mid-event": "after one of several events of a commit",
    "master.after-event": "all events of a commit are published",
    "master.dlq-before": "a message did not decode; the dead letter is not written yet",
    "master.dlq-after": "the dead letter is written, the cursor has not passed the message",
    "master.takeover-before-cas": "the old owner is gone, the head still names it",
    "master.takeover-after-cas": "the head names this replica, nothing is read yet",
    "master.deadline-before-commit": "a deadline fired and was stepped, not committed",
    "master.death-before-commit": "the judge called a worker dead, not committed",
    "master.submit-before-create": "the job is validated, nothing stored",
    "master.submit-after-create": "head, shards and spec are stored, the client has no answer",
    "master.api-before-fact": "an acting request is validated, the fact is not written",
    "master.api-after-fact": "the fact is in REPORTS, the client has no answer",
    "master.release-before-cas": "SIGTERM: about to give a job away",
    "master.release-after-cas": "SIGTERM: the job has no owner, the lease still stands",
}
"""point -> what is and is not done there."""
