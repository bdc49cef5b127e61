"""Errors of the road. Each knows its code (`aegis explain CODE`) and says what was tried, what came back and what to do.

Three answers matter to a writer, so they are three classes: `WrongLastSequence` (somebody else wrote: it did not happen), `Rejected`/`Unreachable`/
`NotAllowed` (it did not happen), and `UnknownResult` (it may have happened: find out by reading, never by repeating).
"""

from __future__ import annotations


class BusError(Exception):
    """Base of everything the bus raises. `code` is the code of the message ("E101") or ""."""

    code = ""


class Unreachable(BusError):
    """Nothing was sent: no connection, or nobody listens on the subject. Try again later."""

    code = "E101"


class CredentialsRefused(Unreachable):
    """The server answered and said no: expired, revoked or not (yet) known credentials. `reason` is expired | revoked | refused."""

    code = "E102"

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


class NotAllowed(BusError):
    """The credentials lack the right for this subject."""

    code = "E103"


class Rejected(BusError):
    """The server refused the message and stored nothing. `err_code` is JetStream's; `retryable` when the same call may pass a moment later."""

    def __init__(self, message: str, err_code: int = 0, retryable: bool = False) -> None:
        super().__init__(message)
        self.err_code = err_code
        self.retryable = retryable


class WrongLastSequence(Rejected):
    """The expected sequence of a subject is not its last one: somebody else wrote. Nothing was stored."""


class UnknownResult(BusError):
    """The message was sent and no answer came back: it may or may not have been stored."""


class NameTaken(BusError):
    """Another process that lives renews the lease of this name."""

    code = "E130"


class Unreadable(BusError):
    """The stored state was written by a newer version, or is not a state at all. This process must not touch it."""


class ServerUnsuitable(BusError):
    """The nats-server found is too old, has no JetStream, or none was found."""

    code = "E120"


class SharedStateDir(BusError):
    """The state folder lies on a file system of several machines."""

    code = "E121"


def unreachable(servers: list[str], last: str, tries: int, seconds: float) -> Unreachable:
    """E101 with the address, the last error, and how hard was tried."""
    return Unreachable(
        f"E101 cannot reach the bus at {', '.join(servers)} ({last} after {tries} {'try' if tries == 1 else 'tries'}, {seconds:.0f} s). "
        "Is it up? aegis doctor. To try alone on this machine: aegis up"
    )


def refused(name: str, reason: str, expired_for: float | None = None, detail: str = "") -> CredentialsRefused:
    """E102. `name` is the name inside the credentials, `reason` expired | revoked | refused, `expired_for` seconds since the expiry."""
    what = {"expired": "expired", "revoked": "were revoked"}.get(reason, "were refused by the bus")
    if reason == "expired" and expired_for is not None and expired_for >= 0:
        what += f" {ago(expired_for)} ago"
    elif detail:
        what += f" ({detail})"
    return CredentialsRefused(f'E102 your credentials "{name}" {what}. Renew: aegis creds issue, or ask an operator', reason)


def ago(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h`, `5 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def not_allowed(name: str, verb: str, subject: str) -> NotAllowed:
    """E103. `verb` is "publish to" or "subscribe to"."""
    return NotAllowed(
        f'E103 "{name}" may not {verb} {subject}: the right is missing. Ask an operator for a role that has it: aegis creds issue --role'
    )
