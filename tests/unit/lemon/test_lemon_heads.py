"""Ledgers out of heads: whatever the master books, the spans hold the same milliseconds in each state, and work that was lost counts once."""

from __future__ import annotations

import msgspec
from aegis_lemon.ettr import measure
from aegis_lemon.ettr.heads import Story
from aegis_master import ledger
from aegis_proto.phases import LedgerState as S
from aegis_proto.phases import Phase
from aegis_proto.state import Head, Ledger
from hypothesis import given
from hypothesis import strategies as st

T = 1_796_000_000_000


def head(found: Ledger, failures: int = 0, phase: Phase = Phase.RUN_COMMAND) -> Head:
    return Head("j-1", "j", "default", "uid", 3, 3, ledger=found, failures=failures, phase=phase)


STATES = [S.QUEUED, S.BOOTING, S.CHECKING, S.RESTORING, S.PRODUCTIVE, S.PRODUCTIVE, S.HUNG, S.DRAINED]


@given(st.lists(st.tuples(st.sampled_from(["book", "save", "lose"]), st.sampled_from(STATES), st.integers(0, 100_000), st.booleans()), max_size=40))
def test_spans_hold_what_was_booked_whatever_is_seen_of_it(steps: list[tuple[str, S, int, bool]]) -> None:
    now, failures, story = T, 0, Story("j-1")
    found = Ledger(S.QUEUED, T)
    story.add(head(found))
    for what, state, passed, seen in steps:
        now += passed
        if what == "save":
            found = ledger.save(found, now)
        elif what == "book":
            found = ledger.book(found, state, "start", now)
        else:
            found, failures = ledger.lose(ledger.book(found, S.BOOTING, "hardware", now), "hardware"), failures + 1
        if seen:  # several steps may be one commit
            story.add(head(found, failures))
    story.add(head(found, failures, Phase.SUCCEED))
    run = story.run()
    sums: dict[str, int] = {}
    for span in run.spans if run is not None else ():
        sums[span.state.value] = sums.get(span.state.value, 0) + round(span.seconds * 1000)
    assert sums == {state: spent for state, spent in found.totals.items() if spent}


def test_a_job_that_goes_on_is_told_up_to_now_and_its_loss_is_a_cycle() -> None:
    story = Story("j-1")
    found = Ledger(S.QUEUED, T)
    story.add(head(found))
    found = ledger.save(ledger.book(found, S.PRODUCTIVE, "start", T + 10_000), T + 10_000)
    story.add(head(found))
    found = ledger.lose(ledger.book(found, S.BOOTING, "hardware", T + 40_000), "hardware")
    story.add(head(found, 1))
    found = ledger.book(found, S.PRODUCTIVE, "hardware", T + 45_000)
    story.add(head(found, 1))
    run = story.run((T + 100_000) / 1000)
    assert run is not None
    told = [(span.state.value, round(span.seconds), span.stopped) for span in run.spans]
    assert told == [("queued", 10, False), ("lost", 30, True), ("booting", 5, False), ("productive", 55, False)]
    assert abs(measure([run]).ratios["ettr"].value - 0.55) < 1e-9


def test_how_often_and_how_long_a_job_saves_is_heard_from_its_heads() -> None:
    story = Story("j-1")
    for incarnation, at, stall in ((0, 0, -1), (0, 60_000, -1), (0, 161_000, 2500), (0, 161_000, 2500), (1, 400_000, 2500), (1, 499_000, 2000)):
        story.add(msgspec.structs.replace(head(Ledger(S.PRODUCTIVE, T)), incarnation=incarnation, checkpointAt=at, saveStall=stall))
    assert (story.save, story.every) == (2.0, 100.0)  # not from one run to the next
    assert (Story("k-1").save, Story("k-1").every) == (-1, 0)
