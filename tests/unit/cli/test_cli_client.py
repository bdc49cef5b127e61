"""Questions to a master that is played by the test: every page of an answer, and patience while nobody answers."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from aegis_bus.connection import Bus, Msg
from aegis_bus.natsserver import NatsServer
from aegis_cli.client import Client
from aegis_cli.context import Target
from aegis_cli.errors import CliError
from aegis_proto import api, api_nodes
from aegis_proto.messages import decode, encode
from cli_data import detail, event
from harness.bus import MakeBus
from harness.waiting import until

pytestmark = pytest.mark.timeout(120)
WAIT = 60.0


class Master:
    """Answers about jobs, a page of 3 at a time; `away`: its connection ends."""

    def __init__(self, make_bus: MakeBus, jobs: list[str], events: int) -> None:
        self._make, self.phase = make_bus, "RunCommand"
        self.known = [detail(job=f"{name}-{number:06d}", name=name).summary for number, name in enumerate(jobs)]
        self.events = tuple(api.StoredEvent(number + 1, event(number, f"event {number}")) for number in range(events))
        self.asked: list[str] = []
        self._bus: Bus | None = None

    async def listen(self) -> None:
        self._bus = await self._make(name="master")
        for verb, answer in (("job", self._job), ("jobs", self._jobs), ("events", self._events)):
            await self._bus.subscribe(f"aegis.rpc.master.query.{verb}", answer)

    async def away(self) -> None:
        assert self._bus is not None
        await self._bus.close()

    async def _job(self, msg: Msg) -> None:
        request = decode(api.JobRequest, msg.data)
        self.asked.append(request.job)
        if request.job in {job.job for job in self.known}:
            await msg.respond(encode(detail(job=request.job, phase=self.phase, exitCode=0 if self.phase == "Succeed" else None)))
        else:
            await msg.respond(encode(api.RequestRefused("E104", f"E104 no job {request.job}").reply()))

    async def _jobs(self, msg: Msg) -> None:
        request = decode(api.JobsRequest, msg.data)
        rest = sorted((job for job in self.known if job.job > request.after), key=lambda job: job.job)
        await msg.respond(encode(api.Jobs(tuple(rest[:3]), 1, more=len(rest) > 3)))

    async def _events(self, msg: Msg) -> None:
        """As the master does: 0 asks for the newest page, -1 for the first."""
        request = decode(api.EventsRequest, msg.data)
        rest = [item for item in self.events if item.seq > request.afterSeq]
        page = rest[-3:] if request.afterSeq == 0 else rest[:3]
        last = page[-1].seq if page else max(request.afterSeq, 0)
        await msg.respond(encode(api.Events(tuple(page), last, more=len(rest) > len(page))))


async def test_a_job_is_found_by_its_name_on_whichever_page_it_is(nats_server: NatsServer, make_bus: MakeBus) -> None:
    master = Master(make_bus, [f"a{number}" for number in range(8)] + ["wanted"], 0)
    await master.listen()
    async with Client(Target("test", (nats_server.url,))) as client:
        assert (await client.job("wanted")).summary.job == "wanted-000008"
        with pytest.raises(CliError, match="no job"):
            await client.job("nowhere")


async def test_the_nodes_are_all_nodes(nats_server: NatsServer, make_bus: MakeBus) -> None:
    names = [f"n{number}" for number in range(10, 18)]

    async def nodes(msg: Msg) -> None:
        rest = [name for name in names if name > decode(api_nodes.NodesQuery, msg.data).after]
        await msg.respond(encode(api_nodes.NodesAnswer(tuple(api_nodes.NodeInfo(name) for name in rest[:3]), len(names), len(rest) > 3)))

    await (await make_bus()).subscribe("aegis.rpc.jobcontroller.query.nodes", nodes)
    async with Client(Target("test", (nats_server.url,))) as client:
        assert [node.node for node in await client.nodes()] == names


async def test_the_events_of_a_job_are_all_its_events(nats_server: NatsServer, make_bus: MakeBus) -> None:
    master = Master(make_bus, ["a"], 10)
    await master.listen()
    async with Client(Target("test", (nats_server.url,))) as client:
        assert [item.event.message for item in (await client.events("a-000000")).items] == [f"event {number}" for number in range(10)]


@pytest.mark.parametrize("words", [("job", "wait", "a-000000"), ("job", "events", "a-000000", "--watch")], ids=" ".join)
async def test_a_command_that_waits_survives_an_outage(nats_server: NatsServer, make_bus: MakeBus, tmp_path: Path, words: tuple[str, ...]) -> None:
    """No master for longer than a request is tried: the command says so once, and goes on."""
    master = Master(make_bus, ["a"], 1)
    await master.listen()
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AEGIS_")}
    environ |= {"AEGIS_BUS_SERVERS": nats_server.url, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aegis_cli", *words, env=environ, cwd=tmp_path, stdout=pipe, stderr=pipe, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: master.asked, WAIT, "the command asks")
        await master.away()
        assert process.stderr is not None
        async with asyncio.timeout(WAIT):
            while b"no answer" not in (line := await process.stderr.readline()):
                assert line, "it ended in the outage"
        master.phase = "Succeed"
        master.events += (api.StoredEvent(2, event(1, "the end", phase="Succeed")),)
        await master.listen()
        async with asyncio.timeout(WAIT):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
