"""One verdict per failure: cause, suspects, the first strong line, what was read and what was missing. Pure.

The strongest evidence that has a cause decides: a daemon's event, the platform's word, a failed check, a strong line, the flight record, a bad link
by netmon, a weak line. NCCL's RAS, stacks, processes that are stopped and how one ended have none: they say who. "network" takes a port or a link
that was seen to fail. Where the chosen one does not say who, the surest that does is asked.
What speaks against it is kept as evidence and costs confidence. `Finding.accused` holds the nodes that trusted evidence names: only these may be
excluded, whatever a tenant's text says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegis_parsers.causes import Cause
from aegis_proto.messages import Verdict

from aegis_lognexus.across import HANG
from aegis_lognexus.evidence import Failure, Reading
from aegis_lognexus.looks import by_ras, by_stacks
from aegis_lognexus.readings import (
    NODE_CAUSES,
    by_checks,
    by_ends,
    by_events,
    by_flight,
    by_links,
    by_logs,
    by_platform,
    by_stopped,
    by_symptoms,
    port_event,
    without_port_event,
)

MAX_EVIDENCE = 16
WORDS: dict[Cause, tuple[str, str]] = {
    "user_code": ("the training's own code", "训练代码自身出错"),
    "gpu_hw": ("GPU hardware", "GPU 硬件故障"),
    "node_hw": ("a fault of the machine", "节点硬件故障"),
    "network": ("the network", "网络故障"),
    "storage": ("storage", "存储故障"),
    "host_oom": ("the machine ran out of memory", "主机内存不足"),
    "cuda_oom": ("the GPU ran out of memory", "显存不足"),
    "contention": ("a slow or contended machine", "节点变慢或资源争用"),
    "preemption": ("preempted by the platform", "被平台抢占"),
    "software": ("a library, driver or the container", "软件环境(库、驱动或容器)出错"),
    "unknown": ("cause unknown", "原因未知"),
}
"""For people: English, Chinese."""
NO_PORT_EVENT = "no word of netmon, a daemon or a kernel about a port or a link"
MARKED = ("No progress, nothing is stopped yet. ", "训练没有进展,尚未停止任何进程。")


@dataclass(frozen=True, slots=True)
class Finding:
    """`suspects` are ranks as `w2/r17`, or pods where no rank is known. `nodes` are suspect machines, `accused` those that trusted evidence names.

    `first_line`: the line that decided or supports the cause, with whose it is, "" when there is none.
    """

    job: str
    incarnation: int
    cause: Cause
    suspects: tuple[str, ...]
    nodes: tuple[str, ...]
    accused: tuple[str, ...]
    first_line: str
    evidence: tuple[str, ...]
    read: tuple[str, ...]
    missing: tuple[str, ...]
    confidence: float
    sentence: str
    sentence_zh: str
    hang: bool = False

    def message(self, at: int) -> Verdict:
        """As it travels. The id is the same for whoever finds it: one verdict per failed incarnation, and one per marked one. `at` in ms."""
        return Verdict(
            verdict_id(self.job, self.incarnation, hang=self.hang),
            "lognexus",
            self.cause,
            self.suspects,
            self.evidence,
            self.missing,
            round(self.confidence, 2),
            self.sentence,
            self.sentence_zh,
            self.job,
            self.incarnation,
            at,
            nodes=self.nodes,
            accused=self.accused,
            firstLine=self.first_line,
            read=self.read,
            state=HANG if self.hang else "",
        )


def verdict_id(job: str, incarnation: int, *, hang: bool = False) -> str:
    """One verdict per failed incarnation, and one at its mark as hung; also how it is found again."""
    return f"{job}-{incarnation}-{HANG}" if hang else f"{job}-{incarnation}"


def decide(failure: Failure) -> Finding:
    """The verdict about one failure. Any part of the evidence may be absent; nothing raises for content."""
    log, line, owner = by_logs(failure)
    strong = log if log is not None and line is not None and line.strength == "strong" else None
    weak = log if strong is None else None
    looked = [by_ras(failure), by_stacks(failure), by_stopped(failure)]
    proved = [by_events(failure), by_platform(failure), by_checks(failure), strong, by_flight(failure)]
    said = [*proved, *looked, by_links(failure), by_ends(failure), weak, by_symptoms(failure)]
    ports = port_event(failure)
    readings = [reading if ports else without_port_event(reading) for reading in said if reading is not None]
    chosen = next((reading for reading in readings if reading.cause != "unknown"), None)
    who = chosen if chosen is not None and (chosen.ranks or chosen.pods) else _who(chosen, readings)
    cause: Cause = chosen.cause if chosen else "unknown"
    pods, ranks = (who.pods, who.ranks) if who else ((), ())
    if chosen is not None and who is chosen and chosen.pods and not chosen.ranks:
        ranks = next((r.ranks for r in readings if r.ranks and set(r.pods) == set(chosen.pods)), ())
    nodes = tuple(dict.fromkeys([*(chosen.nodes if chosen else ()), *(who.nodes if who and who.cause in ("unknown", cause) else ())]))
    accused = tuple(dict.fromkeys(node for reading in readings if reading.cause == cause for node in reading.accused))
    suspects = tuple(f"{failure.pod_of(rank) or '?'}/r{rank}" for rank in ranks) or pods
    first_line = harmless(f"{owner.name}:{line.n}: {line.text[:500]}") if line is not None and owner is not None else ""
    confidence = _confidence(chosen, who, readings)
    en, zh = _sentences(cause, suspects, nodes, chosen or who or next(iter(readings), None), accused)
    evidence = [text for reading in _first(chosen, readings) for text in (f"[{reading.source}] {reading.text}", *reading.more)]
    return Finding(
        failure.job,
        failure.incarnation,
        cause,
        suspects,
        nodes,
        accused,
        first_line,
        tuple(harmless(text) for text in evidence[:MAX_EVIDENCE]),
        _read(failure),
        (*_missing(failure), *((NO_PORT_EVENT,) if cause == "unknown" and any(reading.suspected for reading in readings) else ())),
        confidence,
        harmless(MARKED[0] + en if failure.hang else en),
        harmless(MARKED[1] + zh if failure.hang else zh),
        failure.hang,
    )


def harmless(text: str) -> str:
    """A tenant's words among ours: control characters made visible, wherever the sentence will be shown."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _first(chosen: Reading | None, readings: Sequence[Reading]) -> list[Reading]:
    return [*([chosen] if chosen else []), *(reading for reading in readings if reading is not chosen)]


def _who(chosen: Reading | None, readings: Sequence[Reading]) -> Reading | None:
    """The surest reading that names somebody. One with another cause names its own suspects, not these."""
    named = [reading for reading in readings if reading.ranks or reading.pods]
    fits = [reading for reading in named if chosen is None or reading.cause in ("unknown", chosen.cause)]
    return max(fits, key=lambda reading: reading.confidence, default=None)


def _confidence(chosen: Reading | None, who: Reading | None, readings: Sequence[Reading]) -> float:
    if chosen is None:
        return who.confidence / 2 if who else 0.0
    agree = [reading for reading in readings if reading is not chosen and reading.cause == chosen.cause]
    same = [r for r in readings if r is not chosen and r.cause == "unknown" and r.ranks and set(r.ranks) & set(chosen.ranks)]
    against = [r for r in readings if r.cause not in ("unknown", chosen.cause) and r.confidence >= 0.5]
    value = chosen.confidence + 0.1 * bool(agree) + 0.1 * bool(same) - 0.2 * bool(against)
    return max(0.1, min(0.98, value))


def _read(failure: Failure) -> tuple[str, ...]:
    lines = sum(log.read for log in failure.logs)
    flight = failure.flight
    return (
        f"{lines} lines of {sum(1 for log in failure.logs if log.read)} ranks",
        f"{len(failure.events)} node events",
        f"{len(failure.checks)} checks of {len({check.pod for check in failure.checks})} workers",
        *((f"flight records: {flight.verdict}",) if flight else ()),
        *((f"stacks of {len(failure.stacks)} workers",) if failure.stacks else ()),
        *((f"NCCL RAS by {len(failure.ras)} workers",) if failure.ras else ()),
    )


def _missing(failure: Failure) -> tuple[str, ...]:
    heard = {log.pod for log in failure.logs if log.read}
    checked = {check.pod for check in failure.checks}
    out = list(failure.not_asked)
    if mute := [worker.pod for worker in failure.workers if worker.pod not in heard]:
        out.append(f"no line of {_list(mute)}")
    if checked and (unchecked := [worker.pod for worker in failure.workers if worker.pod not in checked]):
        out.append(f"no failed check of {_list(unchecked)}")
    if not checked and not failure.hang:
        out.append("no failed check")
    if failure.hang and not failure.stacks:
        out.append("no stacks")
    if failure.flight is None:
        out.append("no flight records")
    else:
        out += failure.flight.missing[:4]
    return tuple(out)


def _list(names: Sequence[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _sentences(cause: Cause, suspects: Sequence[str], nodes: Sequence[str], by: Reading | None, accused: Sequence[str]) -> tuple[str, str]:
    who = _list(suspects, 4)
    at = f" on {_list(nodes, 4)}" if nodes else ""
    at_zh = f"(节点 {_list(nodes, 4)})" if nodes else ""
    en, zh = WORDS[cause]
    text = f": {by.text[:240]}" if by else ""
    if cause == "unknown":
        if not by:
            return "Cause unknown: nothing that was read says more than that it failed", "原因未知:已读取的信息只表明任务失败"
        doubt = f"(怀疑{WORDS[by.suspected][1]},但未见端口或链路异常)" if by.suspected else ""
        return f"Cause unknown; first to look at: {who or 'nobody in particular'}{text}", f"原因未知{doubt};首先查看:{who or '无特定对象'}{text}"
    blame = f"{who}{at}: " if who else f"{_list(nodes, 4)}: " if nodes else ""
    blame_zh = f"{who}{at_zh}:" if who else f"节点 {_list(nodes, 4)}:" if nodes else ""
    hint, hint_zh = "", ""
    if nodes and cause in NODE_CAUSES and not accused:
        hint, hint_zh = ". By the job's own words only: the node is not excluded for it", "。仅依据任务自身输出,不会因此隔离节点"
    return f"{blame}{en}{text}{hint}", f"{blame_zh}{zh}{text}{hint_zh}"
