"""What is told when a link gets worse or well again, once per change. Pure.

`aegis.verdict.netmon.link.<id>` about the link, `aegis.verdict.netmon.job.<job>` about a job's bad links. What was told before a restart is read back
from there (`Told.of`), so that it is not told again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec
from aegis_proto.messages import Fact, Verdict
from aegis_proto.net import SERVICE, LinkInfo
from aegis_proto.phases import FactKind

from aegis_netmon.watch import ALARMS

STATES_ZH = {
    "healthy": "正常",
    "unproven": "暂无异常(比特数尚不足以证明)",
    "unknown": "状态未知",
    "watch": "需关注",
    "degraded": "劣化",
    "flapping": "反复断连",
    "down": "断开",
}
MOST_EVIDENCE, MOST_JOBS = 12, 64
CONFIDENCE: Mapping[str, float] = {"down": 0.95, "flapping": 0.9, "degraded": 0.85, "watch": 0.6}


class Told(msgspec.Struct, frozen=True):
    """What was last said of one link or job. `codes` of findings above info."""

    state: str
    codes: tuple[str, ...] = ()

    @classmethod
    def of(cls, verdict: Verdict) -> Told:
        return cls(verdict.state, verdict.codes)


def codes(info: LinkInfo) -> tuple[str, ...]:
    """Findings above info, each once."""
    return tuple(sorted({finding.code for finding in info.findings if finding.severity != "info"}))


def news(told: Told | None, info: LinkInfo) -> Told | None:
    """What is to be told now; None: nothing new. Of what never alarmed nothing is told, and a silent daemon takes back no alarm."""
    was = told is not None and told.state in ALARMS
    now = Told(info.state, codes(info))
    if info.state in ALARMS:
        return None if told is not None and told.state == info.state and set(now.codes) <= set(told.codes) else now
    return Told(info.state) if was and info.state != "unknown" else None


def of_link(info: LinkInfo, at: int) -> Verdict:
    """The verdict on one link. `at` in ms."""
    title = f"{info.a} - {info.b}" if info.b else info.a
    bad = info.state in ALARMS
    strong = [finding for finding in info.findings if finding.severity != "info"] or list(info.findings)
    look = f"; look at {info.suspect} first" if info.suspect else ""
    jobs = "; ".join(
        f"{word} {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}"
        for word, names in (("hits", [j.job for j in info.jobs if j.certain]), ("may hit", [j.job for j in info.jobs if not j.certain]))
        if names
    )
    story = f": {strong[0].story}" if strong and bad else ""
    sentence = f"link {title} is {info.state}{story}{look if bad else ''}{f'; {jobs}' if jobs and bad else ''}"
    zh = f"链路 {title} {STATES_ZH.get(info.state, info.state)}" + (f",请先检查 {info.suspect}" if info.suspect and bad else "")
    evidence = [f"{finding.end or info.a}: {finding.story}" + (f" (limit: {finding.source})" if finding.source else "") for finding in strong]
    guids = f"GUID {info.guidA or 'none'}" + (f" and {info.guidB}" if info.guidB else "")
    own = tuple(node for node in info.nodes if info.suspect and info.suspect.startswith(f"{node} "))
    return Verdict(
        f"{info.link}-{at}",
        SERVICE,
        "network",
        (info.suspect,) if info.suspect and bad else (),
        (*evidence[:MOST_EVIDENCE], *((info.reason,) if info.reason and bad else ()), guids) if bad else (guids,),
        confidence=CONFIDENCE.get(info.state, 0.0),
        sentence=sentence[:1000],
        sentenceZh=zh[:1000],
        at=at,
        nodes=info.nodes,
        accused=own if bad else (),
        read=info.seen,
        state=info.state,
        codes=codes(info) if bad else (),
    )


def closed(told: Mapping[str, Told], lines: Container[str]) -> list[str]:
    """Links whose last word is an alarm, and of which nothing is known any more: an adapter was changed, a node has gone, or the fabric's side knows
    the link by both its ends now."""
    return sorted(key for key, last in told.items() if last.state in ALARMS and key not in lines)


def of_gone(link: str, at: int) -> Verdict:
    """The alarm is taken back: nobody waits for a repair of what is not there. `at` in ms."""
    sentence, zh = f"link {link} is not there any more: what was said of it is taken back", f"链路 {link} 已不存在,此前的结论撤回"
    return Verdict(f"{link}-{at}", SERVICE, "network", sentence=sentence, sentenceZh=zh, at=at, state="unknown")


def of_jobs(infos: Iterable[LinkInfo]) -> dict[str, list[LinkInfo]]:
    """Job -> its bad links, worst first."""
    found: dict[str, list[LinkInfo]] = {}
    for info in infos:
        if info.state in ALARMS:
            for job in info.jobs:
                found.setdefault(job.job, []).append(info)
    return found


def of_job(job: str, bad: list[LinkInfo], at: int) -> Verdict:
    """The verdict on a job's network; without bad links it takes the one before back."""
    certain = [info for info in bad if any(one.job == job and one.certain for one in info.jobs)]
    lines = [f"{info.a} - {info.b or 'its switch'}: {info.state}" + (f", look at {info.suspect} first" if info.suspect else "") for info in bad]
    if not bad:
        sentence, zh = f"no link of {job} is bad any more", f"作业 {job} 使用的链路已恢复"
    else:
        sure = "uses" if certain else "may use"
        sentence = f"{job} {sure} {len(bad)} bad link{'s' if len(bad) > 1 else ''}: {lines[0]}"
        zh = f"作业 {job} {'正在使用' if certain else '可能使用'} {len(bad)} 条异常链路"
    return Verdict(
        f"{job}-net-{at}",
        SERVICE,
        "network",
        tuple(info.suspect or info.a for info in bad[:MOST_EVIDENCE]),
        tuple(lines[:MOST_EVIDENCE]),
        confidence=0.0 if not bad else 0.8 if certain else 0.4,
        sentence=sentence[:1000],
        sentenceZh=zh,
        job=job,
        at=at,
        nodes=tuple(sorted({node for info in certain for node in info.nodes}))[:MOST_EVIDENCE],
        read=tuple(info.link for info in bad[:MOST_EVIDENCE]),
        state="bad" if bad else "healthy",
        codes=tuple(sorted({info.link for info in bad}))[:MOST_JOBS],
    )


def fact(uid: str, message: str, zh: str, *, cause: str, at: int, incarnation: int = -1) -> Fact:
    """A word to the job's owner: it becomes an event of the job, and excludes no node. `incarnation`: whose failure it is about."""
    settings = {"cause": cause, "zh": zh[:300], **({"incarnation": str(incarnation)} if incarnation >= 0 else {})}
    return Fact(FactKind.VERDICT, uid, at=at, message=message[:500], who=SERVICE, settings=settings)


def job_news(told: Told | None, bad: list[LinkInfo]) -> bool:
    """Whether a job's set of bad links is another one."""
    links = tuple(sorted({info.link for info in bad}))[:MOST_JOBS]
    return links != (told.codes if told is not None else ())
