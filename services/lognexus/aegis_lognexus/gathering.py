"""What is at hand about a failure, or a run that is marked as hung: from EVENTS, CTL, BLOBS, FLEET and the files of the job into a `Failure`.

Reads; writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from aegis_bus.connection import Bus, Stored
from aegis_bus.errors import Unreadable
from aegis_bus.ordered import OrderedReader
from aegis_parsers.causes import Cause, Line, classify_lines
from aegis_proto import subjects
from aegis_proto.logs import SERVICE
from aegis_proto.messages import BadMessage, CheckResult, JobEvent, NodeSpec, Verdict, decode
from aegis_proto.metrics import Anomaly

from aegis_lognexus import firstlayer, looks
from aegis_lognexus.dumps import any_blobs, collect, report_of
from aegis_lognexus.evidence import Check, Failure, Log, Loss, NodeEvent, Worker
from aegis_lognexus.flight import Report
from aegis_lognexus.intake import Reading
from aegis_lognexus.links import bad_links
from aegis_lognexus.store import Asked, ask
from aegis_lognexus.store.matching import Question
from aegis_lognexus.verdict import verdict_id
from aegis_lognexus.where import Places, local_ranks, places

log = logging.getLogger(__name__)

STREAM = "EVENTS"
MAX_LINES = 100_000
"""Lines of an incarnation that are read for its verdict, the last ones."""
PER_LOG = 400
"""Findings of one rank that are weighed: the first ones."""
CHECK = re.compile(r"(w\d+) failed ([\w-]{1,64}): (.*)", re.S)
"""How the master's note of a failed check reads."""
NO_ENDS = ("check", "mark", "advice", "anomaly", "podReady")
"""Events about a worker that say nothing of its end."""
BEFORE = 15 * 60_000
"""Milliseconds before a failure in which what a daemon noticed belongs to it."""
ANOMALIES: dict[str, tuple[Cause, bool]] = {"gpuSilent": ("gpu_hw", True), "memoryGrowth": ("host_oom", False)}
"""What a daemon notices (`metrics.Anomaly`): cause, and whether it is the machine's own fault: memory that grows is the tenant's doing. The rest
(gpuIdle, bandwidthCollapse) are signs that it stands still, and no cause."""
MOST_NODES = 512
"""Machines whose labels are read."""
MOST_VERDICTS = 100
AT_ONCE = 256


async def gathered(bus: Bus, jobs: Path, event: JobEvent, at: int, *, behind: bool, hang: bool) -> tuple[Failure, Places | None]:
    """All evidence about one counted failure, or one mark, that was stored at `at` (ms). BusError."""
    try:
        there = await places(bus, event.job)
    except Unreadable as error:
        log.warning("%s", error)
        there = None
    lines = await asyncio.to_thread(read_logs, jobs / event.job, event.incarnation)
    blobs = await collect(bus, event.job) if await any_blobs(bus, event.job) else []
    nodes = there.nodes if there is not None else ()
    failure = gather(event, await events_of(bus, event.job), there, lines, behind=behind, flight=await report_of(blobs, event.incarnation))
    looked = await asyncio.to_thread(looks.put_together, blobs, event.incarnation)
    seen = firstlayer.node_events(await asyncio.to_thread(firstlayer.put_together, blobs, nodes), event.incarnation)
    noticed = await anomalies(bus, tuple(dict.fromkeys(worker.node for worker in failure.workers if worker.node)), at - BEFORE)
    links = await bad_links(bus, event.job) or ()
    return replace(failure, links=links, events=(*noticed, *seen), stacks=looked.stacks, ras=looked.ras, hang=hang), there


async def anomalies(bus: Bus, nodes: Sequence[str], since: int) -> tuple[NodeEvent, ...]:
    """What the daemons of these machines noticed last, from `since` (ms) on. BusError."""
    found = []
    for at in range(0, len(nodes), AT_ONCE):
        for item in await bus.get_many(STREAM, [subjects.node_event(node, "anomaly") for node in nodes[at : at + AT_ONCE]]):
            try:
                told = decode(Anomaly, item.data)
            except BadMessage as error:
                log.info("%s: %s", item.subject, error)
                continue
            cause, trusted = ANOMALIES.get(told.code, ("unknown", False))
            if item.time_ms >= since:
                found.append(NodeEvent(subjects.token(item.subject, 2), told.code, cause, told.message[:300], item.time_ms, trusted))
    return tuple(found)


async def verdicts_of(bus: Bus, job: str, newest: int) -> list[Verdict]:
    """Those about the last MOST_VERDICTS incarnations up to `newest`, each after the one of its mark. BusError."""
    numbers = range(max(0, newest - MOST_VERDICTS + 1), newest + 1)
    found: list[Verdict] = []
    for hang in (True, False) if numbers else ():
        for stored in await bus.get_many(STREAM, [subjects.verdict(SERVICE, "job", verdict_id(job, n, hang=hang)) for n in numbers]):
            try:
                found.append(decode(Verdict, stored.data))
            except BadMessage as error:
                log.warning("%s: %s", stored.subject, error)
    return sorted(found, key=lambda verdict: verdict.incarnation)


async def labels_of(bus: Bus, nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """What the daemons of these machines were told of them (rack, switch, ...). BusError."""
    found = {}
    for node in list(dict.fromkeys(filter(None, nodes)))[:MOST_NODES]:
        stored = await bus.get("FLEET", subjects.node_spec(node))
        try:
            found[node] = decode(NodeSpec, stored.data).labels if stored is not None and not stored.marker else {}
        except BadMessage as error:
            log.info("%s: %s", node, error)
    return found


async def events_of(bus: Bus, job: str) -> list[JobEvent]:
    """What is stored about the job, in order. BusError."""
    found: list[JobEvent] = []
    async with OrderedReader(bus, STREAM, [subjects.job_event(job)]) as reader:
        reading = Reading(reader)
        try:
            while items := await reading.items(2.0):
                for item in items:
                    if isinstance(item, Stored):
                        try:
                            found.append(decode(JobEvent, item.data))
                        except BadMessage:
                            continue
                if not reader.pending:
                    break
        finally:
            reading.close()
    return found


def read_logs(folder: Path, incarnation: int) -> tuple[tuple[Log, ...], bool]:
    """(the classified lines of every rank in this incarnation, were there more than were read)."""
    lines: dict[tuple[str, int], list[str]] = defaultdict(list)
    question = Question(incarnation=incarnation, kinds=("out", "err"))
    page = ask(folder, Asked(question, tail=MAX_LINES, budget=20.0, max_bytes=64 << 20, most=MAX_LINES))
    for line in page.lines:
        lines[line.worker, line.rank].append(line.message)
    return tuple(Log(pod, rank, first(classify_lines(texts)), len(texts)) for (pod, rank), texts in sorted(lines.items())), page.more


def first(found: Sequence[Line]) -> tuple[Line, ...]:
    """The first findings; of symptoms, which repeat by the thousand, fewer."""
    strong = [line for line in found if line.strength != "symptom"][:PER_LOG]
    symptoms = [line for line in found if line.strength == "symptom"][:PER_LOG]
    return tuple(sorted([*strong, *symptoms], key=lambda line: line.n))


def starts(each: JobEvent, failure: JobEvent) -> bool:
    """Is it the start of the run that failed?"""
    return each.type == "phase" and each.phase == "RunCommand" and each.incarnation == failure.incarnation and each.seqNum <= failure.seqNum


def gather(
    event: JobEvent,
    events: Sequence[JobEvent],
    there: Places | None,
    logs: tuple[tuple[Log, ...], bool],
    *,
    behind: bool = False,
    flight: Report | None = None,
) -> Failure:
    """All evidence about one counted failure. `events`: of the job, in order. `behind`: lines are still on their way.

    What failed before the run began (of the first run: its bootcheck) was gone when it did, and is no evidence about its end.
    """
    began = next((i for i, each in enumerate(events) if starts(each, event)), -1)
    mine = [each for each in events[began + 1 :] if each.incarnation == event.incarnation]
    checks = [
        Check(found[1], each.node, CheckResult(found[2], False, found[3][:300]))
        for each in mine
        if each.type == "check" and (found := CHECK.fullmatch(each.message)) is not None
    ]
    losses = [
        Loss(each.pod, each.node, each.cause, each.message, platform=each.cause == "nodeLost")
        for each in mine
        if each.pod and each.cause and each.type not in NO_ENDS
    ]
    missing: list[str] = []
    workers: tuple[Worker, ...] = ()
    lines, more = logs
    if there is None:
        missing.append("the job's state is gone: which rank was where is not known")
    else:
        each_node = local_ranks((each.pod, each.rank) for each in lines)
        nodes = {each.pod: each.node for each in events[: began + 1] if each.type == "podReady" and each.node}
        for loss in losses:  # the first names where it was in the run, a later one may be about its successor
            if loss.node:
                nodes.setdefault(loss.pod, loss.node)
        workers = tuple(
            Worker(f"w{i}", nodes.get(f"w{i}") or node, tuple(range(i * each_node, (i + 1) * each_node))) for i, node in enumerate(there.nodes)
        )
    if behind:
        missing.append("lines that had not been read when it was judged")
    if more:
        missing.append(f"lines before the last {MAX_LINES} of the incarnation")
    return Failure(event.job, event.incarnation, 0, workers, lines, (), tuple(checks), tuple(losses), flight, tuple(missing))
