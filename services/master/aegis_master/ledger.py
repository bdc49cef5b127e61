"""The ledger of a job: milliseconds in each state, and who is charged for those that were not productive. Pure.

Owns `head.ledger`. The states are second-exact (in fact to the millisecond): at any time their sum, with the one that runs, is the age of the job.
Productive time since the last complete checkpoint (else since the start of the run) becomes lost when a run ends before its end.
"""

from __future__ import annotations

from aegis_proto.phases import LedgerState, LostReason, Phase
from aegis_proto.state import Ledger
from msgspec.structs import replace

STATE_OF: dict[Phase, LedgerState] = {
    Phase.PENDING: LedgerState.QUEUED,
    Phase.BOOT_CHECKING: LedgerState.CHECKING,
    Phase.RUN_COMMAND: LedgerState.PRODUCTIVE,
    Phase.RESTARTING: LedgerState.BOOTING,
    Phase.TROUBLESHOOTING: LedgerState.CHECKING,
}
"""Default state of a phase; hung, drained and booting (all placed, not all ready) are entered inside one, and restoring at its begin.

`saving` is not entered here: a training says that a checkpoint is complete, not when it began to write it. That time is in productive.
"""

CHARGED: dict[str, str] = {
    LostReason.KILLED.value: "platform",
    LostReason.RESTARTED.value: "platform",
    LostReason.NODE_LOST.value: "hardware",
    LostReason.GPU_LOST.value: "hardware",
    LostReason.HUNG.value: "hardware",
    LostReason.SLOW.value: "hardware",
    LostReason.PREEMPTED.value: "platform",
    LostReason.ERROR.value: "user",
    LostReason.SIGNAL.value: "user",
    LostReason.COLLATERAL.value: "user",
    LostReason.PORT.value: "aegis",
    LostReason.NO_ANSWER.value: "aegis",
    "progress": "user",
    "era": "aegis",
    "restart": "operator",
    "suspend": "operator",
    "stopped": "operator",
    "created": "start",
}
"""Cause of a stop -> who is charged until the command runs again."""


def who_pays(cause: str, present: str) -> str:
    """The new cause's payer; a cause that is not in the table leaves it where it is."""
    return CHARGED.get(cause, present)


def book(ledger: Ledger, state: LedgerState, who: str, now: int) -> Ledger:
    """Close the state that runs, open the next. A clock that goes back (another owner) books nothing twice."""
    spent = max(0, now - ledger.since)
    totals, charged = ledger.totals, ledger.charged
    if spent:
        totals = {**totals, ledger.state.value: totals.get(ledger.state.value, 0) + spent}
        if ledger.state is not LedgerState.PRODUCTIVE:
            charged = {**charged, ledger.who: charged.get(ledger.who, 0) + spent}
    return Ledger(state, max(now, ledger.since), totals, charged, who, ledger.safe)


def run_state(tells_steps: bool) -> LedgerState:
    """With which state a run of the command begins: a job that has ever told a step restores until it tells one again, or a complete checkpoint; of
    one that never did nobody knows, and all of its run is productive."""
    return LedgerState.RESTORING if tells_steps else LedgerState.PRODUCTIVE


def advance(ledger: Ledger, now: int) -> Ledger:
    """The run made a step: what it needed to get back to work is over. What is productive before is safe already (`save` at its start)."""
    return book(ledger, LedgerState.PRODUCTIVE, ledger.who, now) if ledger.state is LedgerState.RESTORING else ledger


def save(ledger: Ledger, now: int) -> Ledger:
    """A run starts, or a complete checkpoint exists: what is productive so far need not be done again."""
    booked = book(ledger, ledger.state, ledger.who, now)
    return replace(booked, safe=booked.totals.get(LedgerState.PRODUCTIVE.value, 0))


def lose(ledger: Ledger, who: str) -> Ledger:
    """A run ends before its end: productive time that must be done again goes to lost, charged to `who`."""
    productive, lost = LedgerState.PRODUCTIVE.value, LedgerState.LOST.value
    again = ledger.totals.get(productive, 0) - ledger.safe
    if again <= 0:
        return ledger
    totals = {**ledger.totals, productive: ledger.safe, lost: ledger.totals.get(lost, 0) + again}
    return replace(ledger, totals=totals, charged={**ledger.charged, who: ledger.charged.get(who, 0) + again})


def total(ledger: Ledger, now: int) -> int:
    """Milliseconds in all states, the running one included: the age of the job."""
    return sum(ledger.totals.values()) + max(0, now - ledger.since)
