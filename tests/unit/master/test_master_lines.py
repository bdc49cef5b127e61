"""Lines of `aegis job ls`: what a head alone tells."""

from __future__ import annotations

import msgspec
from aegis_master import machine, queries
from aegis_proto.phases import LedgerState, Phase
from aegis_proto.state import JobSpec, Ledger


def test_a_line_of_job_ls_tells_the_share_of_time_that_was_productive() -> None:
    spent = Ledger(LedgerState.PRODUCTIVE, 60_000, {"queued": 20_000, "booting": 10_000, "productive": 30_000})
    head = msgspec.structs.replace(machine.create("j", JobSpec("j", ("x",)), "uid", "era", 0).head, ledger=spent)
    assert queries.ettr(head, 100_000) == -1.0, "the command has not run"
    ran = msgspec.structs.replace(head, started=True, checkpointAt=90_000)
    line = queries.summary(ran, None, 100_000)
    assert (line.ettr, line.checkpointAt) == (0.7, 90_000)
    ended = msgspec.structs.replace(ran, phase=Phase.SUCCEED)
    assert queries.summary(ended, None, 500_000).ettr == 0.5, "nothing is added after the end"
