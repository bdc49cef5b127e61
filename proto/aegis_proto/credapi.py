"""Requests to the credentials service on the bus (`aegis.rpc.credentials.do.*`). First contact of agents is gRPC: `enroll.py`.

| subject | who | request | reply |
|---|---|---|---|
| aegis.rpc.credentials.do.join.<namespace> | jobcontroller | JoinRequest | JoinReply |
| aegis.rpc.credentials.do.vouch.<namespace> | master | VouchRequest | VouchReply |
| aegis.rpc.credentials.do.issue.<namespace> | operator | IssueRequest | IssueReply |
| aegis.rpc.credentials.do.revoke.<namespace> | operator | RevokeRequest | RevokeReply |
| aegis.rpc.credentials.do.list.<namespace> | operator | ListRequest | ListReply |

Every reply is the named struct or `{"error": {code, message, hint, details}}` (`api.read_reply`).
"""

from __future__ import annotations

import hashlib

import msgspec

from aegis_proto import WIRE_VERSION

SERVICE = "credentials"
MAX_CLAIMS = 1000
"""Deeds in one request: some 100 KB."""


def spec_digest(spec: bytes) -> str:
    """What a deed says of a specification, given to the byte as it is stored and placed: SHA-256, hex."""
    return hashlib.sha256(spec).hexdigest()


class JoinRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A join token for exactly this attempt of this place. It must be the state's present one."""

    job: str
    pod: str
    attempt: int
    v: int = WIRE_VERSION


class JoinReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """`deed`: that this attempt of this place of the job was given out in `era` (`messages.Held`)."""

    token: str
    uid: str
    era: str = ""
    deed: str = ""
    v: int = WIRE_VERSION


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place that somebody says to hold, and the deed that shows it."""

    pod: str
    attempt: int
    deed: str


class Given(msgspec.Struct, frozen=True):
    """What all deeds of a job in one era say. `digest`: `spec_digest` of its specification."""

    job: str
    uid: str
    namespace: str
    workers: int
    era: str
    digest: str


class VouchRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which of these deeds are ours? The job need not be known: it was lost with its store."""

    given: Given
    claims: tuple[Claim, ...]
    v: int = WIRE_VERSION


class VouchReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims whose deed is right, as place -> highest attempt."""

    held: dict[str, int] = {}
    v: int = WIRE_VERSION


class IssueRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A JWT of `role` (reader, nsreader, user, operator, node) for the public `nkey`, whose seed stays with the asker.

    nsreader and user are for the namespace of the subject. `join` (role node): a join token for the daemon of `node` instead of a JWT.
    """

    role: str
    nkey: str = ""
    name: str = ""
    node: str = ""
    ttl: float = 28800.0  # seconds
    join: bool = False
    v: int = WIRE_VERSION


class IssueReply(msgspec.Struct, frozen=True, omit_defaults=True):
    jwt: str = ""
    token: str = ""
    expires: int = 0  # seconds since 1970
    v: int = WIRE_VERSION


class RevokeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Exactly one of: `nkey` of a person or tool; `node`; `job` with `pod` (the present attempt)."""

    nkey: str = ""
    node: str = ""
    job: str = ""
    pod: str = ""
    reason: str = ""
    v: int = WIRE_VERSION


class RevokeReply(msgspec.Struct, frozen=True, omit_defaults=True):
    revoked: bool
    """False: nobody held it."""
    v: int = WIRE_VERSION


class Issued(msgspec.Struct, frozen=True, omit_defaults=True):
    """CTL `aegis.cred._issued.<nkey>`: credentials that were issued by request; the record goes when they expire.

    `scope`: a namespace, a node, or "all". What `aegis setup` writes is not among them.
    """

    name: str
    role: str
    scope: str
    nkey: str
    issued: int  # seconds since 1970
    expires: int = 0  # seconds since 1970; 0 = never
    revoked: bool = False
    """Filled in the answer: the bus refuses this nkey."""
    v: int = WIRE_VERSION


class ListRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was issued, of all namespaces, and has not expired."""

    v: int = WIRE_VERSION


class ListReply(msgspec.Struct, frozen=True, omit_defaults=True):
    items: tuple[Issued, ...] = ()
    """Newest first; at most 1000."""
    more: bool = False
    v: int = WIRE_VERSION
