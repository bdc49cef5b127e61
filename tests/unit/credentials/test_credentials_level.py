"""Accounts and revocations follow the state of the jobs, whatever was missed.

Pushes that came late, crashes between record and push, restarts, two replicas.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from aegis_bus.connection import Bus
from aegis_bus.errors import CredentialsRefused
from aegis_bus.identity import Identity
from aegis_bus.natsserver import NatsServer
from aegis_credentials import accounts
from aegis_credentials.claims import PushFailed
from aegis_credentials.record import CredRecord
from aegis_credentials.setup import create_site
from aegis_proto import messages, subjects
from aegis_proto.enroll import Refused, Unreachable, enroll
from aegis_proto.phases import Phase
from conftest_credentials import Process, Running, add_job, change_job, running
from harness.site import Secured
from harness.waiting import until, until_sync

pytestmark = pytest.mark.timeout(90)
Launch = Callable[..., Process]


@pytest_asyncio.fixture
async def service(secured: Secured) -> AsyncIterator[Running]:
    async with running(secured) as made:
        yield made


@dataclass
class Agent:
    """An agent that enrolled and is on the bus. `ends`: why its connections ended, in order."""

    bus: Bus
    ends: list[str]

    @property
    def connected(self) -> bool:
        return self.bus.connected

    @property
    def identity(self) -> Identity:
        return self.bus.identity

    @property
    def revoked(self) -> bool:
        return "revoked" in self.ends and not self.bus.connected

    async def close(self) -> None:
        await self.bus.close(grace=0.1)


async def attach(secured: Secured, identity: Identity, jwt: str) -> Agent:
    identity.jwt = jwt
    ends: list[str] = []
    return Agent(await Bus.connect(identity, [secured.url], name="agent-test", on_closed=ends.append), ends)


async def connected(service: Running, job: str, pod: str = "w0", attempt: int = 1) -> Agent:
    me = Identity.new()
    return await attach(service.secured, me, (await service.enroll(job, pod, me, attempt=attempt)).jwt)


def account(secured: Secured, job: str) -> str:
    return secured.site.secret.job_account(job, secured.jobs[job]).public


async def test_the_account_of_a_new_job_is_there_before_anybody_asks(secured: Secured, service: Running) -> None:
    await add_job(secured, "new-000001")
    await until(lambda: service.authority.claims.lookup(account(secured, "new-000001")), 5.0)


async def test_an_attempt_below_the_states_is_cut_off(secured: Secured, service: Running) -> None:
    await add_job(secured, "lvl-000001")
    old, sibling = await connected(service, "lvl-000001"), await connected(service, "lvl-000001", "w1")
    await change_job(secured, "lvl-000001", attempts={0: 2})
    await until(lambda: old.revoked, 10.0)
    assert sibling.connected
    await asyncio.gather(old.close(), sibling.close())


async def test_a_revoked_pod_is_out_within_a_second(secured: Secured, service: Running) -> None:
    """The quickest of three: the machine may be busy, the way through the service and the server is short."""
    await add_job(secured, "lvl-000002", workers=3)
    took = []
    for pod in ("w0", "w1", "w2"):
        agent = await connected(service, "lvl-000002", pod)
        began = time.monotonic()
        assert await service.authority.revoke_pod("lvl-000002", pod)
        await until(partial(getattr, agent, "revoked"), 10.0)
        took.append(time.monotonic() - began)
        await agent.close()
    assert min(took) < 1.0


async def test_a_revoked_pod_does_not_renew_and_its_next_attempt_comes(secured: Secured, service: Running) -> None:
    await add_job(secured, "lvl-000003")
    agent = await connected(service, "lvl-000003")
    await service.authority.revoke_pod("lvl-000003", "w0")
    with pytest.raises(Refused) as info:
        await service.enroll("lvl-000003", "w0", agent.identity, token="")
    assert info.value.code == "revoked"
    await change_job(secured, "lvl-000003", attempts={0: 2})
    second = await connected(service, "lvl-000003", attempt=2)
    await asyncio.gather(agent.close(), second.close())
    assert not await service.authority.revoke_pod("lvl-000003", "w1"), "nobody holds it"


async def test_an_older_account_jwt_that_is_pushed_late_is_repaired(secured: Secured, service: Running) -> None:
    """The server keeps the last JWT pushed, even an older one: a delayed push brings a revoked agent back, until the level loop looks."""
    await add_job(secured, "stale-000001")
    agent = await connected(service, "stale-000001")
    stale = await service.authority.claims.lookup(account(secured, "stale-000001"))
    await service.authority.revoke_pod("stale-000001", "w0")
    await until(lambda: agent.revoked, 10.0)
    await service.authority.claims.push(stale)
    await until(lambda: agent.connected, 10.0, "the stale push let it in again, which is what must be repaired")
    service.level.everything()
    await until(lambda: not agent.connected and agent.revoked, 10.0)
    await agent.close()


async def test_a_deleted_account_comes_back_while_its_job_runs(secured: Secured, service: Running) -> None:
    await add_job(secured, "lost-000001")
    agent = await connected(service, "lost-000001")
    await service.authority.claims.delete([account(secured, "lost-000001")])
    await until(lambda: not agent.connected, 5.0)
    service.level.everything()
    await until(lambda: agent.connected, 15.0)
    await agent.close()


async def test_the_account_of_an_ended_job_goes_after_the_grace(secured: Secured) -> None:
    async with running(secured, grace=1.0, interval=0.3) as service:
        await add_job(secured, "end-000001")
        await add_job(secured, "end-000002")
        agent, other = await connected(service, "end-000001"), await connected(service, "end-000002")
        await change_job(secured, "end-000001", phase=Phase.SUCCEED)
        await asyncio.sleep(0)
        assert agent.connected, "the agent still hears of the end"
        await until(lambda: not agent.connected, 10.0)
        assert other.connected
        assert account(secured, "end-000001") not in await service.authority.claims.listed()
        stored = await service.bus.get("CTL", subjects.cred("end-000001"))
        assert stored is not None
        assert int(stored.headers["Nats-TTL"].rstrip("s")) > 0, "the record goes by itself"
        with pytest.raises(Refused) as info:
            await service.enroll("end-000001", "w0", agent.identity, token="")
        assert info.value.code == "ended"
        await asyncio.gather(agent.close(), other.close())


async def test_a_job_submitted_again_shares_nothing_with_the_one_before(secured: Secured, service: Running) -> None:
    """Same id, another uid: other keys, other account, an empty record."""
    await add_job(secured, "same-000001")
    before = account(secured, "same-000001")
    agent = await connected(service, "same-000001")
    secured.jobs["same-000001"] = "uid-second"
    assert account(secured, "same-000001") != before
    master = await secured.bus("master")
    stored = await master.get("CTL", subjects.job_state("same-000001"))
    assert stored is not None
    from aegis_bus.jobstore import decode_head
    from msgspec.structs import replace

    head = replace(decode_head("same-000001", stored.data), uid="uid-second")
    await master.publish(subjects.job_state("same-000001"), messages.encode(head), expect=stored.seq)
    await asyncio.sleep(0.6)  # longer than a state may be served from memory
    second = await connected(service, "same-000001")
    assert second.connected
    with pytest.raises(Refused):
        await service.enroll("same-000001", "w0", agent.identity, uid="uid-same-000001", token="")
    await asyncio.gather(agent.close(), second.close(), master.close())


async def test_two_replicas_serve_side_by_side(secured: Secured, service: Running) -> None:
    async with running(secured) as other:
        await add_job(secured, "two-000001", workers=16)
        identities = [Identity.new() for _ in range(16)]
        got = await asyncio.gather(
            *((service if index % 2 else other).enroll("two-000001", f"w{index}", identity) for index, identity in enumerate(identities))
        )
        assert len({item.jwt for item in got}) == 16
        # The same place asked of both at the same time: one nkey gets it.
        await add_job(secured, "two-000002")
        results = await asyncio.gather(
            *(replica.enroll("two-000002", "w0", Identity.new()) for replica in (service, other) for _ in range(4)), return_exceptions=True
        )
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert {result.code for result in results if isinstance(result, Refused)} == {"bound"}
        # What one revokes, the other knows.
        agent = await connected(service, "two-000002", "w1")
        await other.authority.revoke_pod("two-000002", "w1")
        await until(lambda: agent.revoked, 10.0)
        with pytest.raises(Refused) as info:
            await service.enroll("two-000002", "w1", agent.identity, token="")
        assert info.value.code == "revoked"
        await agent.close()


async def test_revocations_of_both_replicas_survive_each_others_pushes(secured: Secured, service: Running) -> None:
    async with running(secured) as other:
        await add_job(secured, "race-000001", workers=12)
        agents = await asyncio.gather(*(connected(service if index % 2 else other, "race-000001", f"w{index}") for index in range(12)))
        await asyncio.gather(*((other if index % 2 else service).authority.revoke_pod("race-000001", f"w{index}") for index in range(10)))
        await until(lambda: sum(agent.revoked for agent in agents) == 10, 10.0)
        held = await service.authority.claims.lookup(account(secured, "race-000001"))
        records = await service.authority.records.read_job("race-000001")
        from aegis_credentials import record as rules

        wanted = accounts.job(
            secured.site.secret,
            "race-000001",
            secured.jobs["race-000001"],
            12,
            now=int(time.time()),
            revocations=rules.revocations(records.values()),
        )
        assert accounts.same_rendering(held, wanted)
        assert agents[10].connected
        assert agents[11].connected
        await asyncio.gather(*(agent.close() for agent in agents))


async def test_expired_jwts_stop_and_a_renewal_brings_the_agent_back(secured: Secured) -> None:
    async with running(secured, lifetime=3) as service:
        await add_job(secured, "exp-000001")
        agent = await connected(service, "exp-000001")
        await until(lambda: "expired" in agent.ends, 15.0)
        service.authority.lifetime = 600
        again = await service.enroll("exp-000001", "w0", agent.identity, token="")
        await agent.bus.renew(again.jwt)
        await until(lambda: agent.connected, 20.0)
        await agent.close()


# --- losses ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Fresh:
    """A site of its own, since these tests break it."""

    secured: Secured

    def wipe(self, *folders: str) -> None:
        """Stop the server, lose part of its state, start it again on the same port."""
        self.secured.server.stop(grace=10)
        for folder in folders:
            shutil.rmtree(self.secured.server.state_dir / folder)
        self.secured.server.start()


@pytest_asyncio.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[Fresh]:
    site = create_site(tmp_path / "site")
    server = NatsServer(tmp_path / "nats", auth_conf=site.auth_conf.read_text(), die_with_parent=True)
    await asyncio.to_thread(server.start)
    secured = Secured(site, server)
    await secured.streams()
    yield Fresh(secured)
    await asyncio.to_thread(server.stop, 10)


async def test_servers_that_lost_all_accounts_get_them_back(fresh: Fresh) -> None:
    """The resolver's folder is gone: at its reconnect the service pushes what the records say, revocations included."""
    secured = fresh.secured
    async with running(secured) as service:
        await add_job(secured, "wipe-000001")
        agent, gone = await connected(service, "wipe-000001"), await connected(service, "wipe-000001", "w1")
        await service.authority.revoke_pod("wipe-000001", "w1")
        await until(lambda: gone.revoked, 10.0)
        await asyncio.to_thread(fresh.wipe, "jwt")
        await until(lambda: agent.connected, 30.0)
        with pytest.raises(CredentialsRefused):
            await Bus.connect(gone.identity, [secured.url], name="gone", timeout=2.0)
        await asyncio.gather(agent.close(), gone.close())


async def test_after_a_loss_of_the_whole_store_an_agent_binds_again_by_its_token(fresh: Fresh) -> None:
    """Heads come back by their owner under a new era; keys are derived, so account and JWT go on; only nobody is bound any more."""
    secured = fresh.secured
    async with running(secured) as service:
        await add_job(secured, "void-000001")
        agent = await connected(service, "void-000001")
        first_era = await secured.streams()
        await asyncio.to_thread(fresh.wipe, "jwt", "js")
        await until(lambda: service.sys_bus.connected and service.bus.connected, 20.0)
        assert await secured.streams() > first_era
        await add_job(secured, "void-000001")
        await until(lambda: agent.connected, 30.0, "with the JWT it had")
        with pytest.raises(Refused) as info:
            await service.enroll("void-000001", "w0", agent.identity, token="")
        assert info.value.code == "badToken"
        await agent.bus.renew((await service.enroll("void-000001", "w0", agent.identity)).jwt)
        assert agent.connected
        await agent.close()


async def test_a_full_resolver_says_so(tmp_path: Path) -> None:
    site = create_site(tmp_path / "site")
    conf = site.auth_conf.read_text().replace("limit: 20000", "limit: 5")
    with NatsServer(tmp_path / "nats", auth_conf=conf, die_with_parent=True) as server:
        secured = Secured(site, server)
        sys_bus, claims = await secured.system()
        with pytest.raises(PushFailed, match=r"full|limit"):
            for n in range(4):
                await claims.push(accounts.job(site.secret, f"job-{n}", "u", 2, now=int(time.time())))
        await sys_bus.close()


# --- processes -------------------------------------------------------------------------------------------------------------------


async def ask(process: Process, secured: Secured, job: str, pod: str, identity: Identity, *, attempt: int = 1, token: str | None = None) -> str:
    if token is None:
        token = secured.site.secret.join_token(job, secured.jobs[job], pod, attempt)
    ca, uid = secured.site.ca_pem.read_bytes(), secured.jobs[job]
    got = await asyncio.to_thread(enroll, process.target, ca, job, pod, attempt, uid, identity.public, identity.sign, token, 10.0)
    return got.jwt


@pytest.mark.parametrize("point", ["credentials.after-record", "credentials.before-push", "credentials.after-push"])
async def test_killed_between_record_and_push_the_next_start_repairs(secured: Secured, launch: Launch, point: str) -> None:
    job = f"kill-{point.replace('credentials.', '')}"
    await add_job(secured, job)
    first = await asyncio.to_thread(launch, "c1")
    old_identity, new_identity = Identity.new(), Identity.new()
    old = await attach(secured, old_identity, await ask(first, secured, job, "w0", old_identity))
    assert await asyncio.to_thread(first.stop) == 0
    await change_job(secured, job, attempts={0: 2})
    # The second replica dies at the named point of the enrolment of attempt 2 (its level loop never runs first: the record must do it).
    dying = await asyncio.to_thread(launch, "c2", AEGIS_CRASH_AT=point, AEGIS_CREDENTIALS_INTERVAL="1h", wait=False)
    await asyncio.to_thread(until_sync, lambda: dying.popen.poll() is not None or (secured.site.folder / "grpc-c2.addr").exists(), 20)
    if dying.popen.poll() is None:
        dying.target = (secured.site.folder / "grpc-c2.addr").read_text().strip()
        with pytest.raises((Unreachable, Refused)):
            await ask(dying, secured, job, "w0", new_identity, attempt=2)
    assert await asyncio.to_thread(dying.popen.wait, 15) == -9
    third = await asyncio.to_thread(launch, "c3")
    await until(lambda: old.revoked, 15.0, "the level loop of the next start finishes what was begun")
    new = await attach(secured, new_identity, await ask(third, secured, job, "w0", new_identity, attempt=2))
    assert new.connected
    await asyncio.gather(old.close(), new.close())
    assert await asyncio.to_thread(third.stop) == 0


async def test_a_restarted_service_renews_what_another_process_bound(secured: Secured, launch: Launch) -> None:
    await add_job(secured, "again-000001")
    me = Identity.new()
    first = await asyncio.to_thread(launch, "c1")
    agent = await attach(secured, me, await ask(first, secured, "again-000001", "w0", me))
    first.popen.kill()
    first.popen.wait()
    second = await asyncio.to_thread(launch, "c1")
    await agent.bus.renew(await ask(second, secured, "again-000001", "w0", me, token=""))
    assert agent.connected
    await agent.close()
    assert await asyncio.to_thread(second.stop) == 0


async def test_the_root_secret_is_in_no_log_no_argument_and_no_environment(secured: Secured, launch: Launch) -> None:
    await add_job(secured, "secret-000001")
    process = await asyncio.to_thread(launch, "c1", AEGIS_LOGS_LEVEL="debug")
    me = Identity.new()
    await ask(process, secured, "secret-000001", "w0", me)
    proc = f"/proc/{process.popen.pid}"
    secret = (secured.site.folder / "root.secret").read_text().strip()
    seeds = [secured.site.secret.sys_user().seed, secured.site.secret.operator_signing().seed, secured.site.secret.role("master").seed]
    texts = [Path(proc, name).read_bytes().decode(errors="replace") for name in ("cmdline", "environ")]
    assert await asyncio.to_thread(process.stop) == 0
    texts.append(process.log.read_text())
    assert "account pushed" in texts[2]
    for text in texts:
        assert secret not in text
        assert not [seed for seed in seeds if seed in text]
    token = secured.site.secret.join_token("secret-000001", secured.jobs["secret-000001"], "w0", 1)
    assert token not in texts[2]


def test_a_service_without_a_site_says_so(launch: Launch, tmp_path: object) -> None:
    process = launch("c9", wait=False, AEGIS_CREDENTIALS_STATE=f"{tmp_path}/nowhere")
    assert process.popen.wait(15) == 2
    assert "run `aegis setup` first" in process.log.read_text()
    process = launch("c9", wait=False, AEGIS_CREDENTIALS_STATE="")
    assert process.popen.wait(15) == 2
    assert "AEGIS_CREDENTIALS_STATE" in process.log.read_text()


def test_an_address_that_is_taken_is_named(secured: Secured, launch: Launch) -> None:
    process = launch("c8", wait=False, AEGIS_CREDENTIALS_LISTEN=f"127.0.0.1:{secured.server.port}")
    assert process.popen.wait(20) != 0
    assert f"127.0.0.1:{secured.server.port}" in process.log.read_text()


async def test_records_of_a_newer_version_are_left_alone_and_end_nothing(secured: Secured, service: Running) -> None:
    """What they say is not known, so no account is rendered without them; jobs and other accounts are looked after as ever."""
    admin = await secured.bus("admin")
    newer = b'{"v":99,"revoked":{}}'
    subject = subjects.cred_node("n-newer")
    stored = await admin.publish(subject, newer)
    try:
        await add_job(secured, "newer-000001")
        service.level.everything()

        async def has_account() -> bool:
            account = secured.site.secret.job_account("newer-000001", secured.jobs["newer-000001"]).public
            return account in await service.authority.claims.listed()

        await until(has_account, 20.0)
        with pytest.raises(messages.BadMessage):
            await service.authority.ensure_site()
        kept = await admin.get("CTL", subject)
        assert kept is not None and (kept.seq, kept.data) == (stored.seq, newer)
    finally:
        await admin.publish(subject, messages.encode(CredRecord()))
        await admin.close()
    await service.authority.ensure_site()
