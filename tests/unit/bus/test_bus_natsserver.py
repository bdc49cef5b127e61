"""Finding and running the server: what is too old, without JetStream, or on a shared disk is named as such."""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import sys
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_bus.errors import ServerUnsuitable, SharedStateDir
from aegis_bus.identity import Identity
from aegis_bus.natsserver import Found, NatsServer, check_state_dir, find_server
from aegis_credentials.setup import create_site
from harness.waiting import until, until_sync


def fake_server(folder: Path, answer: str) -> Path:
    path = folder / "nats-server"
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_server_beside_this_python_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AEGIS_NATS_SERVER", raising=False)
    found = find_server()
    assert found.path == str(Path(sys.executable).parent / "nats-server")
    assert found.version >= (2, 12, 0)


def test_a_named_server_wins_and_an_old_one_is_refused_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_server(tmp_path, "nats-server: v2.10.7")
    monkeypatch.setenv("AEGIS_NATS_SERVER", str(path))
    with pytest.raises(
        ServerUnsuitable, match=r"^E120 nats-server 2\.10\.7 at .*: 2\.12 or newer with JetStream is needed \(atomic batch\)"
    ) as caught:
        find_server()
    good = Path(sys.executable).parent / "nats-server"
    assert str(caught.value).endswith(f" in {good.parent}: export AEGIS_NATS_SERVER={good}")
    fake_server(tmp_path, "nats-server: v2.12.0")
    assert find_server() == Found(str(path), (2, 12, 0), "AEGIS_NATS_SERVER")


def test_a_named_server_that_is_not_there_or_is_something_else_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEGIS_NATS_SERVER", str(tmp_path / "nowhere"))
    with pytest.raises(ServerUnsuitable, match=r"E120 AEGIS_NATS_SERVER: there is no .*nowhere"):
        find_server()
    monkeypatch.setenv("AEGIS_NATS_SERVER", str(fake_server(tmp_path, "hello")))
    with pytest.raises(ServerUnsuitable, match="does not name a version"):
        find_server()


def test_the_path_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_server(tmp_path, "nats-server: v2.99.1")
    monkeypatch.delenv("AEGIS_NATS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_server().version != (2, 99, 1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    assert find_server().version == (2, 99, 1)


def test_state_on_a_network_disk_is_refused() -> None:
    mounts = "/dev/sda1 / ext4 rw 0 0\nfiler:/home /home nfs4 rw 0 0\n/dev/sdb /home/local\\040disk xfs rw 0 0\n"
    check_state_dir("/var/tmp/aegis", mounts)
    check_state_dir("/home/local disk/aegis", mounts)
    check_state_dir("/homes/x", mounts)
    with pytest.raises(SharedStateDir, match=r"^E121 bus state on /home \(nfs4\): file locks and fsync are not safe there") as caught:
        check_state_dir("/home/alice/not/yet/there", mounts)
    assert '[bus] state = "/var/tmp/aegis"' in str(caught.value)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, extra="this is no configuration {")
    with pytest.raises(ServerUnsuitable, match=r"E120 .*did not come up"):
        server.start(timeout=5)
    assert not server.running


async def test_a_server_without_jetstream_is_named_as_such(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, extra="jetstream: false")
    server.start()
    try:
        async with await Bus.connect(Identity.new(), [server.url]) as bus:
            with pytest.raises(ServerUnsuitable, match=r"^E120 .*JetStream"):
                await bus.require_jetstream()
    finally:
        server.stop()


async def test_an_old_server_in_the_field_is_named_as_such(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Bus.connect(Identity.new(), [nats_server.url]) as bus:
        await bus.require_jetstream()
        monkeypatch.setattr("aegis_bus.jetstream.MINIMUM_SERVER", (99, 0, 0))
        with pytest.raises(ServerUnsuitable, match=r"^E120 nats-server 2\.\d+\.\d+ at nats://127.*is needed"):
            await bus.require_jetstream()


def test_the_port_stays_over_a_kill_and_a_restart(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    url = server.url
    server.kill9()
    assert not server.running
    server.start()
    assert server.url == url
    server.stop()


def test_the_server_dies_with_its_parent_when_asked(tmp_path: Path) -> None:
    """The child process of this test starts a server and is killed: the server must be gone too."""
    import subprocess

    code = (
        "import sys, time; from aegis_bus.natsserver import NatsServer\n"
        f"s = NatsServer({str(tmp_path)!r}, die_with_parent=True).start(); print(s.process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    until_sync(gone, what="nats-server gone")


async def test_a_new_certificate_is_taken_on_reload_and_connections_stay(tmp_path: Path) -> None:
    """Rotation: `aegis setup` makes the certificate anew, SIGHUP has the server read it; nobody is disconnected."""
    site = create_site(tmp_path / "site")
    pair = (site.server_pem, site.server_key)
    server = NatsServer(tmp_path / "bus", auth_conf=site.auth_conf.read_text(), tls=pair, die_with_parent=True).start()
    identity = Identity.from_creds(site.issue("admin"))
    try:
        assert server.url.startswith("tls://")
        first = await Bus.connect(identity, [server.url], name="before", tls_ca=str(site.ca_pem))
        generation, before = first.generation, site.server_pem.read_text()
        create_site(tmp_path / "site", ("127.0.0.1", "localhost", "bus.example.org"))
        assert site.server_pem.read_text() != before
        server.reload()
        context = ssl.create_default_context(cafile=str(site.ca_pem))

        async def names() -> list[str]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await reader.readline()  # INFO comes before the handshake
            await writer.start_tls(context, server_hostname="127.0.0.1")
            found = writer.get_extra_info("ssl_object").getpeercert()["subjectAltName"]
            writer.close()
            return [name for _, name in found]

        async def new() -> bool:
            return "bus.example.org" in await names()

        await until(new, 10, "the new certificate")
        await first.request("$JS.API.INFO", b"", timeout=5.0)
        assert first.connected and first.generation == generation
        await first.close(1.0)
    finally:
        server.stop(10)
