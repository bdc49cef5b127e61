"""Join tokens and deeds, asked of the credentials service for exactly one attempt of one place each. Writes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_proto import subjects
from aegis_proto.api import RequestRefused, read_reply
from aegis_proto.credapi import JoinReply, JoinRequest
from aegis_proto.messages import BadMessage, encode

from aegis_jobcontroller import metrics

log = logging.getLogger(__name__)

TOKEN_TIMEOUT = 2.0
TOKENS = 32
"""Join tokens asked for side by side."""

Wanted = tuple[str, JoinRequest]
"""(namespace of the job, what is asked)."""


async def joins(bus: Bus, wanted: Iterable[Wanted]) -> dict[tuple[str, str], JoinReply]:
    """(job, pod) -> token; none where the service is away or refuses."""
    found: dict[tuple[str, str], JoinReply] = {}
    limit = asyncio.Semaphore(TOKENS)
    away = asyncio.Event()
    asked = list(wanted)

    async def ask(namespace: str, request: JoinRequest) -> None:
        async with limit:
            if away.is_set():
                return
            subject = subjects.rpc_do("credentials", "join", namespace)
            try:
                reply = await bus.request(subject, encode(request), timeout=TOKEN_TIMEOUT)
                found[request.job, request.pod] = read_reply(JoinReply, reply)
            except (RequestRefused, BadMessage) as error:
                log.warning("no join token for %s/%s attempt %d: %s", request.job, request.pod, request.attempt, error)
            except BusError as error:
                away.set()
                log.warning("credentials are away, no join tokens: %s", error)

    await asyncio.gather(*(ask(*item) for item in asked))
    metrics.TOKENS_MISSING.inc(len(asked) - len(found))
    return found
