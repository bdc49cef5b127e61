"""Who holds which place: the CAS record `aegis.cred.<job>.<shard>` (and `aegis.cred._node.<node>`), as pure functions.

A place (pod, attempt) binds to the first nkey that asks for it, once. A higher attempt revokes the nkey of the lower. An account JWT is a rendering
of what the records of a job say is revoked; nothing else about a job is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
from aegis_proto import WIRE_VERSION

SKEW = 3600
"""A nkey is revoked for JWTs issued up to this many seconds from now: the clock of another replica may be ahead. A revoked nkey never comes back."""
MAX_REVOKED = 512
"""Revoked nkeys one record holds."""
MAX_GIVEN = 64
"""Credentials issued for one node daemon before the operator must revoke some."""
MAX_RENDERED = 2500
"""Revoked nkeys one account JWT holds: it must fit one message of 256 KB."""


class Refusal(Exception):
    """The place cannot be given to this nkey. `code` as in `aegis_proto.enroll.Refused`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Binding(msgspec.Struct, frozen=True, array_like=True):
    """One place. Array-encoded: only append."""

    attempt: int
    nkey: str
    cut: bool = False
    """Revoked by order: neither this nkey nor another gets a JWT for this attempt."""


class CredRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bindings of up to 256 pods, and revoked nkeys (-> seconds since 1970 up to which their JWTs are void)."""

    uid: str = ""
    pods: dict[str, Binding] = {}
    revoked: dict[str, int] = {}
    floor: int = 0
    """Every JWT of the account issued up to this second is void. 0 = none."""
    ended: bool = False
    v: int = WIRE_VERSION


def bind(record: CredRecord, pod: str, attempt: int, nkey: str, *, now: int, lifetime: int) -> CredRecord:
    """Give (pod, attempt) to `nkey`; the same object when it has it already.

    `lifetime`: seconds a JWT lasts. Raises: Refusal bound | superseded | revoked | ended.
    """
    if record.ended:
        raise Refusal("ended", f"E102 {pod}: the job has ended")
    old = record.pods.get(pod)
    if nkey in record.revoked or (old is not None and old.attempt == attempt and old.cut):
        raise Refusal("revoked", f"E102 {pod} attempt {attempt} was revoked")
    if old is not None and old.attempt > attempt:
        raise Refusal("superseded", f"E102 {pod} attempt {attempt} was replaced by attempt {old.attempt}")
    if old is not None and old.attempt == attempt:
        if old.nkey != nkey:
            raise Refusal("bound", f"E102 {pod} attempt {attempt} already belongs to another process (nkey {old.nkey[:8]}...). One agent per place")
        return record
    if any(binding.nkey == nkey for binding in record.pods.values()):
        raise Refusal("bound", f"E102 {pod} attempt {attempt}: this nkey holds another place or attempt. Each makes its own")
    if old is not None:
        record = _revoked(record, [old.nkey], now, lifetime)
    return msgspec.structs.replace(record, pods={**record.pods, pod: Binding(attempt, nkey)})


def holds(record: CredRecord, pod: str, attempt: int, nkey: str) -> None:
    """Pass when `nkey` holds (pod, attempt): what a renewal needs. Raises: Refusal bound | superseded | revoked | ended | badToken."""
    if record.ended:
        raise Refusal("ended", f"E102 {pod}: the job has ended")
    old = record.pods.get(pod)
    if old is not None and old.attempt > attempt:
        raise Refusal("superseded", f"E102 {pod} attempt {attempt} was replaced by attempt {old.attempt}")
    if old is None or old.attempt < attempt:
        raise Refusal("badToken", f"E102 {pod} attempt {attempt}: nothing to renew, nobody is bound to it. First contact needs a join token")
    if old.cut or nkey in record.revoked:
        raise Refusal("revoked", f"E102 {pod} attempt {attempt} was revoked")
    if old.nkey != nkey:
        raise Refusal("bound", f"E102 {pod} attempt {attempt} already belongs to another process (nkey {old.nkey[:8]}...). One agent per place")


def revoke_below(record: CredRecord, attempts: Mapping[str, int], now: int, lifetime: int) -> CredRecord:
    """Revoke every binding whose attempt is below the state's; the same object when there is none."""
    stale = [pod for pod, binding in record.pods.items() if binding.attempt < attempts.get(pod, 0)]
    if not stale:
        return record
    record = _revoked(record, [record.pods[pod].nkey for pod in stale], now, lifetime)
    return msgspec.structs.replace(record, pods={pod: binding for pod, binding in record.pods.items() if pod not in stale})


def cut(record: CredRecord, pod: str, now: int, lifetime: int) -> CredRecord:
    """Revoke the present attempt of `pod`; the same object when nobody holds it or it is cut already."""
    old = record.pods.get(pod)
    if old is None or old.cut:
        return record
    record = _revoked(record, [old.nkey], now, lifetime)
    return msgspec.structs.replace(record, pods={**record.pods, pod: Binding(old.attempt, old.nkey, cut=True)})


def revoke(record: CredRecord, nkey: str, now: int, lifetime: int) -> CredRecord:
    """Revoke an nkey that has no binding here (people, node daemons)."""
    return record if nkey in record.revoked else _revoked(record, [nkey], now, lifetime)


def give(record: CredRecord, node: str, nkey: str) -> CredRecord:
    """Note an nkey that an operator gave the daemon of `node` beside the one that is bound, so that revoking the node finds it.

    Raises: Refusal revoked | bound.
    """
    if nkey in record.revoked:
        raise Refusal("revoked", "E102 this nkey was revoked: make a new one")
    if nkey in given(record, node):
        return record
    if len(given(record, node)) >= MAX_GIVEN:
        raise Refusal("bound", f"E105 {MAX_GIVEN} credentials were issued for node {node}: revoke them first (aegis creds revoke --node {node})")
    return msgspec.structs.replace(record, pods={**record.pods, nkey: Binding(0, nkey)})


def given(record: CredRecord, node: str) -> list[str]:
    """The nkeys that `give` noted."""
    return [binding.nkey for name, binding in record.pods.items() if name != node]


def take_back(record: CredRecord, node: str, nkeys: Collection[str]) -> CredRecord:
    """Without those of `nkeys` that `give` noted; the same object when there is none."""
    pods = {name: binding for name, binding in record.pods.items() if name == node or binding.nkey not in nkeys}
    return record if len(pods) == len(record.pods) else msgspec.structs.replace(record, pods=pods)


def _revoked(record: CredRecord, nkeys: Iterable[str], now: int, lifetime: int) -> CredRecord:
    """`lifetime` 0: JWTs of these nkeys may never expire.

    Beyond MAX_REVOKED: of a job the oldest are forgotten, since a floor would tell agents that hold their place to stop their training, and an
    agent replaced hundreds of attempts ago can harm its own job only. Where JWTs may never expire, a floor cuts off more, never less.
    """
    kept = {nkey: until for nkey, until in record.revoked.items() if lifetime <= 0 or until + lifetime > now}
    kept |= dict.fromkeys(nkeys, now + SKEW)
    floor = record.floor
    if len(kept) > MAX_REVOKED:
        kept = _newest(kept, MAX_REVOKED // 2)
        floor = max(floor, now) if lifetime <= 0 else floor
    return msgspec.structs.replace(record, revoked=kept, floor=floor)


def _newest(revoked: dict[str, int], count: int) -> dict[str, int]:
    return dict(sorted(revoked.items(), key=lambda item: item[1])[-count:])


def revocations(records: Iterable[CredRecord]) -> dict[str, int]:
    """`revocations` of the account JWT: user key, or `*`, -> seconds."""
    found: dict[str, int] = {}
    floor = 0
    for record in records:
        found |= record.revoked
        floor = max(floor, record.floor)
    if len(found) > MAX_RENDERED:
        found = _newest(found, MAX_RENDERED)
    return found | ({"*": floor} if floor else {})
