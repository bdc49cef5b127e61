"""Credentials of the embedded stack's node daemons: handed out by its keeper, which holds the root secret itself, and noted like those that the
service issues, so that `aegis creds revoke --node` finds them.

Reads and writes `<site>/nodes/<n>.creds` (0600) and `aegis.cred._node.<n>`; reads `aegis.cred._account.fleet`.
"""

from __future__ import annotations

from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_proto import subjects

from aegis_credentials import jwt
from aegis_credentials import record as rules
from aegis_credentials.keys import write_private
from aegis_credentials.records import Records
from aegis_credentials.setup import Site


async def node_creds(site: Site, bus: Bus, node: str) -> str:
    """Text of a `.creds` file for the daemon of `node`, without an end: the same one at each start of the stack, until it is revoked.

    `bus` is connected with role credentials. Raises: BusError.
    """
    kept, records = site.folder / "nodes" / f"{node}.creds", Records(bus)
    fleet = await records.read(subjects.cred_account("fleet"))
    text = kept.read_text() if kept.exists() else ""
    if text:
        old = Identity.from_creds(text)
        if old.public in fleet.revoked or jwt.decode(old.jwt)["iat"] <= fleet.floor:
            text = ""
    if not text:
        text = site.issue("node", {"node": node}, 0, name=f"stack-{node}")
        write_private(kept, text)
    nkey = Identity.from_creds(text).public
    await records.change(subjects.cred_node(node), lambda record: rules.give(record, node, nkey))
    return text
