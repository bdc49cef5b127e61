"""What each kind of evidence says about a failure, by itself: pure functions of a `Failure` to a `Reading`, or None when it says nothing.

`verdict.py` puts them together. What holds for more than half of the nodes (two or more) accuses none of them: the check, or what they share, is
suspect.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from aegis_parsers.causes import Cause, Line, decisive
from aegis_proto.messages import CheckResult

from aegis_lognexus.evidence import Failure, Log, NodeEvent, Reading

NODE_CAUSES = ("gpu_hw", "node_hw", "network", "storage", "host_oom", "contention")
"""Causes that lie at a machine or beside it; the rest lie in the program, whatever the machine."""
CHECK_CAUSES: dict[str, Cause] = {
    "io": "storage",
    "gpu": "gpu_hw",
    "runtime": "software",
    "rdma": "network",
    "allreduce-connection": "network",
    "allreduce": "network",
    "allreduce-performance": "contention",
    "performance": "contention",
    "node": "node_hw",
}
"""Checks of the diagnosis in both spellings, cheap and local ones first: the first that fails decides. The rest (process, hang) prove no cause."""
FLIGHT_CAUSES: dict[str, Cause] = {
    "gpu_error": "gpu_hw",
    "op_mismatch": "user_code",
    "dtype_mismatch": "user_code",
    "size_mismatch": "user_code",
    "skipped_op": "user_code",
    "extra_op": "user_code",
    "p2p_no_recv": "user_code",
    "p2p_no_send": "user_code",
    "order_deadlock": "user_code",
    "host_hang_gil": "software",
}
"""What a flight record proves about the why; the others (not_joined, rank_died, gpu_hang, stuck_inside) only name who."""
ENDS = {"signal": 0.5, "killed": 0.5, "error": 0.35, "slow": 0.35}
"""How a process ends that no peer took along (`phases.LostReason`, or its mark was paid), and how sure it is that the failure began with it."""
SUSPECTED = 0.3
"""Confidence of a suspicion, at most."""
CONFIDENCE = {"high": 0.8, "medium": 0.6, "low": 0.3, "none": 0.0}
WORK = re.compile(r"last enqueued (?:NCCL )?work: (-?\d{1,18}), last completed (?:NCCL )?work: (-?\d{1,18})")
WRAPPED = re.compile(r"^(?:critical|warning) [a-z_]{1,40} | \([^()]{0,100}\)$")
"""What a finding of a check has around its words."""
RANK = re.compile(r": rank (\d{1,7}): ")
GROUP = re.compile(r"\[PG (?:ID \d{1,9} PG GUID )?([^ \])]{1,64})")
"""Each group counts its operations by itself."""
FEW = 8


def shared(nodes: Collection[str], failure: Failure) -> bool:
    """Too many at once to be each one's own fault."""
    all_ = {worker.node for worker in failure.workers if worker.node}
    return len(nodes) >= 2 and len(nodes) * 2 > len(all_)


def by_events(failure: Failure) -> Reading | None:
    """The earliest event of a daemon that has a cause at the machine."""
    events = sorted((event for event in failure.events if event.cause in NODE_CAUSES), key=lambda event: (event.at, event.node))
    if not events:
        return None
    first = events[0]
    same: dict[str, NodeEvent] = {}
    for event in events:
        if event.label == first.label:
            same.setdefault(event.node, event)
    text = f"{first.node}: {first.label}: {first.text}"
    if shared(same, failure):
        return Reading(first.cause, "node", f"{first.label} on {len(same)} nodes: what they share is suspect, first {text}", confidence=0.8)
    nodes = (first.node,)
    pods = tuple(worker.pod for worker in failure.workers if worker.node == first.node)
    sure = any(event.trusted for event in events if event.node == first.node and event.label == first.label)
    return Reading(first.cause, "node", text, pods=pods, nodes=nodes, accused=nodes if sure else (), confidence=0.95 if sure else 0.8)


def _name(result: CheckResult) -> str:
    return result.CheckType.replace("_", "-").lower()


def by_platform(failure: Failure) -> Reading | None:
    """A node that the platform lost, a preemption: no look into logs is needed for these."""
    for loss in sorted(failure.losses, key=lambda loss: (loss.at, loss.pod)):
        who = f"{loss.pod} on {loss.node}" if loss.node else loss.pod
        if loss.reason == "preempted":
            return Reading("preemption", "platform", f"{who} was preempted {loss.message}".strip(), pods=(loss.pod,), confidence=0.95)
        if loss.reason == "nodeLost" and loss.platform:
            nodes = tuple(filter(None, (loss.node,)))
            return Reading("node_hw", "platform", f"{who}: the platform lost the node {loss.message}".strip(), (loss.pod,), (), nodes, nodes, 0.9)
    return None


def by_checks(failure: Failure) -> Reading | None:
    """The first check of the table that failed somewhere."""
    failed: dict[str, list[tuple[str, str, CheckResult, bool]]] = defaultdict(list)
    for check in failure.checks:
        name = _name(check.result)
        if not check.result.Pass and name in CHECK_CAUSES:
            failed[name].append((check.pod, check.node, check.result, check.by_daemon))
    for name, cause in CHECK_CAUSES.items():
        if not (rows := failed.get(name)):
            continue
        nodes = tuple(dict.fromkeys(node for _, node, _, _ in rows if node))
        pods = tuple(dict.fromkeys(pod for pod, _, _, _ in rows))
        pod, node, result, _ = rows[0]
        text = f"check {name} failed on {pod}{f' ({node})' if node else ''}: {result.code or result.Result}"
        if shared(nodes, failure) or len(pods) * 2 > max(len(failure.workers), 2):
            what = f"check {name} failed on {len(pods)} workers: the check or what they share is suspect, first {text}"
            return Reading(cause, "check", what, confidence=0.5)
        accused = tuple(dict.fromkeys(node for _, node, _, by_daemon in rows if node and by_daemon))
        return Reading(cause, "check", text, pods, (), nodes if cause in NODE_CAUSES else (), accused, 0.9 if accused else 0.75)
    return None


def port_event(failure: Failure) -> bool:
    """Did anybody see a port or a link fail: netmon, a machine's kernel, the check that reads the ports? Most timeouts have another cause than the
    network (over 60 % are the processors' side: PyTorch blog, 2026-03), and a line about a peer that is gone says nothing of why."""
    seen = any(event.cause == "network" for event in failure.events)
    return seen or bool(failure.links) or any(not check.result.Pass and _name(check.result) == "rdma" for check in failure.checks)


def without_port_event(reading: Reading) -> Reading:
    """What speaks for the network where nobody saw a port or a link fail: a suspicion."""
    if reading.cause != "network":
        return reading
    text = f"the network is suspected, and no port or link was seen to fail: {reading.text}"
    return replace(reading, cause="unknown", suspected="network", text=text, confidence=min(reading.confidence, SUSPECTED))


def by_logs(failure: Failure) -> tuple[Reading | None, Line | None, Log | None]:
    """The earliest strong line over all ranks (a weak one where there is no strong one), the line itself, and whose it is.

    A line about the network decides before another strong one only where a port or a link was seen to fail.
    """
    named = {log.name: log for log in failure.logs if log.found}
    first = decisive({name: log.found for name, log in named.items()})
    if first is not None and first.cause == "network" and not port_event(failure):
        first = (
            decisive({name: [line for line in log.found if line.strength == "strong" and line.cause != "network"] for name, log in named.items()})
            or first
        )
    if first is None:
        return None, None, None
    owner = named[first.rank]
    line = next(line for line in owner.found if line.n == first.n and line.label == first.label)
    alike = [log for log in named.values() if any(other.label == first.label for other in log.found)]
    everywhere = len(alike) >= 2 and len(alike) == sum(1 for log in failure.logs if log.read)
    suspects = [] if everywhere and first.cause not in NODE_CAUSES else [owner] if len(alike) > FEW or first.cause in NODE_CAUSES else alike
    pods = tuple(dict.fromkeys(log.pod for log in suspects))
    hosts = tuple(dict.fromkeys(node for pod in pods if (node := failure.node_of(pod)))) if first.cause in NODE_CAUSES else ()
    text = f"{owner.name} line {first.n} ({first.label}): {first.text[:300]}"
    more = (f"the same on {len(alike)} ranks",) if len(alike) > 1 else ()
    confidence = 0.7 if line.strength == "strong" else 0.4
    return Reading(first.cause, "log", text, pods, tuple(log.rank for log in suspects if log.rank >= 0), hosts, (), confidence, more), line, owner


def by_flight(failure: Failure) -> Reading | None:
    """Who stands out in the flight records, and why where they prove it."""
    report = failure.flight
    if report is None or report.verdict in ("healthy", "no_evidence") or not (report.culprits or report.slow):
        return None
    ranks = report.culprits or report.slow
    pods = tuple(dict.fromkeys(pod for rank in ranks if (pod := failure.pod_of(rank))))
    cause = FLIGHT_CAUSES.get(report.cause, "unknown")
    nodes = tuple(dict.fromkeys(node for pod in pods if (node := failure.node_of(pod)))) if cause in NODE_CAUSES else ()
    op = report.first_bad_op
    where = f" at {op.op} {op.seq} of {op.pg}" if op else ""
    text = f"flight records: {report.verdict}, {report.cause}{where}, ranks {', '.join(map(str, ranks[:FEW]))}"
    return Reading(cause, "flight", text, pods, ranks, nodes, (), CONFIDENCE.get(report.confidence, 0.0), report.evidence[:4])


def by_links(failure: Failure) -> Reading | None:
    """A bad link that the job uses. Weaker than what proves another cause: a job may live with such a link for days. It accuses no node."""
    if not failure.links:
        return None
    worst = failure.links[0]
    nodes = tuple(node for node in worst.nodes if any(worker.node == node for worker in failure.workers))
    pods = tuple(worker.pod for worker in failure.workers if worker.node in nodes)
    text = f"{'it uses' if worst.certain else 'it may use'} {worst.text}"
    more = tuple(link.text for link in failure.links[1:4])
    return Reading("network", "netmon", text, pods, (), nodes, (), 0.6 if worst.certain else 0.35, more)


def by_stopped(failure: Failure) -> Reading | None:
    """Whose processes the check beside a run that stands still found stopped, or blocked in the kernel: who and how, not why."""
    found = {check.pod: check.result.Result for check in failure.checks if not check.result.Pass and _name(check.result) == "hang"}
    if not found or len(found) * 2 > max(len(failure.workers), 2):
        return None
    ranks = [worker.ranks for worker in failure.workers if worker.pod in found]
    known = tuple(rank for each in ranks for rank in each) if all(len(each) == 1 for each in ranks) else ()
    pod, words = next(iter(found.items()))
    text = f"{pod}: {WRAPPED.sub('', words.partition(';')[0]).strip()}"
    return Reading("unknown", "check", text, tuple(found), known, confidence=0.7)


def by_ends(failure: Failure) -> Reading | None:
    """How the process ended that the master counted: who, never why. Whose own lines tell of trouble before an abort or an exit did not begin it."""
    for loss in failure.losses:
        if loss.reason not in ENDS:
            continue
        ranks = next((worker.ranks for worker in failure.workers if worker.pod == loss.pod), ())
        if named := RANK.search(loss.message):
            ranks = (int(named[1]),)
        told = any(log.found for log in failure.logs if log.pod == loss.pod and (not named or log.rank in ranks))
        if told and (loss.reason == "error" or "SIGABRT" in loss.message):
            continue
        text = loss.message.removesuffix(", counted") or f"{loss.pod}: {loss.reason}"
        return Reading("unknown", "end", text, (loss.pod,), ranks if len(ranks) == 1 else (), confidence=ENDS[loss.reason])
    return None


def by_symptoms(failure: Failure) -> Reading | None:
    """Only timeouts and echoes: who is behind the others by the watchdogs' numbers, or printed nothing at all where others did. Never a cause."""
    by_group: dict[str, dict[str, int]] = defaultdict(dict)
    for log in failure.logs:
        for line in log.found:
            if found := WORK.search(line.text):
                named = GROUP.search(line.text)
                of = by_group[named[1] if named else ""]
                of[log.name] = max(of.get(log.name, -1), int(found[1]))
    numbers = max(by_group.values(), key=len, default={})
    by_name = {log.name: log for log in failure.logs}
    loud = [log for log in failure.logs if log.found]
    if len(numbers) >= 2 and (behind := sorted(name for name, n in numbers.items() if n < max(numbers.values()))) and len(behind) <= FEW:
        logs = [by_name[name] for name in behind]
        text = f"{', '.join(behind)} had entered {min(numbers.values())} operations when they timed out, others {max(numbers.values())}"
        return Reading(
            "unknown", "log", text, tuple(dict.fromkeys(log.pod for log in logs)), tuple(log.rank for log in logs if log.rank >= 0), confidence=0.5
        )
    silent = [log for log in failure.logs if not log.found]
    if loud and 0 < len(silent) <= FEW and len(silent) * 2 < len(failure.logs):
        text = f"{', '.join(log.name for log in silent)} said nothing about a failure while {len(loud)} others timed out"
        ranks = tuple(log.rank for log in silent if log.rank >= 0)
        return Reading("unknown", "log", text, tuple(dict.fromkeys(log.pod for log in silent)), ranks, confidence=0.3)
    if numbers and len(set(numbers.values())) == 1 and len(numbers) >= 2:
        text = "all ranks had entered the same operation: nobody is missing; device, network or a very slow operation"
        return Reading("unknown", "log", text, confidence=0.3)
    return None
