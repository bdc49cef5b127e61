"""Signals to a command that watches: kept until somebody listens, counted as wishes to end, ignored where the caller had them ignored."""

from __future__ import annotations

import asyncio
import os
import signal

from aegis_cli.signals import Signals, name_of
from harness.waiting import until


async def sent(signals: Signals, number: signal.Signals, seen: list[tuple[signal.Signals, int]]) -> None:
    before = len(seen)
    os.kill(os.getpid(), number)

    async def came() -> bool:
        return len(seen) > before

    await until(came, 10, f"{number.name} is heard")


async def test_what_came_before_anybody_listened_is_told_and_a_hang_up_never_hastens() -> None:
    seen: list[tuple[signal.Signals, int]] = []
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)

        async def noticed() -> bool:
            return signals.asked == 1

        await until(noticed, 10, "the early signal")
        with signals.heard_by(lambda number, asked: seen.append((number, asked))):
            assert seen == [(signal.SIGTERM, 1)]
            await sent(signals, signal.SIGHUP, seen)
            await sent(signals, signal.SIGHUP, seen)
            await sent(signals, signal.SIGINT, seen)
        assert seen == [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGHUP, 1), (signal.SIGINT, 2)]
        assert signals.first == signal.SIGTERM


async def test_an_ignored_signal_is_left_alone() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signals.asked == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_people_know_them_by_name() -> None:
    assert [name_of(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == ["Ctrl-C", "SIGTERM", "SIGHUP"]
