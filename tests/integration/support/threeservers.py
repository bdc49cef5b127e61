"""A bus of three servers on loopback, each stream on all of them, of which a test may kill any."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aegis_bus.natsserver import NatsServer, free_port
from aegis_credentials.setup import Site


class ThreeServers(NatsServer):
    """As one server: started and ended together. `one(name)`: a server by its name. Routes by TLS as in `deploy/compose/nats-cluster.conf`."""

    replicas = 3

    def __init__(self, folder: Path, site: Site) -> None:
        tls = f'tls {{ cert_file: "{site.server_pem}", key_file: "{site.server_key}", ca_file: "{site.ca_pem}", verify: true }}'
        routes = [free_port() for _ in range(self.replicas)]
        known = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
        self.servers = []
        for number, port in enumerate(routes, start=1):
            text = f'cluster {{ name: aegis, listen: "127.0.0.1:{port}", routes: [{known}], {tls} }}'
            state = folder / f"nats{number}"
            self.servers.append(
                NatsServer(state, auth_conf=site.auth_conf.read_text(), port=free_port(), name=f"nats{number}", extra=text, die_with_parent=True)
            )
        # A server ends with the thread that started it: these live until the end.
        self._threads = ThreadPoolExecutor(self.replicas)

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    def one(self, name: str) -> NatsServer:
        return next(server for server in self.servers if server.name == name)

    def start(self, timeout: float = 60.0) -> NatsServer:
        """Healthy is each only with the others: all at once."""
        list(self._threads.map(lambda server: server.start(timeout), self.servers))
        return self

    def start_one(self, name: str) -> None:
        self._threads.submit(self.one(name).start, 60.0).result()

    def kill9(self) -> None:
        for server in self.servers:
            server.kill9()
        self._threads.shutdown()
