"""Keys, JWTs and records: pure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest
from aegis_credentials import accounts, jwt
from aegis_credentials import record as rules
from aegis_credentials.keys import BadKey, Nkey, RootSecret, public_raw, verify, write_private
from aegis_credentials.record import Binding, CredRecord, Refusal
from aegis_proto import messages
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_800_000_000
DAY = 86400


def secret(byte: int = 7) -> RootSecret:
    return RootSecret(bytes([byte]) * 32)


# --- keys ------------------------------------------------------------------------------------------------------------------------


def test_an_nkey_survives_its_seed_and_signs() -> None:
    for kind in ("operator", "account", "user"):
        key = Nkey.new(kind)
        again = Nkey.from_seed(key.seed)
        assert (again.public, again.kind) == (key.public, kind)
        assert verify(key.public, kind, b"text", again.sign(b"text"))
        assert not verify(key.public, kind, b"other", again.sign(b"text"))
        assert not verify(key.public, kind, b"text", b"")
        assert key.seed not in repr(key)


def damaged(public: str) -> str:
    """A key whose checksum cannot fit: one character in its middle is another."""
    return public[:20] + ("B" if public[20] != "B" else "C") + public[21:]


@pytest.mark.parametrize(
    "bad",
    ["", "U", "U" * 56, "SU" + "A" * 54, "é" * 56, "\0" * 56, Nkey.new("account").public, damaged(Nkey.new("user").public)],
    ids=["empty", "short", "no key", "seed", "not base32", "zeros", "account", "checksum"],
)
def test_what_is_no_public_user_nkey_is_refused(bad: str) -> None:
    with pytest.raises(BadKey):
        public_raw(bad, "user")


@given(st.text(max_size=80))
def test_no_text_crashes_the_reading_of_keys_and_tokens(text: str) -> None:
    for read in (Nkey.from_seed, lambda value: public_raw(value, "user")):
        try:
            read(text)
        except BadKey as error:
            assert not text or len(text) < 8 or text not in str(error)
    with pytest.raises(jwt.BadToken):
        jwt.decode(text)
    assert not secret().node_token_valid(text, "n1", NOW)


def test_derived_keys_are_stable_and_all_different() -> None:
    made = [
        secret().account("AEGIS").public,
        secret().account("SYS").public,
        secret().role("master").public,
        secret().role("node").public,
        secret().operator_signing().public,
        secret().sys_user().public,
        secret().job_account("a-1", "u").public,
        secret().job_account("a-1", "u2").public,
        secret().job_account("a-2", "u").public,
        secret().job_signing("a-1", "u").public,
        secret(8).job_account("a-1", "u").public,
    ]
    assert len(set(made)) == len(made)
    assert secret().job_account("a-1", "u").public == made[6]


def test_parts_of_a_derivation_cannot_be_shifted() -> None:
    assert secret().derive("x", "ab", "c") != secret().derive("x", "a", "bc")
    assert secret().join_token("job-a", "b", "w1", 1) != secret().join_token("job-ab", "", "w1", 1)
    assert secret().join_token("j", "u", "w1", 12) != secret().join_token("j", "u", "w11", 2)


def test_a_node_token_is_for_its_node_and_its_time() -> None:
    token = secret().node_token("n1", NOW + 60)
    assert secret().node_token_valid(token, "n1", NOW)
    assert not secret().node_token_valid(token, "n2", NOW)
    assert not secret().node_token_valid(token, "n1", NOW + 61)
    assert not secret(8).node_token_valid(token, "n1", NOW)
    assert not secret().node_token_valid(f"{NOW + 9999}.{token.partition('.')[2]}", "n1", NOW)


def test_the_root_secret_is_in_a_file_of_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "root.secret"
    made = RootSecret.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert RootSecret.read(path).account("AEGIS").public == made.account("AEGIS").public
    assert repr(made) == "RootSecret(...)"
    with pytest.raises(FileExistsError):
        RootSecret.create(path)
    path.chmod(0o644)
    with pytest.raises(BadKey, match="chmod 600"):
        RootSecret.read(path)
    path.chmod(0o440)
    assert RootSecret.read(path), "a mounted secret is readable by its group"


@pytest.mark.parametrize("text", ["", "zz" * 32, "ab" * 31, "é", "\0"])
def test_a_bad_root_secret_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "root.secret"
    write_private(path, text)
    with pytest.raises(BadKey, match="root secret") as info:
        RootSecret.read(path)
    assert str(path) in str(info.value)
    assert not text.strip("\0") or text not in str(info.value)
    with pytest.raises(BadKey, match="No such file"):
        RootSecret.read(tmp_path / "absent")


def test_a_private_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    write_private(path, "old")

    def fail(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_private(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


# --- JWTs ------------------------------------------------------------------------------------------------------------------------


def test_a_jwt_survives_and_a_changed_one_does_not() -> None:
    signer, user = Nkey.new("account"), Nkey.new("user")
    token = jwt.user(signer, user.public, "w0", now=NOW, tags={"job": "a-1", "pod": "w0"}, expires=NOW + 5)
    claims = jwt.decode(token)
    assert claims["iss"] == signer.public
    assert claims["nats"]["tags"] == ["job:a-1", "pod:w0"]
    assert (claims["iat"], claims["exp"]) == (NOW, NOW + 5)
    head, body, signature = token.split(".")
    for changed in (f"{head}.{body[:-2]}AA.{signature}", f"{head}.{body}.{signature[:-4]}AAAA", f"{body}.{head}.{signature}", head):
        with pytest.raises(jwt.BadToken):
            jwt.decode(changed)


def test_a_user_of_a_scoped_key_carries_no_rights_of_its_own() -> None:
    nats = jwt.decode(jwt.user(Nkey.new("account"), Nkey.new("user").public, "x", now=NOW, issuer_account="A", tags={"node": "n1"}))["nats"]
    assert set(nats) == {"type", "version", "issuer_account", "tags"}


def test_two_renderings_compare_by_what_they_grant() -> None:
    one = accounts.job(secret(), "a-1", "u", 2, now=NOW)
    assert accounts.same_rendering(one, accounts.job(secret(), "a-1", "u", 2, now=NOW + 99))
    assert not accounts.same_rendering(one, accounts.job(secret(), "a-1", "u", 2, now=NOW, revocations={"U": 1}))
    assert not accounts.same_rendering(one, accounts.job(secret(), "a-1", "u2", 2, now=NOW))
    assert not accounts.same_rendering("", "")
    assert not accounts.same_rendering(one, "garbage")


def test_only_aegis_has_jetstream_and_only_it_exports() -> None:
    for token in (
        accounts.job(secret(), "a-1", "u", 2, now=NOW),
        accounts.fleet(secret(), NOW),
        accounts.people(secret(), NOW),
        accounts.system(secret(), NOW),
    ):
        claims = jwt.decode(token)["nats"]
        assert "streams" not in claims["limits"]
        assert "exports" not in claims
    assert jwt.decode(accounts.aegis(secret(), NOW))["nats"]["limits"]["disk_storage"] > 0


def test_every_import_of_a_job_names_the_job() -> None:
    imports = jwt.decode(accounts.job(secret(), "a-1", "u", 2, now=NOW))["nats"]["imports"]
    assert all(".a-1." in entry["subject"] for entry in imports)
    assert len({entry["subject"] for entry in imports}) == len(imports)


# --- records ---------------------------------------------------------------------------------------------------------------------

K1, K2, K3 = "UONE", "UTWO", "UTHREE"


def refused(code: str, work: object) -> None:
    with pytest.raises(Refusal) as info:
        work()  # type: ignore[operator]
    assert info.value.code == code
    assert str(info.value).startswith("E1")


def bind(record: CredRecord, attempt: int, nkey: str, pod: str = "w0", now: int = NOW) -> CredRecord:
    return rules.bind(record, pod, attempt, nkey, now=now, lifetime=DAY)


def test_a_place_binds_to_the_first_nkey_once() -> None:
    record = bind(CredRecord(uid="u"), 1, K1)
    assert bind(record, 1, K1) is record, "a repeat writes nothing"
    refused("bound", lambda: bind(record, 1, K2))
    assert record.pods == {"w0": Binding(1, K1)}


def test_a_higher_attempt_revokes_the_lower_and_never_the_reverse() -> None:
    record = bind(bind(CredRecord(), 1, K1), 2, K2)
    assert record.revoked == {K1: NOW + rules.SKEW}
    refused("superseded", lambda: bind(record, 1, K1.replace("ONE", "NEW")))
    refused("revoked", lambda: bind(record, 1, K1))
    refused("revoked", lambda: bind(record, 3, K1))
    assert rules.revocations([record]) == {K1: NOW + rules.SKEW}


def test_renewal_is_for_who_holds_the_place() -> None:
    record = bind(CredRecord(), 2, K2)
    rules.holds(record, "w0", 2, K2)
    refused("bound", lambda: rules.holds(record, "w0", 2, K1))
    refused("superseded", lambda: rules.holds(record, "w0", 1, K1))
    refused("badToken", lambda: rules.holds(record, "w0", 3, K2))
    refused("badToken", lambda: rules.holds(record, "w1", 1, K2))


def test_what_is_below_the_state_is_revoked_and_may_be_repeated() -> None:
    record = bind(bind(CredRecord(), 1, K1), 1, K2, pod="w1")
    after = rules.revoke_below(record, {"w0": 2, "w1": 1}, NOW, DAY)
    assert set(after.revoked) == {K1}
    assert set(after.pods) == {"w1"}
    assert rules.revoke_below(after, {"w0": 2, "w1": 1}, NOW, DAY) is after
    refused("revoked", lambda: bind(after, 1, K1))


def test_a_place_that_was_cut_stays_cut_for_that_attempt() -> None:
    record = rules.cut(bind(CredRecord(), 1, K1), "w0", NOW, DAY)
    assert rules.cut(record, "w0", NOW, DAY) is record
    much_later = NOW + 10 * DAY
    refused("revoked", lambda: rules.holds(record, "w0", 1, K1))
    refused("revoked", lambda: bind(record, 1, K3, now=much_later))
    assert bind(record, 2, K3, now=much_later).pods["w0"] == Binding(2, K3)
    assert rules.cut(CredRecord(), "w9", NOW, DAY) == CredRecord()


def test_revocations_are_kept_as_long_as_a_jwt_of_them_may_live() -> None:
    record = bind(bind(CredRecord(), 1, K1), 2, K2)
    soon = bind(record, 3, K3, now=NOW + DAY)
    assert K1 in soon.revoked
    late = bind(record, 3, K3, now=NOW + DAY + rules.SKEW + 1)
    assert K1 not in late.revoked
    assert K2 in late.revoked
    forever = rules.revoke(rules.revoke(CredRecord(), K1, NOW, 0), K2, NOW + 1000 * DAY, 0)
    assert set(forever.revoked) == {K1, K2}


def test_a_record_stays_below_what_a_message_holds() -> None:
    """256 places and any number of re-placements: the oldest revocations of a job are forgotten, and nobody who holds a place is cut off."""
    keys = [Nkey.new("user").public for _ in range(300)]
    record = CredRecord(uid="u" * 36)
    for index in range(256):
        record = bind(record, 1, keys[index], pod=f"w{index}")
    for n in range(2, 1200):
        record = bind(record, n, f"U{n:055d}", pod="w0", now=NOW + n)
        assert len(record.revoked) <= rules.MAX_REVOKED
        assert f"U{n - 1:055d}" in record.revoked or n == 2
    assert len(messages.encode(record)) < 65536
    assert record.floor == 0
    assert messages.decode(CredRecord, messages.encode(record)) == record


def test_where_jwts_may_never_expire_a_floor_takes_the_place_of_old_revocations() -> None:
    record = CredRecord()
    for n in range(rules.MAX_REVOKED + 1):
        record = rules.revoke(record, f"U{n:055d}", NOW + n, 0)
    assert len(record.revoked) == rules.MAX_REVOKED // 2
    assert rules.revocations([record])["*"] == NOW + rules.MAX_REVOKED


def test_an_account_jwt_fits_one_message_whatever_is_revoked() -> None:
    records = []
    for shard in range(40):
        record = CredRecord(uid="u")
        for n in range(400):
            record = rules.revoke(record, f"U{shard:05d}{n:050d}", NOW + n, DAY)
        records.append(record)
    token = accounts.job(secret(), "a-1", "u", 10_000, now=NOW, revocations=rules.revocations(records))
    assert len(token) < 250_000


def test_a_record_of_a_higher_version_is_not_read() -> None:
    with pytest.raises(messages.BadMessage):
        messages.decode(CredRecord, messages.encode(msgspec.structs.replace(CredRecord(), v=99)))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 6)), max_size=40))
def test_whatever_is_asked_two_nkeys_never_hold_one_attempt(asks: list[tuple[int, int, int]]) -> None:
    record = CredRecord()
    granted: dict[tuple[str, int], str] = {}
    highest: dict[str, int] = {}
    for pod_index, attempt, key in asks:
        pod, nkey = f"w{pod_index}", f"U{key}"
        try:
            record = bind(record, attempt, nkey, pod=pod)
        except Refusal:
            continue
        assert granted.setdefault((pod, attempt), nkey) == nkey
        assert attempt >= highest.get(pod, 0)
        highest[pod] = attempt
        assert nkey not in record.revoked
