"""The accounts of a site, rendered: SYS, AEGIS, FLEET, PEOPLE and one per job. Pure functions of the root secret, the rights and what is revoked."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aegis_proto import roles
from aegis_proto.streams import RESERVED_BYTES

from aegis_credentials import jwt
from aegis_credentials.keys import RootSecret

GIB = 1 << 30
AEGIS_LIMITS: dict[str, Any] = {
    "mem_storage": GIB // 4,
    "disk_storage": 3 * RESERVED_BYTES + GIB,  # three replicas of every stream
    "streams": 32,
    "consumer": 20_000,
    "max_ack_pending": -1,
    "mem_max_stream_bytes": -1,
    "disk_max_stream_bytes": -1,
    "max_bytes_required": True,
}
NAMES = ("SYS", "AEGIS", "FLEET", "PEOPLE")


def system(secret: RootSecret, now: int) -> str:
    return jwt.account(secret.operator_signing(), secret.account("SYS").public, "SYS", now=now)


def aegis(secret: RootSecret, now: int) -> str:
    """Services and JetStream. Whoever is here is trusted: people, agents and daemons come through imports."""
    return jwt.account(
        secret.operator_signing(),
        secret.account("AEGIS").public,
        "AEGIS",
        now=now,
        signing_keys=[jwt.scope(secret.role(role).public, role, rights) for role, rights in roles.SERVICES.items()],
        exports=roles.EXPORTS,
        limits=AEGIS_LIMITS,
    )


def fleet(secret: RootSecret, now: int, revocations: dict[str, int] | None = None) -> str:
    return jwt.account(
        secret.operator_signing(),
        secret.account("FLEET").public,
        "FLEET",
        now=now,
        signing_keys=[jwt.scope(secret.role("node").public, "node", roles.NODE)],
        imports=roles.fleet_imports(secret.account("AEGIS").public),
        revocations=revocations,
        limits={"payload": 65536, "leaf": 0},
    )


def people(secret: RootSecret, now: int, revocations: dict[str, int] | None = None) -> str:
    return jwt.account(
        secret.operator_signing(),
        secret.account("PEOPLE").public,
        "PEOPLE",
        now=now,
        signing_keys=[jwt.scope(secret.role(role).public, role, rights) for role, rights in roles.PEOPLE.items()],
        imports=roles.people_imports(secret.account("AEGIS").public),
        revocations=revocations,
        limits={"leaf": 0},
    )


def job(secret: RootSecret, name: str, uid: str, workers: int, *, now: int, revocations: dict[str, int] | None = None) -> str:
    """Account of one job. `conn`: three per worker and some, since half-open links count until they time out."""
    return jwt.account(
        secret.operator_signing(),
        secret.job_account(name, uid).public,
        f"job-{name}",
        now=now,
        signing_keys=[jwt.scope(secret.job_signing(name, uid).public, "agent", roles.AGENT)],
        imports=roles.job_imports(secret.account("AEGIS").public, name),
        revocations=revocations,
        limits={"conn": 3 * workers + 16, "payload": 65536, "leaf": 0},
    )


def content(token: str) -> str:
    """What an account JWT grants, comparable: everything but the time of signing. "" when it is no JWT."""
    try:
        claims = jwt.decode(token)
    except jwt.BadToken:
        return ""
    return json.dumps({key: value for key, value in claims.items() if key not in ("iat", "jti")}, sort_keys=True)


def digest(token: str) -> bytes:
    """`content` in 32 bytes."""
    return hashlib.sha256(content(token).encode()).digest()


def same_rendering(a: str, b: str) -> bool:
    """True when two account JWTs grant the same."""
    return bool(a) and content(a) == content(b) != ""
