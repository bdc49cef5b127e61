"""Which order a worker obeys: the highest that names its attempt, and no older one."""

from __future__ import annotations

import random

import msgspec
import pytest
from aegis_agent.orders import Rank, Verdict, judge, named_attempt
from aegis_proto import WIRE_VERSION, messages
from aegis_proto.phases import OrderPhase
from aegis_proto.state import Head, HeadView, Order

ME = dict(uid="u", pod="w1", attempt=2)


def head(
    seq: int, incarnation: int = 0, *, era: str = "01A", phase: OrderPhase = OrderPhase.COMMAND, attempts=((1, 1), (2, 2)), uid: str = "u", **more
) -> Head:
    order = Order(phase, seq, incarnation, attempts, **more)
    return Head(job="j-1", name="j", namespace="n", uid=uid, workerNum=3, maxRetry=1, era=era, order=order)


def test_what_an_agent_reads_of_a_head_gives_the_same_decisions() -> None:
    whole = head(5, 2, exceptions={"w1": OrderPhase.HANG_WITH_QUIT}, masterAddr="10.0.0.1", masterPort=20000)
    view = messages.decode(HeadView, messages.encode(whole))
    assert (view.uid, view.era, view.order, view.roundSeqNum) == (whole.uid, whole.era, whole.order, whole.roundSeqNum)
    assert judge(Rank(), view, **ME) == judge(Rank(), whole, **ME)


def test_a_head_of_a_newer_version_is_not_obeyed() -> None:
    newer = messages.encode(msgspec.structs.replace(head(5), v=WIRE_VERSION + 1))
    with pytest.raises(messages.BadMessage, match="version"):
        messages.decode(HeadView, newer)


def test_attempts_are_named_by_runs() -> None:
    order = head(1, attempts=((1, 3), (4, 1), (1, 2))).order
    assert [named_attempt(order, index) for index in range(7)] == [1, 1, 1, 4, 1, 1, 0]


def test_the_first_order_that_names_us_is_obeyed() -> None:
    decision = judge(Rank(), head(5), **ME)
    assert (decision.verdict, decision.rank, decision.phase) == (Verdict.OBEY, Rank("01A", 0, 5), OrderPhase.COMMAND)


@pytest.mark.parametrize(
    ("seq", "incarnation", "verdict"),
    [
        (5, 1, Verdict.REPEAT),
        (6, 1, Verdict.OBEY),
        (4, 1, Verdict.OLD),
        (9, 0, Verdict.OLD),
        (1, 2, Verdict.OBEY),
    ],
)
def test_only_a_higher_order_is_obeyed(seq: int, incarnation: int, verdict: Verdict) -> None:
    assert judge(Rank("01A", 1, 5), head(seq, incarnation), **ME).verdict is verdict


@pytest.mark.parametrize(
    ("began", "phase", "verdict"),
    [
        (4, OrderPhase.COMMAND, Verdict.BEFORE),
        (5, OrderPhase.TROUBLESHOOT, Verdict.BEFORE),
        (6, OrderPhase.COMMAND, Verdict.OBEY),
        (0, OrderPhase.COMMAND, Verdict.OBEY),
        (4, OrderPhase.STOP, Verdict.OBEY),
        (4, OrderPhase.QUIT, Verdict.OBEY),
    ],
)
def test_a_round_is_acted_in_only_when_it_began_after_the_start(began: int, phase: OrderPhase, verdict: Verdict) -> None:
    """`began` 0: the head does not say, the order's own number counts."""
    repeated = msgspec.structs.replace(head(7, 1, phase=phase), roundSeqNum=began)
    assert judge(Rank("01A", 1, 5), repeated, born=Rank("01A", 1, 5), **ME).verdict is verdict


def test_before_it_has_said_that_it_is_here_a_boot_acts_in_no_round() -> None:
    assert judge(Rank(), head(5), born=None, **ME).verdict is Verdict.BEFORE
    assert judge(Rank(), head(5, phase=OrderPhase.WAIT), born=None, **ME).verdict is Verdict.OBEY


def test_the_rounds_of_a_new_era_have_numbers_of_their_own() -> None:
    began = msgspec.structs.replace(head(3, era="01B"), roundSeqNum=3)
    assert judge(Rank("01A", 1, 50), began, born=Rank("01A", 1, 40), **ME).verdict is Verdict.OBEY


def test_an_order_for_another_attempt_is_not_for_us() -> None:
    assert judge(Rank(), head(5, attempts=((1, 3),)), **ME).verdict is Verdict.NOT_FOR_US
    assert judge(Rank(), head(5, attempts=()), **ME).verdict is Verdict.NOT_FOR_US


def test_a_higher_attempt_in_our_place_is_the_word_that_we_are_superseded() -> None:
    assert judge(Rank("01A", 1, 5), head(2, 0, attempts=((1, 1), (3, 1), (1, 1))), **ME).verdict is Verdict.SUPERSEDED


def test_another_submission_under_our_subject_orders_nothing() -> None:
    assert judge(Rank(), head(5, uid="other", attempts=((9, 3),)), **ME).verdict is Verdict.OTHER_JOB


def test_an_exception_for_us_replaces_the_order() -> None:
    told = judge(Rank(), head(5, exceptions={"w1": OrderPhase.HANG_WITH_QUIT}), **ME)
    other = judge(Rank(), head(5, exceptions={"w2": OrderPhase.HANG_WITH_QUIT}), **ME)
    assert (told.phase, other.phase) == (OrderPhase.HANG_WITH_QUIT, OrderPhase.COMMAND)


def test_after_a_restore_a_lower_number_of_the_new_era_is_obeyed_and_announced() -> None:
    decision = judge(Rank("01A", 7, 50), head(3, 5, era="01B"), **ME)
    assert (decision.verdict, decision.new_era) == (Verdict.OBEY, True)


def test_heads_in_any_order_lead_to_the_highest() -> None:
    heads = [head(seq, incarnation) for incarnation in range(4) for seq in range(1, 8)]
    for seed in range(50):
        mixed = heads * 2
        random.Random(seed).shuffle(mixed)
        last, obeyed = Rank(), []
        for one in mixed:
            decision = judge(last, one, **ME)
            if decision.verdict is Verdict.OBEY:
                last = decision.rank
                obeyed.append(last)
        assert last == Rank("01A", 3, 7) and obeyed == sorted(set(obeyed))
