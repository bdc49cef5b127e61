"""Output of the command: bounded, binary safe, never a brake."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import deque
from pathlib import Path

from aegis_agent import output
from aegis_agent.output import LogFile, Sink, Stream, forget_old_runs
from agent_scripted_master import until


def drained(fd: int) -> bytes:
    os.set_blocking(fd, False)
    data = b""
    while True:
        try:
            chunk = os.read(fd, 1 << 20)
        except BlockingIOError:
            return data
        if not chunk:
            return data
        data += chunk


async def test_a_reader_that_does_not_read_holds_nothing_up_and_is_told_what_it_missed() -> None:
    read_end, write_end = os.pipe()
    sink = Sink(write_end)
    line = b"x" * 1023 + b"\n"
    begun = time.monotonic()
    for _ in range(3 * output.BUFFER // len(line)):
        sink.write(line)
    assert time.monotonic() - begun < 2.0 and sink.left_out > 0
    left_out = sink.left_out
    shown = bytearray()

    def read() -> None:
        shown.extend(os.read(read_end, 1 << 20))

    asyncio.get_running_loop().add_reader(read_end, read)
    try:
        assert await asyncio.to_thread(sink.flush, 10.0)
        sink.write(b"again\n")
        assert await asyncio.to_thread(sink.flush, 10.0)
        await until(lambda: shown.endswith(b"again\n"), "last line")
    finally:
        asyncio.get_running_loop().remove_reader(read_end)
    assert b"[aegis] %d bytes not shown" % left_out in shown
    assert len(shown) <= output.BUFFER + 4 * output.CHUNK


async def test_a_reader_that_is_gone_is_no_error() -> None:
    read_end, write_end = os.pipe()
    sink = Sink(write_end)
    os.close(read_end)
    sink.write(b"a\n")
    assert await asyncio.to_thread(sink.flush, 5.0)
    sink.write(b"b\n")
    assert await asyncio.to_thread(sink.flush, 5.0)


class Kept(Sink):
    def __init__(self) -> None:
        super().__init__(-1)
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


async def test_a_line_without_end_is_shown_after_a_moment() -> None:
    read_end, write_end = os.pipe()
    sink = Kept()
    stream = Stream(read_end, sink, None, b"[p] ", None)
    os.write(write_end, b"Continue? ")
    await until(lambda: sink.data, "the prompt", 5.0)
    assert sink.data == b"[p] Continue? \n"
    stream.close()
    os.close(write_end)


async def test_the_last_lines_are_kept() -> None:
    read_end, write_end = os.pipe()
    tail: deque[str] = deque(maxlen=output.TAIL)
    stream = Stream(read_end, Kept(), None, b"[p] ", tail)
    os.write(write_end, b"".join(b"line %d\n" % number for number in range(500)) + b"\xff\xfe\n" + b"10%\r50%\r99%\n")
    os.close(write_end)
    stream.drain()
    assert stream.eof and len(tail) == output.TAIL and list(tail)[-2:] == ["\ufffd\ufffd", "99%"] and tail[0] == f"line {502 - output.TAIL}"


async def test_a_line_as_long_as_memory_is_cut_for_display_and_whole_in_the_log(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    sink, log = Kept(), LogFile(tmp_path / "r.log")
    stream = Stream(read_end, sink, log, b"[p] ", None)
    for _ in range(40):
        os.write(write_end, b"y" * 8192)
        stream.drain()
    os.close(write_end)
    stream.drain()
    log.close()
    assert (tmp_path / "r.log").read_bytes() == b"y" * 40 * 8192
    assert all(len(line) <= output.LONGEST_LINE + output.CHUNK + 4 for line in sink.data.split(b"\n"))


def test_a_log_file_has_a_bound(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(output, "LOG_LIMIT", 1000)
    log = LogFile(tmp_path / "r.log")
    for number in range(100):
        log.write(b"%098d\n\n" % number)
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.log", "r.log.1"]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2200


def test_a_full_disk_never_stops_a_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = LogFile(tmp_path / "file" / "r.log")
    log.write(b"x")
    log.close()
    full = LogFile(Path("/dev/full"))
    full.write(b"x")
    full.write(b"x")


def test_old_logs_go(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "mine").mkdir()
    forget_old_runs(tmp_path, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["17", "18", "19", "mine"]


async def test_a_stamped_line_carries_its_time() -> None:
    read_end, write_end = os.pipe()
    sink = Kept()
    stream = Stream(read_end, sink, None, b"[w0/r0 i2] ", None, stamp=True)
    begun = time.time_ns() // 1_000_000
    os.write(write_end, b"one\ntwo\n")
    await until(lambda: sink.data.count(b"\n") == 2, "both lines", 5.0)
    lines = [re.fullmatch(rb"\[w0/r0 i2 t(\d+)\] (\w+)", line) for line in sink.data.splitlines()]
    assert [line[2] for line in lines if line] == [b"one", b"two"]
    assert all(line and begun <= int(line[1]) <= time.time_ns() // 1_000_000 for line in lines)
    os.close(write_end)
    await until(lambda: stream.eof, "the end", 5.0)
