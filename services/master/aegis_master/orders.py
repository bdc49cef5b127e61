"""Rendering `head.order`: what everybody is asked to do, and who is asked something else.

Owns the form of an order; changes the draft it is given. Every new order has seqNum + 1 and names the attempt of every place, so that a re-placed
pod never acts on an order of its predecessor.
"""

from __future__ import annotations

from itertools import groupby

from aegis_proto.ids import pod_name
from aegis_proto.phases import OrderPhase, Phase
from aegis_proto.state import Order, Pod

from aegis_master.draft import Draft

ORDER_OF: dict[Phase, OrderPhase] = {
    Phase.PENDING: OrderPhase.WAIT,
    Phase.BOOT_CHECKING: OrderPhase.BOOTCHECK,
    Phase.RUN_COMMAND: OrderPhase.COMMAND,
    Phase.RESTARTING: OrderPhase.STOP,
    Phase.TROUBLESHOOTING: OrderPhase.TROUBLESHOOT,
    Phase.SUCCEED: OrderPhase.QUIT,
    Phase.FAILED: OrderPhase.QUIT,
}
"""What entering a phase orders, unless said otherwise."""
CHECKS = (OrderPhase.BOOTCHECK, OrderPhase.TROUBLESHOOT)


def attempts(shards: tuple[tuple[Pod, ...], ...]) -> tuple[tuple[int, int], ...]:
    """Attempts in pod order as runs `(attempt, count)`: 10,000 untouched places are one pair."""
    return tuple((attempt, sum(1 for _ in run)) for attempt, run in groupby(pod.attempt for shard in shards for pod in shard))


def give(draft: Draft, phase: OrderPhase, *, meets: bool = True) -> None:
    """A new order to all; pods on their way out get `hangWithQuit` instead (not in an order that ends or frees all).

    A round of checks names where the workers meet for tests with each other, unless it `meets` not.
    """
    head = draft.head
    exceptions: dict[str, OrderPhase] = {}
    if head.tally.quitting and phase not in (OrderPhase.QUIT, OrderPhase.PLAIN):
        exceptions = {pod_name(i): OrderPhase.HANG_WITH_QUIT for i in draft.where(lambda pod: pod.toQuit)}
    seq_num = head.seqNum + 1
    place = (head.masterAddr, head.masterPort)
    if phase in CHECKS:
        place = (head.checkAddr, head.checkPort) if meets else ("", 0)
    draft.set(
        seqNum=seq_num,
        order=Order(
            phase,
            seq_num,
            head.incarnation,
            attempts(draft.shards),
            exceptions,
            *place,
            (head.exitCode or 0) if phase is OrderPhase.QUIT else 0,
        ),
    )


def repeat(draft: Draft) -> None:
    """The present order under a new number: all report again; no new round."""
    order = draft.head.order
    give(draft, order.phase, meets=order.masterPort > 0)
