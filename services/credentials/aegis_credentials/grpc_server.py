"""gRPC `SyncWorkerCreds` over TLS: nonce, signature, JWT. Checks the form of a request; whether it is granted is `authority`'s.

Nonces are stateless (an HMAC over time and caller), so that the second step may reach another replica.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import time
from typing import Any

import grpc
import structlog
from aegis_bus.errors import BusError
from aegis_proto import ids
from aegis_proto._pb import credentials_pb2, credentials_pb2_grpc
from aegis_proto.enroll import CODE_KEY, challenge
from prometheus_client import Counter, Histogram

from aegis_credentials.authority import Authority, Issued
from aegis_credentials.keys import BadKey, public_raw, verify
from aegis_credentials.record import Refusal
from aegis_credentials.setup import Site

log = structlog.get_logger()
pb: Any = credentials_pb2

NONCE_LIFE = 60.0
"""Seconds from the first step to the second."""
MAX_REQUEST = 8192
MAX_TOKEN = 128
MAX_RPCS = 256
MAX_ATTEMPT = 1_000_000

ISSUED = Counter("aegis_credentials_jwt_issued_total", "JWTs issued to agents and node daemons", ["kind"])
REFUSED = Counter("aegis_credentials_refused_total", "Requests refused", ["code"])
DURATION = Histogram(
    "aegis_credentials_enroll_duration_seconds", "Second step of SyncWorkerCreds", buckets=(0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3)
)

_STATUS = {
    "badRequest": grpc.StatusCode.INVALID_ARGUMENT,
    "badToken": grpc.StatusCode.UNAUTHENTICATED,
    "badSignature": grpc.StatusCode.UNAUTHENTICATED,
    "bound": grpc.StatusCode.ALREADY_EXISTS,
    "superseded": grpc.StatusCode.FAILED_PRECONDITION,
    "revoked": grpc.StatusCode.PERMISSION_DENIED,
    "unknownJob": grpc.StatusCode.NOT_FOUND,
    "ended": grpc.StatusCode.FAILED_PRECONDITION,
    "notYet": grpc.StatusCode.UNAVAILABLE,
    "away": grpc.StatusCode.UNAVAILABLE,
}


class Nonces:
    """Made and checked by any replica of the site; bound to the caller's nkey and place."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, who: bytes, now: float) -> str:
        head = int(now * 1000).to_bytes(8, "big") + os.urandom(16)
        return base64.urlsafe_b64encode(head + self._mac(head, who)).decode()

    def valid(self, nonce: str, who: bytes, now: float) -> bool:
        try:
            raw = base64.urlsafe_b64decode(nonce.encode("ascii"))
        except ValueError:
            return False
        head, mac = raw[:24], raw[24:]
        age = now - int.from_bytes(head[:8], "big") / 1000
        return len(raw) == 56 and hmac.compare_digest(mac, self._mac(head, who)) and -5.0 <= age <= NONCE_LIFE

    def _mac(self, head: bytes, who: bytes) -> bytes:
        return hmac.new(self._key, head + who, hashlib.sha256).digest()


class Servicer(credentials_pb2_grpc.CredentialsServicer):  # type: ignore[misc,unused-ignore]
    """One replica's. `servers`: what agents are told to dial."""

    def __init__(self, authority: Authority, servers: tuple[str, ...]) -> None:
        self._authority = authority
        self._servers = servers
        self._nonces = Nonces(authority.site.secret.nonce_key())

    async def SyncWorkerCreds(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await self._answer(request)
        except Refusal as refusal:
            code, text = refusal.code, str(refusal)
        except (BusError, TimeoutError) as error:
            code, text = "away", f"E101 the credentials service cannot reach the bus: {error}"
        REFUSED.labels(code).inc()
        log.info("refused", code=code, job=request.job[:64], pod=request.pod[:64], attempt=request.attempt, text=text)
        context.set_trailing_metadata(((CODE_KEY, code),))
        await context.abort(_STATUS[code], text[:500])

    async def _answer(self, request: Any) -> Any:
        _check_form(request)
        who = challenge("", request.job, request.pod, request.attempt, request.nkey)
        now = time.time()
        if not request.signature:
            return pb.SyncWorkerCredsResponse(nonce=self._nonces.make(who, now))
        text = challenge(request.nonce, request.job, request.pod, request.attempt, request.nkey)
        if not self._nonces.valid(request.nonce, who, now) or not verify(request.nkey, "user", text, request.signature):
            raise Refusal("badSignature", "E102 the nonce is not ours or too old, or its signature is not by this nkey. Begin again")
        with DURATION.time():
            issued = await self._issue(request)
        ISSUED.labels("agent" if request.job else "node").inc()
        return pb.SyncWorkerCredsResponse(jwt=issued.jwt, servers=self._servers, expires=issued.expires, account=issued.account)

    async def _issue(self, request: Any) -> Issued:
        if request.job:
            return await self._authority.enroll(request.job, request.pod, request.attempt, uid=request.uid, nkey=request.nkey, token=request.token)
        return await self._authority.enroll_node(request.pod, request.nkey, request.token)


def _check_form(request: Any) -> None:
    """Refusal badRequest that names the field. Tags are pasted into subjects by the server, so nothing but an id may pass."""
    if request.ByteSize() > MAX_REQUEST or max(len(request.token), len(request.nonce), len(request.uid)) > MAX_TOKEN or len(request.signature) > 64:
        raise Refusal("badRequest", "E102 a field of the request is too long")
    try:
        if request.job:
            ids.check_id("job", request.job[:64])
            ids.pod_index(request.pod[:64])
        else:
            ids.check_id("node", request.pod[:64])
        public_raw(request.nkey, "user")
    except BadKey as error:
        raise Refusal("badRequest", f"E102 nkey: {error}") from None
    except ValueError as error:
        raise Refusal("badRequest", str(error) if str(error).startswith("E110") else f"E110 {error}") from None
    if not 0 <= request.attempt <= MAX_ATTEMPT or (request.job and request.attempt < 1):
        raise Refusal("badRequest", f"E102 attempt {request.attempt} is out of range")


class _Certificate:
    """The server certificate, read anew when `aegis setup` has replaced it: no restart."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stamp = 0

    def read(self) -> Any:
        self._stamp = self._site.server_pem.stat().st_mtime_ns
        return grpc.ssl_server_certificate_configuration([(self._site.server_key.read_bytes(), self._site.server_pem.read_bytes())])

    def changed(self) -> Any:
        """Called by gRPC before each handshake: a new configuration, or None to keep the present one."""
        try:
            return self.read() if self._site.server_pem.stat().st_mtime_ns != self._stamp else None
        except OSError as error:
            log.warning("server certificate not read", error=str(error))
            return None


async def serve(authority: Authority, listen: str, servers: tuple[str, ...]) -> tuple[grpc.aio.Server, int]:
    """Start the gRPC server on `listen` (host:port, port 0 = chosen). Returns it and its port. OSError when the port is taken."""
    options = [
        ("grpc.max_receive_message_length", 2 * MAX_REQUEST),
        ("grpc.max_concurrent_streams", 64),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.max_connection_age_ms", 600_000),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_RPCS)
    add: Any = credentials_pb2_grpc.add_CredentialsServicer_to_server
    add(Servicer(authority, servers), server)
    certificate = _Certificate(authority.site)
    credentials = grpc.dynamic_ssl_server_credentials(certificate.read(), certificate.changed, False)
    try:
        port = server.add_secure_port(listen, credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise OSError(f"E101 cannot listen on {listen} for gRPC: the address is taken or not of this machine")
    await server.start()
    return server, port
