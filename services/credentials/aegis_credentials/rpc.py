"""The requests on the bus: join, vouch, issue, revoke, list. Who may ask is the bus's to enforce (roles.py); what is asked is checked here.

Every refusal is an answer with a code; what is not a request of ours also goes to the dead letters.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aegis_bus.connection import Bus, Msg
from aegis_bus.errors import BusError
from aegis_proto import ids, messages, roles, subjects
from aegis_proto.api import DeadLetter, RequestRefused, read_request
from aegis_proto.credapi import (
    MAX_CLAIMS,
    SERVICE,
    Given,
    Issued,
    IssueReply,
    IssueRequest,
    JoinReply,
    JoinRequest,
    ListReply,
    ListRequest,
    RevokeReply,
    RevokeRequest,
    VouchReply,
    VouchRequest,
)

from aegis_credentials.authority import Authority
from aegis_credentials.keys import BadKey, public_raw, same
from aegis_credentials.record import Refusal

log = structlog.get_logger()

MAX_TTL = 366 * 86400.0
JOIN_TTL = 3600.0
MAX_LISTED = 1000
_NAME = re.compile(r"[A-Za-z0-9@._ -]{0,64}\Z")
_CODES = {"unknownJob": "E104", "ended": "E105", "superseded": "E105", "notYet": "E105"}


class Requests:
    """Subscribed as one queue group: each request is answered by one replica."""

    def __init__(self, authority: Authority, bus: Bus) -> None:
        self._authority = authority
        self._bus = bus
        self._verbs: dict[str, Callable[[str, bytes], Awaitable[msgspec.Struct]]] = {
            "join": self._join,
            "vouch": self._vouch,
            "issue": self._issue,
            "revoke": self._revoke,
            "list": self._list,
        }

    async def start(self) -> None:
        await self._bus.subscribe(f"aegis.rpc.{SERVICE}.do.*.*", self._on_request, queue=SERVICE, workers=8)

    async def _on_request(self, msg: Msg) -> None:
        await msg.respond(messages.encode(await self.answer(msg.subject, msg.data)))

    async def answer(self, subject: str, data: bytes) -> msgspec.Struct:
        """The reply to one request; never raises."""
        verb, scope = subjects.token(subject, 4), subjects.token(subject, 5)
        try:
            if verb not in self._verbs or not ids.is_id(scope):
                raise RequestRefused("E107", f"E107 {subject}: no such request", "join, vouch, issue, revoke and list, with a namespace")
            return await self._verbs[verb](scope, data)
        except RequestRefused as refused:
            if refused.code == "E107":
                await self._bury(subject, data, str(refused))
            return refused.reply()
        except Refusal as refusal:
            code = _CODES.get(refusal.code, "E107")
            return RequestRefused(code, str(refusal)).reply()
        except (BusError, TimeoutError) as error:
            return RequestRefused("E108", f"E108 {subject}: {error}", "try again").reply()
        except Exception:
            log.exception("request failed", subject=subject)
            return RequestRefused("E108", f"E108 {subject}: the credentials service failed; its log says why").reply()

    async def _bury(self, subject: str, data: bytes, reason: str) -> None:
        letter = DeadLetter(stream="rpc", seq=0, subject=subject[:256], reason=reason[:500], data=data[:4096], at=int(time.time() * 1000))
        try:
            await self._bus.publish(subjects.dlq(SERVICE, "rpc"), messages.encode(letter), timeout=2.0)
        except BusError as error:
            log.warning("dead letter not stored", subject=subject, error=str(error))

    async def _join(self, scope: str, data: bytes) -> JoinReply:
        request = read_request(JoinRequest, data)
        _check(lambda: (ids.check_id("job", request.job), ids.pod_index(request.pod)))
        if not 1 <= request.attempt <= 1_000_000:
            raise RequestRefused("E107", f"E107 attempt {request.attempt} is out of range")
        head = await self._authority.check_place(request.job, "", request.pod, request.attempt)
        secret = self._authority.site.secret
        digest = await self._authority.spec_digest(head)
        given = Given(head.job, head.uid, head.namespace, head.workerNum, head.era, digest)
        deed = secret.deed(given, request.pod, request.attempt) if digest else ""
        return JoinReply(secret.join_token(request.job, head.uid, request.pod, request.attempt), head.uid, head.era, deed)

    async def _vouch(self, scope: str, data: bytes) -> VouchReply:
        """Asks no store: what was lost is not in it."""
        request = read_request(VouchRequest, data)
        given = request.given
        if len(request.claims) > MAX_CLAIMS or given.namespace != scope:
            raise RequestRefused("E107", f"E107 {len(request.claims)} claims of namespace {given.namespace[:40]}: at most {MAX_CLAIMS}, of {scope}")
        secret, held = self._authority.site.secret, dict[str, int]()
        for claim in request.claims:
            if same(claim.deed, secret.deed(given, claim.pod, claim.attempt)):
                held[claim.pod] = max(claim.attempt, held.get(claim.pod, 0))
        log.info("vouched", job=given.job, uid=given.uid, era=given.era, claims=len(request.claims), held=len(held))
        return VouchReply(held)

    async def _issue(self, scope: str, data: bytes) -> IssueReply:
        request = read_request(IssueRequest, data)
        if request.role not in (*roles.PEOPLE, "node"):
            known = ", ".join([*roles.PEOPLE, "node"])
            raise RequestRefused("E107", f'E107 role "{request.role[:40]}" is not issued here', f"one of {known}")
        for_ever = request.role == "node" and request.ttl == 0 and not request.join
        if not for_ever and not 60 <= request.ttl <= MAX_TTL:
            raise RequestRefused("E107", f"E107 ttl {request.ttl:g} s is out of range: 60 s to {MAX_TTL / 86400:g} d")
        if _NAME.match(request.name) is None:
            raise RequestRefused("E107", "E107 name: letters, digits, @ . _ - and space, at most 64")
        now = time.time()
        if request.role == "node":
            _check(lambda: ids.check_id("node", request.node))
            if request.join:
                expires = int(now + min(request.ttl, JOIN_TTL))
                return IssueReply(token=self._authority.site.secret.node_token(request.node, expires), expires=expires)
        _check(lambda: public_raw(request.nkey, "user"))
        tags = {"node": {"node": request.node}, "nsreader": {"namespace": scope}, "user": {"namespace": scope}}.get(request.role, {})
        expires = 0 if for_ever else int(now + request.ttl)
        if request.role == "node":
            await self._authority.give_node(request.node, request.nkey)
        noted = Issued(request.name or request.role, request.role, tags.get("namespace") or request.node or "all", request.nkey, int(now), expires)
        await self._bus.publish(subjects.cred_issued(request.nkey), messages.encode(noted), ttl=request.ttl or None)
        jwt = self._authority.site.token(request.role, request.nkey, tags, name=request.name or request.role, expires=expires or None, now=now)
        log.info("issued", role=request.role, scope=scope, name=request.name, nkey=request.nkey, expires=expires)
        return IssueReply(jwt=jwt, expires=expires)

    async def _list(self, scope: str, data: bytes) -> ListReply:
        read_request(ListRequest, data)
        found = await self._authority.issued()
        found.sort(key=lambda item: (-item.issued, item.name))
        return ListReply(tuple(found[:MAX_LISTED]), len(found) > MAX_LISTED)

    async def _revoke(self, scope: str, data: bytes) -> RevokeReply:
        request = read_request(RevokeRequest, data)
        given = [bool(request.nkey), bool(request.node), bool(request.job or request.pod)]
        if sum(given) != 1:
            raise RequestRefused("E107", "E107 revoke exactly one: an nkey, a node, or a pod of a job")
        log.info("revoking", nkey=request.nkey, node=request.node, job=request.job, pod=request.pod, reason=request.reason[:200])
        if request.nkey:
            _check(lambda: public_raw(request.nkey, "user"))
            await self._authority.revoke_in("people", request.nkey)
            await self._authority.revoke_in("fleet", request.nkey)
            return RevokeReply(True)
        if request.node:
            _check(lambda: ids.check_id("node", request.node))
            return RevokeReply(await self._authority.revoke_node(request.node))
        _check(lambda: (ids.check_id("job", request.job), ids.pod_index(request.pod)))
        return RevokeReply(await self._authority.revoke_pod(request.job, request.pod))


def _check(form: Callable[[], object]) -> None:
    try:
        form()
    except BadKey as error:
        raise RequestRefused("E107", f"E107 nkey: {error}") from None
    except ValueError as error:
        text = str(error)
        raise RequestRefused("E110", text if text.startswith("E110") else f"E110 {text}") from None
