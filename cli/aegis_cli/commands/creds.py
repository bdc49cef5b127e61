"""`aegis setup` and `aegis creds issue|ls|revoke`: the site, and credentials for people, tools and node daemons."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_proto import credapi
from aegis_proto.ids import is_id, nearest_id
from aegis_proto.job import duration
from aegis_proto.times import rfc3339

from aegis_cli import times
from aegis_cli.client import Client, read_reply
from aegis_cli.client import run as run_async
from aegis_cli.errors import CliError
from aegis_cli.options import Env, command
from aegis_cli.output import Column

if TYPE_CHECKING:
    from aegis_credentials.setup import Site

PEOPLE = ("reader", "nsreader", "user", "operator")
COLUMNS = [
    Column("NAME", lambda row: row["name"]),
    Column("ROLE", lambda row: row["role"]),
    Column("SCOPE", lambda row: row["scope"]),
    Column("EXPIRES", lambda row: times.moment_of(row["expires"]) if row["expires"] else "never"),
    Column("FILE", lambda row: row["file"]),
]


LISTED = [
    *COLUMNS[:4],
    Column("STATE", lambda row: "revoked" if row["revoked"] else "ok"),
    Column("ISSUED", lambda row: times.moment_of(row["issued"]), wide=True),
    Column("NKEY", lambda row: row["nkey"]),
]


def write_creds(path: Path, identity: Identity) -> None:
    """A credentials file, 0600, never over an existing one."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise CliError("E105", f"{path} exists: nothing was written. Name another file with --out") from None
    except OSError as error:
        raise CliError("E130", f"{path}: {error.strerror}") from None
    with os.fdopen(handle, "w") as file:
        file.write(identity.creds())


def register(app: typer.Typer) -> None:
    """Add `setup` and the group."""
    _setup(app)
    group = typer.Typer(help="Credentials for people, tools and node daemons.", no_args_is_help=True)
    app.add_typer(group, name="creds")

    @command(group, "issue", acting=True)
    def issue(
        env: Env,
        *,
        role: Annotated[str, typer.Option("--role", metavar="reader|nsreader|user|operator|node", help="What it may do.")],
        out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Where to write it (0600).", show_default=False)] = None,
        name: Annotated[str, typer.Option("--name", metavar="NAME", help="Who it is for.")] = "",
        node: Annotated[str, typer.Option("--node", metavar="NODE", help="With --role node.")] = "",
        ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="How long it is good (8h; node: for ever).", show_default=False)] = "",
    ) -> None:
        """Issue credentials and write them to a file. The key is made here; only its public half leaves this machine."""
        if role not in (*PEOPLE, "node"):
            raise CliError("E107", f'--role "{role}": expected {", ".join((*PEOPLE, "node"))}', exit=2)
        if (role == "node") != bool(node):
            raise CliError("E107", "--role node needs --node NODE" if role == "node" else "--node goes with --role node", exit=2)
        if node and not is_id(node):
            raise CliError("E110", f'node name "{node}": use a-z, 0-9 and -, at most 40. Nearest: {nearest_id(node)}')
        try:
            seconds = duration(ttl, "--ttl") if ttl else (0.0 if role == "node" else 8 * 3600.0)
        except ValueError as error:
            raise CliError("E116", str(error).removeprefix("E117 ")) from None

        async def work() -> dict[str, object]:
            async with Client.of(env) as client:
                who = name or node or f"{os.environ.get('USER') or os.getuid()}-{role}"
                scope = client.namespace if role in ("user", "nsreader") else (node or "all")
                path = out or Path(f"{who}.creds")
                row: dict[str, object] = {"name": who, "role": role, "scope": scope, "expires": None, "file": str(path)}
                if env.dry_run:
                    return row
                identity = Identity.new()
                request = credapi.IssueRequest(role, identity.public, who, node, seconds)
                data = await client.ask_credentials("issue", client.namespace, request)
                reply = read_reply(credapi.IssueReply, data)
                identity.jwt = reply.jwt
                write_creds(path, identity)
                return {**row, "expires": rfc3339(reply.expires * 1000) if reply.expires else None, "nkey": identity.public}

        row = run_async(work())
        env.out.listing("CredList", [row], COLUMNS, lambda item: str(item["file"]))
        if role != "node" and not env.dry_run:
            env.out.note(f"use it: aegis context add NAME --server URL --creds {row['file']}   (other clients: inbox prefix _INBOX.{row['nkey']})")

    @command(group, "ls")
    def ls(env: Env) -> None:
        """List what was issued and has not expired, newest first."""

        async def work() -> credapi.ListReply:
            async with Client.of(env) as client:
                return read_reply(credapi.ListReply, await client.ask_credentials("list", client.namespace, credapi.ListRequest()))

        reply = run_async(work())
        rows: list[dict[str, object]] = [
            {
                "name": item.name,
                "role": item.role,
                "scope": item.scope,
                "issued": rfc3339(item.issued * 1000),
                "expires": rfc3339(item.expires * 1000) if item.expires else None,
                "revoked": item.revoked,
                "nkey": item.nkey,
            }
            for item in reply.items
        ]
        env.out.listing("CredList", rows, LISTED, lambda item: str(item["nkey"]))
        if reply.more:
            env.out.note(f"the newest {len(rows)} are shown; there are more")

    @command(group, "revoke", acting=True, reason=True)
    def revoke(
        env: Env,
        *,
        file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Credentials file whose key is to be revoked.")] = None,
        nkey: Annotated[str, typer.Option("--nkey", metavar="U...", help="Public key of a person or tool.")] = "",
        node: Annotated[str, typer.Option("--node", metavar="NODE", help="A node daemon.")] = "",
        job: Annotated[str, typer.Option("--job", metavar="JOB", help="With --worker: the present attempt of a worker.")] = "",
        worker: Annotated[str, typer.Option("--worker", metavar="W", help="With --job.")] = "",
    ) -> int:
        """Revoke credentials: the bus ends their connections at once."""
        if file is not None:
            try:
                nkey = Identity.from_creds_file(file).public
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise CliError("E107", f"{file}: {why}") from None
        given = [bool(nkey), bool(node), bool(job or worker)]
        if sum(given) != 1 or bool(job) != bool(worker):
            raise CliError("E107", "name exactly one: FILE or --nkey, --node, or --job with --worker", exit=2)
        what = nkey or node or f"{job}/{worker}"
        if env.dry_run:
            env.out.text(f"would revoke {what}")
            return 0

        async def work() -> bool:
            async with Client.of(env) as client:
                full = (await client.job(job, workers=False)).summary.job if job else ""
                request = credapi.RevokeRequest(nkey, node, full, worker, env.reason)
                reply = read_reply(credapi.RevokeReply, await client.ask_credentials("revoke", client.namespace, request))
                return reply.revoked

        revoked = run_async(work())
        env.out.document("Action", {"what": what, "revoked": revoked}, f"{what} {'revoked' if revoked else 'was held by nobody'}", what)
        return 0 if revoked else 1


FIRST = {name: name for name in ("master", "jobcontroller", "lognexus", "lemon", "netmon", "operator")} | {"mirror": "reader"}
"""Who needs credentials before anybody can issue any -> role. They do not expire. The mirror of Kubernetes only reads."""
NATS_CONF = "nats.conf"


def creds_path(site: Site, name: str) -> Path:
    """Where `setup` writes the first credentials of a part."""
    return site.folder / "creds" / f"{name}.creds"


def first_files(site: Site) -> list[Path]:
    """Write what a site is started with: the first credentials (0600) and the server's configuration. Never over what is there; returns the new."""
    from aegis_bus.natsserver import CONF
    from aegis_credentials.keys import write_private

    texts = {creds_path(site, name): partial(site.issue, role, ttl=0, name=name) for name, role in FIRST.items()}
    wanted: dict[Path, Callable[[], str]] = {**texts, site.folder / NATS_CONF: lambda: CONF.format(include='include "auth.conf"')}
    written = []
    for path, text in wanted.items():
        if not path.exists():
            write_private(path, text(), exclusive=True)
            written.append(path)
    return written


def _setup(app: typer.Typer) -> None:
    @command(app, "setup", acting=True)
    def setup(
        env: Env,
        *,
        folder: Annotated[Path, typer.Option("--state", metavar="DIR", help="Folder of the site: keys, auth.conf, TLS. Keep it safe.")],
        server: Annotated[list[str] | None, typer.Option("--server", metavar="URL", help="The running bus: also create the streams there.")] = None,
        host: Annotated[
            list[str] | None, typer.Option("--host", metavar="NAME", help="Name or address of its servers (TLS); none: as it is.")
        ] = None,
        root_secret: Annotated[Path | None, typer.Option("--root-secret", metavar="FILE", help="Mounted secret instead of one in DIR.")] = None,
        ca: Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="CA of the bus servers.")] = None,
        replicas: Annotated[int, typer.Option("--replicas", metavar="N", min=1, max=5, help="Copies of each stream.")] = 1,
        restored: Annotated[bool, typer.Option("--restored", help="The store was restored: begin a new era.")] = False,
    ) -> None:
        """Make a site: operator, accounts, keys, TLS, what its services start with; and, when its bus runs, the streams. Repeatable."""
        from aegis_credentials.keys import BadKey
        from aegis_credentials.setup import SetupError, create_site, ensure_streams

        if env.dry_run:
            env.out.text(f"would make or complete the site in {folder}" + (f", and its streams at {', '.join(server)}" if server else ""))
            return
        try:
            site = create_site(folder, tuple(host) if host else None, root_secret=root_secret)
            written = first_files(site)
        except (SetupError, BadKey, OSError, ValueError) as error:
            raise CliError("E130", f"site in {folder}: {error}") from None
        body: dict[str, object] = {"site": str(site.folder), "authConf": str(site.auth_conf), "ca": str(site.ca_pem), "era": ""}
        body["creds"] = {role: str(creds_path(site, role)) for role in FIRST}
        if server:

            async def work() -> str:
                bus = await Bus.connect(
                    Identity.from_creds(site.issue("admin")), server, name="setup", tls_ca=str(ca) if ca else None, timeout=env.timeout
                )
                try:
                    return await ensure_streams(bus, replicas, restored=restored)
                finally:
                    await bus.close(1.0)

            try:
                body["era"] = run_async(work())
            except SetupError as error:
                raise CliError("E120", str(error).removeprefix("E120 ")) from None
        lines = [
            f"site       {site.folder} (root.secret and operator.seed are secrets: back them up)",
            f"bus        nats-server -c {site.folder / NATS_CONF}, or your own with include {site.auth_conf}",
            *(f"{role:<13} {creds_path(site, role)} ({'written' if creds_path(site, role) in written else 'as it was'})" for role in FIRST),
        ]
        lines.append(
            f"streams    in order, era {body['era']}" if server else f"streams    next, when the bus runs: aegis setup --state {folder} --server URL"
        )
        env.out.document("Site", body, "\n".join(lines), str(site.folder))
