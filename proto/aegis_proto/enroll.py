"""First contact: how a worker or a node daemon gets its JWT, and renews it. The only gRPC of Aegis, over TLS, with the CA given.

Reads and writes nothing. Meant for a short-lived child of the agent, so that gRPC's memory does not stay in the agent; gRPC is imported lazily.
The seed of the nkey never comes here: `sign` is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CODE_KEY = "aegis-code"
"""Trailing metadata of a refusal: its machine-readable code."""

RETRY = frozenset({"notYet", "away"})
"""Refusals that a later try may turn: the state is not there yet; the service cannot reach the bus."""


class EnrollError(Exception):
    """Base of what `enroll` raises; the text begins with a code that `aegis explain` knows."""


class Unreachable(EnrollError):
    """Nobody answered, or the service cannot tell now. Try again."""


class CertificateBad(EnrollError):
    """Somebody answered, but not with a certificate of our CA, for this name, that is valid now."""


class Refused(EnrollError):
    """The service answered no. `code`: badRequest, badToken, badSignature, bound, superseded, revoked, unknownJob, ended."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Enrolled:
    """`expires`: seconds since 1970; renew at a random point of [1/3, 2/3] of the time left."""

    jwt: str
    servers: tuple[str, ...]
    expires: int


def load() -> None:
    """Load gRPC and the stubs now, so that `enroll` does not have to."""
    import grpc  # noqa: F401

    from aegis_proto._pb import credentials_pb2, credentials_pb2_grpc  # noqa: F401


def challenge(nonce: str, job: str, pod: str, attempt: int, nkey: str) -> bytes:
    """What the caller's nkey signs."""
    return f"{nonce}|{job}|{pod}|{attempt}|{nkey}".encode()


def enroll(  # noqa: PLR0917
    target: str,
    ca_pem: bytes,
    job: str,
    pod: str,
    attempt: int,
    uid: str,
    nkey_public: str,
    sign: Callable[[bytes], bytes],
    token: str,
    timeout: float,
) -> Enrolled:
    """Ask the credentials service at `target` (host:port) for a JWT of (job, pod, attempt) for `nkey_public`.

    A node daemon gives job "" and its node name as `pod`. With an empty `token` it is a renewal: the nkey must be the bound one.
    `timeout` in seconds, for both steps together. Raises Unreachable, CertificateBad, Refused.
    """
    import grpc

    from aegis_proto._pb import credentials_pb2, credentials_pb2_grpc

    pb: Any = credentials_pb2
    stubs: Any = credentials_pb2_grpc
    deadline = time.monotonic() + timeout
    options = [("grpc.enable_retries", 0), ("grpc.max_receive_message_length", 65536)]
    request = pb.SyncWorkerCredsRequest(job=job, pod=pod, attempt=attempt, uid=uid, nkey=nkey_public, token=token)
    try:
        credentials = grpc.ssl_channel_credentials(ca_pem)
        with grpc.secure_channel(target, credentials, options) as channel:
            stub = stubs.CredentialsStub(channel)
            first = stub.SyncWorkerCreds(request, timeout=max(0.05, deadline - time.monotonic()))
            request.nonce = first.nonce
            request.signature = sign(challenge(first.nonce, job, pod, attempt, nkey_public))
            second = stub.SyncWorkerCreds(request, timeout=max(0.05, deadline - time.monotonic()))
    except grpc.RpcError as error:
        raise _translate(target, error) from None
    if not second.jwt:
        raise Refused("badSignature", "E102 the nonce was not signed: `sign` gave nothing")
    return Enrolled(second.jwt, tuple(second.servers), int(second.expires))


def _translate(target: str, error: object) -> EnrollError:
    import grpc

    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call) else None) or str(code)
    metadata = dict((error.trailing_metadata() if isinstance(error, grpc.Call) else None) or ())
    ours = str(metadata.get(CODE_KEY, ""))
    if ours in RETRY:
        return Unreachable(details)
    if ours:
        return Refused(ours, details)
    text = details.lower()
    if any(word in text for word in ("certificate", "handshake failed", "peer name", "verification check")):
        return CertificateBad(
            f"E102 the certificate of the credentials service at {target} was refused: {_tail(details)}. Check the CA file and the name"
        )
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return Unreachable(f"E101 cannot reach the credentials service at {target}: {_tail(details)}")
    return Refused("badRequest", f"E102 the credentials service at {target} answered {code}: {_tail(details)}")


def _tail(details: str) -> str:
    """The last, telling part of gRPC's nested error texts, at most 200 characters."""
    return details.rsplit("last error: ", 1)[-1][-200:]
