"""The first layer of `aegis job why`: what the machines, the network and the scheduler have on a job, as lines of its timeline.

`gather` asks lognexus, netmon and the job controller; whoever does not run here, or may not be asked, adds nothing. The rest is pure.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from aegis_bus.errors import BusError
from aegis_proto import net, subjects
from aegis_proto.api import RequestRefused, read_reply
from aegis_proto.api_nodes import RecordAnswer, RecordQuery
from aegis_proto.messages import encode
from aegis_proto.snapshots import NodeSnapshot, SnapshotsAnswer, SnapshotsQuery
from aegis_proto.times import rfc3339

from aegis_cli.client import Client
from aegis_cli.stack.output import cleaned

T = TypeVar("T", bound=msgspec.Struct)
PATIENCE = 5.0
MOST_LINKS = 8
WELL = ("healthy", "unproven")
PORT = re.compile(r" port \d+$")


class Line(msgspec.Struct, frozen=True):
    """One line of the timeline: when (RFC 3339), what, who says so, with which evidence; `more`: the evidence in full."""

    time: str
    what: str
    who: str
    evidence: str
    incarnation: int
    counted: bool = False
    more: tuple[str, ...] = ()


class FirstLayer(msgspec.Struct, frozen=True):
    """`common`: what the failures of weeks have in common, by netmon."""

    machines: tuple[NodeSnapshot, ...] = ()
    links: net.JobLinksAnswer | None = None
    common: str = ""
    record: RecordAnswer | None = None


async def gather(client: Client, job: str) -> FirstLayer:
    machines, links, fabric, record = await asyncio.gather(
        _asked(client, "lognexus", "snapshots", SnapshotsQuery(job), SnapshotsAnswer),
        _asked(client, net.SERVICE, "job", net.JobLinksQuery(job), net.JobLinksAnswer),
        _asked(client, net.SERVICE, "links", net.LinksQuery(job=job, limit=1), net.LinksAnswer),
        _asked(client, "jobcontroller", "record", RecordQuery(job), RecordAnswer),
    )
    return FirstLayer(machines.items if machines else (), links, fabric.fabric.common if fabric else "", record)


async def _asked(client: Client, service: str, verb: str, query: msgspec.Struct, kind: type[T]) -> T | None:
    """None: nobody answers here, or not to us."""
    try:
        data = await client.bus.request(subjects.rpc_query(service, verb, client.scope), encode(query), timeout=min(client.timeout, PATIENCE))
        return read_reply(kind, data)
    except (BusError, RequestRefused):
        return None


def lines(found: FirstLayer, incarnation: int, whole: bool) -> Iterator[Line]:
    """`incarnation`: the present one, to which belongs what is told of now. With `whole`, also what is well."""
    for machine in found.machines:
        yield from _of_machine(machine, whole)
    if found.links is not None:
        yield from _of_links(found.links, found.common, incarnation, whole)
    if found.record is not None and whole:
        yield from _of_record(found.record, incarnation)


def _of_machine(found: NodeSnapshot, whole: bool) -> Iterator[Line]:
    """What the kernel said; with `whole`, also how the machine was."""
    it, who = found.snapshot, f"{found.pod} on {found.node}" if found.node else found.pod
    clock = f"clock {found.offset / 1000:+.3f} s" if abs(found.offset) >= 50 else "clock as the server's"
    for line in it.kernel:
        evidence = f"snapshot, {line.cause or line.label}, {clock}"
        yield Line(rfc3339(line.at + found.offset), cleaned(f"kernel: {line.text}"), who, evidence, found.incarnation)
    if whole:
        parts = [f"load {it.load:g} on {it.cpus} CPUs"]
        parts += [f"{it.memory:.0%} of memory free"] if it.memory >= 0 else []
        parts += [f"waits for {name} {share:g} %" for name, share in it.pressure.items() if share >= 1]
        parts += [f"GPU {gpu}" for gpu in it.gpus]
        parts += [f"{port}: " + ", ".join(f"{name} {value}" for name, value in counters.items()) for port, counters in it.ports.items() if counters]
        missing = f"; not read: {'; '.join(it.missing)}" if it.missing else ""
        text = cleaned("; ".join(parts) + missing)
        yield Line(rfc3339(it.at + found.offset), f"machine: {text}", who, f"snapshot, {clock}", found.incarnation)


def _of_links(found: net.JobLinksAnswer, common: str, incarnation: int, whole: bool) -> Iterator[Line]:
    """Links of the job that are not well, since when; with `whole`, the switches that it uses."""
    bad = [link for link in found.links if link.state not in WELL]
    for link in bad[:MOST_LINKS]:
        use = "it uses this link" if any(job.job == found.job and job.certain for job in link.jobs) else "it may use this link"
        stories = tuple(finding.story for finding in link.findings)
        text = f"link {link.a} - {link.b or '?'}: {link.state}{f', {stories[0]}' if stories else ''}"
        reason = f"; look at {link.suspect}: {link.reason}" if link.suspect else ""
        yield Line(rfc3339(round(link.since or found.timeStamp)), cleaned(text), "netmon", f"{use}{reason}", incarnation, more=stories)
    if whole:
        ends = {end for link in found.links for end in (link.a, link.b) if end and end.partition(" ")[0] not in found.nodes}
        names = sorted({PORT.sub("", end) for end in ends})
        over = f" over {', '.join(names[:12])}{' ...' if len(names) > 12 else ''}" if names else ""
        text = f"network: {found.total} links{'' if found.exact else ' at most'}{over}, {len(bad)} not well; adaptive routing {found.routing.state}"
        yield Line(rfc3339(round(found.timeStamp)), cleaned(text), "netmon", "counters and topology", incarnation, more=found.settings)
    if common and (bad or whole):
        yield Line(rfc3339(round(found.timeStamp)), cleaned(common), "netmon", "failures of all jobs together", incarnation)


def _of_record(found: RecordAnswer, incarnation: int) -> Iterator[Line]:
    """Where each worker was placed, and what the scheduler says of it."""
    for worker in found.workers:
        text = f"placed on {worker.node or '?'} ({worker.place}), attempt {worker.attempt}: {worker.state}"
        words = f"; {worker.message}" if worker.message else ""
        yield Line(rfc3339(worker.at), cleaned(text + words), worker.pod, f"scheduler ({found.platform})", incarnation)


def of_history(history: Sequence[str], time: str, incarnation: int) -> Iterator[Line]:
    """What a failure shares with earlier ones."""
    for text in history:
        yield Line(time, cleaned(text), "lognexus", "failures of this job together", incarnation)
