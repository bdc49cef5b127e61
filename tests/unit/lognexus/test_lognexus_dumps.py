"""Flight records travel in pieces and are read only whole; what is not whole, or not a record, is said and harms nobody."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from aegis_bus.connection import Bus
from aegis_lognexus import dumps as dumps_module
from aegis_lognexus.dumps import by_rank, flight_report, last_whole, read
from aegis_lognexus.flight import synthetic
from aegis_proto import messages, subjects
from aegis_proto.blobs import MAX_PIECES, PIECE, BlobPiece, pieces, whole
from log_batches import JOB


def records(folder: Path, culprit: int) -> dict[int, bytes]:
    synthetic.write(synthetic.Job(world=8, side=2, entries=400, culprit=culprit), folder)
    return {int(path.name.rpartition("_")[2]): path.read_bytes() for path in folder.iterdir()}


def made(data: bytes, rank: int = 0, incarnation: int = 1) -> list[BlobPiece]:
    return pieces(data, "flight", uid="u", attempt=1, incarnation=incarnation, rank=rank)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE, MAX_PIECES * PIECE])
def test_a_blob_is_put_together_from_pieces_in_any_order_with_doubles(size: int) -> None:
    data = random.Random(size).randbytes(size)
    sent = [messages.decode(BlobPiece, messages.encode(piece)) for piece in made(data)]
    assert all(len(messages.encode(piece)) < 65_536 for piece in sent)
    random.Random(2).shuffle(sent)
    assert whole([*sent, *sent[:2]]) == data
    if len(sent) > 1:
        assert whole(sent[1:]) is None


def test_a_blob_that_is_not_what_its_digest_says_is_none() -> None:
    sent = made(b"x" * (2 * PIECE))
    bad = BlobPiece("u", 1, 1, "flight", 1, 2, 2 * PIECE, sent[0].sha256, b"y" * PIECE)
    assert whole([sent[0], bad]) is None
    assert whole([]) is None
    with pytest.raises(ValueError, match="at most"):
        made(b"x" * (MAX_PIECES * PIECE + 1))


def test_of_several_records_of_a_rank_the_last_whole_one_of_the_incarnation_counts() -> None:
    found = [("a", piece) for piece in made(b"first", 3)]
    found += [("b", piece) for piece in made(b"second", 3)]
    found += [("c", piece) for piece in made(b"z" * (2 * PIECE), 3)[:1]]
    found += [("d", piece) for piece in made(b"other run", 3, incarnation=0)]
    found += [("e", piece) for piece in made(b"z" * (2 * PIECE), 4)[:1]]
    assert {rank: last_whole(parts) for rank, parts in by_rank(found, 1).items()} == {3: b"second", 4: b""}


def test_records_are_unpacked_a_few_at_a_time_and_no_more_is_read_of_a_job_than_it_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps_module, "AT_ONCE", 3)
    together: list[int] = []
    reading = dumps_module.read_folder
    monkeypatch.setattr(dumps_module, "read_folder", lambda folder, **more: together.append(len([*folder.iterdir()])) or reading(folder, **more))
    (tmp_path / "fr").mkdir()
    found = [(str(rank), piece) for rank, data in records(tmp_path / "fr", culprit=5).items() for piece in made(data, rank)]
    assert read(by_rank(found, 1)).culprits == (5,)
    assert together == [3, 3, 2]
    monkeypatch.setattr(dumps_module, "MAX_ENTRIES", 1000)
    assert any("rank 7 is refused" in text for text in read(by_rank(found, 1)).missing)
    monkeypatch.setattr(dumps_module, "PATIENCE", 0.0)
    assert sum("not read in time" in text for text in read(by_rank(found, 1)).missing) == 8


async def test_what_the_workers_sent_names_the_culprit_and_a_hostile_record_is_refused(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "fr").mkdir()
    dumps = records(tmp_path / "fr", culprit=5)
    dumps[2] = pickle.dumps({"entries": [Path("/")]})
    for rank, data in dumps.items():
        for piece in made(data, rank):
            await bus.publish(subjects.blob(JOB, f"w{rank // 2}", f"flight-{rank}"), messages.encode(piece))
    await bus.publish(subjects.blob(JOB, "w0", "junk"), b"\xff not a piece")
    report = await flight_report(bus, JOB, 1)
    assert report is not None
    assert (report.verdict, report.culprits) == ("hang", (5,))
    assert any("rank 2 is refused" in text for text in report.missing)
    assert await flight_report(bus, JOB, 0) is None
    assert await flight_report(bus, "other-000000", 1) is None
