"""The accounts inside the NATS servers: push, look up, list, delete. Speaks to SYS (`$SYS.REQ.CLAIMS.*`).

Traps of the server: an UPDATE is answered "jwt updated" whoever signed it, and the last one pushed is kept even when it is older. So a push proves
nothing: `ensure` renders, looks up what is there, compares, pushes, and begins again until both agree.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable

import structlog
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError, UnknownResult

from aegis_credentials import accounts, jwt
from aegis_credentials.keys import RootSecret

log = structlog.get_logger()

TRIES = 12


class PushFailed(BusError):
    """The server does not hold the account as it should be, after several tries."""


class Claims:
    """Accounts of the servers behind `sys_bus`, a connection as the user of SYS."""

    def __init__(self, sys_bus: Bus, secret: RootSecret) -> None:
        self._bus = sys_bus
        self._secret = secret
        self.pushes = 0

    async def push(self, token: str) -> None:
        """One UPDATE. PushFailed when the server says why not."""
        reply = json.loads(await self._bus.request("$SYS.REQ.CLAIMS.UPDATE", token.encode(), timeout=5.0))
        self.pushes += 1
        if "error" in reply:
            raise PushFailed(f"account not taken by the server: {reply['error'].get('description', reply['error'])}")

    async def lookup(self, account: str) -> str:
        """JWT of an account as the server has it, "" when it has none."""
        return (await self._bus.request(f"$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP", b"", timeout=5.0)).decode(errors="replace")

    async def listed(self) -> set[str]:
        """Public keys of all accounts."""
        reply = json.loads(await self._bus.request("$SYS.REQ.CLAIMS.LIST", b"", timeout=10.0))
        if "error" in reply:
            raise PushFailed(f"accounts not listed: {reply['error'].get('description', reply['error'])}")
        return set(reply.get("data") or ())

    async def delete(self, publics: list[str]) -> None:
        """Forget accounts: their users are cut off at once. PushFailed when the server says why not."""
        token = jwt.delete_accounts(self._secret.operator_signing(), publics, now=int(time.time()))
        reply = json.loads(await self._bus.request("$SYS.REQ.CLAIMS.DELETE", token.encode(), timeout=10.0))
        if "error" in reply:
            raise PushFailed(f"accounts not deleted: {reply['error'].get('description', reply['error'])}")

    async def ensure(self, account: str, render: Callable[[], Awaitable[str]]) -> tuple[bool, str]:
        """Make the server hold what `render()` grants at this moment: (was a push needed, the rendering it holds).

        `render` is asked again before each look: another replica may have written records and pushed meanwhile, and then its push is the right one.
        Raises: PushFailed, BusError.
        """
        for attempt in range(TRIES):
            token = await render()
            if accounts.same_rendering(await self.lookup(account), token):
                return attempt > 0, token
            if attempt > 2:
                await asyncio.sleep(random.uniform(0, 0.05 * attempt))
            try:
                await self.push(token)
            except UnknownResult as error:
                log.info("push unanswered", account=account, error=str(error))
        raise PushFailed(f"account {account}: after {TRIES} pushes the server still holds another JWT. Does it trust this operator?")
