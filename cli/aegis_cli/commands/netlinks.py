"""`aegis net ls|show|job|top`: links, their counters, and the jobs on them. Asks netmon; adds its commands to the group of `net.py`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer
from aegis_proto.net import (
    SERVICE,
    JobLinksAnswer,
    JobLinksQuery,
    LinkAnswer,
    LinkInfo,
    LinkQuery,
    LinksAnswer,
    LinksQuery,
    RoutingInfo,
)
from rich.console import Group
from rich.live import Live
from rich.text import Text

from aegis_cli.client import Client
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column, table
from aegis_cli.units import age

MOST_JOBS = 3
PAGE = 500


def jobs(link: LinkInfo) -> str:
    """Jobs on a link; one that only may use it has a question mark."""
    names = [job.job if job.certain else f"{job.job}?" for job in link.jobs]
    more = f" +{len(names) - MOST_JOBS}" if len(names) > MOST_JOBS else ""
    return ",".join(names[:MOST_JOBS]) + more


def ber(link: LinkInfo) -> str:
    """The estimate; without an error what the bits seen still allow."""
    if link.ber is None:
        return ""
    return f"{link.ber:.1e}" if link.ber else f"<{link.berHigh:.0e}" if link.berHigh else "0"


def rate(value: float) -> str:
    return f"{value:g}/s" if value else ""


LIST = [
    Column("LINK", lambda link: link.link, wide=True),
    Column("A", lambda link: link.a),
    Column("B", lambda link: link.b),
    Column("STATE", lambda link: link.state),
    Column("BER", ber),
    Column("RETX", lambda link: rate(link.retransmits)),
    Column("DROPS", lambda link: rate(link.drops)),
    Column("FLAPS", lambda link: link.flaps or ""),
    Column("JOBS", jobs),
    Column("LOOK-AT", lambda link: link.suspect),
    Column("GBPS", lambda link: f"{link.gbps:g}" if link.gbps else "", wide=True),
    Column("SEEN-BY", lambda link: ",".join(link.seen), wide=True),
]
TOP = [
    Column("A", lambda link: link.a),
    Column("B", lambda link: link.b),
    Column("STATE", lambda link: link.state),
    Column("A>B-GBPS", lambda link: f"{link.sendGbps:.1f}"),
    Column("B>A-GBPS", lambda link: f"{link.receiveGbps:.1f}"),
    Column("USED", lambda link: f"{max(link.sendGbps, link.receiveGbps) / link.gbps:.0%}" if link.gbps else ""),
    Column("ERRORS", lambda link: link.errors or ""),
    Column("RETX", lambda link: rate(link.retransmits)),
    Column("DROPS", lambda link: rate(link.drops)),
    Column("JOBS", jobs),
]
COUNTERS = [
    Column("END", lambda row: row.end),
    Column("COUNTER", lambda row: row.name),
    Column("VALUE", lambda row: row.value),
    Column("ROSE", lambda row: f"{row.rose} in {row.seconds:.0f}s" if row.rose else ""),
    Column("SERIES", lambda row: row.state),
    Column("MEANING", lambda row: row.meaning),
]


async def job_id(client: Client, job: str) -> str:
    """Its id, by the master; where no master answers the name is taken for one."""
    try:
        return (await client.job(job, workers=False)).summary.job
    except CliError as error:
        if error.code != "E108":
            raise
        return job


async def ask(client: Client, query: LinksQuery) -> LinksAnswer:
    """All pages; the last answer with all links."""
    answer = await client.query_net("links", query, LinksAnswer)
    links = list(answer.links)
    limit = query.limit
    while answer.more and answer.links and len(links) < limit:
        query = LinksQuery(query.bad, query.job, query.by, answer.links[-1].link, min(PAGE, limit - len(links)))
        answer = await client.query_net("links", query, LinksAnswer)
        links += answer.links
    return LinksAnswer(tuple(links), answer.total, answer.more, answer.fabric, answer.routing, answer.inventory, answer.timeStamp)


def summary(answer: LinksAnswer) -> list[str]:
    """What is read, what is not, adaptive routing, firmware: under the table."""
    fabric, now = answer.fabric, answer.timeStamp / 1000
    read = f"{fabric.links} links, {fabric.alarms} with an alarm; {fabric.nodes} nodes tell of {fabric.ports} ports"
    swept = f"; the fabric was swept {age(max(0.0, now - fabric.swept / 1000))} ago" if fabric.swept else ""
    lines = [read + swept + (f" by {fabric.collector}" if fabric.collector else "")]
    if fabric.why:
        lines.append(f"No fabric side: {fabric.why}" if not fabric.swept else f"The last sweep failed: {fabric.why}")
    if fabric.common:
        lines.append(f"In common: {fabric.common}")
    if fabric.cards:
        lines.append(f"Packets dropped lately: {', '.join(fabric.cards)}")
    lines += [f"Switch {what}" for what in fabric.sensors]
    lines += [f"Not read: {what}" for what in fabric.partial]
    if fabric.silent:
        lines.append(f"Silent nodes: {', '.join(fabric.silent)}")
    lines += [f"Not read: {what}" for what in fabric.unread]
    lines += routing(answer.routing, now)
    if answer.inventory.versions:
        families = (
            f"{family} " + ", ".join(f"{version} x{count}" for version, count in sorted(versions.items()))
            for family, versions in sorted(answer.inventory.versions.items())
        )
        lines.append("Firmware: " + "; ".join(families))
    lines += [f"Firmware differs: {what}" for what in answer.inventory.odd]
    lines += [f"Adaptive routing not known to be supported: {what}" for what in answer.inventory.without]
    if answer.inventory.missing:
        lines.append(f"Firmware unknown: {answer.inventory.missing}")
    return lines


def routing(info: RoutingInfo, now: float) -> list[str]:
    """Adaptive routing, with source and age, or why it is not known; what it hides."""
    of = f" for {info.switches} of {info.of} switches" if info.state == "on" and info.switches is not None and info.of else ""
    known = f" by {info.source}, {age(max(0.0, now - info.timeStamp / 1000))} ago" if info.timeStamp else ""
    lines = [f"Adaptive routing: {info.state}{of}{known}" + (f" ({info.reason})" if info.reason and not of else "")]
    off = [level for level, state in sorted(info.levels.items(), key=lambda row: int(row[0])) if state == "off"]
    if off:
        lines.append(f"Static all the same on service levels {', '.join(off)}")
    if info.off:
        lines.append(f"Off on {', '.join(info.off)}")
    lines += [f"Uplinks of {leaf}" for leaf in info.uplinks]
    return [*lines, *(f"Warning: {warning}" for warning in info.warnings)]


def shown(answer: LinkAnswer) -> str:
    """One link for a person."""
    link = answer.link
    lines = [f"Link {link.a} - {link.b}   {link.state}" if link.b else f"Port {link.a}   {link.state}", f"Id {link.link}"]
    lines.append("GUID " + " - ".join(guid for guid in (link.guidA, link.guidB) if guid) if link.guidA else "No GUID")
    tier = {0: "host to leaf", 1: "leaf to spine"}.get(link.tier, f"tier {link.tier}" if link.tier > 0 else "")
    lines.append("   ".join(filter(None, (tier, f"{link.gbps:g} Gb/s" if link.gbps else "", f"read by {' and '.join(link.seen)}"))))
    if link.suspect or link.reason:
        lines.append(f"Look at {link.suspect or 'it'} first: {link.reason}")
    if link.ber is not None:
        bound = f", at most {link.berHigh:.1e} (95 %)" if link.berHigh is not None else ""
        lines.append(f"Bit error rate {link.ber:.1e}{bound}")
    lines += [f"{finding.severity}: {finding.end}: {finding.story}" + (f" ({finding.source})" if finding.source else "") for finding in link.findings]
    lines.append(f"Jobs: {', '.join(job.job if job.certain else f'{job.job} (may use it)' for job in link.jobs)}" if link.jobs else "Jobs: none")
    lines += [f"Dip {dip}" for dip in answer.dips]
    if answer.counters:
        lines.append(table(list(answer.counters), COUNTERS))
    return "\n".join(lines)


def of_job(answer: JobLinksAnswer) -> list[str]:
    """Under the table of a job's links."""
    kind = "these and no others" if answer.exact else "at most these: routes are not known, or adaptive"
    lines = [f"{answer.job} runs on {len(answer.nodes)} nodes and uses {answer.total} links ({kind})"]
    if answer.absent:
        lines.append(f"Not found in the network: {', '.join(answer.absent)}")
    failures = (f"Failure, {told}" for told in answer.failures)
    return [*lines, *failures, *routing(answer.routing, answer.timeStamp / 1000), *answer.settings]


def register(group: typer.Typer) -> None:
    """Add the commands."""

    @command(group, "ls", "list")
    def ls(
        env: Env,
        *,
        bad: Annotated[bool, typer.Option("--bad", help="Only links with an alarm.")] = False,
        job: Annotated[str, typer.Option("--job", metavar="JOB", help="Only links that this job may use.")] = "",
        limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many, alarms first.")] = 200,
    ) -> None:
        """Links, alarms first, with the jobs on them; how adaptive routing stands, and firmware. A job with ? may use the link."""

        async def work() -> LinksAnswer:
            async with Client.of(env) as client:
                name = await job_id(client, job) if job else ""
                return await ask(client, LinksQuery(bad, name, limit=limit))

        answer = run_async(work())
        if env.out.machine:
            env.out.document("LinkList", {"items": answer.links, **_rest(answer)})
            return
        env.out.listing("LinkList", answer.links, LIST, lambda link: link.link, "no links" if not bad else "no link with an alarm")
        if env.out.form in ("table", "wide"):
            if answer.total > len(answer.links):
                env.out.note(f"{len(answer.links)} of {answer.total} links; --limit shows more")
            env.out.text("\n".join(("", *summary(answer))))

    @command(group, "show", "describe")
    def show(
        env: Env, *, link: Annotated[str, typer.Argument(metavar="LINK", help="Its id, or an end: 'leaf2 port 5', 'n1 mlx5_0', a GUID.")]
    ) -> None:
        """One link: what its counters did, which side to look at first, and whom it hits."""

        async def work() -> LinkAnswer:
            async with Client.of(env) as client:
                return await client.query_net("link", LinkQuery(link), LinkAnswer)

        answer = run_async(work())
        env.out.document("Link", answer, shown(answer), answer.link.link)
        if answer.others and not env.out.machine:
            env.out.note(f"also of that name: {'; '.join(answer.others[:8])}")

    @command(group, "job")
    def of(env: Env, *, job: Annotated[str, typer.Argument(metavar="JOB", help="Id of a job, or its name.")]) -> None:
        """The links a job uses, bad ones first, and its NCCL settings against the fabric."""

        async def work() -> JobLinksAnswer:
            async with Client.of(env) as client:
                name = await job_id(client, job)
                return await client.query_net("job", JobLinksQuery(name), JobLinksAnswer)

        answer = run_async(work())
        text = "\n".join((table(list(answer.links), LIST), "", *of_job(answer))) if answer.links else "\n".join(of_job(answer))
        env.out.document("JobLinks", answer, text, answer.job)

    @command(group, "top")
    def top(
        env: Env,
        *,
        by: Annotated[str, typer.Option("--by", metavar="KEY", help="traffic or errors.")] = "traffic",
        rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, max=PAGE, help="How many links.")] = 20,
        every: Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.5, help="How often it is asked.")] = 5.0,
        once: Annotated[bool, typer.Option("--once", help="Print once and end.")] = False,
    ) -> None:
        """The busiest, or the worst, links: a live table; one JSON object per look with -o json."""
        if by not in ("traffic", "errors"):
            raise CliError("E107", f'--by "{by}": expected traffic or errors', exit=2)

        async def work() -> None:
            async with Client.of(env) as client:

                async def look() -> LinksAnswer:
                    return await ask(client, LinksQuery(by=by, limit=rows))

                if once or env.out.machine or not sys.stdout.isatty():
                    while True:
                        answer = await look()
                        env.out.line("LinkTop", {"items": answer.links, "timeStamp": answer.timeStamp}, table(list(answer.links), TOP))
                        if once:
                            return
                        await asyncio.sleep(every)
                client.patient = env.out.note
                await _live(look, every)

        try:
            run_async(work())
        except KeyboardInterrupt:
            pass


def _rest(answer: LinksAnswer) -> dict[str, object]:
    return {"total": answer.total, "fabric": answer.fabric, "routing": answer.routing, "inventory": answer.inventory, "timeStamp": answer.timeStamp}


async def _live(look: Callable[[], Awaitable[LinksAnswer]], every: float) -> None:
    """The table on the whole screen until Ctrl-C."""
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            answer = await look()
            live.update(screen(answer, live.console.height), refresh=True)
            await asyncio.sleep(every)


def screen(answer: LinksAnswer, height: int) -> Group:
    """At most `height` lines."""
    head = f"{time.strftime('%H:%M:%S', time.localtime(answer.timeStamp / 1000))}  {SERVICE}  " + summary(answer)[0]
    lines = [head, *table(list(answer.links), TOP).split("\n")][: max(1, height - 1)]
    return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
