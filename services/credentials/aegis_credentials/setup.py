"""A site: operator, accounts, role keys, TLS and the root secret in one folder; and its streams on the bus. What `aegis setup` runs.

Owns `<site>/`: `root.secret` and `operator.seed` (0600; the operator's seed is needed once and may be taken away), `operator.jwt`, `auth.conf`
(public: JWTs only), `tls/`. Writes stream configurations and `aegis.era` on the bus. Everything is repeatable: a second run changes nothing
that is already as it should be.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aegis_proto import messages, roles, streams, subjects

from aegis_credentials import accounts, jwt
from aegis_credentials.keys import Nkey, RootSecret, write_private
from aegis_credentials.tls import ensure_tls

if TYPE_CHECKING:
    from aegis_bus.connection import Bus

HOUR = 3600.0
DAY = 24 * HOUR
RESOLVER_LIMIT = 20_000
"""Accounts the server's resolver holds: jobs that run or ended a short while ago, and four."""
DEFAULT_TTL: dict[str, float] = {**dict.fromkeys(roles.PEOPLE, 8 * HOUR), "admin": 600.0, "agent": DAY}
"""Seconds a JWT of a role lasts unless told otherwise; roles that are not here (services, node daemons) last until they are revoked."""


class SetupError(Exception):
    """A site or its streams cannot be made as they should be; the message says what and what to do."""


@dataclass(frozen=True)
class Site:
    """A site's folder, opened. Holds the root secret: only `setup`, the credentials service and tests open one."""

    folder: Path
    secret: RootSecret
    operator_jwt: str

    @property
    def auth_conf(self) -> Path:
        """Included by the server's configuration; wants `AEGIS_NATS_JWT` (folder of the resolver) in its environment."""
        return self.folder / "auth.conf"

    @property
    def ca_pem(self) -> Path:
        return self.folder / "tls" / "ca.pem"

    @property
    def server_pem(self) -> Path:
        return self.folder / "tls" / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "tls" / "server.key"

    def account(self, name: str) -> str:
        """Public key of SYS, AEGIS, FLEET or PEOPLE."""
        return self.secret.account(name).public

    def token(
        self,
        role: str,
        nkey: str,
        tags: dict[str, str] | None = None,
        *,
        name: str = "",
        expires: int | None = None,
        uid: str = "",
        now: float | None = None,
    ) -> str:
        """A user JWT of `role` for the public key `nkey`. Role `agent` needs tags job, pod and the job's uid; `node` the tag node;
        `nsreader` and `user` the tag namespace. `expires`: seconds since 1970, None = never.

        Raises: ValueError when the role is unknown or a tag is missing, superfluous or no id.
        """
        given = dict(tags or {})
        wanted = {"agent": {"job", "pod"}, "node": {"node"}, "nsreader": {"namespace"}, "user": {"namespace"}}.get(role, set())
        if set(given) != wanted:
            raise ValueError(f"role {role} takes the tags {sorted(wanted) or 'none'}, not {sorted(given) or 'none'}")
        if role == "agent":
            signer, account = self.secret.job_signing(given["job"], uid), self.secret.job_account(given["job"], uid).public
        elif role == "node":
            signer, account = self.secret.role(role), self.account("FLEET")
        elif role in roles.PEOPLE:
            signer, account = self.secret.role(role), self.account("PEOPLE")
        elif role in roles.SERVICES:
            signer, account = self.secret.role(role), self.account("AEGIS")
        else:
            raise ValueError(f"unknown role {role!r}: one of {', '.join(sorted([*roles.ROLES, 'node']))}")
        issued = int(time.time() if now is None else now)
        return jwt.user(signer, nkey, name or role, now=issued, issuer_account=account, tags=given, expires=expires)

    def issue(self, role: str, tags: dict[str, str] | None = None, ttl: float | None = None, *, name: str = "", uid: str = "") -> str:
        """Text of a `.creds` file with a new nkey. `ttl` in seconds: None = the role's default, 0 = never expires.

        Raises: ValueError as `token`.
        """
        key, now = Nkey.new("user"), time.time()
        lifetime = DEFAULT_TTL.get(role, 0.0) if ttl is None else ttl
        expires = int(now + lifetime) if lifetime > 0 else None
        return jwt.creds_file(self.token(role, key.public, tags, name=name, expires=expires, uid=uid, now=now), key.seed)

    def system_user(self) -> str:
        """Text of a `.creds` file of the one user of SYS. For the credentials service alone: it lives in its memory, never in a file."""
        key = self.secret.sys_user()
        return jwt.creds_file(jwt.system_user(self.secret.account("SYS"), key.public, now=int(time.time())), key.seed)


def open_site(folder: Path, root_secret: Path | None = None) -> Site:
    """An existing site. SetupError when there is none; BadKey when its secret cannot be read."""
    path = folder / "operator.jwt"
    if not path.exists():
        raise SetupError(f"no site in {folder}: run `aegis setup` first")
    return Site(folder, RootSecret.read(root_secret or folder / "root.secret"), path.read_text().strip())


def create_site(
    folder: Path | str,
    hosts: tuple[str, ...] | None = None,
    *,
    root_secret: Path | None = None,
    server_days: float = 365,
) -> Site:
    """Make the site in `folder`, or what is missing of it. `hosts`: names and addresses at which agents reach the gRPC service; None = as it is.

    `root_secret`: path of a mounted secret (64 hex digits); without it one is made in the folder.
    Raises: BadKey when a secret cannot be read; SetupError when the folder belongs to another root secret.
    """
    folder = Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two setups of one folder: the second finds what the first made
        return _create(folder, hosts, root_secret, server_days)


def _create(folder: Path, hosts: tuple[str, ...] | None, root_secret: Path | None, server_days: float) -> Site:
    path = root_secret or folder / "root.secret"
    if root_secret is None and not path.exists():
        RootSecret.create(path)
    secret = RootSecret.read(path)
    now = int(time.time())
    operator_path = folder / "operator.jwt"
    if not operator_path.exists():
        operator = Nkey.new("operator")
        write_private(folder / "operator.seed", operator.seed + "\n")
        token = jwt.operator(operator, system_account=secret.account("SYS").public, signing_keys=[secret.operator_signing().public], now=now)
        write_private(operator_path, token + "\n")
    site = Site(folder, secret, operator_path.read_text().strip())
    claims = jwt.decode(site.operator_jwt)["nats"]
    if claims["signing_keys"] != [secret.operator_signing().public]:
        raise SetupError(f"{folder} was made with another root secret than {path}: give that one, or another folder")
    ensure_tls(folder / "tls", hosts, datetime.datetime.fromtimestamp(now, datetime.UTC), server_days=server_days)
    text = _auth_conf(site, now)
    if not site.auth_conf.exists() or _without_times(site.auth_conf.read_text()) != _without_times(text):
        write_private(site.auth_conf, text)
    return site


def _auth_conf(site: Site, now: int) -> str:
    rendered = {
        "SYS": accounts.system(site.secret, now),
        "AEGIS": accounts.aegis(site.secret, now),
        "FLEET": accounts.fleet(site.secret, now),
        "PEOPLE": accounts.people(site.secret, now),
    }
    preload = "\n".join(f"  {site.account(name)}: {token}" for name, token in rendered.items())
    return (
        "# Written by `aegis setup`. JWTs only: nothing here is secret. After the first start the accounts that were pushed win over the preload.\n"
        f"operator: {site.operator_jwt}\n"
        f"system_account: {site.account('SYS')}\n"
        f'resolver {{ type: full, dir: $AEGIS_NATS_JWT, allow_delete: true, interval: "2m", limit: {RESOLVER_LIMIT} }}\n'
        f"resolver_preload {{\n{preload}\n}}\n"
    )


def _without_times(conf: str) -> list[str]:
    """Lines of auth.conf with each account JWT replaced by what it grants."""
    return [accounts.content(line.rpartition(": ")[2]) or line for line in conf.splitlines()]


def new_era(now: float) -> str:
    """A ULID: 48 bits of milliseconds and 80 random bits, Crockford's alphabet in lower case. Sorts by time."""
    value = (int(now * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[(value >> shift) & 31] for shift in range(125, -5, -5))


async def ensure_streams(bus: Bus, replicas: int = 1, *, restored: bool = False) -> str:
    """Create the streams, or update them to the shipped configuration; write the era when there is none, or a new one when `restored`.

    `bus` is connected with role admin. Returns the era. Repeatable; two at once are safe.
    Raises: SetupError naming the stream and the server's reason; BusError when the bus is away.
    """
    for config in streams.stream_configs(replicas):
        await _ensure_stream(bus, config)
    return await _ensure_era(bus, restored)


async def _ensure_stream(bus: Bus, config: dict[str, Any]) -> None:
    name = config["name"]
    reply = await _api(bus, f"STREAM.INFO.{name}")
    if "error" in reply:
        if reply["error"].get("err_code") != 10059:  # stream not found
            raise SetupError(_explain(name, reply["error"]))
        reply = await _api(bus, f"STREAM.CREATE.{name}", config)
        if reply.get("error", {}).get("err_code") == 10058:  # made meanwhile, differently
            reply = await _api(bus, f"STREAM.UPDATE.{name}", config)
    elif not _as_shipped(reply["config"], config):
        reply = await _api(bus, f"STREAM.UPDATE.{name}", config)
    if "error" in reply:
        raise SetupError(_explain(name, reply["error"]))


async def _api(bus: Bus, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(await bus.request(f"$JS.API.{verb}", b"" if body is None else json.dumps(body).encode(), timeout=10.0))
    return reply


def _as_shipped(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    def covers(have: Any, want: Any) -> bool:
        if isinstance(want, dict):
            return isinstance(have, dict) and all(covers(have.get(key), value) for key, value in want.items())
        if isinstance(want, list):
            return isinstance(have, list) and len(have) == len(want) and all(covers(h, w) for h, w in zip(have, want, strict=True))
        return bool(have == want) or (have is None and not want)

    return covers(found, wanted)


def _explain(name: str, error: dict[str, Any]) -> str:
    code, text = error.get("err_code"), error.get("description", "")
    if code in (10039, 10076):
        return "E120 nats-server at this address has JetStream off, or off for account AEGIS: start it with JetStream and this site's auth.conf"
    if code in (10047, 10028):
        need = -(-streams.RESERVED_BYTES // streams.MIB)
        return f"stream {name}: {text}. The streams reserve {need} MiB a replica: raise jetstream.max_file of the server"
    return f"stream {name}: {text} (error {code})"


async def _ensure_era(bus: Bus, restored: bool) -> str:
    stored = await bus.get("CTL", subjects.ERA, leader=True)
    if stored is not None and not restored:
        return messages.decode(messages.Era, stored.data).era
    now = time.time()
    era = messages.Era(era=new_era(now), at=int(now * 1000), reason="restored" if restored else "created", salt=secrets.token_hex(16))
    from aegis_bus.errors import WrongLastSequence

    try:
        await bus.publish(subjects.ERA, messages.encode(era), expect=stored.seq if stored else 0)
    except WrongLastSequence:
        return await _ensure_era(bus, False)  # another setup wrote it meanwhile
    return era.era
