"""Hostile messages on the real stack: nothing of it ends, and the next job runs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from aegis_bus.errors import BusError
from aegis_proto import messages, shards, subjects
from support.house import house

COMMAND = [sys.executable, str(Path(__file__).parent / "support" / "command.py")]
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DEEP = b'{"v":1,"job":"x","uid":' + b"[" * 40000 + b"]" * 40000 + b"}"
SHALLOW = b'{"job":"x","zz":' + b"[" * 3000 + b"]" * 3000 + b"}"
JUNK = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"v":99}',
    b'{"v":"x"}',
    b'{"v":1e99}',
    b'{"v":-5}',
    b'{"v":' + b"9" * 3000 + b"}",
    SHALLOW,
    b'{"v":1,"v":99,"job":"x"}',
    b'{"uid":"\\ud800"}',
    b'{"kind":"stop","uid":null}',
]


async def test_nothing_that_is_sent_ends_a_service_or_disturbs_a_job(tmp_path: Path) -> None:
    async with house(tmp_path, nodes=2, masters=2) as h:
        folder = tmp_path / "work-a"
        folder.mkdir()
        job = await h.submit(COMMAND, name="job", workers=1, cwd=str(folder))
        await h.when_phase(job, "RunCommand", 60)
        state = await h.state(job)
        pids = await h.rank_pids(job, "w0")
        b = h.admin
        assert b is not None
        subj = [subjects.report(job, "w0", k) for k in ("pending", "ack", "check", "finish", "error", "hang", "stopped", "bogus")]
        subj += [
            subjects.report(job, "w99", "finish"),
            subjects.fact(job, "w0"),
            subjects.fact(job, "job"),
            subjects.fact(job, "w7"),
            subjects.job_state("zz"),
            subjects.job_pods("zz", 0),
            subjects.job_spec("zz"),
            subjects.place("zz", "w0"),
            subjects.place(job, "w9"),
            subjects.node_taint("n9"),
            subjects.node_taint("n2"),
            subjects.node_slot("n2", 5),
            subjects.node_slot("n9", 0),
            subjects.node_status("n9"),
            subjects.node_status("n2"),
            subjects.node_spec("n9"),
            subjects.cred("zz"),
            subjects.cred(job, 3),
            subjects.lease("evil"),
            subjects.job_event(job),
            subjects.job_progress(job),
        ]
        for s in subj:
            for data in JUNK:
                with contextlib.suppress(BusError):
                    await b.publish(s, data, timeout=2.0)
        for s in [
            subjects.node_hb("n2"),
            subjects.heartbeat(job, "w0"),
            subjects.heartbeat(job, "w77"),
            subjects.view_job_state(job),
            subjects.view_job_state("q"),
            "aegis.rpc.master.do.submit.default",
            "aegis.rpc.master.do.stop.default",
            "aegis.rpc.master.query.jobs",
            "aegis.rpc.master.query.job",
            "aegis.rpc.master.do.x",
            "aegis.rpc.master.query.events.default",
            "aegis.rpc.jobcontroller.query.nodes",
            "aegis.rpc.jobcontroller.query.pending",
            "aegis.rpc.jobcontroller.do.taint.n1",
            "aegis.rpc.jobcontroller.do.node-lost.n1",
            "aegis.rpc.credentials.do.join.default",
            "aegis.rpc.credentials.do.issue.reader",
            "aegis.rpc.credentials.do.revoke.default",
        ]:
            for data in [*JUNK, DEEP]:
                b.core(s, data)
                if ".rpc." in s:
                    with contextlib.suppress(BusError):
                        await b.request(s, data, timeout=1.5)
        # heads written by hand
        real = await b.get("CTL", subjects.job_state(job))
        assert real is not None
        doc = msgspec.json.decode(real.data)
        for n, change in enumerate(
            [
                {"v": 99},
                {"workerNum": -1},
                {"workerNum": 10**9},
                {"workerNum": "3"},
                {"owner": None},
                {"recent": []},
                {"deadline": {"kind": "x", "seconds": -1.0, "seqNum": 0, "incarnation": 0, "setAt": 1}},
                {"cursor": 10**15},
                {"cursor": -5},
                {"phase": "Nope"},
                {"seqNum": -1},
                {"order": None},
                {"countedPod": "x"},
                {"namespace": "a.b"},
                {"tally": {}},
                {"counts": {}},
            ]
        ):
            name = f"hand{n}-aaaaaa"
            d = {**doc, "job": name, "owner": {"replica": "", "term": 1}, **change}
            for s, x in (
                (subjects.job_spec(name), messages.encode(state.spec)),
                (subjects.job_pods(name, 0), shards.encode(state.shards[0])),
                (subjects.job_state(name), msgspec.json.encode(d)),
            ):
                with contextlib.suppress(BusError):
                    await b.publish(s, x)
        # the services have dealt with all of it when a job that comes after it has ended
        after = await h.submit(["true"], name="after", workers=1)
        assert (await h.ended(after, 60)).head.phase == "Succeed", await h.describe(after)
        assert all(c.alive for c in h.children.values())
        assert all(psutil.pid_exists(p) for p in pids)
        (folder / "finish").touch()
        st = await h.ended(job, 60)
        assert st.head.phase == "Succeed", await h.describe(job)
        assert st.head.recoverCount == 0
        # restart a master and a jobcontroller with all this junk stored
        for n in ("m1", "jc1", "credentials", "n1"):
            await h.children[n].kill9()
            await h.children[n].start()
        await h.children["m2"].kill9()
        folder2 = tmp_path / "work-b"
        folder2.mkdir()
        (folder2 / "finish").touch()
        job2 = await h.submit(COMMAND, name="next", workers=1, cwd=str(folder2))
        st = await h.ended(job2, 60)
        assert st.head.phase == "Succeed", await h.describe(job2)
