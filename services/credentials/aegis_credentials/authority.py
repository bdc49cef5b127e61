"""What the credentials service decides and does: who gets a JWT, whom it cuts off, and which accounts the servers hold.

Reads `aegis.job.<j>.{state,pods.<k>}`; reads and writes `aegis.cred.>`; pushes accounts by `claims`. Order of every act: the record first
(durable), then the push, then the JWT. A crash between is repaired by `level`, which any replica runs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec
import structlog
from aegis_bus.connection import Bus
from aegis_bus.crashpoint import crashpoint
from aegis_bus.jobstore import decode_head, decode_shard
from aegis_proto import credapi, ids, messages, subjects
from aegis_proto.state import SHARD, Head, Pod

from aegis_credentials import accounts
from aegis_credentials import record as rules
from aegis_credentials.claims import Claims
from aegis_credentials.keys import public_raw, same
from aegis_credentials.record import CredRecord, Refusal
from aegis_credentials.records import Records
from aegis_credentials.setup import DAY, Site

log = structlog.get_logger()

FRESH = 0.5
"""Seconds a job's state may be served from memory when it grants; whatever it would refuse is read anew first."""


@dataclass(frozen=True)
class Issued:
    jwt: str
    expires: int
    account: str


@dataclass
class _Seen:
    head: Head
    time_ms: int
    at: float
    shards: dict[int, tuple[Pod, ...]] = field(default_factory=dict)


class Authority:
    """One replica's. `lifetime`: seconds a JWT of an agent or node daemon lasts."""

    def __init__(self, site: Site, bus: Bus, claims: Claims, *, lifetime: int = int(DAY)) -> None:
        self.site = site
        self.bus = bus
        self.claims = claims
        self.records = Records(bus)
        self.lifetime = lifetime
        self._jobs: dict[str, _Seen] = {}
        self._digests: dict[tuple[str, str], str] = {}
        self._pushed: dict[str, bytes] = {}
        """account -> digest of what this replica last saw the servers hold."""

    # --- reading the state -------------------------------------------------------------------------------------------------------

    async def _job(self, job: str, *, fresh: bool) -> _Seen:
        seen = self._jobs.get(job)
        if seen is not None and not fresh and time.monotonic() - seen.at < FRESH:
            return seen
        stored = await self.bus.get("CTL", subjects.job_state(job), leader=fresh)
        if stored is None or stored.marker:
            self._jobs.pop(job, None)
            raise Refusal("unknownJob", f"E104 no job {job}")
        seen = self._jobs[job] = _Seen(decode_head(job, stored.data), stored.time_ms, time.monotonic())
        if len(self._jobs) > 1024:
            self._jobs.pop(next(iter(self._jobs)))
        return seen

    async def _attempt(self, seen: _Seen, index: int, *, fresh: bool) -> int:
        k = index // SHARD
        if k not in seen.shards:
            stored = await self.bus.get("CTL", subjects.job_pods(seen.head.job, k), leader=fresh)
            seen.shards[k] = decode_shard(seen.head, k, stored)
        return seen.shards[k][index % SHARD].attempt

    async def spec_digest(self, head: Head) -> str:
        """`credapi.spec_digest` of the specification as stored, "" when there is none. A specification never changes."""
        key = (head.job, head.uid)
        if key not in self._digests:
            stored = await self.bus.get("CTL", subjects.job_spec(head.job))
            if stored is None or stored.marker:
                return ""
            if len(self._digests) >= 1024:
                self._digests.clear()
            self._digests[key] = credapi.spec_digest(stored.data)
        return self._digests[key]

    async def check_place(self, job: str, uid: str, pod: str, attempt: int) -> Head:
        """The head, when (uid, pod, attempt) is what the state says now. Refusal otherwise, after a second look through the leader."""
        for fresh in (False, True):
            try:
                return await self._check_place_once(job, uid, pod, attempt, fresh=fresh)
            except Refusal:
                if fresh:
                    raise
        raise AssertionError("unreachable")

    async def _check_place_once(self, job: str, uid: str, pod: str, attempt: int, *, fresh: bool) -> Head:
        seen = await self._job(job, fresh=fresh)
        head = seen.head
        index = ids.pod_index(pod)
        if index >= head.workerNum:
            raise Refusal("badRequest", f"E102 {job} has {head.workerNum} workers: there is no {pod}")
        if uid and not same(uid, head.uid):
            raise Refusal("superseded", f"E102 job {job}: this is another submission (uid)")
        if head.phase.terminal:
            raise Refusal("ended", f"E102 job {job} has ended ({head.phase})")
        present = await self._attempt(seen, index, fresh=fresh)
        if attempt < present:
            raise Refusal("superseded", f"E102 {pod} attempt {attempt} was replaced by attempt {present}")
        if attempt > present:
            raise Refusal("notYet", f"E102 {pod} attempt {attempt}: the state still says {present}. Try again")
        return head

    # --- agents ------------------------------------------------------------------------------------------------------------------

    async def enroll(self, job: str, pod: str, attempt: int, *, uid: str, nkey: str, token: str) -> Issued:
        """A JWT for the agent of (job, pod, attempt). With a token: first contact; without: renewal by the bound nkey, whose signature was checked.

        Raises: Refusal; BusError when the state or the servers cannot be asked.
        """
        head = await self.check_place(job, uid, pod, attempt)
        if token and not same(token, self.site.secret.join_token(job, head.uid, pod, attempt)):
            raise Refusal("badToken", f"E102 join token refused: not for {job} {pod} attempt {attempt}")
        subject = subjects.cred(job, ids.pod_index(pod) // SHARD)
        now = int(time.time())

        def change(record: CredRecord) -> CredRecord:
            if record.uid != head.uid:
                record = CredRecord(uid=head.uid)
            if not token:
                rules.holds(record, pod, attempt, nkey)
                return record
            return rules.bind(record, pod, attempt, nkey, now=now, lifetime=self.lifetime)

        await self.records.change(subject, change)
        crashpoint("credentials.after-record")
        account = self.site.secret.job_account(job, head.uid).public
        if attempt > 1 or account not in self._pushed:  # a first attempt revokes nobody
            await self.ensure_job(head)
        expires = now + self.lifetime
        jwt = self.site.token("agent", nkey, {"job": job, "pod": pod}, name=f"{job}/{pod}/{attempt}", expires=expires, uid=head.uid, now=now)
        return Issued(jwt, expires, account)

    def forget(self) -> None:
        """After a reconnect: what the servers hold is not known any more."""
        self._pushed.clear()
        self._jobs.clear()

    async def ensure_job(self, head: Head, *, verify: bool = False) -> None:
        """Make the servers hold the job's account as its records say; again, if the records moved meanwhile.

        `verify`: look at what the servers hold, even when this replica pushed the same before.
        """
        account = self.site.secret.job_account(head.job, head.uid).public

        async def render() -> str:
            records = await self.records.read_job(head.job)
            revoked = rules.revocations(record for record in records.values() if record.uid == head.uid)
            return accounts.job(self.site.secret, head.job, head.uid, head.workerNum, now=int(time.time()), revocations=revoked)

        if not verify and self._pushed.get(account) == accounts.digest(await render()):
            return
        crashpoint("credentials.before-push")
        pushed, token = await self.claims.ensure(account, render)
        if pushed:
            log.info("account pushed", job=head.job)
        crashpoint("credentials.after-push")
        self._pushed[account] = accounts.digest(token)

    async def sync_job(self, head: Head, *, verify: bool) -> None:
        """Level: revoke every attempt below the state's, then make the servers hold the account."""
        records = await self.records.read_job(head.job)
        bound = {k: record for k, record in records.items() if record.uid == head.uid and record.pods}
        if bound:
            seen = await self._job(head.job, fresh=True)
            if seen.head.uid != head.uid or seen.head.phase.terminal:
                return
            for k, record in bound.items():
                await self._revoke_below(seen, k, record)
        await self.ensure_job(head, verify=verify)

    async def _revoke_below(self, seen: _Seen, k: int, record: CredRecord) -> None:
        attempts = {pod: await self._attempt(seen, ids.pod_index(pod), fresh=False) for pod in record.pods}
        now = int(time.time())

        def change(old: CredRecord) -> CredRecord:
            return rules.revoke_below(old, attempts, now, self.lifetime) if old.uid == seen.head.uid else old

        await self.records.change(subjects.cred(seen.head.job, k), change)

    async def end_job(self, head: Head, listed: set[str]) -> bool:
        """Delete the account of an ended job, then its records. False when both are gone already."""
        account = self.site.secret.job_account(head.job, head.uid).public
        records = await self.records.read_job(head.job)
        open_shards = [k for k, record in records.items() if record.uid == head.uid and not record.ended]
        if account in listed:
            await self.claims.delete([account])
            self._pushed.pop(account, None)
            log.info("account deleted", job=head.job)
        for k in open_shards:
            await self.records.end(subjects.cred(head.job, k))
        return account in listed or bool(open_shards)

    # --- node daemons and people -----------------------------------------------------------------------------------------------------

    async def enroll_node(self, node: str, nkey: str, token: str) -> Issued:
        """A JWT for the daemon of `node`. A token that was made later than the one that bound the present nkey binds a new one."""
        now = int(time.time())
        if token and not self.site.secret.node_token_valid(token, node, now):
            raise Refusal("badToken", f"E102 join token refused: not for node {node}, or expired")
        generation = int(token.partition(".")[0]) if token else 0

        def change(record: CredRecord) -> CredRecord:
            held = record.pods.get(node)
            if held is not None and held.nkey == nkey and not held.cut:
                return record  # the daemon kept its seed
            if token:
                return rules.bind(record, node, generation, nkey, now=now, lifetime=self.lifetime)
            rules.holds(record, node, held.attempt if held is not None else 1, nkey)
            return record

        record = await self.records.change(subjects.cred_node(node), change)
        crashpoint("credentials.after-record")
        if record.revoked:  # it took the place of another
            await self.ensure_site()
        expires = now + self.lifetime
        return Issued(self.site.token("node", nkey, {"node": node}, name=node, expires=expires, now=now), expires, self.site.account("FLEET"))

    async def revoke_in(self, account: str, nkey: str) -> None:
        """Cut off one user of FLEET (`fleet`) or PEOPLE (`people`)."""
        public_raw(nkey, "user")
        now = int(time.time())
        await self.records.change(subjects.cred_account(account), lambda record: rules.revoke(record, nkey, now, 0))
        crashpoint("credentials.after-record")
        await self.ensure_site()

    async def give_node(self, node: str, nkey: str) -> None:
        """Note that `nkey` gets a JWT for the daemon of `node`: noted before it is given, so that `revoke_node` finds it."""
        public_raw(nkey, "user")
        if nkey in (await self.records.read(subjects.cred_account("fleet"))).revoked:
            raise Refusal("revoked", "E102 this nkey was revoked: make a new one")
        await self.records.change(subjects.cred_node(node), lambda record: rules.give(record, node, nkey))
        crashpoint("credentials.after-record")

    async def issued(self) -> list[credapi.Issued]:
        """Credentials that were issued by request and have not expired, with whether they are revoked now."""
        revoked = {
            *(await self.records.read(subjects.cred_account("people"))).revoked,
            *(await self.records.read(subjects.cred_account("fleet"))).revoked,
        }
        return [msgspec.structs.replace(item, revoked=item.nkey in revoked) for item in await self.records.read_issued()]

    async def revoke_node(self, node: str) -> bool:
        """Cut off every daemon of `node`, enrolled or with issued credentials; a join token made later, or new credentials, let one in.

        False when nobody is bound.
        """
        now = int(time.time())
        subject = subjects.cred_node(node)
        given = rules.given(await self.records.read(subject), node)

        def revoke(record: CredRecord) -> CredRecord:  # their JWTs may never expire, so they are kept where nothing is forgotten
            for nkey in given:
                record = rules.revoke(record, nkey, now, 0)
            return record

        await self.records.change(subjects.cred_account("fleet"), revoke)
        crashpoint("credentials.after-record")
        record = await self.records.change(subject, lambda old: rules.take_back(rules.cut(old, node, now, self.lifetime), node, given))
        await self.ensure_site()
        return node in record.pods or bool(given)

    async def revoke_pod(self, job: str, pod: str) -> bool:
        """Cut off the agent that holds `pod`; its next attempt may come. False when nobody is bound."""
        seen = await self._job(job, fresh=True)
        now = int(time.time())
        subject = subjects.cred(job, ids.pod_index(pod) // SHARD)
        record = await self.records.change(subject, lambda old: rules.cut(old, pod, now, self.lifetime))
        crashpoint("credentials.after-record")
        await self.ensure_job(seen.head)
        return pod in record.pods

    async def ensure_site(self) -> None:
        """Make the servers hold AEGIS, FLEET and PEOPLE as this version renders them, with all that is revoked.

        BadMessage, after the others were looked after, when a record of an account cannot be read: what the servers hold of that one stays.
        """
        secret = self.site.secret

        async def aegis() -> str:
            return accounts.aegis(secret, int(time.time()))

        async def fleet() -> str:
            now = int(time.time())
            nodes = rules.revocations(await self.records.read_nodes())
            given = rules.revocations([await self.records.read(subjects.cred_account("fleet"))])
            return accounts.fleet(secret, now, given | {nkey: until for nkey, until in nodes.items() if until + self.lifetime > now})

        async def people() -> str:
            return accounts.people(secret, int(time.time()), rules.revocations([await self.records.read(subjects.cred_account("people"))]))

        unreadable: messages.BadMessage | None = None
        for name, render in (("AEGIS", aegis), ("FLEET", fleet), ("PEOPLE", people)):
            try:
                pushed, _ = await self.claims.ensure(self.site.account(name), render)
            except messages.BadMessage as error:
                log.error("account left as it is", account=name, error=str(error))
                unreadable = error
                continue
            if pushed:
                log.info("account pushed", account=name)
        if unreadable is not None:
            raise unreadable
