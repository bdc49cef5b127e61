"""Requests to the credentials service on the bus (`aegis.rpc.credentials.do.*`). First contact of agents is gRPC: `enroll.py`.

| subject | who | request | reply |
|---|---|---|---|
| aegis.rpc.credentials.do.join.<namespace> | jobcontroller | JoinRequest | JoinReply |
| aegis.rpc.credentials.do.issue.<namespace> | operator | IssueRequest | IssueReply |
| aegis.rpc.credentials.do.revoke.<namespace> | operator | RevokeRequest | RevokeReply |

Every reply is the named struct or `{"error": {code, message, hint, details}}` (`api.read_reply`).
"""

from __future__ import annotations

import msgspec

from aegis_proto import WIRE_VERSION

SERVICE = "credentials"


class JoinRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A join token for exactly this attempt of this place. It must be the state's present one."""

    job: str
    pod: str
    attempt: int
    v: int = WIRE_VERSION


class JoinReply(msgspec.Struct, frozen=True, omit_defaults=True):
    token: str
    uid: str
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
