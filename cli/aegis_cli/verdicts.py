"""What was found about the failures of a job, as one sentence to its user. Asks lognexus; where it does not run there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aegis_bus.errors import BusError, UnknownResult
from aegis_proto import subjects
from aegis_proto.api import JobDetail, RequestRefused, read_reply
from aegis_proto.logs import VerdictsAnswer, VerdictsQuery
from aegis_proto.messages import Verdict, encode
from aegis_proto.phases import FailedReason, Phase

from aegis_cli.client import Client

EVERY = 0.25
PATIENCE = 6.0
"""Seconds for which the end of a failed run waits for its verdict."""


async def asked(client: Client, job: str) -> tuple[Verdict, ...] | None:
    """None: nobody answers here."""
    try:
        subject = subjects.rpc_query("lognexus", "verdicts", client.scope)
        return read_reply(VerdictsAnswer, await client.bus.request(subject, encode(VerdictsQuery(job)), timeout=min(client.timeout, 3.0))).items
    except UnknownResult:
        return ()
    except (BusError, RequestRefused):
        return None


async def of_the_end(client: Client, detail: JobDetail, patience: float = PATIENCE) -> tuple[Verdict, ...]:
    """All verdicts of a job that has ended, with that of its last failure where the budget was spent: waited for at most `patience` seconds."""
    job = detail.summary
    last = max((step.incarnation for step in detail.transitions if step.counted), default=-1)
    wanted = job.phase == Phase.FAILED and job.failedReason == FailedReason.BUDGET and last >= 0
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        found = await asked(client, job.job)
        if found is None:
            return ()
        if (
            not wanted
            or any(verdict.incarnation >= last and verdict.state != "hang" for verdict in found)
            or asyncio.get_running_loop().time() > deadline
        ):
            return found
        await asyncio.sleep(EVERY)


def sentence(verdicts: Sequence[Verdict], lang: str = "en") -> str:
    """`Cause: w2/r17 on n3: GPU hardware: ... (95 % sure)` of the last one; "" when there is none."""
    if not verdicts:
        return ""
    last = verdicts[-1]
    if lang == "zh":
        sure = f"(可信度 {last.confidence:.0%})" if last.confidence else ""
        said = last.sentenceZh or last.sentence
        return f"{'' if said.startswith('原因') else '原因:'}{said}{sure}"
    sure = f" ({last.confidence:.0%} sure)" if last.confidence else ""
    return f"{'' if last.sentence.startswith('Cause ') else 'Cause: '}{last.sentence}{sure}"


def budget(detail: JobDetail, lang: str = "en") -> str:
    """How many restarts there may be and were, and what the system does by itself: the sentence of the user's side."""
    job = detail.summary
    used = min(job.recoverCount, job.maxRetry)
    if lang == "zh":
        return f"您的最大重启次数为 {job.maxRetry} 次,目前已重启 {used} 次;当发现硬件问题,系统将自动帮您重调度,目前已发生 {job.errorNodes} 次"
    return (
        f"At most {job.maxRetry} restart{'s' if job.maxRetry != 1 else ''}, {used} used so far; on a hardware fault the system re-places by itself, "
        f"{job.errorNodes} time{'s' if job.errorNodes != 1 else ''} so far."
    )
