"""The kernel's log as the checks see it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from aegis_agent.checks import kernellog
from check_machine import kernel_record


def test_records_become_stamped_lines_without_their_dictionary(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("4,0,1500000,-;mlx5_core 0000:3b:00.0: health compromised\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n4,1,2000000,-;next\n")
    assert kernellog.read(str(log)) == (("[    1.500000] mlx5_core 0000:3b:00.0: health compromised", "[    2.000000] next"), "", True)


def test_a_ring_that_has_turned_over_says_so(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("4,5120,1500000,-;text\n")
    assert kernellog.read(str(log)).whole is False


def test_a_log_that_may_not_be_read_is_unknown_and_no_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        log = kernellog.read(str(path))
        assert log.lines == () and str(path) in log.why and not log.whole


def test_reading_never_waits_for_the_next_line(tmp_path: Path) -> None:
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)  # a writer stays: a read that waits would wait for ever
    os.write(held, b"4,0,1500000,-;only line\n")
    try:
        assert kernellog.read(str(pipe)).lines == ("[    1.500000] only line",)
    finally:
        os.close(held)


def test_the_age_of_a_line_is_told_by_its_stamp(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(kernel_record("now"))
    age = kernellog.age(kernellog.read(str(log)).lines[0])
    assert age is not None and 0 <= age < 60
    assert kernellog.age("Nov 30 01:00:00 node kernel: text") is None


def test_a_file_speaks_of_the_latest_boot_and_of_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kern.log"
    old, boot, new = "[  900.000000] NVRM: Xid (PCI:0000:3b:00): 79, lost\n", "[    0.000000] Linux version 6.1.0-13-amd64 (gcc)\n", "[    5.0] new\n"
    for before in ("", "Nov 30 01:00:00 node kernel: "):
        log.write_text("".join(before + line for line in (boot, old, boot, new)))
        assert kernellog.read(str(log)) == ((before + boot.rstrip(), before + new.rstrip()), "", True)
    monkeypatch.setattr(kernellog, "MOST_BYTES", 100)
    log.write_text(boot + "[    1.0] line\n" * 1000 + new)
    found = kernellog.read(str(log))
    assert found.lines[-1] == new.rstrip() and set(found.lines[:-1]) == {"[    1.0] line"} and not found.whole
