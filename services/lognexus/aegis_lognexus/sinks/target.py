"""The URL of a sink, read once and checked; and one request to it, blocking, with a deadline."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import http.client
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from aegis_lognexus.sinks.formats import FORMATS

TIMEOUT = 20.0
MAX_ANSWER = 64 << 10
OPTIONS = ("auth_file", "ca", "tenant")
FORMS = "openobserve+https://HOST:PORT/api/ORG/STREAM, loki+http://HOST:PORT, otlp+http://HOST:PORT"


@dataclass(frozen=True)
class Target:
    """Where lines go. `name` is for metrics and for the file of its position; it holds no secret and does not change with credentials."""

    kind: str
    name: str
    secure: bool
    host: str
    port: int
    path: str
    basic: str = ""
    auth_file: str = ""
    ca: str = ""
    tenant: str = ""

    def __repr__(self) -> str:
        return f"{self.kind}+{'https' if self.secure else 'http'}://{self.host}:{self.port}{self.path}"

    __str__ = __repr__

    def send(self, body: bytes, timeout: float = TIMEOUT) -> tuple[int, dict[str, str], bytes]:
        """(status, headers with small letters, up to MAX_ANSWER bytes of the answer). OSError, http.client.HTTPException."""
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip", "User-Agent": "aegis-lognexus"}
        if self.auth_file:
            headers["Authorization"] = Path(self.auth_file).read_text().strip()
        elif self.basic:
            headers["Authorization"] = f"Basic {self.basic}"
        if self.tenant:
            headers["X-Scope-OrgID"] = self.tenant
        if self.secure:
            context = ssl.create_default_context(cafile=self.ca or None)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout, context=context)
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        packed = gzip.compress(body, 1)
        connection.connect()
        # The socket's timeout is for each of its reads: who answers byte by byte would hold the sink for ever.
        end = threading.Timer(timeout, _cut, (connection.sock,))
        end.daemon = True
        end.start()
        try:
            connection.request("POST", self.path, packed, headers)
            response = connection.getresponse()
            return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read(MAX_ANSWER)
        finally:
            end.cancel()
            connection.close()


def _cut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def target(url: str) -> Target:
    """ValueError names what is wrong, without the credentials in it."""
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    kind, plus, scheme = parts.scheme.partition("+")
    if not plus or kind not in FORMATS or scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"E130 lognexus.sinks {shown!r}: expected one of {FORMS}")
    try:
        port = parts.port or (443 if scheme == "https" else 80)
    except ValueError:
        raise ValueError(f"E130 lognexus.sinks {shown!r}: the port is no number below 65536") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise ValueError(f"E130 lognexus.sinks {shown!r}: unknown option {unknown[0]}; there are {', '.join(OPTIONS)}")
    for option in ("auth_file", "ca"):
        if (path := options.get(option)) and not Path(path).is_file():
            raise ValueError(f"E130 lognexus.sinks {shown!r}: {option} {path} is not there")
    basic = ""
    if parts.username is not None:
        basic = base64.b64encode(f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()).decode()
    form = FORMATS[kind]
    path = parts.path.rstrip("/")
    path = path if path.endswith(form.path) else (path or form.base) + form.path
    tenant = options.get("tenant", "")
    known = hashlib.sha256(f"{kind}|{scheme}|{parts.hostname}|{port}|{path}|{tenant}".encode()).hexdigest()[:8]
    auth_file, ca = options.get("auth_file", ""), options.get("ca", "")
    return Target(kind, f"{kind}-{known}", scheme == "https", parts.hostname, port, path, basic, auth_file, ca, tenant)
