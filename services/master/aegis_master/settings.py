"""What a master can be told, with defaults. Read once at start by `aegis_bus.config`."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegis_master.judge import JudgeTimes


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Of one job's owner. Seconds, unless named otherwise."""

    judge: JudgeTimes = field(default_factory=JudgeTimes)
    flags: float = 2.0
    """Flags of a round of a large job (present, finished, stopped) are stored within this long, or as long as the round has lasted (`batch.urgency`),
    since each commit reaches every agent; orders and phases are stored at once."""
    batch: int = 1000
    """Most reports stepped together."""
    lazy: float = 0.5
    """A verb that changed nothing is shown as done (by the cursor) after this long."""
    tick: float = 1.0
    ack_after: float = 2.0
    """An order without an acknowledgement is published again after this long ..."""
    ack_repeats: int = 3
    """... at most so often."""
    progress: float = 5.0


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Of the service."""

    owner: OwnerSettings = field(default_factory=OwnerSettings)
    lease_ttl: float = 6.0
    scan: float = 0.5
    """How often the leases are read."""
    takeover_delay: float = 0.5
    """Each place further down in the rendezvous order of the live replicas waits this much longer before it takes a job."""
    era_poll: float = 10.0
    store_alarm: float = 0.5
    store_full: float = 0.7
    trace: str = ""
    actions: str = "act"
    """What this fleet lets be done to nodes: observe, advise, act."""
