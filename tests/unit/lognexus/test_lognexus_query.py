"""A query gives exactly the lines that a plain reading of the files would, from however many of them, and never more than fits an answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aegis_lognexus.store import Asked, LogStore, StoreSettings, ask, query
from aegis_lognexus.store import blocks as blocks_module
from aegis_lognexus.store.matching import BadPattern, Question
from aegis_proto.logs import StoredLine
from log_batches import JOB, T0, batch, kept, stream

CONDITIONS: list[tuple[dict[str, Any], Callable[[StoredLine], bool]]] = [
    ({}, lambda line: True),
    ({"worker": "w1"}, lambda line: line.worker == "w1"),
    ({"rank": 3}, lambda line: line.rank == 3),
    ({"incarnation": 2}, lambda line: line.incarnation == 2),
    ({"kinds": ("err", "agent")}, lambda line: False),
    ({"kinds": ("out",), "worker": "w0", "rank": 1}, lambda line: line.worker == "w0" and line.rank == 1),
    ({"since": T0 + 50_000}, lambda line: line.at >= T0 + 50_000),
    ({"until": T0 + 50_000}, lambda line: line.at < T0 + 50_000),
    ({"since": T0 + 10_000, "until": T0 + 30_002}, lambda line: T0 + 10_000 <= line.at < T0 + 30_002),
    ({"grep": "ERROR"}, lambda line: "ERROR" in line.message),
    ({"grep": 'say "hi"'}, lambda line: 'say "hi"' in line.message),
    ({"grep": "漢字"}, lambda line: "漢字" in line.message),
    ({"grep": "w1"}, lambda line: "w1" in line.message),
    ({"grep": r"loss \d\.\d|^ERROR"}, lambda line: re.search(r"loss \d\.\d|^ERROR", line.message) is not None),
    (
        {"grep": r"(?i)error at \d*7$", "worker": "w2"},
        lambda line: line.worker == "w2" and re.search(r"(?i)error at \d*7$", line.message) is not None,
    ),
    ({"worker": "nobody"}, lambda line: False),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some 600 lines in several files of many blocks, the last one still open."""
    for module in ("blocks", "joblog"):
        monkeypatch.setattr(f"aegis_lognexus.store.{module}.BLOCK", 2_000)
    store = LogStore(tmp_path, StoreSettings(segment_bytes=30_000))
    for seq, (pod, sent) in enumerate(stream(batches=120), 1):
        store.append(JOB, pod, sent, seq)
        store.flush()
    store.commit()
    folder = tmp_path / "jobs" / JOB
    assert len(blocks_module.segment_numbers(folder)) > 3
    return folder


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS, ids=lambda value: str(value) if isinstance(value, dict) else "")
def test_a_query_finds_what_a_plain_reading_finds(folder: Path, condition: dict[str, Any], holds: Callable[[StoredLine], bool]) -> None:
    right = [line for line in kept(folder.parents[1]) if holds(line)]
    question = Question(**condition)
    for tail in (1, 7, 100_000):
        assert list(ask(folder, Asked(question, tail=min(tail, 9_999))).lines) == right[-tail:]
    for limit in (1, 13, 5_000):
        found: list[StoredLine] = []
        cursor, more = "", True
        while more:
            page = ask(folder, Asked(question, cursor=cursor, limit=limit))
            assert len(page.lines) <= limit
            found += page.lines
            cursor, more = page.cursor, page.more
        assert found == right


def test_a_cursor_goes_on_where_new_lines_come(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    folder = tmp_path / "jobs" / JOB
    store.append(JOB, "w0", batch(1, "a", "b"), 1)
    store.flush()
    page = ask(folder, Asked(Question(), tail=1))
    assert [line.message for line in page.lines] == ["b"]
    assert ask(folder, Asked(Question(), cursor=page.cursor)).lines == ()
    store.append(JOB, "w0", batch(3, "c"), 2)
    store.flush()
    page = ask(folder, Asked(Question(), cursor=page.cursor))
    assert [line.message for line in page.lines] == ["c"]
    store.close()


def test_lines_that_come_while_the_last_ones_are_read_are_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LogStore(tmp_path)
    folder = tmp_path / "jobs" / JOB
    store.append(JOB, "w0", batch(1, "a", "b"), 1)
    store.flush()
    ended = query._end

    def end(*where: Any) -> str:
        found = ended(*where)
        store.append(JOB, "w0", batch(3, "c"), 2)
        store.flush()
        return found

    monkeypatch.setattr(query, "_end", end)
    page = ask(folder, Asked(Question(), tail=10))
    assert [line.message for line in page.lines] == ["a", "b"]
    assert [line.message for line in ask(folder, Asked(Question(), cursor=page.cursor)).lines] == ["c"]
    store.close()


def test_a_line_that_is_just_being_written_is_not_shown_in_halves(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append(JOB, "w0", batch(1, "a", "b"), 1)
    store.close()
    path = tmp_path / "jobs" / JOB / "00000001.jsonl"
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        page = ask(path.parent, Asked(Question()))
        assert [line.message for line in page.lines] == ["a"]
        assert page.cursor == f"1:{first}"
        path.write_bytes(whole)
        assert [line.message for line in ask(path.parent, Asked(Question(), cursor=page.cursor)).lines] == ["b"]


def test_an_answer_is_bounded_in_bytes_and_says_where_to_go_on(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    for n in range(1, 21):
        store.append(JOB, "w0", batch(n, "x" * 1_000), n)
    store.close()
    folder = tmp_path / "jobs" / JOB
    page = ask(folder, Asked(Question(), max_bytes=5_000))
    assert 1 <= len(page.lines) <= 5 and page.more
    assert ask(folder, Asked(Question(), cursor=page.cursor, max_bytes=5_000)).lines[0].n == len(page.lines) + 1
    assert len(ask(folder, Asked(Question(), tail=20, max_bytes=5_000)).lines) <= 5


@pytest.mark.parametrize("condition", [{}, {"worker": "w1"}, {"grep": "step"}])
def test_the_last_lines_come_in_several_answers_where_one_has_no_room(folder: Path, condition: dict[str, Any]) -> None:
    whole = ask(folder, Asked(Question(**condition), tail=1_000, max_bytes=1 << 30)).lines
    found: list[StoredLine] = []
    answers, before, more = 0, "", True
    while more:
        page = ask(folder, Asked(Question(**condition), tail=1_000 - len(found), max_bytes=2_000, before=before))
        assert page.lines or not page.more
        found[:0] = page.lines
        answers, before, more = answers + 1, page.start, page.more
    assert tuple(found) == whole and answers > 3


def test_a_text_that_looks_like_a_line_of_the_store_is_only_text(tmp_path: Path) -> None:
    fake = '{"time":"2026-11-30T00:53:20.000Z","job":"x","worker":"w7","rank":99,"incarnation":0,"kind":"out"'
    store = LogStore(tmp_path)
    store.append(JOB, "w0", batch(1, fake, "\n" + fake, '","worker":"w7","rank":99'), 1)
    store.close()
    folder = tmp_path / "jobs" / JOB
    for condition in ({"worker": "w7"}, {"rank": 99}):
        assert ask(folder, Asked(Question(**condition), tail=10)).lines == ()  # type: ignore[arg-type]
    assert len(ask(folder, Asked(Question(grep='"worker":"w7"'), tail=10)).lines) == 3


@pytest.mark.parametrize("cursor", ["x", "1", "1:x", "-1:0", "9" * 50 + ":0"])
def test_a_cursor_that_is_none_is_an_error(tmp_path: Path, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        ask(tmp_path, Asked(Question(), cursor=cursor))


def test_a_foreign_place_gives_no_halves(folder: Path) -> None:
    for offset in range(0, 400, 7):
        for question in (Question(), Question(grep="step")):
            for line in ask(folder, Asked(question, cursor=f"1:{offset}", limit=3)).lines:
                assert line.job == JOB


def test_a_pattern_that_cannot_be_searched_says_so_and_one_that_would_take_for_ever_does_not() -> None:
    for bad in ("(", "(?=x)y", r"(a)\1", "x" * 2_000):
        with pytest.raises(BadPattern, match="grep"):
            Question(grep=bad)
    line = StoredLine("t", JOB, "w0", 0, 0, "out", "", 1, "b", 1, 1, "a" * 5_000 + "b")
    assert Question(grep="(a+)+$").lines(blocks_module.encode_lines([line])) == []
