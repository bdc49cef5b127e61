"""The generated documents are current, complete, and their examples are real."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, get_origin

import msgspec
import pytest
from aegis_proto import docs, messages, subjects
from aegis_proto.catalog import ENTRIES, Entry
from aegis_proto.phases import ReportKind
from aegis_proto.streams import STREAMS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["subjects.md", "messages.md", "asyncapi.json"])
def test_the_generated_documents_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == docs.generate()[name], "run: make docs"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.address)
def test_an_example_lies_on_its_subject_and_decodes(entry: Entry) -> None:
    pattern = re.sub(r"\\\{\w+\\\}", r"[a-zA-Z0-9-]+", re.escape(entry.address))
    assert re.fullmatch(pattern, entry.subject), (entry.address, entry.subject)
    assert docs.publishers(entry.subject) or entry.address == "aegis.era", "nobody may publish it"
    for kind, example in ((entry.payload, entry.example), (entry.reply, entry.answer)):
        if kind is None:
            assert example is None
        elif get_origin(kind) is not None:
            assert msgspec.json.decode(messages.encode(example), type=kind) == example
        else:
            assert type(example) is kind
            again = messages.decode(kind, messages.encode(example))
            if isinstance(again, messages.Message):
                assert messages.decode_data(again) == messages.decode_data(example)
            else:
                assert messages.encode(again) == messages.encode(example)


def test_every_function_of_a_subject_is_in_the_catalog() -> None:
    samples: dict[str, Any] = {"job": "j-1", "pod": "w0", "node": "n1", "shard": 0, "slot": 0, "kind": "ack", "service": "master", "what": "job"}
    samples |= {"ident": "x", "stream": "S", "replica": "m1", "account": "fleet", "source": "x", "nkey": "UA", "part": "head"}
    shapes = {re.sub(r"\{\w+\}", "*", entry.address) for entry in ENTRIES}
    for name, function in inspect.getmembers(subjects, inspect.isfunction):
        if name in ("view", "view_job_state", "token", "rpc_query", "rpc_do"):
            continue
        subject = function(**{key: samples[key] for key in inspect.signature(function).parameters})
        assert any(docs.matches(shape, subject) for shape in shapes), name


def test_every_stored_subject_of_the_streams_is_documented() -> None:
    for stream in STREAMS:
        for pattern in stream.get("subjects", ()):
            covered = [entry for entry in ENTRIES if docs.matches(pattern, entry.subject)]
            assert covered, pattern
    assert {kind.value for kind in ReportKind} == {entry.subject.rpartition(".")[2] for entry in ENTRIES if ".worker." in entry.subject}


def test_every_pair_of_type_and_phase_and_every_struct_is_in_messages_md() -> None:
    text = docs.messages_md()
    for (kind, phase), data in messages.DATA_TYPES.items():
        assert f"| {kind} | {phase or '(none)'} | [{data.__name__}]" in text
    for module in docs.MODULES:
        for struct in docs.structs(module):
            assert f"### {struct.__name__}\n" in text
            for field in msgspec.structs.fields(struct):
                assert f"| {field.name} |" in text


def test_the_asyncapi_document_holds_together() -> None:
    document = json.loads((ROOT / "docs" / "asyncapi.json").read_text(encoding="utf-8"))
    assert document["asyncapi"].startswith("3.")

    def refs(value: object) -> list[str]:
        if isinstance(value, dict):
            return [*([value["$ref"]] if isinstance(value.get("$ref"), str) else []), *(ref for item in value.values() for ref in refs(item))]
        return [ref for item in value for ref in refs(item)] if isinstance(value, list) else []

    for ref in refs(document):
        place: Any = document
        for part in ref.removeprefix("#/").split("/"):
            place = place[part]
    for name, channel in document["channels"].items():
        for parameter in re.findall(r"\{(\w+)\}", channel["address"] or ""):
            assert parameter in channel["parameters"], name
    public = [name for name, channel in document["channels"].items() if channel.get("x-aegis-public")]
    assert "view-job-job-state" in public
    assert not [name for name in public if "slot" in name or "cred" in name or ("spec" in name.split("-")[-1:] and "job" in name)]


def test_patterns_match_as_the_server_does() -> None:
    for pattern, subject, expected in (
        ("a.*.c", "a.b.c", True),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.b.c", "a.b", False),
        ("*.*", "a.b", True),
    ):
        assert docs.matches(pattern, subject) is expected, (pattern, subject)
