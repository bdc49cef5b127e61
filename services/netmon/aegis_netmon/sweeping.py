"""The fabric side: sweep after sweep by the one replica that holds the lease, each within its budget. The thin shell around `collect` and `watch`.

Starts the tools of infiniband-diags; reads the folder of reports. A sweep that does not see half of the links that the last one saw is believed only
when the next one says the same: then it was no trouble of the management network.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from aegis_bus.settings import NetmonSettings

from aegis_netmon import metrics, users
from aegis_netmon.collect import FabricReader, NoFabric
from aegis_netmon.fabricpoll import Reading
from aegis_netmon.incidents import Incidents
from aegis_netmon.picture import Picture
from aegis_netmon.reports import Reports
from aegis_netmon.routing import AdaptiveState
from aegis_netmon.topology import End, Link
from aegis_netmon.watch import Watch, dipped, in_time, step

log = logging.getLogger(__name__)

ROUTES_EVERY = 600.0
LOOK = 0.25
LOST_SHARE = 0.5


def zone_of(settings: NetmonSettings) -> tzinfo:
    """Of UFM's clock. ValueError (E130)."""
    try:
        return ZoneInfo(settings.ufm_zone) if settings.ufm_zone != "UTC" else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f'E130 netmon.ufmZone "{settings.ufm_zone}": expected a time zone, as Europe/Berlin') from None


def expected(watch: Watch) -> Mapping[str, Link]:
    """The links that a first sweep should see: those that were not down when the holder before wrote them down."""
    return {key: link for key, link in watch.links.items() if (history := watch.flaps.get(key)) is None or history.up is not False}


class Swept(msgspec.Struct, frozen=True):
    """The last sweep: when (seconds), how long it took, what it lacked, and why there is none."""

    at: float = 0.0
    seconds: float = 0.0
    partial: tuple[str, ...] = ()
    why: str = ""


class Sweeping:
    """`run` until cancelled, then `stop`. `mine`: whether this replica may sweep now; `on_sweep` is called after each."""

    def __init__(
        self, settings: NetmonSettings, mine: Callable[[], bool], picture: Picture, incidents: Incidents, on_sweep: Callable[[], None]
    ) -> None:
        self._settings, self._mine, self._picture, self._incidents, self._on_sweep = settings, mine, picture, incidents, on_sweep
        self.reader = FabricReader(settings.prefix, settings.budget)
        self.reports = Reports(settings.reports, zone_of(settings))
        self.adaptive: AdaptiveState = self.reports.adaptive(None)
        self.last = Swept(why="" if settings.fabric else "this replica does not sweep (netmon.fabric is false)")
        self._routes_due = 0.0
        self._below: dict[End, str] = {}
        self._doubtful = False

    async def run(self) -> None:
        due = 0.0
        while True:
            now = time.monotonic()
            metrics.SWEPT.set(time.time() - self.last.at if self.last.at else -1)
            if self._mine() and now >= due:
                due = now + self._settings.sweep
                try:
                    await self._sweep()
                except Exception as error:  # what a tool printed must not end the service; the next sweep may be fine
                    log.exception("a sweep failed")
                    self.last = msgspec.structs.replace(self.last, why=f"{type(error).__name__}: {error}"[:300])
            await asyncio.sleep(LOOK)

    async def _sweep(self) -> None:
        changed = await asyncio.to_thread(self.reports.look)
        if self._settings.fabric:
            begun = time.monotonic()
            try:
                reading = await asyncio.to_thread(self.reader.read)
            except NoFabric as error:
                log.warning("the fabric was not read: %s", error)
                self.last = Swept(self.last.at, time.monotonic() - begun, self.last.partial, str(error))
            else:
                metrics.SWEEP.observe(time.monotonic() - begun)
                if self._mine():  # the lease may have run out meanwhile
                    await self._take(reading, time.monotonic() - begun)
        elif (reported := self.reports.reading(changed)) is not None and reported.at > self.last.at:
            await self._take(reported, 0.0)
        for sensor in self.reports.sensors(changed):
            self._incidents.sensor(sensor)
        self._incidents.events.extend(self.reports.events(changed))
        self._picture.watch = dipped(self._picture.watch, self.reports.dips(changed), self._picture.hosts.limits)
        self._routing()
        self._on_sweep()

    async def _take(self, reading: Reading, seconds: float) -> None:
        picture = self._picture
        partial, graph = reading.partial, picture.fabric.links
        known = graph or expected(picture.watch)
        lost = len(known.keys() - reading.fabric.links.keys())
        if known and lost > LOST_SHARE * len(known) and not self._doubtful:
            self._doubtful = True
            self.last = Swept(self.last.at, seconds, (f"{lost} of {len(known)} links were not seen: believed when the next sweep says so", *partial))
            log.warning("%s", self.last.partial[0])
            return
        self._doubtful = False
        reading = msgspec.structs.replace(reading, optics=reading.optics or self.reports.optics(time.time()), below=self._below)
        watch = in_time(picture.watch, reading.at) if self._settings.fabric else picture.watch
        after, verdicts = await asyncio.to_thread(step, watch, reading, picture.hosts.limits)
        picture.swept(after, reading.fabric, verdicts)
        for end, port in after.ports.items():
            self._incidents.counted(end, port, reading.at)
        self.last = Swept(reading.at, seconds, partial)
        metrics.PARTIAL.set(len(partial))
        graph_changed = graph.keys() != reading.fabric.links.keys()
        if self._settings.fabric and (graph_changed or time.monotonic() >= self._routes_due):
            self._routes_due = time.monotonic() + ROUTES_EVERY
            parsed, why = await asyncio.to_thread(self.reader.routes)
            picture.routed(users.routes(parsed.items) if parsed is not None else {})
            self._below = await asyncio.to_thread(self.reader.below)
            if why:
                log.info("routes of the switches are not known: %s", why)

    def _routing(self) -> None:
        """Adaptive routing as the reports say, for judging counters and for whom a link hits."""
        picture = self._picture
        switches = sum(device.kind == "switch" for device in picture.fabric.devices.values()) or None
        self.adaptive = self.reports.adaptive(switches)
        picture.routing({"on": True, "off": False}.get(self.adaptive.state))
        for state in ("on", "off", "unknown"):
            metrics.ADAPTIVE.labels(state).set(state == self.adaptive.state)

    def stop(self) -> None:
        """The tool that runs ends now."""
        self.reader.stop()
