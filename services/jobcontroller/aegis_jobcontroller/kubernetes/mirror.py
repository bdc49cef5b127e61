"""The mirror: writes the status of each job's record (`Aegis`) from what masters say in public, and may do nothing else.

A service of its own, so that its rights are its own: on the bus those of a reader, in the cluster `patch aegises/status`. Views wake it, a query
gives it the whole; nothing it writes is ever read back. `python -m aegis_jobcontroller.kubernetes.mirror`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.replica import replica_main
from aegis_bus.service import Service
from aegis_proto import subjects
from aegis_proto.api import JobDetail, JobRequest, Jobs, JobsRequest, RequestRefused, WorkerView, read_reply
from aegis_proto.messages import BadMessage, encode
from aegis_proto.phases import Phase

from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.projection import status
from aegis_jobcontroller.kubernetes.resources import RECORDS

log = logging.getLogger(__name__)

EVERY = 1.0
"""Seconds between two writes of one record, at least."""
AGAIN = 5.0
ABSENT_MAX = 300.0
"""A job without a record (not yet, or of another platform or cluster) is looked at again after EVERY seconds, doubled each time up to this."""
SNAPSHOT = 60.0
"""Seconds between two looks at all jobs: views are no promise."""
TIMEOUT = 5.0
PAGES = 60


class Mirror:
    """`due`: job -> when it may be written (monotonic)."""

    def __init__(self, bus: Bus, client: Client) -> None:
        self._bus = bus
        self._client = client
        self._due: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._absent: dict[str, float] = {}
        """job without a record -> seconds until it is looked at again."""
        self._ended: set[str] = set()
        """Jobs whose record shows the end."""
        self._news = asyncio.Event()

    async def start(self, service: Service) -> None:
        await self._bus.subscribe("aegis.view.job.*.state", self._on_view, timeout=30.0)
        service.spawn(self._snapshots(), "snapshots")
        service.spawn(self._write(), "records")

    async def _on_view(self, msg: Msg) -> None:
        self._mark(subjects.token(msg.subject, 3))

    def _mark(self, job: str) -> None:
        """Something is new: nothing of it is left out, though it may wait."""
        if job not in self._due:
            self._due[job] = self._written.get(job, 0.0) + self._absent.get(job, EVERY)
            self._news.set()

    async def _snapshots(self) -> None:
        while True:
            try:
                after, known = "", set[str]()
                while True:
                    request = encode(JobsRequest(all=True, after=after))
                    page = read_reply(Jobs, await self._bus.request(subjects.rpc_query("master", "jobs"), request, timeout=TIMEOUT))
                    known |= {item.job for item in page.items}
                    for item in page.items:
                        if item.job not in self._ended:
                            self._mark(item.job)
                    if not page.more or not page.items:
                        break
                    after = page.items[-1].job
                self._ended &= known
                self._written = {job: at for job, at in self._written.items() if job in known}
                self._absent = {job: wait for job, wait in self._absent.items() if job in known}
                await asyncio.sleep(SNAPSHOT)
            except (BusError, RequestRefused, BadMessage) as error:
                log.warning("jobs cannot be listed yet: %s", error)
                await asyncio.sleep(AGAIN)

    async def _write(self) -> None:
        while True:
            now = time.monotonic()
            for job in [job for job, at in self._due.items() if at <= now]:
                del self._due[job]
                await self._one(job)
            self._news.clear()
            wait = min(self._due.values(), default=now + AGAIN) - time.monotonic()
            try:
                async with asyncio.timeout(max(0.02, wait)):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _one(self, job: str) -> None:
        self._written[job] = time.monotonic()
        try:
            detail, workers = await self._ask(job)
            namespace = detail.summary.namespace
            await self._client.replace_status(RECORDS, namespace, job, status(detail, workers))
            self._absent.pop(job, None)
            if Phase(detail.summary.phase).terminal:
                self._ended.add(job)
        except KubeError as error:
            if error.absent:
                self._absent[job] = min(ABSENT_MAX, 2 * self._absent.get(job, EVERY / 2))
                self._due.setdefault(job, self._written[job] + self._absent[job])
            else:
                self._later(job, error)
        except (BusError, RequestRefused, BadMessage) as error:
            if not (isinstance(error, RequestRefused) and error.code == "E104"):
                self._later(job, error)

    def _later(self, job: str, error: Exception) -> None:
        log.warning("record of %s is not written yet: %s", job, error)
        self._due[job] = time.monotonic() + AGAIN

    async def _ask(self, job: str) -> tuple[JobDetail, list[WorkerView]]:
        workers: list[WorkerView] = []
        for _ in range(PAGES):
            request = encode(JobRequest(job, firstWorker=len(workers)))
            detail = read_reply(JobDetail, await self._bus.request(subjects.rpc_query("master", "job"), request, timeout=TIMEOUT))
            workers += detail.workers
            if not detail.moreWorkers or not detail.workers:
                break
        return detail, workers


async def start(service: Service) -> None:
    """Until the service is to stop."""
    settings = service.config
    identity = Identity.from_creds_file(settings.bus.creds)
    client = await Client.connect(settings.jobcontroller.kubeconfig)
    bus = await Bus.connect(
        identity, list(settings.bus.servers), name="mirror", tls_ca=settings.bus.tls_ca or None, timeout=settings.bus.connect_timeout
    )
    service.health["bus"] = lambda: bus.connected
    try:
        await Mirror(bus, client).start(service)
        await service.stopping.wait()
    finally:
        await bus.close()
        await client.close()


def main() -> int:
    """Settings: bus.servers, bus.creds (of a reader), jobcontroller.kubeconfig."""
    return replica_main("mirror", start, needs=("bus.servers", "bus.creds"))


if __name__ == "__main__":
    sys.exit(main())
