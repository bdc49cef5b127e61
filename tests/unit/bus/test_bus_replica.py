"""One replica of a service: wrong settings are a sentence before anything starts, and renewed credentials are read again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aegis_bus.config import load
from aegis_bus.identity import Identity
from aegis_bus.replica import joined, replica_main, replica_name
from aegis_bus.service import Service
from harness.site import Secured
from harness.waiting import until


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No configuration but what the test sets."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["x"])
    return monkeypatch


@pytest.mark.parametrize(
    ("package", "env", "sentence"),
    [
        ("aegis_master", {}, "E130 master needs bus.servers: [bus] servers = ... in aegis.toml, or AEGIS_BUS_SERVERS"),
        ("aegis_jobcontroller", {"AEGIS_BUS_SERVERS": "nats://127.0.0.1:4"}, "E130 jobcontroller needs bus.creds"),
        ("aegis_lognexus", {"AEGIS_BUS_SERVERS": "nats://127.0.0.1:4"}, "E130 lognexus needs lognexus.store"),
        ("aegis_master", {"AEGIS_BUS_SERVERS": "nats://127.0.0.1:4", "AEGIS_SERVICE_REPLICA": "M 1"}, 'E130 service.replica "M 1"'),
        ("aegis_master", {"AEGIS_BUS_SERVER": "nats://127.0.0.1:4"}, "E130"),
        ("aegis_master", {"AEGIS_BUS_SERVERS": "nats://127.0.0.1:4", "AEGIS_BUS_CREDS": "none"}, "E130 bus.creds none cannot be read: No such file"),
        ("aegis_master", {"AEGIS_BUS_SERVERS": "nats://127.0.0.1:4", "AEGIS_BUS_CREDS": "/dev/null"}, "/dev/null: not a creds file: no block"),
    ],
)
def test_a_wrong_setting_is_a_sentence_before_anything_starts(
    package: str, env: dict[str, str], sentence: str, elsewhere: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for key, value in env.items():
        elsewhere.setenv(key, value)
    main = __import__(f"{package}.service", fromlist=["main"]).main
    assert main() == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    async def never(service: Service) -> None:
        raise AssertionError

    assert replica_main("master", never, argv=["--replicas", "3"]) == 2
    assert capsys.readouterr().err == "aegis-master: --replicas 3: takes no arguments, only aegis.toml and AEGIS_ variables\n"


def test_names_of_replicas_are_ids_and_no_two_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "a-host-with-a-long-name-0001.cluster.example")
    assert replica_name("master", "m1") == "m1"
    names = {replica_name("jobcontroller", "") for _ in range(50)}
    assert len(names) == 50 and all(name.startswith("jobcontroller-") and len(name) <= 40 for name in names)


def creds(secured: Secured, identity: Identity, ttl: float) -> Identity:
    return Identity(identity._seed, secured.site.token("master", identity.public, expires=int(time.time() + ttl)))


async def test_a_renewed_file_is_read_when_the_old_credentials_expire(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "master.creds"
    identity = Identity.new()
    creds(secured, identity, 3).to_creds_file(path)
    service = Service("master", load(env={"AEGIS_BUS_SERVERS": secured.url, "AEGIS_BUS_CREDS": str(path)}, cwd=tmp_path, home=tmp_path))
    async with joined(service) as replica:
        await until(lambda: not replica.bus.connected, 30, "expired")
        assert service.checks()["bus"] is False
        creds(secured, identity, 3600).to_creds_file(path)
        await until(lambda: replica.bus.connected, 30, "connected again")
        assert not service.stopping.is_set()


async def test_a_file_with_another_key_ends_the_service_so_that_it_starts_again(secured: Secured, tmp_path: Path) -> None:
    path = tmp_path / "master.creds"
    creds(secured, Identity.new(), 3).to_creds_file(path)
    service = Service("master", load(env={"AEGIS_BUS_SERVERS": secured.url, "AEGIS_BUS_CREDS": str(path)}, cwd=tmp_path, home=tmp_path))
    async with joined(service) as replica:
        creds(secured, Identity.new(), 3600).to_creds_file(path)
        async with asyncio.timeout(30):
            await service.stopping.wait()
        assert "another key" in str(service.failure) and not replica.bus.connected
