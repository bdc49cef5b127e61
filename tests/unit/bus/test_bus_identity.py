"""The seed stays where it is."""

from __future__ import annotations

import logging
import pickle
import stat
from pathlib import Path

import pytest
from aegis_bus.identity import Identity, jwt_claims
from aegis_bus.logs import mask


def seed_of(identity: Identity) -> str:
    return identity._seed.decode()


def test_a_seed_is_in_no_repr_no_error_and_no_pickle(caplog: pytest.LogCaptureFixture) -> None:
    identity = Identity.new()
    logging.getLogger("x").warning("who: %s %r", identity, identity)
    assert seed_of(identity) not in caplog.text + repr(identity) + str(identity) + str(vars(type(identity)))
    with pytest.raises(TypeError):
        pickle.dumps(identity)
    with pytest.raises(ValueError, match="not an nkey seed") as caught:
        Identity(seed_of(identity)[:-2].encode())
    assert seed_of(identity)[:-2] not in str(caught.value) and caught.value.__cause__ is None


def test_log_lines_are_masked() -> None:
    identity = Identity.new()
    jwt = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJleHAiOjE3OTU5ODMyMTgsInN1YiI6IlVBIn0.c2lnbmF0dXJlc2lnbmF0dXJl"
    assert mask(f"seed={seed_of(identity)} jwt={jwt} key={identity.public}") == f"seed=[secret] jwt=[secret] key={identity.public}"


def test_a_creds_file_is_private_and_comes_back(tmp_path: Path) -> None:
    identity = Identity.new("a.b.c")
    path = tmp_path / "me.creds"
    identity.to_creds_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    back = Identity.from_creds_file(path)
    assert (back.public, back.jwt, back.sign(b"x")) == (identity.public, "a.b.c", identity.sign(b"x"))
    assert [file.name for file in tmp_path.iterdir()] == ["me.creds"]


@pytest.mark.parametrize("text", ["", "hello", "-----BEGIN NATS USER JWT-----\nabc\n------END NATS USER JWT------\n"])
def test_a_file_that_is_no_creds_file_is_named_with_what_is_missing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.creds"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.creds: not a creds file: no block (NATS USER JWT|USER NKEY SEED)"):
        Identity.from_creds_file(path)


def test_only_the_key_of_a_user_is_an_identity() -> None:
    import os

    import nkeys

    account = bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_ACCOUNT))
    with pytest.raises(ValueError, match="expected the nkey of a user"):
        Identity(account)


def test_claims_of_rubbish_are_empty() -> None:
    assert [jwt_claims(text) for text in ("", "a", "a.b.c", "a.W10.c")] == [{}] * 4
