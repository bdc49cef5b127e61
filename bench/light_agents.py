"""Agents of one job as light clients of the wire: what `order_scale` asks of thousands of agents on one machine.

On a cluster each agent has a machine of its own; here they share two cores with the server and the master that are measured. So an agent is simulated
by a small client that speaks the server's text protocol by itself: a real TCP connection each, its own nkey and JWT with the rights as shipped, the
same subjects, bodies, dedup ids and answers as an agent. It follows the order protocol of `tests/harness/simagent.py` (PENDING, ACK or Finish or
Error, heartbeats, reads of the head), with the agent's rule for a late ACK, and runs nothing. A head that comes to many agents of one process is
decoded once.

    python bench/light_agents.py PLAN      started by order_scale.py; obeys lines on stdin: `fail <index> <incarnation>`, `quit`
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import random
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aegis_bus.identity import Identity
from aegis_proto import messages, subjects
from aegis_proto.ids import pod_name
from aegis_proto.messages import AckData, CheckResponse, CheckResult, ErrorData, Heartbeat, Message, PendingData, StoppedData
from aegis_proto.phases import MessageType, OrderPhase, ReportKind
from aegis_proto.state import HeadView

CONNECT_AT_ONCE = 24
HEARTBEAT = 5.0
RESYNC = 30.0
"""Seconds, with jitter, between two reads of the head by Direct Get."""
RETRY = 2.0
"""Seconds without a PubAck after which a report is sent again, with the same dedup id."""
ACK_LATE = (0.7, 1.3)
"""Seconds after which an order is acknowledged for itself, when its Finish or Error has not gone out before."""
CHECKS = (OrderPhase.BOOTCHECK, OrderPhase.TROUBLESHOOT)


@dataclass(frozen=True)
class Plan:
    """What the agents of one process share."""

    host: str
    port: int
    job: str
    uid: str


class Heads:
    """The last head that came, decoded once for all agents of the process."""

    def __init__(self) -> None:
        self._data = b""
        self._head: HeadView | None = None

    def decode(self, data: bytes) -> HeadView:
        if self._head is None or data != self._data:
            self._data, self._head = data, messages.decode(HeadView, data)
        return self._head


class LightAgent(asyncio.Protocol):
    """One attempt of one pod on one connection. `await up` until it has said PENDING; `lost` is the reason when the connection ended."""

    def __init__(self, plan: Plan, index: int, identity: Identity, heads: Heads) -> None:
        self.plan, self.index, self.identity, self.heads = plan, index, identity, heads
        self.loop = asyncio.get_running_loop()
        self.up: asyncio.Future[None] = self.loop.create_future()
        self.running = -1
        """Incarnation of the command that "runs"; -1 = none."""
        self.pod = pod_name(index)
        self.boot = secrets.token_hex(8)
        self.era = ""
        self.key = (-1, -1)  # (incarnation, seqNum) of the order obeyed last
        self.phase = OrderPhase.WAIT
        self.step = -1
        self._beats = self._sent = 0
        self._greeted = False
        self._waiting: dict[str, tuple[float, bytes]] = {}  # last token of the reply -> (when sent, what)
        self._late: asyncio.TimerHandle | None = None
        self._rest = b""
        self._inbox = f"_INBOX.{identity.public}.{secrets.token_hex(6)}"
        self._heartbeat = subjects.heartbeat(plan.job, self.pod).encode()
        self._transport: asyncio.Transport

    # --- the wire ------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.up.done():
            self.up.set_exception(exc or ConnectionError("closed by the server"))

    def data_received(self, data: bytes) -> None:
        buffer = self._rest + data if self._rest else data
        at = 0
        while (end := buffer.find(b"\r\n", at)) >= 0:
            line = buffer[at:end]
            at_next = end + 2
            if line.startswith((b"MSG ", b"HMSG ")):
                fields = line.split(b" ")
                size = int(fields[-1])
                if len(buffer) < at_next + size + 2:
                    break
                skip = int(fields[-2]) if line[0] == 72 else 0  # H
                self._on_msg(fields[1].decode(), buffer[at_next : at_next + skip], buffer[at_next + skip : at_next + size])
                at_next += size + 2
            elif line == b"PING":
                self._transport.write(b"PONG\r\n")
            elif line.startswith(b"INFO "):
                self._on_info(json.loads(line[5:]))
            elif line.startswith(b"-ERR"):
                raise ConnectionError(f"{self.pod}: {line.decode()}")
            at = at_next
        self._rest = buffer[at:]

    def _on_info(self, info: dict[str, str]) -> None:
        if self._greeted:  # a later INFO: the server tells of its cluster
            return
        self._greeted = True
        connect = {
            "verbose": False,
            "pedantic": False,
            "lang": "aegis-bench",
            "version": "1",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "name": f"agent-{self.pod}",
            "jwt": self.identity.jwt,
            "sig": base64.b64encode(self.identity.sign(info["nonce"].encode())).decode(),
        }
        view = subjects.view_job_state(self.plan.job)
        self._transport.write(f"CONNECT {json.dumps(connect)}\r\nSUB {self._inbox}.* 1\r\nSUB {view} 2\r\n".encode())
        self._ask_head()

    def _ask_head(self) -> None:
        """Direct Get of the head, as an agent does when it connects."""
        self._transport.write(f"PUB $JS.API.DIRECT.GET.CTL.{subjects.job_state(self.plan.job)} {self._inbox}.head 0\r\n\r\n".encode())

    def _on_msg(self, subject: str, headers: bytes, data: bytes) -> None:
        if not subject.startswith("_INBOX."):
            self.obey(self.heads.decode(data))
            return
        key = subject.rpartition(".")[2]
        if key == "head":
            self._on_read_head(data)
        elif data and b'"error"' not in data:
            self._waiting.pop(key, None)

    def _on_read_head(self, data: bytes) -> None:
        self.loop.call_later(RESYNC * random.uniform(0.7, 1.3), self._ask_head)
        if self.up.done():
            self.obey(self.heads.decode(data))
        else:  # subscribed, and the head as it was before: a run that is ordered now is not begun by a new boot
            head = self.heads.decode(data)
            self.era = head.era
            if head.order.phase is OrderPhase.COMMAND:
                self.key = (head.order.incarnation, head.order.seqNum)
            self.say(ReportKind.PENDING, MessageType.ACK, "", PendingData(podIP=self._address, nodeName=f"node{self.index}"))
            self.up.set_result(None)
            self.obey(head)
            self.loop.call_later(HEARTBEAT * random.random(), self._beat)

    def say(self, kind: ReportKind, type_: MessageType, phase: str, data: object) -> None:
        """One report, stored once: it is sent again until it is acknowledged (`resend`)."""
        incarnation, seq_num = self.key
        body = messages.encode(
            Message(
                AegisName="scale",
                AegisNamespace="default",
                podName=self.pod,
                type=type_,
                phase=phase,
                data=messages.raw(data),
                timeStamp=int(time.time() * 1000),
                uid=self.plan.uid,
                era=self.era,
                attempt=1,
                boot=self.boot,
                incarnation=max(0, incarnation),
                seqNum=max(0, seq_num),
            )
        )
        self._sent += 1
        header = f"NATS/1.0\r\nNats-Msg-Id: {self.boot}{self.boot}-{self._sent}\r\n\r\n".encode()
        subject = subjects.report(self.plan.job, self.pod, kind.value)
        wire = f"HPUB {subject} {self._inbox}.{self._sent} {len(header)} {len(header) + len(body)}\r\n".encode() + header + body + b"\r\n"
        self._waiting[str(self._sent)] = (time.monotonic(), wire)
        self._transport.write(wire)

    def resend(self, now: float) -> None:
        """Send again what has waited too long for its PubAck."""
        for key, (sent, wire) in self._waiting.items():
            if now - sent >= RETRY:
                self._waiting[key] = (now, wire)
                self._transport.write(wire)

    def _beat(self) -> None:
        self._beats += 1
        if self.running >= 0:
            self.step += 1
        beat = Heartbeat(self.boot, self._beats, 1, max(0, self.key[0]), max(0, self.key[1]), self.running >= 0, self.step)
        body = messages.encode(beat)
        self._transport.write(b"PUB %b %d\r\n%b\r\n" % (self._heartbeat, len(body), body))
        self.loop.call_later(HEARTBEAT, self._beat)

    # --- the order -----------------------------------------------------------------------------------------------------------

    @property
    def _address(self) -> str:
        return f"10.0.0.{self.index % 250}"

    def obey(self, head: HeadView) -> None:
        """Act on an order that is above the last one. All places are of attempt 1 in this bench."""
        order = head.order
        key = (order.incarnation, order.seqNum)
        if head.uid != self.plan.uid or key <= self.key:
            return
        self.key, self.phase = key, order.exceptions.get(self.pod, order.phase)
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self.phase in CHECKS:
            self.running = -1
            result = CheckResult("node", True, "", int(time.time() * 1000))
            self.say(ReportKind.FINISH, MessageType.FINISH, self.phase.value, CheckResponse((result,), self._address, 20000))
        elif self.phase is OrderPhase.COMMAND:
            self._late = self.loop.call_later(random.uniform(*ACK_LATE), self._ack)
            if self.running != order.incarnation:
                self.running, self.step = order.incarnation, 0
        elif self.phase is OrderPhase.STOP:
            self.running = -1
            self.say(ReportKind.STOPPED, MessageType.ACK, "stop", StoppedData(incarnation=order.incarnation))

    def _ack(self) -> None:
        self._late = None
        self.say(ReportKind.ACK, MessageType.ACK, self.phase.value, AckData(pid=1))

    def fail(self) -> None:
        """The command failed."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self.running = -1
        data = ErrorData("error", 1, message="simulated", diedAt=int(time.time() * 1000), ranFor=60.0)
        self.say(ReportKind.ERROR, MessageType.ERROR, "command", data)


async def main(path: Path) -> None:
    given = json.loads(path.read_text())
    url = urlsplit(given["url"])
    plan = Plan(url.hostname or "127.0.0.1", url.port or 4222, given["job"], given["uid"])
    limit, heads, loop = asyncio.Semaphore(CONNECT_AT_ONCE), Heads(), asyncio.get_running_loop()
    agents: dict[int, LightAgent] = {}

    async def connect(index: int, creds: str) -> None:
        async with limit:
            agent = LightAgent(plan, index, Identity.from_creds(creds), heads)
            await loop.create_connection(lambda: agent, plan.host, plan.port)
            await asyncio.wait_for(agent.up, 60)
            agents[index] = agent

    await asyncio.gather(*(connect(index, creds) for index, creds in given["agents"]))
    gc.freeze()

    async def resend() -> None:
        while True:
            await asyncio.sleep(0.5)
            for agent in agents.values():
                agent.resend(time.monotonic())

    sweep = asyncio.create_task(resend())
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := (await reader.readline()).decode().split():
        if line[0] == "fail" and int(line[1]) in agents:
            agent, incarnation = agents[int(line[1])], int(line[2])
            while agent.running != incarnation:
                await asyncio.sleep(0.02)
            agent.fail()
        elif line[0] == "quit":
            break
    sweep.cancel()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
