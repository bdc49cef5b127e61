"""Keys: nkeys, and everything that is derived from the one root secret of a site.

Owns the names of the derivations. Reads and writes the file of the root secret (0600). Nothing per job is ever stored: account and signing
keys of a job, join tokens and nonces are HKDF-SHA256 of the root secret, so any replica serves and a restored one serves on.
A secret never shows in `repr`, in an error or in a log.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
from pathlib import Path

import nkeys
from aegis_proto.credapi import Given
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PREFIX = {"operator": nkeys.PREFIX_BYTE_OPERATOR, "account": nkeys.PREFIX_BYTE_ACCOUNT, "user": nkeys.PREFIX_BYTE_USER}
SECRET_BYTES = 32


class BadKey(ValueError):
    """Not a key of the wanted kind."""


class Nkey:
    """One Ed25519 key of NATS: `kind` operator | account | user, `public` (O..., A..., U...), `sign`. The seed shows only in `seed`."""

    def __init__(self, raw: bytes, kind: str) -> None:
        self.kind = kind
        self.seed: str = nkeys.encode_seed(raw, PREFIX[kind]).decode()
        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public: str = pair.public_key.decode()
        self._pair = pair

    @classmethod
    def new(cls, kind: str) -> Nkey:
        return cls(os.urandom(32), kind)

    @classmethod
    def from_seed(cls, seed: str) -> Nkey:
        """BadKey (without the seed in it) when `seed` is none."""
        try:
            prefix, raw = nkeys.decode_seed(seed.strip().encode())
        except Exception:
            raise BadKey("not an nkey seed") from None
        kinds = [kind for kind, byte in PREFIX.items() if byte == prefix]
        if not kinds:
            raise BadKey("not the seed of an operator, account or user")
        return cls(bytes(raw), kinds[0])

    def sign(self, data: bytes) -> bytes:
        return bytes(self._pair.sign(data))

    def __repr__(self) -> str:
        return f"Nkey({self.kind}, {self.public})"


def public_raw(public: str, kind: str) -> bytes:
    """The 32 bytes of a public nkey; BadKey when it is not one of `kind` (length, alphabet, checksum)."""
    if len(public) != 56 or not public.isascii():
        raise BadKey(f"not a public {kind} nkey")
    try:
        decoded = base64.b32decode(public)
    except binascii.Error:
        raise BadKey(f"not a public {kind} nkey") from None
    if decoded[0] != PREFIX[kind] or nkeys.crc16(bytearray(decoded[:-2])).to_bytes(2, "little") != decoded[-2:]:
        raise BadKey(f"not a public {kind} nkey")
    return decoded[1:-2]


def verify(public: str, kind: str, data: bytes, signature: bytes) -> bool:
    """True when `signature` (64 bytes) is that of `data` by `public`. BadKey when `public` is no such key."""
    raw = public_raw(public, kind)
    if len(signature) != 64:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


class RootSecret:
    """The secret of a site and what follows from it. Any process that holds it can be the credentials service."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise BadKey(f"root secret: {SECRET_BYTES} bytes expected, not {len(secret)}")
        self._secret = secret

    def __repr__(self) -> str:
        return "RootSecret(...)"

    @classmethod
    def read(cls, path: Path) -> RootSecret:
        """64 hex digits, in a file that only its owner (or, for a mounted secret, its group) may read.

        Raises: BadKey naming the path when it is absent, open to others or no such secret.
        """
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadKey(f"root secret {path}: {error.strerror if isinstance(error, OSError) else 'not text'}") from None
        if mode & 0o037:
            raise BadKey(f"root secret {path}: mode {mode:04o} lets others read it. chmod 600 {path}")
        try:
            return cls(bytes.fromhex(text))
        except ValueError:
            raise BadKey(f"root secret {path}: 64 hex digits expected") from None

    @classmethod
    def create(cls, path: Path) -> RootSecret:
        """A new one, in a new file of mode 0600. FileExistsError when there is one."""
        write_private(path, os.urandom(SECRET_BYTES).hex() + "\n", exclusive=True)
        return cls.read(path)

    def derive(self, purpose: str, *parts: str) -> bytes:
        """32 bytes for (purpose, parts): HKDF-SHA256. Parts are length-prefixed, so no two tuples meet."""
        info = b"".join(len(part).to_bytes(4, "big") + part for part in (text.encode() for text in ("aegis", "1", purpose, *parts)))
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(self._secret)

    def account(self, name: str) -> Nkey:
        """Identity of SYS, AEGIS, FLEET or PEOPLE."""
        return Nkey(self.derive("account", name), "account")

    def role(self, name: str) -> Nkey:
        """Scoped signing key of a role (`roles.ROLES`, or `node`)."""
        return Nkey(self.derive("role", name), "account")

    def operator_signing(self) -> Nkey:
        return Nkey(self.derive("operator-signing"), "operator")

    def sys_user(self) -> Nkey:
        return Nkey(self.derive("sys-user"), "user")

    def job_account(self, job: str, uid: str) -> Nkey:
        return Nkey(self.derive("job-account", job, uid), "account")

    def job_signing(self, job: str, uid: str) -> Nkey:
        """Scoped signing key of a job's agents."""
        return Nkey(self.derive("job-signing", job, uid), "account")

    def join_token(self, job: str, uid: str, pod: str, attempt: int) -> str:
        """Lets exactly this attempt of this place ask for its first JWT. Stateless: an HMAC."""
        return _mac(self.derive("join"), job, uid, pod, str(attempt))

    def deed(self, given: Given, pod: str, attempt: int) -> str:
        """Shows, also to a store that knows nothing of it, that this attempt of this place of a job was given out. Stateless: an HMAC; not secret."""
        what = (given.job, given.uid, given.namespace, str(given.workers), given.era, given.digest)
        return _mac(self.derive("deed"), *what, pod, str(attempt))

    def node_token(self, node: str, expires: int) -> str:
        """Lets the daemon of `node` enrol until `expires` (seconds since 1970)."""
        return f"{expires}.{_mac(self.derive('join-node'), node, str(expires))}"

    def node_token_valid(self, token: str, node: str, now: float) -> bool:
        text, _, _ = token.partition(".")
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            return False
        return same(token, self.node_token(node, int(text))) and now < int(text)

    def nonce_key(self) -> bytes:
        return self.derive("nonce")


def _mac(key: bytes, *parts: str) -> str:
    body = b"".join(len(part).to_bytes(4, "big") + part for part in (text.encode() for text in parts))
    return base64.urlsafe_b64encode(hmac.new(key, body, hashlib.sha256).digest()).rstrip(b"=").decode()


def same(a: str, b: str) -> bool:
    """Equal, in constant time."""
    return hmac.compare_digest(a.encode(errors="replace"), b.encode(errors="replace"))


def write_private(path: Path, text: str, *, exclusive: bool = False) -> None:
    """Write a file that only its owner may read, whole or not at all (0600, rename)."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if exclusive and path.exists():
        raise FileExistsError(str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            os.link(temporary, path)  # fails when another process was faster
        else:
            os.replace(temporary, path)
    finally:
        if temporary.exists():
            temporary.unlink()
