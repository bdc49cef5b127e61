"""What is in the cluster, kept equal to it: list once, then watch from there.

The rules, each learnt from a way in which watches fail: a watch is short (a minute) and is given up a little later, since a dead connection says
nothing; it goes on from the last version heard, bookmarks included, so that nothing is listed again for it; a version that the server has forgotten
(410, as a status or as an ERROR event) means list anew and compare; any other fault is waited for, longer each time, with jitter; and all is listed
anew now and then, whatever was heard.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from aegis_jobcontroller import metrics
from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.resources import Object, Resource

log = logging.getLogger(__name__)

PAGE = 500
WATCH = 60.0
"""Seconds one watch lasts, and up to a quarter more, so that they do not all end at once."""
RELIST = 600.0
PAUSE, PAUSE_MAX = 0.2, 20.0

T = TypeVar("T")
Key = tuple[str, str]
"""(namespace, name)."""


class Informer(Generic[T]):
    """`items`: key -> what `parse` made of the object; what it makes None of is not kept. `changed` is called after each change.

    `on_removed` is given what is no more, as it was last seen. `synced`: everything was listed once. `heard_at` (monotonic): when the server last
    spoke."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        parse: Callable[[Object], T | None],
        changed: Callable[[], None],
        *,
        selector: str = "",
        on_removed: Callable[[T], None] = lambda item: None,
    ) -> None:
        self.items: Mapping[Key, T] = {}
        self.synced = False
        self.heard_at = 0.0
        self._client = client
        self._resource = resource
        self._parse = parse
        self._changed = changed
        self._on_removed = on_removed
        self._selector = {"labelSelector": selector} if selector else {}
        self._items: dict[Key, T] = {}
        self._version = ""
        self._listed_at = 0.0
        self._moved = asyncio.Condition()
        self.items = self._items

    @property
    def plural(self) -> str:
        return self._resource.plural

    async def run(self) -> None:
        """For ever."""
        pause = PAUSE
        while True:
            try:
                if not self._version or time.monotonic() - self._listed_at > RELIST:
                    await self._list()
                await self._watch()
                pause = PAUSE
            except KubeError as error:
                if error.expired:
                    self._version = ""
                    metrics.KUBE_WATCH.labels(self._resource.plural, "expired").inc()
                    continue
                metrics.KUBE_WATCH.labels(self._resource.plural, "failed").inc()
                log.warning("%s cannot be watched, again in about %.1f s: %s", self._resource.plural, pause, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(PAUSE_MAX, 2 * pause)

    async def has(self, key: Key, timeout: float = 5.0) -> bool:
        """Wait until `key` is there: after an own create, so that the next look at `items` knows of it."""
        try:
            async with asyncio.timeout(timeout), self._moved:
                await self._moved.wait_for(lambda: key in self._items)
            return True
        except TimeoutError:
            return False

    async def _list(self) -> None:
        found: dict[Key, T] = {}
        query = {"limit": str(PAGE), **self._selector}
        while True:
            page = await self._client.list(self._resource, **query)
            for item in page.get("items") or ():
                self._put(found, item)
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                break
            query["continue"] = str(metadata["continue"])
        self._version = str(metadata.get("resourceVersion") or "")
        self._listed_at = time.monotonic()
        for key in self._items.keys() - found.keys():
            self._on_removed(self._items[key])
        self._items = found
        self.items = found
        self.synced = True
        metrics.KUBE_WATCH.labels(self._resource.plural, "listed").inc()
        await self._tell()

    async def _watch(self) -> None:
        lasts = random.uniform(WATCH, 1.25 * WATCH)
        async for kind, item in self._client.watch(self._resource, "", lasts, resourceVersion=self._version, **self._selector):
            self.heard_at = time.monotonic()
            if kind == "ERROR":
                raise KubeError(int(item.get("code") or 500), str(item.get("reason") or ""), str(item.get("message") or ""))
            self._version = str(item["metadata"]["resourceVersion"])
            if kind == "DELETED":
                self._remove(item)
            elif kind != "BOOKMARK":
                self._put(self._items, item)
            else:
                continue
            await self._tell()
        self.heard_at = time.monotonic()

    def _put(self, where: dict[Key, T], item: Object) -> None:
        """What cannot be read is nobody's: the next version of it may be."""
        try:
            made = self._parse(item)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("%s %s is not readable: %s", self._resource.plural, _key(item), error)
            made = None
        if made is None:
            where.pop(_key(item), None)
        else:
            where[_key(item)] = made

    def _remove(self, item: Object) -> None:
        """The event carries the object's last state, which may be news."""
        self._put(self._items, item)
        last = self._items.pop(_key(item), None)
        if last is not None:
            self._on_removed(last)

    async def _tell(self) -> None:
        self.heard_at = time.monotonic()
        self._changed()
        async with self._moved:
            self._moved.notify_all()


def _key(item: Object) -> Key:
    metadata = item.get("metadata") or {}
    return (str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
