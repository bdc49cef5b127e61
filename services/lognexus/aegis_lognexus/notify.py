"""Tell people of a failure where they are: webhook, Slack, Feishu, DingTalk, WeCom, e-mail, ... by addresses of `apprise` (`[notify] urls`).

An ordinary reader of the bus (EVENTS, verdicts of failures of the jobs that this replica keeps). Once per incident: what is to be told is noted on
disk before it is sent, so a crash costs a message and never doubles one; what came while this replica was away is another's, where there is one.
Owns `<store>/notify.json`. An address may hold a secret: none is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from aegis_bus.connection import Bus, Stored
from aegis_bus.lease import live_replicas
from aegis_bus.ordered import Gap, OrderedReader
from aegis_proto import subjects
from aegis_proto.logs import SERVICE
from aegis_proto.messages import BadMessage, Verdict, decode

from aegis_lognexus import metrics
from aegis_lognexus.across import HANG
from aegis_lognexus.intake import Reading
from aegis_lognexus.store.joblog import write_atomically

log = logging.getLogger(__name__)

STREAM = "EVENTS"
ALL = subjects.verdict(SERVICE, "job", "*")
TRIES = (0.0, 2.0, 10.0)
"""Seconds before each try."""
DISK_AGAIN = 2.0
TOLD = 1000
"""Incidents that are remembered."""


class Noted(msgspec.Struct):
    """Everything up to message `seq` of EVENTS is told, in this `era`; the last incidents, in case the stream is read again."""

    seq: int = 0
    era: str = ""
    told: list[str] = []


class BadAddress(ValueError):
    """An address that apprise does not know; the message does not show it."""


def addresses(urls: Sequence[str]) -> list[Any]:
    """Each of them, ready. BadAddress names the number of the one that is none; so does a missing package."""
    try:
        apprise = import_module("apprise")
    except ImportError:
        raise BadAddress("E130 notify.urls: the package apprise is not installed (pip install 'aegis-train[lognexus]')") from None
    found = []
    for n, url in enumerate(urls, 1):
        found.append(apprise.Apprise())
        if not found[-1].add(url):
            raise BadAddress(f"E130 notify.urls: number {n} ({url.partition(':')[0][:20]}:...) is no address that apprise knows")
    return found


def message(verdict: Verdict) -> tuple[str, str]:
    """(title, text) for people."""
    nodes = f"\nNodes: {', '.join(verdict.nodes)}" if verdict.nodes else ""
    text = f"{verdict.sentence}\n{verdict.sentenceZh}{nodes}\naegis job why {verdict.job}"
    return f"Aegis: {verdict.job} failed ({verdict.cause}), incarnation {verdict.incarnation}", text[:3000]


class Notifier:
    """`run` until cancelled. `mine(job)`: this replica keeps the job."""

    def __init__(self, bus: Bus, replica: str, folder: Path, urls: Sequence[str], mine: Callable[[str], bool], era: Callable[[], str]) -> None:  # noqa: PLR0917
        self._bus, self._replica, self._path, self._mine, self._era = bus, replica, folder / "notify.json", mine, era
        self._to = addresses(urls)

    async def run(self) -> None:
        noted = await self._begin()
        async with OrderedReader(self._bus, STREAM, [ALL], start=noted.seq + 1) as reader:
            reading = Reading(reader)
            try:
                while True:
                    for item in await reading.items(5.0):
                        if isinstance(item, Gap):
                            if item.first_seq < item.wanted:
                                noted.seq = 0
                            continue
                        await self._hear(noted, item)
            finally:
                reading.close()

    async def _begin(self) -> Noted:
        """Where it was left. What is over is not told at the very first start, nor beside other replicas: they had this one's jobs meanwhile."""
        others = set(await live_replicas(self._bus, SERVICE)) - {self._replica}
        try:
            noted = msgspec.json.decode(self._path.read_bytes(), type=Noted)
            if noted.era == self._era() and not others:
                return noted
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            noted = Noted()
        info = await self._bus.js_api(f"STREAM.INFO.{STREAM}")
        noted.seq, noted.era = int(info["state"]["last_seq"]), self._era()
        await self._note(noted)
        return noted

    async def _note(self, noted: Noted) -> None:
        """On disk before anything is sent; a disk that refuses is asked again."""
        while True:
            try:
                return await asyncio.to_thread(write_atomically, self._path, msgspec.json.encode(noted))
            except OSError as error:
                log.error("%s cannot be written (%s): nobody is told before it is", self._path, error)
                await asyncio.sleep(DISK_AGAIN)

    async def _hear(self, noted: Noted, item: Stored) -> None:
        noted.seq = item.seq
        try:
            verdict = decode(Verdict, item.data)
        except BadMessage as error:
            log.info("%s: %s", item.subject, error)
            return
        if not self._mine(verdict.job) or verdict.id in noted.told or verdict.state == HANG:  # a mark is no incident yet: it may be withdrawn
            return
        noted.told = [*noted.told, verdict.id][-TOLD:]
        await self._note(noted)
        title, text = message(verdict)
        left = self._to
        for wait in TRIES:
            await asyncio.sleep(wait)  # who was told is not told again because another was away
            left = [to for to in left if not await asyncio.to_thread(to.notify, body=text, title=title, notify_type="failure")]
            if not left:
                metrics.NOTIFIED.labels("sent").inc()
                return
        metrics.NOTIFIED.labels("failed").inc()
        log.warning("nobody, or not everybody, could be told of %s", verdict.id)
