"""NATS JWTs (version 2): mint and read operator, account, user and generic claims. Time is an argument.

Rules of the server that are easy to miss: a user JWT signed by a scoped key must carry tags only; tags are pasted unescaped into subjects
(so they are checked here); an account needs all JetStream limits present or JetStream is off.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import Any

from aegis_proto.ids import check_id

from aegis_credentials.keys import BadKey, Nkey, verify

UNLIMITED = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
TAGS = ("job", "pod", "node", "namespace")


class BadToken(ValueError):
    """Not a JWT of ours."""


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _dump(obj: object) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()


_HEADER = _b64(_dump({"typ": "JWT", "alg": "ed25519-nkey"}))


def encode(claims: dict[str, Any], signer: Nkey, now: int) -> str:
    """Sign `claims`; `iss`, `iat` (seconds) and `jti` are set here.

    `jti` is random: a server that deleted an account takes no notice of the very same JWT pushed again within the second.
    """
    body = {**claims, "iss": signer.public, "iat": now, "jti": base64.b32encode(os.urandom(20)).decode()}
    head = f"{_HEADER}.{_b64(_dump(body))}"
    return f"{head}.{_b64(signer.sign(head.encode()))}"


def decode(token: str) -> dict[str, Any]:
    """The claims, with the signature checked against their own `iss`. BadToken on anything else.

    Whether `iss` may speak is for the caller to decide.
    """
    try:
        head, body, signature = token.strip().split(".")
        claims = json.loads(_unb64(body))
        issuer = str(claims["iss"])
        kind = {"O": "operator", "A": "account", "U": "user"}[issuer[:1]]
        good = head == _HEADER and verify(issuer, kind, f"{head}.{body}".encode(), _unb64(signature))
    except (ValueError, KeyError, TypeError, AttributeError, BadKey, binascii.Error, RecursionError):
        raise BadToken("not a NATS JWT") from None
    if not good:
        raise BadToken("a JWT with a wrong signature")
    return dict(claims)


def operator(key: Nkey, *, system_account: str, signing_keys: list[str], now: int) -> str:
    nats = {"type": "operator", "version": 2, "system_account": system_account, "signing_keys": signing_keys}
    return encode({"sub": key.public, "name": "aegis", "nats": nats}, key, now)


def account(
    signer: Nkey,
    public: str,
    name: str,
    *,
    now: int,
    signing_keys: list[dict[str, Any]] | None = None,
    imports: list[dict[str, str]] | None = None,
    exports: list[dict[str, str]] | None = None,
    revocations: dict[str, int] | None = None,
    limits: dict[str, Any] | None = None,
) -> str:
    """An account. `revocations`: user key (or `*`) -> seconds; a user JWT issued at or before that is cut off."""
    nats: dict[str, Any] = {
        "type": "account",
        "version": 2,
        "limits": {**UNLIMITED, **(limits or {})},
        "signing_keys": signing_keys or [],
        "default_permissions": {"pub": {}, "sub": {}},
    }
    if revocations:
        nats["revocations"] = dict(sorted(revocations.items()))
    if imports:
        nats["imports"] = imports
    if exports:
        nats["exports"] = exports
    return encode({"sub": public, "name": name, "nats": nats}, signer, now)


def scope(key: str, role: str, rights: dict[str, Any]) -> dict[str, Any]:
    """A scoped signing key of an account: whoever it signs has exactly `rights` (`roles.py`), with tags filled in by the server."""
    template: dict[str, Any] = {
        "pub": {"allow": list(rights["pub_allow"])},
        "sub": {"allow": list(rights["sub_allow"])},
        "subs": rights.get("subs", -1),
        "data": -1,
        "payload": rights.get("payload", -1),
        "allowed_connection_types": ["STANDARD"],
    }
    if "resp" in rights:
        template["resp"] = rights["resp"]
    return {"kind": "user_scope", "key": key, "role": role, "template": template}


def user(
    signer: Nkey,
    public: str,
    name: str,
    *,
    now: int,
    issuer_account: str = "",
    tags: dict[str, str] | None = None,
    expires: int | None = None,
) -> str:
    """A user signed by a scoped key: tags only, each value an id (ValueError otherwise: `job:*` would be a wildcard)."""
    nats: dict[str, Any] = {"type": "user", "version": 2}
    if issuer_account:
        nats["issuer_account"] = issuer_account
    pairs = []
    for key, value in (tags or {}).items():
        if key not in TAGS:
            raise ValueError(f"unknown tag {key!r}")
        pairs.append(f"{key}:{check_id(key, value)}")
    if pairs:
        nats["tags"] = pairs
    claims: dict[str, Any] = {"sub": public, "name": name, "nats": nats}
    if expires is not None:
        claims["exp"] = expires
    return encode(claims, signer, now)


def system_user(signer: Nkey, public: str, *, now: int) -> str:
    """The one user of SYS: may push, look up, list and delete accounts, and nothing else of SYS."""
    requests = [f"$SYS.REQ.CLAIMS.{verb}" for verb in ("UPDATE", "LIST", "DELETE")] + ["$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP"]
    nats = {
        "type": "user",
        "version": 2,
        "pub": {"allow": requests},
        "sub": {"allow": [f"_INBOX.{public}.>"]},
        "subs": 16,
        "data": -1,
        "payload": -1,
        "allowed_connection_types": ["STANDARD"],
    }
    return encode({"sub": public, "name": "credentials", "nats": nats}, signer, now)


def delete_accounts(signer: Nkey, publics: list[str], *, now: int) -> str:
    """The body of `$SYS.REQ.CLAIMS.DELETE`."""
    return encode({"sub": signer.public, "name": "delete", "nats": {"type": "generic", "version": 2, "accounts": publics}}, signer, now)


def creds_file(token: str, seed: str) -> str:
    """The text of a `.creds` file. Whoever reads it is that user."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
