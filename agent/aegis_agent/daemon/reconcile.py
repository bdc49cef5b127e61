"""What a slot needs next: a pure function of what is wanted, what is on record and whether the agent lives. No clock, no files, no processes.

A slot holds one attempt at a time. An attempt that ended never starts again: the next is for the master to decide and the job controller to place.
"""

from __future__ import annotations

from enum import StrEnum

from aegis_proto.messages import Slot

from aegis_agent.daemon.slotdir import Record, Stage, slot_key


class Action(StrEnum):
    HOLD = "hold"  # as it should be, or nothing known about what should be
    START = "start"  # sweep, then start the wanted attempt
    STOP = "stop"  # end the agent with grace, then settle
    SETTLE = "settle"  # the agent is gone: verify that its whole scope is, then say so
    REFUSE = "refuse"  # wanted and already told to stop, never started: say gone without starting


def is_older(wanted: Slot, record: Record) -> bool:
    """The slot names an earlier attempt of the very worker that is here: it is from before (a store restored from a copy). Attempts only rise."""
    return wanted.job != "" and (wanted.uid, wanted.pod) == (record.uid, record.pod) and wanted.attempt < record.attempt


def decide(wanted: Slot | None, record: Record | None, lives: bool) -> Action:
    """`wanted` is None while nobody knows (not read yet, or the store lost it): nothing is started or stopped, but an end is still noticed."""
    if wanted is not None and record is not None and is_older(wanted, record):
        wanted = None
    if record is not None and record.stage is not Stage.GONE:
        if not lives:
            return Action.SETTLE
        if wanted is None or (slot_key(wanted) == record.key and not wanted.stop):
            return Action.HOLD
        return Action.STOP
    if record is not None and not record.clean:
        return Action.SETTLE
    if wanted is None or not wanted.job or (record is not None and slot_key(wanted) == record.key):
        return Action.HOLD
    return Action.REFUSE if wanted.stop else Action.START
