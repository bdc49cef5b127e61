"""What a daemon, or anybody with rights on a stream, may store: nothing of it stops the job controller."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aegis_jobcontroller import checked
from aegis_proto.messages import BadMessage, Held, NodeSpec, NodeStatus, Place, Slot, SlotStatus, Taint

GOOD = SlotStatus("0", "job-a", "uid-a", "w0", 1, "running", 7)


@pytest.mark.parametrize("slots", [0, -1, 33, 10**9])
def test_a_node_has_1_to_32_slots(slots: int) -> None:
    with pytest.raises(BadMessage, match="slots"):
        checked.spec(NodeSpec("n1", slots=slots), "n1")
    assert checked.spec(NodeSpec("other", slots=32), "n1").node == "n1"


BAD_SLOTS: list[dict[str, Any]] = [
    dict(pod="w00"),
    dict(pod="w-1"),
    dict(pod="x"),
    dict(pod=""),
    dict(pod="w9999999"),
    dict(job="A b"),
    dict(job=""),
    dict(uid=""),
    dict(uid="u" * 65),
    dict(attempt=0),
    dict(attempt=10**12),
    dict(state="flying"),
    dict(slot="32"),
    dict(slot="x"),
    dict(at=10**18),
    dict(exitCode=2**40),
]


@pytest.mark.parametrize("change", BAD_SLOTS)
def test_a_status_of_what_cannot_be_is_refused_whole(change: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        checked.status(NodeStatus("n1", "b", 1, (SlotStatus("1"), msgspec.structs.replace(GOOD, **change))), "n1", 9)
    assert checked.status(NodeStatus("n1", "b", 1, (SlotStatus("1"), GOOD)), "n1", 9).slots[1] == GOOD


def test_a_slot_is_told_once_and_at_most_32_are() -> None:
    for slots in ((GOOD, GOOD), tuple(SlotStatus(str(i)) for i in range(33))):
        with pytest.raises(BadMessage, match="slots"):
            checked.status(NodeStatus("n1", "b", 1, slots), "n1", 9)


def test_long_words_of_a_daemon_are_cut_so_that_a_fact_holds_them() -> None:
    long = msgspec.structs.replace(GOOD, message="m" * 50000, lastWord="w" * 50000)
    kept = checked.status(NodeStatus("n1", "b", 1, (long,)), "n1", 9).slots[0]
    assert (len(kept.message), len(kept.lastWord)) == (checked.MAX_WORDS, checked.MAX_LAST_WORD)


def test_places_slots_and_taints_say_what_their_subject_says() -> None:
    assert checked.place(Place("uid", "w0", 1, "n1", "0"), "w0") and checked.slot(Slot(), "31") and checked.taint(Taint("n1", True), "n1")
    for bad in (
        lambda: checked.place(Place("uid", "w1", 1, "n1", "0"), "w0"),
        lambda: checked.place(Place("uid", "bad", 1, "n1", "0"), "bad"),
        lambda: checked.place(Place("uid", "w0", 1, "n1", "99"), "w0"),
        lambda: checked.slot(Slot("job-a", "uid", "default", "bad", 1), "0"),
        lambda: checked.slot(Slot(), "x"),
        lambda: checked.taint(Taint("n1", True, until=10**18), "n1"),
    ):
        with pytest.raises(BadMessage):
            bad()


BAD_HELD: list[dict[str, Any]] = [
    dict(job="A b"),
    dict(namespace=""),
    dict(uid=""),
    dict(uid="u" * 65),
    dict(pod="w00"),
    dict(attempt=0),
    dict(attempt=10**12),
    dict(workers=0),
    dict(workers=20_001),
    dict(deed=""),
    dict(deed="d" * 65),
    dict(era="e" * 65),
]


@pytest.mark.parametrize("change", BAD_HELD)
def test_a_held_worker_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    good = Held("job-a", "uid-a", "ml", "w0", 1, 3, "era-1", "deed")
    assert checked.held(good, "0") == good
    with pytest.raises(BadMessage):
        checked.held(msgspec.structs.replace(good, **change), "0")
    with pytest.raises(BadMessage):
        checked.held(good, "32")


@pytest.mark.parametrize(("wrong", "told"), [(0, 0), (1500, 1500), (-1500, -1500), (-3_600_000, 0), (3_600_000, 0)])
def test_a_loss_is_dated_by_the_server_when_the_daemon_s_clock_is_wrong(wrong: int, told: int) -> None:
    """It happened 300 ms before the daemon spoke, whatever its clock says; a small difference may be the way to the server."""
    server = 1_700_000_000_000
    died = server - 300 + wrong
    status = NodeStatus("n1", "b", 1, (SlotStatus("1"), msgspec.structs.replace(GOOD, state="gone", at=died)), at=server + wrong)
    assert [slot.at for slot in checked.status(status, "n1", server).slots] == [0, server - 300 + told]
