"""`aegis setup`: a site that can be made again and again, streams as shipped, an era that changes when it must."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_bus.errors import BusError
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_credentials import accounts, setup
from aegis_credentials.keys import BadKey, Nkey, write_private
from aegis_credentials.setup import SetupError, create_site, ensure_streams, open_site
from aegis_proto import messages, stubs, subjects
from aegis_proto.streams import RESERVED_BYTES, STREAMS, stream_of
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from harness.site import Secured

pytestmark = pytest.mark.timeout(60)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_setup_changes_nothing(tmp_path: Path) -> None:
    create_site(tmp_path / "site")
    before = snapshot(tmp_path / "site")
    create_site(tmp_path / "site")
    assert snapshot(tmp_path / "site") == before
    assert open_site(tmp_path / "site").account("AEGIS") == create_site(tmp_path / "site").account("AEGIS")


def test_what_is_secret_is_readable_by_its_owner_only_and_auth_conf_is_public(tmp_path: Path) -> None:
    site = create_site(tmp_path / "site")
    assert stat.S_IMODE((tmp_path / "site").stat().st_mode) == 0o700
    for name in ("root.secret", "operator.seed", "ca.key", "tls/server.key"):
        assert stat.S_IMODE((site.folder / name).stat().st_mode) == 0o600, name
    text = site.auth_conf.read_text()
    assert "SO" not in [word[:2] for word in text.split()]
    for seed in (site.secret.operator_signing().seed, site.secret.account("AEGIS").seed, (site.folder / "root.secret").read_text().strip()):
        assert seed not in text
    assert "root.secret" not in repr(site) or (site.folder / "root.secret").read_text().strip() not in repr(site)


def test_setups_at_once_make_one_site(tmp_path: Path) -> None:
    code = "import sys; from aegis_credentials.setup import create_site; print(create_site(sys.argv[1]).account('AEGIS'))"
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin"}
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "site")], stdout=subprocess.PIPE, env=environment, text=True) for _ in range(4)
    ]
    answers = {process.communicate(timeout=60)[0].strip() for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(answers) == 1
    before = snapshot(tmp_path / "site")
    site = create_site(tmp_path / "site")
    assert answers == {site.account("AEGIS")}
    assert snapshot(tmp_path / "site") == before, "operator, auth.conf and certificates belong together"
    assert site.operator_jwt in site.auth_conf.read_text()


def test_a_mounted_secret_is_used_and_another_one_is_noticed(tmp_path: Path) -> None:
    mounted, other = tmp_path / "mounted", tmp_path / "other"
    write_private(mounted, "ab" * 32)
    write_private(other, "cd" * 32)
    site = create_site(tmp_path / "site", root_secret=mounted)
    assert not (site.folder / "root.secret").exists()
    assert open_site(site.folder, mounted).account("SYS") == site.account("SYS")
    with pytest.raises(SetupError, match="another root secret"):
        create_site(tmp_path / "site", root_secret=other)
    with pytest.raises(BadKey):
        create_site(tmp_path / "site2", root_secret=tmp_path / "absent")
    with pytest.raises(SetupError, match="run `aegis setup` first"):
        open_site(tmp_path / "nowhere")


def test_the_operators_seed_may_be_taken_away(tmp_path: Path) -> None:
    site = create_site(tmp_path / "site")
    (site.folder / "operator.seed").unlink()
    again = create_site(tmp_path / "site")
    assert again.operator_jwt == site.operator_jwt
    assert not (site.folder / "operator.seed").exists()
    assert again.issue("reader")


def test_new_names_make_a_new_server_certificate_of_the_same_ca(tmp_path: Path) -> None:
    site = create_site(tmp_path / "site")
    ca, server = site.ca_pem.read_bytes(), site.server_pem.read_bytes()
    (site.folder / "ca.key").rename(site.folder / "tls" / "ca.key")  # as earlier versions had it
    create_site(tmp_path / "site", ("10.0.0.7", "aegis.corp"))
    assert site.ca_pem.read_bytes() == ca
    assert site.server_pem.read_bytes() != server
    certificate = x509.load_pem_x509_certificate(site.server_pem.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["aegis.corp"]
    assert {path.name for path in (site.folder / "tls").iterdir()} == {"ca.pem", "server.pem", "server.key"}
    made = site.server_pem.read_bytes()
    create_site(tmp_path / "site")
    assert site.server_pem.read_bytes() == made, "without names it stays as it is"
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}, "servers of one bus show it to each other"
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_credentials_last_as_their_role_says(tmp_path: Path) -> None:
    site = create_site(tmp_path / "site")

    def lifetime(*args: object) -> float | None:
        claims = Identity.from_creds(site.issue(*args)).claims  # type: ignore[arg-type]
        return claims["exp"] - claims["iat"] if "exp" in claims else None

    assert lifetime("admin") == 600
    assert lifetime("reader") == 8 * 3600
    assert lifetime("reader", None, 60) == 60
    assert lifetime("master") is None
    assert lifetime("node", {"node": "n1"}) is None
    with pytest.raises(ValueError, match="unknown role"):
        site.issue("root")


def test_eras_sort_by_time_and_never_meet() -> None:
    eras = [setup.new_era(1_700_000_000.0 + n) for n in range(50)]
    assert eras == sorted(eras)
    assert len({setup.new_era(1.0) for _ in range(100)}) == 100
    assert {len(era) for era in eras} == {26}


# --- streams ---------------------------------------------------------------------------------------------------------------------


def test_the_streams_fit_the_account_three_times() -> None:
    assert accounts.AEGIS_LIMITS["disk_storage"] >= 3 * RESERVED_BYTES
    assert all(stream.get("max_bytes", 0) > 0 for stream in STREAMS)


def test_every_stored_subject_is_in_exactly_one_stream() -> None:
    stored = {
        subjects.job_state("j"): "CTL",
        subjects.job_spec("j"): "CTL",
        subjects.job_pods("j", 3): "CTL",
        subjects.cred("j", 2): "CTL",
        subjects.cred_node("n"): "CTL",
        subjects.cred_account("fleet"): "CTL",
        subjects.lease("m1"): "LEASES",
        subjects.ERA: "CTL",
        subjects.place("j", "w0"): "NODES",
        subjects.node_slot("n", 0): "NODES",
        subjects.node_taint("n"): "NODES",
        subjects.node_spec("n"): "FLEET",
        subjects.node_status("n"): "FLEET",
        subjects.report("j", "w0", "ack"): "REPORTS",
        subjects.fact("j", "w0"): "REPORTS",
        subjects.node_event("n", "xid"): "EVENTS",
        subjects.verdict("lemon", "node", "n"): "EVENTS",
        subjects.job_event("j"): "EVENTS",
        subjects.job_progress("j"): "EVENTS",
        subjects.job_log("j", "w0"): "LOGS",
        subjects.job_metric("j", "w0"): "METRICS",
        subjects.net_counter("n"): "METRICS",
        subjects.blob("j", "w0", "x"): "BLOBS",
        subjects.dlq("master", "REPORTS", "j"): "DLQ",
    }
    assert {subject: stream_of(subject) for subject in stored} == stored
    for subject in (subjects.heartbeat("j", "w0"), subjects.node_hb("n"), subjects.view_job_state("j"), subjects.rpc_query("master", "jobs")):
        with pytest.raises(ValueError, match="no stream"):
            stream_of(subject)


def test_what_tenants_and_daemons_can_write_has_no_powers() -> None:
    """Rollup, TTL, batches, schedules and counters are weapons in the hands of whoever may publish into a stream."""
    powers = {"allow_rollup_hdrs", "allow_atomic", "allow_msg_ttl", "allow_msg_schedules", "allow_msg_counter", "allow_batched"}
    for stream in STREAMS:
        if stream["name"] not in ("CTL", "LEASES", "NODES"):
            assert not powers & {key for key, value in stream.items() if value}, stream["name"]
            assert stream["discard"] == "old"
        else:
            assert stream["max_age"] == 0
            assert stream["discard"] == "new"


async def test_setting_up_the_streams_is_repeatable_and_mends_what_was_changed(secured: Secured) -> None:
    admin = await secured.bus("admin")
    era = await ensure_streams(admin)
    assert await ensure_streams(admin) == era
    import json

    info = json.loads(await admin.request("$JS.API.STREAM.INFO.LOGS", b""))["config"]
    info["max_msgs_per_subject"] = 7
    json.loads(await admin.request("$JS.API.STREAM.UPDATE.LOGS", json.dumps(info).encode()))
    await admin.publish(subjects.job_log("keep-1", "w0"), b"kept")
    assert await ensure_streams(admin) == era
    info = json.loads(await admin.request("$JS.API.STREAM.INFO.LOGS", b""))
    assert info["config"]["max_msgs_per_subject"] == 2000
    assert info["state"]["messages"] >= 1
    results = await asyncio.gather(*(ensure_streams(admin) for _ in range(3)))
    assert set(results) == {era}
    await admin.close()


async def test_restoring_makes_a_new_era_and_only_then(secured: Secured) -> None:
    admin, master = await secured.bus("admin"), await secured.bus("master")
    first = await ensure_streams(admin)
    second = await ensure_streams(admin, restored=True)
    assert second > first
    assert await ensure_streams(admin) == second
    stored = await master.get("CTL", subjects.ERA)
    assert stored is not None
    assert messages.decode(messages.Era, stored.data).reason == "restored"
    await asyncio.gather(admin.close(), master.close())


async def test_setup_with_too_little_right_or_space_says_so(secured: Secured, tmp_path: Path) -> None:
    master = await secured.bus("master")
    with pytest.raises(BusError, match="E103"):
        await ensure_streams(master)
    await master.close()
    site = create_site(tmp_path / "small")
    small = "\n".join(
        line if not line.strip().startswith(site.account("AEGIS")) else f"  {site.account('AEGIS')}: {_little(site)}"
        for line in site.auth_conf.read_text().splitlines()
    )
    server = NatsServer(tmp_path / "nats", auth_conf=small, die_with_parent=True)
    server.start()
    try:
        admin = await Bus.connect(Identity.from_creds(site.issue("admin")), [server.url], name="admin-test")
        with pytest.raises(SetupError, match="The streams reserve"):
            await ensure_streams(admin)
        await admin.close()
    finally:
        server.stop(grace=5)


def _little(site: setup.Site) -> str:
    from aegis_credentials import jwt
    from aegis_proto import roles

    return jwt.account(
        site.secret.operator_signing(),
        site.account("AEGIS"),
        "AEGIS",
        now=1,
        signing_keys=[jwt.scope(site.secret.role("admin").public, "admin", roles.SERVICES["admin"])],
        limits={**accounts.AEGIS_LIMITS, "disk_storage": 1 << 20},
    )


def test_the_grpc_stubs_are_current(tmp_path: Path) -> None:
    stubs.generate(tmp_path)
    made = tmp_path / "aegis_proto" / "_pb"
    here = Path(stubs.__file__).parent / "_pb"
    for name in ("credentials_pb2.py", "credentials_pb2_grpc.py"):
        assert (made / name).read_text() == (here / name).read_text(), "run: python -m aegis_proto.stubs"


def test_a_site_of_nobody_cannot_be_forged_by_its_public_parts(tmp_path: Path) -> None:
    """auth.conf is handed to the servers; nothing in it signs anything."""
    site = create_site(tmp_path / "site")
    from aegis_credentials import jwt

    token = site.auth_conf.read_text().split()[-2]
    assert jwt.decode(token)["iss"] == site.secret.operator_signing().public
    assert jwt.decode(token)["iss"] != Nkey.new("operator").public
