"""A command's connection to the services: requests by role and namespace, errors with the code and the way out.

Reads the credentials file of the target. Every error of the bus and of a service leaves here as a `CliError`.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import msgspec
from aegis_bus import errors
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_proto import api, api_nodes, subjects
from aegis_proto.logs import LogsAnswer, LogsQuery
from aegis_proto.messages import BadMessage, Verdict, encode

from aegis_cli.context import Target, resolve
from aegis_cli.errors import CliError, from_text
from aegis_cli.options import Env

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

ABSENT = 3.0
"""Seconds a request is tried again while nobody listens on its subject."""
NOWHERE = "no context, no AEGIS_BUS_SERVERS, and no stack of yours runs on this machine"


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run the asynchronous part of a command; the bus's errors become the command's."""
    try:
        return asyncio.run(work)
    except errors.BusError as error:
        raise from_text(str(error), error.code or "E108") from None


def target_of(env: Env) -> Target:
    """The target of a command that cannot do without one; E101 when there is none."""
    target = resolve(env.context)
    if target is None:
        raise CliError("E101", f"cannot reach the bus: {NOWHERE}", hint="aegis doctor. To try alone on this machine: aegis up")
    return target


class Client:
    """One connection. `async with Client.of(env) as client:`."""

    def __init__(self, target: Target, timeout: float = 10.0, namespace: str = "") -> None:
        self.target, self.timeout, self._namespace = target, timeout, namespace
        self.patient: Callable[[str], None] | None = None
        """Set by commands that watch: a question is asked again for ever while nobody answers (an outage, a takeover), and this is told once."""
        self.bus: Bus
        self.identity: Identity

    @classmethod
    def of(cls, env: Env, target: Target | None = None) -> Self:
        made = cls(target or target_of(env), env.timeout, env.namespace)
        made.patient = env.out.note if env.watch else None
        return made

    async def __aenter__(self) -> Self:
        try:
            self.identity = Identity.from_creds_file(self.target.creds) if self.target.creds else Identity.new()
        except (OSError, ValueError) as error:
            raise CliError("E102", f"credentials {self.target.creds} of context {self.target.name}: {error}") from None
        self.bus = await Bus.connect(self.identity, list(self.target.servers), name="cli", tls_ca=self.target.ca or None, timeout=self.timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.bus.close(grace=1.0)

    @property
    def who(self) -> str:
        """Who acts, for events: the name in the credentials and the local user."""
        return f"{self.identity.name}/{os.environ.get('USER') or os.getuid()}"

    @property
    def bound_namespace(self) -> str:
        """The namespace these credentials are bound to; "" when to none."""
        for tag in (self.identity.claims.get("nats") or {}).get("tags") or ():
            if str(tag).startswith("namespace:"):
                return str(tag).partition(":")[2]
        return ""

    @property
    def namespace(self) -> str:
        """Where a new job goes: -n, the credentials' namespace, the context's, `default`."""
        return self._namespace or self.bound_namespace or self.target.namespace or "default"

    @property
    def scope(self) -> str:
        """Namespace of a query; "" = over all of them, where the role may."""
        return self._namespace or self.bound_namespace

    async def _request(self, subject: str, body: object, what: str, needs: str) -> bytes:
        """One request. Where nobody listens it is tried again for a moment (a service may just be starting; nothing was delivered)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self.timeout, ABSENT)
        while True:
            try:
                return await self.bus.request(subject, encode(body), timeout=self.timeout)
            except errors.NotAllowed:
                raise CliError("E103", f"{self.identity.name} may not {what} (needs {needs}). Context {self.target.name}", subject=subject) from None
            except errors.UnknownResult:
                text = f"no answer within {self.timeout:g} s to: {what}. It may have been taken all the same: look before you repeat it"
                raise CliError("E108", text) from None
            except errors.CredentialsRefused:
                raise
            except errors.Unreachable as error:
                if not self.bus.connected:
                    raise from_text(str(error), "E101") from None
                if loop.time() > deadline:
                    raise CliError("E108", f"the service that could {what} does not run here", hint="aegis status shows which part is down") from None
            await asyncio.sleep(0.1)

    async def query(self, verb: str, request: object, reply: type[T]) -> T:
        """A question to the master."""
        return await self._question("master", verb, request, reply)

    async def _question(self, service: str, verb: str, request: object, reply: type[T]) -> T:
        away = False
        while True:
            try:
                data = await self._request(subjects.rpc_query(service, verb, self.scope), request, f"read {verb}", "role reader")
                return read_reply(reply, data)
            except CliError as error:
                if self.patient is None or error.code not in ("E101", "E108"):
                    raise
                if not away:
                    self.patient(f"no answer ({error}); asked again until there is one")
                away = True
            await asyncio.sleep(0.5)

    async def act(self, verb: str, request: object, reply: type[T], namespace: str) -> T:
        """A wish to the master, in the job's namespace."""
        needs = f"role user in namespace {namespace}, or operator"
        data = await self._request(subjects.rpc_do("master", verb, namespace), request, f"{verb} jobs", needs)
        return read_reply(reply, data)

    async def query_nodes(self, verb: str, request: object, reply: type[T]) -> T:
        """A question to the job controller."""
        return await self._question("jobcontroller", verb, request, reply)

    async def query_logs(self, request: LogsQuery) -> LogsAnswer:
        """Lines of a job, of lognexus."""
        return await self._question("lognexus", "logs", request, LogsAnswer)

    async def query_net(self, verb: str, request: object, reply: type[T]) -> T:
        """A question about links, to netmon."""
        return await self._question("netmon", verb, request, reply)

    async def query_lemon(self, verb: str, request: object, reply: type[T]) -> T:
        """A question about bad nodes, to lemon."""
        return await self._question("lemon", verb, request, reply)

    async def verdicts(self, job: str) -> tuple[Verdict, ...]:
        """What lognexus found about the failures of a job; none where it does not run."""
        from aegis_cli.verdicts import asked

        return await asked(self, job) or ()

    async def act_nodes(self, verb: str, scope: str, request: object, reply: type[T]) -> T:
        """A wish about nodes: operators only."""
        data = await self._request(subjects.rpc_do("jobcontroller", verb, scope), request, f"{verb} nodes", "role operator")
        return read_reply(reply, data)

    async def ask_credentials(self, verb: str, namespace: str, request: object) -> bytes:
        """A wish to the credentials service: operators only."""
        return await self._request(subjects.rpc_do("credentials", verb, namespace), request, f"{verb} credentials", "role operator")

    # --- jobs ------------------------------------------------------------------------------------------------------------------

    async def job(self, name: str, workers: bool = True) -> api.JobDetail:
        """A job by its id, or by its name when that is clear (the newest that has not ended, else the newest)."""
        try:
            return await self.query("job", api.JobRequest(job=name, workers=workers), api.JobDetail)
        except CliError as error:
            if error.code != "E104":
                raise
        same = [job for job in await self.jobs(api.JobsRequest(all=True)) if job.name == name]
        if not same:
            raise CliError("E104", f'no job "{name}" here', hint="aegis job ls --all")
        alive = [job for job in same if job.phase not in ("Succeed", "Failed")] or same
        best = max(alive, key=lambda job: job.createdAt)
        return await self.query("job", api.JobRequest(job=best.job, workers=workers), api.JobDetail)

    async def jobs(self, request: api.JobsRequest) -> list[api.JobSummary]:
        """Jobs: all pages."""
        items: list[api.JobSummary] = []
        while True:
            page = await self.query("jobs", request, api.Jobs)
            items += page.items
            if not page.more or not page.items:
                return items
            request = msgspec.structs.replace(request, after=page.items[-1].job)

    async def events(self, job: str, after: int = -1) -> api.Events:
        """Events of a job after a sequence: all pages. -1: from the beginning; 0: the newest page."""
        items: list[api.StoredEvent] = []
        while True:
            page = await self.query("events", api.EventsRequest(job=job, afterSeq=after, limit=500), api.Events)
            items += page.items
            if not page.more or page.seq <= after:
                return api.Events(tuple(items), max(page.seq, after))
            after = page.seq

    async def nodes(self, names: tuple[str, ...] = ()) -> list[api_nodes.NodeInfo]:
        """Nodes, all or the named ones: all pages."""
        items: list[api_nodes.NodeInfo] = []
        request = api_nodes.NodesQuery(names)
        while True:
            page = await self.query_nodes("nodes", request, api_nodes.NodesAnswer)
            items += page.nodes
            if not page.more or not page.nodes:
                return items
            request = msgspec.structs.replace(request, after=page.nodes[-1].node)

    async def pending(self, job: str) -> api_nodes.JobPending | None:
        """Why a job still waits for nodes; None when it does not."""
        answer = await self.query_nodes("pending", api_nodes.PendingQuery(job=job), api_nodes.PendingAnswer)
        return answer.jobs[0] if answer.jobs else None

    async def action(
        self, verb: str, job: api.JobSummary, reason: str = "", grace: float | None = None, settings: dict[str, str] | None = None
    ) -> api.ActionReply:
        """Stop, suspend, resume, restart or set: recorded once, whatever is repeated on the way."""
        request = api.ActionRequest(job.job, str(uuid.uuid4()), self.who, reason, grace, settings or {})
        return await self.act(verb, request, api.ActionReply, job.namespace)


def read_reply(kind: type[T], data: bytes) -> T:
    """The reply, or the CliError that the service sent."""
    try:
        return api.read_reply(kind, data)
    except api.RequestRefused as refused:
        text = refused.message.removeprefix(f"{refused.code} ")
        raise CliError(refused.code, text, refused.hint, details=list(refused.details)) from None
    except BadMessage as error:
        raise CliError("E107", f"the answer of the service does not decode: {error}") from None
