"""Records what travels on the bus of a real stack, for `test_wire.py`: run once per version, checked in, never changed afterwards.

    PYTHONPATH=...:tests:tests/integration python tests/unit/wire/record.py OUT.jsonl        (takes about a minute)

A job of three workers fails, is repaired and ends; nodes are excluded and given back; people and services ask. Of each address of the catalog three
messages are kept; where none is heard, the catalog's example. What names this machine is replaced by other names of the same kind.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
from aegis_proto import docs, messages, subjects
from aegis_proto.api_nodes import TaintRequest
from aegis_proto.catalog import ENTRIES, Entry
from aegis_proto.examples import JOB
from aegis_proto.streams import stream_of
from support.house import House, house

KEPT = 3
COMMAND = Path(__file__).parents[2] / "integration" / "support" / "command.py"


def address_of(subject: str) -> str:
    """Of the catalog, the one with the fewest parameters; "" for a subject that is none of ours (inboxes, JetStream, views)."""
    found = [entry.address for entry in ENTRIES if docs.matches(re.sub(r"\{\w+\}", "*", entry.address), subject)]
    return min(found, key=lambda address: address.count("{"), default="")


def kept_in(address: str, subject: str) -> str:
    """The stream, "" for what is only said."""
    try:
        return "" if address.startswith("aegis.rpc.") else stream_of(subject)
    except ValueError:
        return ""


def example(entry: Entry) -> dict[str, Any]:
    body = json.loads(messages.encode(entry.example))
    return {"address": entry.address, "subject": entry.subject, "stream": kept_in(entry.address, entry.subject), "example": True, "json": body}


def neutral(data: bytes, folder: Path) -> bytes:
    text = data.decode()
    for of_here, other in (
        (f"{folder}/work/..", "/data/run"),
        (str(folder), "/data/run"),
        (sys.executable, "/opt/venv/bin/python"),
        (str(COMMAND), "/data/command.py"),
    ):
        text = text.replace(of_here, other)
    return text.replace(socket.gethostname(), "host-1").encode()


async def story(h: House, keep: Callable[..., None]) -> None:
    work = h.folder / "work"
    work.mkdir()
    job = await h.submit([sys.executable, str(COMMAND)], name="recorded", workers=3, cwd=str(work), checkpointDir="ckpt")
    await h.when_phase(job, "RunCommand")
    await h.ask(subjects.rpc_do("jobcontroller", "taint", "default"), messages.encode(TaintRequest("n4", seconds=600.0, reason="xid 79", by="alice")))
    (work / "raise-w1-0").touch()
    await h.when(job, lambda s: s.head.incarnation == 1 and s.head.phase == "RunCommand", 60)
    for entry in ENTRIES:
        service, _, rest = entry.address.removeprefix("aegis.rpc.").partition(".")
        if entry.reply is not None and rest.startswith("query.") and service in ("master", "jobcontroller", "lognexus", "netmon"):
            question = messages.encode(entry.example).replace(JOB.encode(), job.encode()) if entry.example is not None else b"{}"
            keep(entry.subject, await h.ask(entry.subject, question), answer=True)
    await h.ask(subjects.rpc_do("jobcontroller", "untaint", "default"), messages.encode(TaintRequest("n4", reason="", by="alice")))
    await h.act("set", job, settings={"max-retry": "5"})
    await asyncio.sleep(12)  # two heartbeats, one sample of what is used
    (work / "finish").touch()
    await h.ended(job)
    stopped = await h.submit([sys.executable, str(COMMAND)], name="stopped", workers=1, cwd=str(work / ".."))
    await h.when_phase(stopped, "RunCommand")
    await h.act("stop", stopped, reason="by hand")
    await h.ended(stopped)


class Kept:
    """The messages so far."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, list[dict[str, Any]]()
        self.count: Counter[tuple[str, bool]] = Counter()

    def __call__(self, subject: str, data: bytes, answer: bool = False) -> None:
        address = address_of(subject)
        if not address or not data or self.count[address, answer] >= KEPT:
            return
        try:
            body: dict[str, Any] = {"json": json.loads(neutral(data, self.folder))}
        except ValueError:
            body = {"base64": base64.b64encode(data).decode()}
        line = {"address": address, "subject": subject, "stream": kept_in(address, subject), **({"answer": True} if answer else {}), **body}
        if line not in self.lines:
            self.lines.append(line)
            self.count[address, answer] += 1


async def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keep = Kept(folder)
        async with house(folder, nodes=4) as h:
            creds = folder / "recorder.creds"
            creds.write_text(h.site.issue("admin"))
            listener = await nats.connect(h.nats.url, user_credentials=str(creds))

            async def heard(msg: Any) -> None:
                keep(msg.subject, msg.data)

            await listener.subscribe("aegis.>", cb=heard)
            for service in ("lognexus", "netmon"):
                env = {"AEGIS_BUS_CREDS": h.creds(service, service), "AEGIS_LOGNEXUS_STORE": str(folder / "logs")}
                await h.start(service, "-m", f"aegis_{service}", env=env)
            await story(h, keep)
            await listener.drain()
    heard = {line["address"] for line in keep.lines}
    unheard = [entry for entry in ENTRIES if entry.example is not None and entry.address not in heard]
    examples = [example(entry) for entry in unheard]
    lines = sorted([*keep.lines, *examples], key=lambda line: str(line["address"]))
    out.write_text("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines))
    print(f"{len(keep.lines)} messages of {len(heard)} addresses, and {len(examples)} examples of the catalog where none was heard")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
