"""A link that goes down and comes back is seen, for as long as it matters and no longer."""

from __future__ import annotations

from aegis_netmon import flaps
from aegis_netmon.flaps import Dip, History, judge, observe

HOUR = 3600.0


def seen(*changes: tuple[float, bool], boot: float | None = None) -> History:
    history = observe(History(), 0.0, True, boot=boot)
    for at, up in changes:
        history = observe(history, at, up)
    return history


def test_changes_within_ten_seconds_are_one_dip() -> None:
    history = seen((100, False), (101, True), (102, False), (103, True), (108, False), (109, True))
    assert len(history.dips) == 1
    assert (history.dips[0].start, history.dips[0].end, history.dips[0].downs) == (100, 109, 3)


def test_a_dip_stays_visible_after_the_link_is_back_and_then_goes() -> None:
    history = seen((100, False), (130, True))
    assert judge(history, 131).state == "was_down"
    assert judge(history, 130 + 601).state == "up"


def test_three_dips_in_twelve_hours_flap_until_six_hours_without_one() -> None:
    history = seen(*((at + d, up) for at in (HOUR, 2 * HOUR, 3 * HOUR) for d, up in ((0, False), (30, True))))
    verdict = judge(history, 4 * HOUR)
    assert (verdict.state, verdict.dips, verdict.longest) == ("flapping", 3, 30)
    assert verdict.clears_at == 3 * HOUR + 30 + 6 * HOUR
    assert judge(history, 9.5 * HOUR).state == "up"


def test_two_dips_do_not_flap() -> None:
    assert judge(seen((HOUR, False), (HOUR + 30, True), (2 * HOUR, False), (2 * HOUR + 30, True)), 3 * HOUR).state == "up"


def test_a_link_down_for_minutes_is_dropped() -> None:
    history = seen((100, False))
    assert judge(history, 200).state == "down"
    assert judge(history, 400).state == "dropped"


def test_the_dips_of_a_boot_are_the_boot() -> None:
    history = seen(*((1000 + 60 * n + d, up) for n in range(4) for d, up in ((0, False), (20, True))), boot=1000)
    assert judge(history, 2 * HOUR).dips == 0


def test_a_dip_between_two_polls_is_known_by_link_downed() -> None:
    history = observe(observe(History(), 0.0, True), 10.0, True, downed=1)
    assert history.dips == (Dip(10.0, 10.0, False, 1),)
    assert judge(history, 11).state == "was_down"


def test_an_unread_state_is_unknown_and_changes_nothing() -> None:
    assert judge(observe(History(), 0.0, None), 1).state == "unknown"
    assert observe(seen((5, False)), 10.0, None).up is False


def test_history_is_bounded() -> None:
    assert len(seen(*((60.0 * n, n % 2 == 0) for n in range(1, 400))).dips) == flaps.KEPT
