"""What was acknowledged is in the files, once and in order per worker, wherever the process or the disk's last write ended."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import msgspec
import pytest
from aegis_bus.connection import Bus, Stored
from aegis_lognexus.intake import Intake
from aegis_lognexus.share import Shares
from aegis_lognexus.store import LogStore, StoreSettings
from aegis_lognexus.store.blocks import index_of, read_index, segment, segment_numbers
from aegis_lognexus.store.joining import LONGEST
from aegis_lognexus.store.store import StoreInUse
from aegis_proto.logs import LogBatch, LogLine
from aegis_proto.messages import encode
from harness.waiting import until
from log_batches import JOB, T0, batch, expected, kept, stream, told


def fill(store: LogStore, messages: list[tuple[str, LogBatch]], start: int = 1) -> None:
    for seq, (pod, sent) in enumerate(messages, 1):
        if seq >= start:
            store.append(JOB, pod, sent, seq)


def test_lines_are_kept_once_in_the_order_of_each_worker(tmp_path: Path) -> None:
    messages = stream()
    store = LogStore(tmp_path)
    fill(store, messages)
    fill(store, messages)
    store.append(JOB, *messages[3], 44)
    store.commit()
    assert told(kept(tmp_path)) == expected(messages)
    store.close()


def test_every_line_says_where_it_comes_from(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append(JOB, "w2", batch(7, "step 1", rank=17, kind="err", incarnation=3), 1)
    store.close()
    line = json.loads(segment(tmp_path / "jobs" / JOB, 1).read_text())
    assert line == {
        **{"time": "2026-11-30T00:53:20.000Z", "job": JOB, "worker": "w2", "rank": 17, "incarnation": 3, "kind": "err"},
        **{"node": "n1", "attempt": 1, "boot": "b1", "n": 7, "at": T0, "message": "step 1"},
    }


def test_parts_are_joined_over_batches_while_other_ranks_go_on(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    part = lambda n, text, part, more, rank=0: LogBatch("u", 1, "b1", n, (LogLine(T0, 0, rank, "out", text, part, more),))  # noqa: E731
    store.append(JOB, "w0", part(1, "a", 0, True), 1)
    store.append(JOB, "w0", part(2, "other", 0, False, 1), 2)
    assert store.commit().seq == 0, "the unfinished line is still to be read again"
    store.append(JOB, "w0", part(3, "b", 1, True), 3)
    store.append(JOB, "w0", part(4, "c", 2, False), 4)
    assert store.commit().seq == 4
    assert [(line.rank, line.n, line.message) for line in kept(tmp_path)] == [(1, 2, "other"), (0, 4, "abc")]
    store.close()


def test_a_line_of_megabytes_is_cut_and_says_so_and_one_without_an_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    for k in range(6):
        store.append(JOB, "w0", LogBatch("u", 1, "b1", k + 1, (LogLine(T0, 0, 0, "out", "x" * 1_000_000, k, k < 5),)), k + 1)
    store.append(JOB, "w0", LogBatch("u", 1, "b1", 7, (LogLine(T0, 0, 0, "out", "never ended", 0, True),)), 7)
    store.commit(stale=8)
    long, short = kept(tmp_path)
    assert long.message.startswith("x" * LONGEST) and long.message.endswith(f" [cut: {6_000_000 - LONGEST} characters more]")
    assert short.message == "never ended"
    assert store.cursor.seq == 7
    store.close()


def test_holes_and_given_up_lines_are_counted_once(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    for seq, sent in enumerate([batch(1, "a", "b"), batch(6, "c"), batch(7, "d", dropped=40), batch(6, "c"), batch(7, "d", dropped=40)], 1):
        store.append(JOB, "w0", sent, seq)
    progress = store.job(JOB).progress
    assert (progress.missing, progress.dropped) == (3, 40)
    store.close()
    again = LogStore(tmp_path)
    again.append(JOB, "w0", batch(7, "d", dropped=40), 5)
    assert (again.job(JOB).progress.missing, again.job(JOB).progress.dropped) == (3, 40)
    again.close()


def test_any_text_is_one_line_of_the_file(tmp_path: Path) -> None:
    texts = [
        '{"time":"x","job":"y"}',
        "\x00\x1b[2J\x07",
        "a\nb\r",
        '"worker":"w9"',
        "\u2028\u0085",
        "漢字 😀",
        "\\",
        "x" * 1_000_000,
        "\x80\x04cposix\nsystem\n.",
    ]
    store = LogStore(tmp_path)
    store.append(JOB, "w0", batch(1, *texts), 1)
    store.close()
    assert segment(tmp_path / "jobs" / JOB, 1).read_bytes().count(b"\n") == len(texts)
    assert [line.message for line in kept(tmp_path)] == texts


@pytest.mark.parametrize("job", ["../evil", "a/b", "", "A", ".", "x" * 41])
def test_a_job_that_is_no_id_has_no_files(tmp_path: Path, job: str) -> None:
    store = LogStore(tmp_path)
    with pytest.raises(ValueError, match="no id"):
        store.append(job, "w0", batch(1, "x"), 1)
    store.close()


def test_ranks_and_boots_without_end_stay_within_bounds(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    for k in range(3):
        store.append(JOB, "w0", LogBatch("u", 1, "b1", 1 + 1000 * k, tuple(LogLine(T0, 0, 1000 * k + r, "out", "x") for r in range(1000))), k + 1)
    for k in range(50):
        store.append(JOB, "w0", batch(1, "x", boot=f"c{k}"), 10 + k)
    progress = store.job(JOB).progress
    assert len(progress.pods["w0"]) <= 4
    assert progress.missing == 3000 - 1024
    assert len(kept(tmp_path)) == 0
    store.close()
    assert len(kept(tmp_path)) == 1024 + 50


# --- crashes -----------------------------------------------------------------------------------------------------------------------


def folder_of_a_crash(tmp_path: Path, messages: list[tuple[str, LogBatch]], committed: int) -> Path:
    """A store whose process died after writing everything, with a commit after the first `committed` messages."""
    base = tmp_path / "base"
    store = LogStore(base, StoreSettings(segment_bytes=6_000))
    for seq, (pod, sent) in enumerate(messages, 1):
        store.append(JOB, pod, sent, seq)
        if seq == committed:
            store.commit()
    store.flush()
    os.close(store._lock)  # as the kernel does for a process that is gone
    return base


@pytest.mark.parametrize("committed", [0, 38])
def test_cut_at_every_byte_of_the_last_record_everything_is_there_once_after_the_replay(tmp_path: Path, committed: int) -> None:
    messages = stream(batches=40)
    base = folder_of_a_crash(tmp_path, messages, committed)
    number = segment_numbers(base / "jobs" / JOB)[-1]
    data = segment(base / "jobs" / JOB, number).read_bytes()
    last = data.rfind(b"\n", 0, -1) + 1
    for size in range(last, len(data) + 1):
        copy = tmp_path / "copy"
        shutil.copytree(base, copy)
        path = segment(copy / "jobs" / JOB, number)
        os.truncate(path, size)
        store = LogStore(copy, StoreSettings(segment_bytes=6_000))
        fill(store, messages, store.begin(""))
        store.close()
        assert told(kept(copy)) == expected(messages), f"cut {len(data) - size} bytes before the end"
        for each in segment_numbers(copy / "jobs" / JOB):
            file = segment(copy / "jobs" / JOB, each)
            blocks = read_index(file, file.stat().st_size)
            assert index_of(file).read_bytes().count(b"\n") == len(blocks)
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["00000001.idx", "state.json", "00000002.idx"])
def test_an_index_or_state_that_is_torn_or_gone_is_made_anew_from_the_lines(tmp_path: Path, name: str) -> None:
    messages = stream(batches=40)
    base = folder_of_a_crash(tmp_path, messages, 20)
    size = (base / "jobs" / JOB / name).stat().st_size
    for left in (None, 0, 1, size // 2, size):
        copy = tmp_path / "copy"
        shutil.copytree(base, copy)
        path = copy / "jobs" / JOB / name
        if left is None:
            path.unlink()
        else:
            os.truncate(path, left)
        store = LogStore(copy, StoreSettings(segment_bytes=6_000))
        fill(store, messages, store.begin(""))
        store.close()
        assert told(kept(copy)) == expected(messages)
        shutil.rmtree(copy)


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from aegis_lognexus.store import LogStore, StoreSettings
from log_batches import JOB, stream
store = LogStore(Path(sys.argv[1]), StoreSettings(segment_bytes=40_000))
messages = stream(batches=3000)
print("open", flush=True)
for seq in range(store.begin(""), len(messages) + 1):
    store.append(JOB, *messages[seq - 1], seq)
    if seq % 7 == 0:
        store.flush()
    if seq % 50 == 0:
        store.commit()
        print(seq, flush=True)
store.close()
print("done", flush=True)
"""


def test_killed_at_any_write_and_started_again_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    paths = [*filter(None, sys.path), str(Path(__file__).parent)]
    ends = 0
    for kill in (1, 4, 9, 17, 26, 1000):
        process = subprocess.Popen([sys.executable, "-c", WRITER.format(path=paths), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for count, said in enumerate(process.stdout):
            ends += said.strip() == "done"
            if count == kill:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.close()
        process.wait()
    assert ends == 1
    assert told(kept(tmp_path)) == expected(stream(batches=3000))


def test_a_disk_that_refuses_for_a_while_costs_no_line(tmp_path: Path) -> None:
    """The limit on the size of files, as a full disk: the kernel writes what fits of a block, and then says no."""
    messages = stream(batches=60)
    store = LogStore(tmp_path)
    fill(store, messages[:20])
    store.commit()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = segment(tmp_path / "jobs" / JOB, 1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 777, hard))
        for seq, (pod, sent) in enumerate(messages[20:40], 21):
            store.append(JOB, pod, sent, seq)
        with pytest.raises(OSError, match="too large"):
            store.commit()
        assert store.cursor.seq <= 20
        assert path.read_bytes().endswith(b"\n"), "no half line is left behind"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    fill(store, messages, 41)
    store.close()
    assert told(kept(tmp_path)) == expected(messages)


def test_a_disk_that_refuses_while_files_are_closed_for_others_costs_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegis_lognexus.store.store.OPEN_JOBS", 1)
    store = LogStore(tmp_path)
    store.append(JOB, "w0", batch(1, "a"), 1)
    with monkeypatch.context() as full:
        full.setattr("aegis_lognexus.store.joblog._write", lambda _fd, _data: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            store.append("other-000000", "w0", batch(1, "b"), 2)
    store.append("other-000000", "w0", batch(1, "b"), 2)
    store.close()
    assert [line.message for job in (JOB, "other-000000") for line in kept(tmp_path, job)] == ["a", "b"]


async def test_a_disk_without_room_for_the_files_of_a_new_job_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegis_lognexus.intake.DISK_AGAIN", 0.0)
    store = LogStore(tmp_path)
    intake = Intake(cast(Bus, None), store, Shares("me"), lambda: "")
    opened, refusals = store.job, [OSError(28, "No space left on device")] * 2
    monkeypatch.setattr(store, "job", lambda job: opened(job) if not refusals else (_ for _ in ()).throw(refusals.pop()))
    await intake._take(Stored(f"aegis.job.{JOB}.log.w0", 1, 0, encode(batch(1, "a"))))
    store.close()
    assert [line.message for line in kept(tmp_path)] == ["a"]


def test_in_another_era_the_stream_begins_anew_and_what_is_kept_is_not_doubled(tmp_path: Path) -> None:
    messages = stream()
    store = LogStore(tmp_path)
    assert store.begin("era1") == 1
    fill(store, messages)
    store.close()
    again = LogStore(tmp_path)
    assert again.begin("era1") == len(messages) + 1
    assert again.begin("era2") == 1
    fill(again, messages)
    again.close()
    assert told(kept(tmp_path)) == expected(messages)


async def test_one_process_writes_a_folder(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    with pytest.raises(StoreInUse, match="own folder"):
        LogStore(tmp_path)
    store.close()
    await until(lambda: LogStore(tmp_path).close() is None, 5, "the folder is free again")


# --- rotation and retention ----------------------------------------------------------------------------------------------------------


def test_files_rotate_and_the_oldest_go_by_size_but_never_the_one_being_written(tmp_path: Path) -> None:
    store = LogStore(tmp_path, StoreSettings(segment_bytes=2_000, max_bytes=5_000, job_share=1.0))
    for seq in range(1, 101):
        store.append(JOB, "w0", batch(seq, f"line {seq}"), seq)
        if seq % 5 == 0:
            store.commit()
    assert len(segment_numbers(tmp_path / "jobs" / JOB)) > 5
    assert store.retain() > 0
    lines = kept(tmp_path)
    assert lines[-1].message == "line 100"
    assert [line.n for line in lines] == list(range(lines[0].n, 101)), "what is left is the newest, without a hole"
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl")) <= 5_000
    store.append(JOB, "w0", batch(101, "line 101"), 101)
    store.close()
    assert kept(tmp_path)[-1].message == "line 101"


def test_a_job_that_prints_without_end_loses_its_own_lines_and_nobody_elses(tmp_path: Path) -> None:
    store = LogStore(tmp_path, StoreSettings(segment_bytes=2_000, max_bytes=40_000))
    for seq in range(1, 21):
        store.append("quiet-aaaaaa", "w0", batch(seq, f"line {seq}"), seq)
        store.commit()
    for seq in range(1, 401):
        store.append(JOB, "w0", batch(seq, f"line {seq}"), 20 + seq)
        if seq % 5 == 0:
            store.commit()
    store.retain()
    assert [line.n for line in kept(tmp_path, "quiet-aaaaaa")] == list(range(1, 21))
    loud = [line.n for line in kept(tmp_path)]
    assert loud == list(range(loud[0], 401))
    assert sum(path.stat().st_size for path in (tmp_path / "jobs" / JOB).glob("*.jsonl")) <= 10_000
    store.close()


def test_a_job_that_ended_long_ago_goes_as_a_whole_and_a_running_one_stays(tmp_path: Path) -> None:
    clock = [0.0]
    store = LogStore(tmp_path, StoreSettings(max_age=100.0), now=lambda: clock[0])
    store.append("old-aaaaaa", "w0", batch(1, "x"), 1)
    store.append(JOB, "w0", batch(1, "x"), 2)
    store.commit()
    clock[0] = segment(tmp_path / "jobs" / JOB, 1).stat().st_mtime + 50.0
    os.utime(segment(tmp_path / "jobs" / "old-aaaaaa", 1), (clock[0] - 200, clock[0] - 200))
    store.retain()
    assert store.jobs() == [JOB]
    assert store.append(JOB, "w0", batch(2, "y"), 3)
    store.close()


def test_many_jobs_share_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aegis_lognexus.store.store.OPEN_JOBS", 4)
    store = LogStore(tmp_path)
    for seq in range(1, 61):
        store.append(f"job-{seq % 12}", "w0", batch(seq, f"line {seq}"), seq)
        assert len(store._jobs) <= 4
    store.close()
    for job in range(12):
        assert [line.n for line in kept(tmp_path, f"job-{job}")] == [n for n in range(1, 61) if n % 12 == job]


def test_state_travels_as_json(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    fill(store, stream())
    store.close()
    state = msgspec.json.decode((tmp_path / "jobs" / JOB / "state.json").read_bytes())
    assert state["progress"]["pods"]["w0"]["b1"]["next"] > 1
