"""Who this process is on the bus: an nkey whose seed stays in memory, and the JWT that the server accepts for it.

Reads and writes creds files (mode 0600). The seed appears in no repr, log line or exception.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nkeys

_BLOCK = re.compile(r"-+BEGIN (?P<kind>[A-Z ]+?)-+\s*\n(?P<body>\S+)\s*\n-+END ", re.MULTILINE)


class Identity:
    """An nkey of a user, and its JWT (settable; "" where the server asks for none)."""

    __slots__ = ("_keys", "_seed", "jwt", "public")

    def __init__(self, seed: bytes, jwt: str = "") -> None:
        """`seed`: encoded nkey seed (`SU...`). ValueError when it is not the seed of a user."""
        try:
            keys = nkeys.from_seed(bytearray(seed))
            public = keys.public_key.decode()
        except Exception:
            raise ValueError("not an nkey seed") from None
        if not public.startswith("U"):
            raise ValueError(f"expected the nkey of a user (U...), got one that starts with {public[:1]}")
        self._keys = keys
        self._seed = bytes(seed)
        self.public: str = public
        self.jwt = jwt

    @classmethod
    def new(cls, jwt: str = "") -> Identity:
        """A fresh key; set `.jwt` when somebody has signed one for `.public`."""
        return cls(bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)), jwt)

    @classmethod
    def from_creds(cls, text: str) -> Identity:
        """From the text of a creds file. ValueError names the part that is missing."""
        blocks = {match["kind"]: match["body"] for match in _BLOCK.finditer(text)}
        for kind in ("NATS USER JWT", "USER NKEY SEED"):
            if kind not in blocks:
                raise ValueError(f"not a creds file: no block {kind}")
        return cls(blocks["USER NKEY SEED"].encode(), blocks["NATS USER JWT"])

    @classmethod
    def from_creds_file(cls, path: str | os.PathLike[str]) -> Identity:
        """From a creds file; OSError when it cannot be read, ValueError (with the path) when it is not one."""
        try:
            return cls.from_creds(Path(path).read_text(encoding="ascii"))
        except (ValueError, UnicodeDecodeError) as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    def creds(self) -> str:
        """The text of a creds file. Holds the seed: only for a 0600 file."""
        return (
            f"-----BEGIN NATS USER JWT-----\n{self.jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self._seed.decode()}\n------END USER NKEY SEED------\n"
        )

    def to_creds_file(self, path: str | os.PathLike[str]) -> None:
        """Write a creds file, mode 0600 from its first byte, whole or not at all."""
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(self.creds())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    def sign(self, data: bytes) -> bytes:
        """Ed25519 signature (64 bytes) of `data`."""
        return bytes(self._keys.sign(data))

    @property
    def claims(self) -> Mapping[str, Any]:
        """Claims of the JWT, unverified ({} without one)."""
        return jwt_claims(self.jwt)

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the JWT ("job:x", "pod:w0"), which fill the template of a scoped signing key."""
        nats = self.claims.get("nats")
        return tuple(nats.get("tags", ())) if isinstance(nats, dict) else ()

    @property
    def name(self) -> str:
        """Name inside the JWT, else the first characters of the public key."""
        return str(self.claims.get("name") or self.public[:8])

    @property
    def expires(self) -> int | None:
        """Expiry of the JWT, seconds since 1970; None = never."""
        exp = self.claims.get("exp")
        return int(exp) if exp else None

    def expired(self, now: float | None = None) -> bool:
        return self.expires is not None and self.expires <= (time.time() if now is None else now)

    def __repr__(self) -> str:
        return f"<Identity {self.name} {self.public}>"

    def __reduce__(self) -> Any:
        raise TypeError("an identity does not leave its process")


@functools.lru_cache(maxsize=64)
def jwt_claims(jwt: str) -> Mapping[str, Any]:
    """Claims of a JWT, unverified; {} when it is not one."""
    try:
        body = jwt.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}
