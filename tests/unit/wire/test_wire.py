"""The wire contract: what earlier versions said, as it was recorded (`record.py`), is still read as it was meant. Recordings are never changed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aegis_bus.jetstream import Stored
from aegis_bus.jobstore import decode_head, decode_shard
from aegis_master import intake
from aegis_proto import WIRE_VERSION, messages
from aegis_proto.api import RequestRefused, read_reply
from aegis_proto.catalog import ENTRIES
from aegis_proto.state import JobSpec, JobState
from aegis_proto.streams import stream_of

BY_ADDRESS = {entry.address: entry for entry in ENTRIES}
RECORDINGS = sorted(Path(__file__).parent.glob("messages-v*.jsonl"))


def recorded(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    for text in path.read_text().splitlines():
        line = json.loads(text)
        yield line, messages.encode(line["json"]) if "json" in line else base64.b64decode(line["base64"])


def within(said: Any, understood: Any) -> bool:
    """Everything that was said is there; a later version may say more."""
    if isinstance(said, dict):
        return isinstance(understood, dict) and all(key in understood and within(value, understood[key]) for key, value in said.items())
    if isinstance(said, list):
        return isinstance(understood, list) and len(understood) >= len(said) and all(map(within, said, understood))
    return bool(said == understood)


def read_as(kind: Any, data: bytes, answer: bool) -> Any:
    """As its reader does; a refusal as what it is."""
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return msgspec.json.decode(data, type=kind)
    if not answer:
        return messages.decode(kind, data)
    try:
        return read_reply(kind, data)
    except RequestRefused as refused:
        return refused


def test_this_version_has_its_recording() -> None:
    assert f"messages-v{WIRE_VERSION}.jsonl" in [path.name for path in RECORDINGS], "python tests/unit/wire/record.py"


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recorded_message_is_read_as_it_was_meant(path: Path) -> None:
    read = 0
    for line, data in recorded(path):
        entry = BY_ADDRESS.get(line["address"])
        assert entry is not None, f"{line['address']} is no longer a subject"
        kind = entry.reply if line.get("answer") else entry.payload
        if line["stream"]:
            assert stream_of(line["subject"]) == line["stream"], f"{line['subject']} is kept elsewhere"
        if kind is None or "json" not in line:
            continue
        found = read_as(kind, data, bool(line.get("answer")))
        if isinstance(found, RequestRefused):
            assert (found.code, str(found)) == (line["json"]["error"]["code"], line["json"]["error"]["message"])
            continue
        assert within(line["json"], json.loads(messages.encode(found))), f"{line['address']}: {line['json']} was read as {found}"
        if isinstance(found, messages.Message):
            body = messages.decode_data(found)
            assert within(line["json"].get("data") or {}, json.loads(messages.encode(body))), f"{line['address']}: {body}"
        read += 1
    assert read > 100


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_job_is_loaded_and_what_its_workers_and_the_platform_say_is_taken(path: Path) -> None:
    heads, shards, specs, said = {}, {}, {}, []
    for line, data in recorded(path):
        job = line["subject"].split(".")[2] if line["subject"].startswith("aegis.job.") else ""
        match line["address"]:
            case "aegis.job.{job}.state":
                heads[job] = decode_head(job, data)
            case "aegis.job.{job}.pods.{shard}":
                shards[job] = Stored("", 1, 0, data)
            case "aegis.job.{job}.spec":
                specs[job] = messages.decode(JobSpec, data)
            case address if ".worker." in address or ".fact." in address:
                said.append((job, line["subject"], data))
    loaded = {job: JobState(head, (decode_shard(head, 0, shards[job]),), specs[job]) for job, head in heads.items() if job in shards and job in specs}
    assert loaded
    taken = [(subject, intake.take(loaded[job], subject, data, 0)) for job, subject, data in said if job in loaded]
    assert taken
    assert not [(subject, result.bad) for subject, result in taken if result.bad]
