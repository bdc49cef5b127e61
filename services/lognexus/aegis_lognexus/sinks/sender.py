"""One sink at work: lines of all jobs, each job in the order of its files, one request at a time. Reads the store; owns `sinks/<name>.json`.

Memory is one batch. The position is written after each answer, so that a process that dies sends the last batch once more.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import random
from pathlib import Path

import msgspec
from aegis_proto.logs import StoredLine

from aegis_lognexus import metrics
from aegis_lognexus.sinks.formats import FORMATS, Answer, read_answer
from aegis_lognexus.sinks.target import Target
from aegis_lognexus.store.blocks import segment, segment_numbers
from aegis_lognexus.store.joblog import write_atomically
from aegis_lognexus.store.matching import Question
from aegis_lognexus.store.query import Asked, ask

log = logging.getLogger(__name__)

BATCH_LINES = 2_000
BATCH_BYTES = 1 << 20
LOOK_EVERY = 0.5
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
MOST_PATIENCE = 300.0
"""Longest wait that a backend's Retry-After is obeyed for."""


class Sender:
    """`run` until cancelled. What a sink refuses for good is counted and dropped; whatever may be taken later is sent again, ever more slowly."""

    def __init__(self, store: Path, to: Target, look_every: float = LOOK_EVERY, first_wait: float = FIRST_WAIT) -> None:
        self._store, self._to, self._look_every, self._first_wait = store, to, look_every, first_wait
        self._path = store / "sinks" / f"{to.name}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._positions = self._load()
        self._limit = BATCH_LINES
        self._failures = 0

    def _load(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("%s: %s; everything in the store is sent again", self._path, error)
            return {}

    async def run(self) -> None:
        while True:
            try:
                worked = await self.sweep()
            except OSError as error:  # the store's disk: how far it has come is known, and written when it can be
                log.error("sink %s: %s; tried again", self._to, error)
                await asyncio.sleep(self._first_wait)
                continue
            if not worked:
                await asyncio.sleep(self._look_every)

    async def sweep(self) -> bool:
        """One batch of each job that has lines; False when none had."""
        behind = await asyncio.to_thread(self._look)
        for gone in set(self._positions) - set(behind):
            del self._positions[gone]
        metrics.SINK_BEHIND.labels(self._to.name).set(sum(behind.values()))
        worked = False
        for job, size in behind.items():
            if size or job not in self._positions:
                worked = await self._batch(job) or worked
        return worked

    def _look(self) -> dict[str, int]:
        """Job -> bytes of it that are not sent."""
        folder = self._store / "jobs"
        jobs = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
        return {job: self._behind(job) for job in jobs}

    def _behind(self, job: str) -> int:
        """Bytes of a job that are not sent."""
        folder = self._store / "jobs" / job
        number, _, offset = self._positions.get(job, "0:0").partition(":")
        total = 0
        for each in segment_numbers(folder):
            if each >= int(number):
                try:
                    total += segment(folder, each).stat().st_size - (int(offset) if each == int(number) else 0)
                except FileNotFoundError:
                    continue
        return total

    async def _batch(self, job: str) -> bool:
        at = self._positions.get(job, "")
        folder = self._store / "jobs" / job
        if at and int(at.partition(":")[0]) < min(segment_numbers(folder), default=0):
            metrics.SINK_REFUSED.labels(self._to.name, "retention").inc()
            log.warning("sink %s: lines of %s went by retention before they were sent; it goes on with what is left", self._to, job)
        page = await asyncio.to_thread(ask, folder, Asked(Question(), 0, at, self._limit, max_bytes=BATCH_BYTES))
        if page.lines and not await self._deliver(page.lines):
            return True  # fewer at once: the same lines are read again
        if page.cursor != at and (page.lines or page.more or at):
            self._positions[job] = page.cursor
            await asyncio.to_thread(write_atomically, self._path, msgspec.json.encode(self._positions))
        return bool(page.lines)

    async def _deliver(self, lines: tuple[StoredLine, ...]) -> bool:
        """True when these lines are dealt with; False when fewer of them must be sent at once."""
        body = await asyncio.to_thread(FORMATS[self._to.kind].encode, lines)
        while True:
            answer = await self._post(body)
            match answer.verdict:
                case "taken":
                    lost = max(0, min(answer.lost, len(lines)))  # the backend's word
                    metrics.SENT.labels(self._to.name).inc(len(lines) - lost)
                    if lost:
                        self._refused(lost, "partly", answer.reason)
                    if self._failures:
                        log.info("sink %s takes lines again after %d attempts", self._to, self._failures)
                    self._failures = 0
                    self._limit = min(BATCH_LINES, self._limit * 2)
                    return True
                case "smaller" if len(lines) > 1:
                    self._limit = max(1, len(lines) // 2)
                    return False
                case "smaller":
                    self._refused(1, "too large", answer.reason)
                    return True
                case "refused":
                    self._refused(len(lines), answer.reason.partition(" ")[0], answer.reason)
                    return True
                case _:
                    await self._wait(answer)

    async def _post(self, body: bytes) -> Answer:
        try:
            status, headers, told = await asyncio.to_thread(self._to.send, body)
        except (OSError, http.client.HTTPException) as error:
            return Answer("again", f"{type(error).__name__}: {error}")
        except ValueError as error:  # what `auth_file` holds is no header; its text is not shown
            return Answer("setup", f"{type(error).__name__}: the request cannot be made")
        return read_answer(self._to.kind, status, headers, told)

    async def _wait(self, answer: Answer) -> None:
        self._failures += 1
        metrics.SINK_RETRIES.labels(self._to.name).inc()
        wait = min(LONGEST_WAIT, self._first_wait * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
        if answer.wait is not None:
            wait = max(wait, min(answer.wait, MOST_PATIENCE))
        if self._failures in (1, 5) or self._failures % 50 == 0:
            what = "its address or credentials are wrong, nothing is dropped" if answer.verdict == "setup" else "tried again"
            log.warning("sink %s does not take lines (%s): %s, in %.1f s", self._to, answer.reason, what, wait)
        await asyncio.sleep(wait)

    def _refused(self, lines: int, label: str, reason: str) -> None:
        metrics.SINK_REFUSED.labels(self._to.name, label).inc(lines)
        log.warning("sink %s refused %d lines for good, dropped for it: %s", self._to, lines, reason)
