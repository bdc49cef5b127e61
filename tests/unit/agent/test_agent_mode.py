"""Managed or plain, train on or stop: the tables of docs/agent.md, "Without Aegis"."""

from __future__ import annotations

import random

import pytest
from aegis_agent.mode import CutOff, Reach, Start, backoff, cut_off, renew_after, start, start_wait_from

NOT_YET, TIME_UP = 10.0, 120.0


@pytest.mark.parametrize(
    ("reach", "waited", "what"),
    [
        # attempt 1, never managed, nothing reachable: plain, but only after it tried
        (Reach(1, connected=False, managed=False), NOT_YET, Start.TRY),
        (Reach(1, connected=False, managed=False), TIME_UP, Start.PLAIN),
        # connected: nothing starts without an order, however long it takes
        (Reach(1, connected=True, managed=True), NOT_YET, Start.WAIT),
        (Reach(1, connected=True, managed=True), 10 * TIME_UP, Start.WAIT),
        (Reach(3, connected=True, managed=True), 10 * TIME_UP, Start.WAIT),
        # attempt > 1, or once managed: never plain
        (Reach(2, connected=False, managed=False), NOT_YET, Start.TRY),
        (Reach(2, connected=False, managed=False), TIME_UP, Start.LEAVE),
        (Reach(1, connected=False, managed=True), TIME_UP, Start.LEAVE),
        (Reach(2, connected=False, managed=False, orphan=True), TIME_UP, Start.LEAVE),
        # no address to ask: no reason to wait
        (Reach(1, connected=False, managed=False, orphan=True), 0.0, Start.PLAIN),
        # an answer ends it at once
        (Reach(1, connected=False, managed=False, told="superseded"), NOT_YET, Start.LEAVE),
        (Reach(1, connected=True, managed=True, told="revoked"), NOT_YET, Start.LEAVE),
    ],
)
def test_what_a_worker_does_before_anything_runs(reach: Reach, waited: float, what: Start) -> None:
    assert start(reach, waited, 120.0) is what


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (dict(silent=3600, told="", since_progress=1, longest_gap=2), CutOff.TRAIN_ON),  # it advances: however long the bus is away
        (dict(silent=30, told="", since_progress=30, longest_gap=2), CutOff.TRAIN_ON),
        (dict(silent=60, told="", since_progress=60, longest_gap=2), CutOff.STOP),
        (dict(silent=3600, told="", since_progress=None, longest_gap=None), CutOff.TRAIN_ON),  # never told a step: nothing can be said
        (dict(silent=3600, told="", since_progress=500, longest_gap=None), CutOff.TRAIN_ON),  # one step only: its pace is not known
        (dict(silent=200, told="", since_progress=200, longest_gap=70), CutOff.TRAIN_ON),  # steps of 70 s are no stand-still
        (dict(silent=211, told="", since_progress=211, longest_gap=70), CutOff.STOP),
        (dict(silent=200, told="", since_progress=200, longest_gap=2, expected_long=True), CutOff.TRAIN_ON),
        (dict(silent=0, told="superseded", since_progress=0, longest_gap=2), CutOff.STOP),
        (dict(silent=0, told="revoked", since_progress=None, longest_gap=None), CutOff.STOP),
    ],
)
def test_what_a_managed_child_gets_when_the_bus_is_away(given: dict, what: CutOff) -> None:
    assert cut_off(**given) is what


def test_a_fleet_does_not_renew_in_one_second() -> None:
    points = [renew_after(86400, random.Random(seed)) for seed in range(1000)]
    assert min(points) >= 28800 and max(points) <= 57600 and max(points) - min(points) > 27000


def test_tries_are_spread_and_bounded() -> None:
    rng = random.Random(1)
    assert all(0.1 <= backoff(tries, rng) <= 15.0 for tries in range(200))


def test_the_start_wait_is_settable_and_a_bad_one_is_named() -> None:
    assert start_wait_from({}) == 120.0 and start_wait_from({"AEGIS_AGENT_START_WAIT": "2.5"}) == 2.5
    for bad in ("2min", "-1", "1e9"):
        with pytest.raises(ValueError, match="E130 AEGIS_AGENT_START_WAIT="):
            start_wait_from({"AEGIS_AGENT_START_WAIT": bad})
