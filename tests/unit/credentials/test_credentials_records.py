"""What a replica remembers of the records is of one store: behind a new connection there may be another, which gives the same numbers out again."""

from __future__ import annotations

import pytest
from aegis_bus.connection import Bus
from aegis_bus.natsserver import NatsServer
from aegis_credentials import record as rules
from aegis_credentials.record import CredRecord
from aegis_credentials.records import Change, Records
from aegis_proto import subjects
from harness.bus import MakeBus, replaced_by

SUBJECT = subjects.cred("j", 0)


def binds(pod: str, nkey: str) -> Change:
    return lambda record: rules.bind(record, pod, 1, nkey, now=0, lifetime=60)


async def test_a_record_of_the_store_before_is_not_written_over_one_of_the_copy_that_has_its_number(
    nats_server: NatsServer, bus: Bus, make_bus: MakeBus
) -> None:
    mine = Records(bus)
    await mine.change(SUBJECT, binds("w0", "A"))
    copy = await replaced_by(nats_server, bus, None)
    await mine.change(SUBJECT, binds("w1", "B"))
    before = await bus.get("CTL", SUBJECT)
    await replaced_by(nats_server, bus, copy)
    cut = await Records(await make_bus()).change(SUBJECT, lambda record: rules.cut(record, "w0", 0, 60))
    after = await bus.get("CTL", SUBJECT)
    assert before is not None and after is not None and before.seq == after.seq, "else this test shows nothing"
    found = await mine.change(SUBJECT, binds("w2", "C"))
    assert found.pods == {**cut.pods, "w2": rules.Binding(1, "C")} and found.revoked == cut.revoked
    with pytest.raises(rules.Refusal, match="was revoked"):
        await mine.change(SUBJECT, binds("w0", "A"))


async def test_a_change_whose_connection_is_lost_is_made_anew_of_what_the_next_one_shows(
    nats_server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, lost = Records(bus), []

    def change(old: CredRecord) -> CredRecord:
        return rules.bind(old, "w0", 1, "A", now=0, lifetime=60)

    publish = bus.publish

    async def over_the_next(*args: object, **kwargs: object) -> object:
        if not lost:
            lost.append(True)
            await replaced_by(nats_server, bus, None)
        return await publish(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(bus, "publish", over_the_next)
    assert (await records.change(SUBJECT, change)).pods == {"w0": rules.Binding(1, "A")}
    assert lost
