"""No text makes a parser raise, and damage never reads as health without a trace of it."""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec
import pytest
from aegis_parsers import PARSERS, Parsed, UnknownTool, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LIMIT = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def whole(parsed: Parsed) -> Parsed:
    """What must hold of any answer: it is JSON, it has said something, and our own defect is not hidden in it."""
    msgspec.json.encode(parsed)
    assert parsed.items or parsed.findings or parsed.unreadable
    assert not [text for text in parsed.unreadable if text.startswith("parser failed")]
    return parsed


def damaged(text: str, rng: random.Random) -> list[str]:
    lines = text.split("\n")
    shuffled = rng.sample(lines, len(lines))
    raw = bytearray(text.encode())
    for _ in range(max(1, len(raw) // 50)):
        raw[rng.randrange(len(raw))] = rng.randrange(256)
    return [
        text[: rng.randrange(len(text))],
        text[rng.randrange(len(text)) :],
        "\n".join(shuffled),
        raw.decode("utf-8", "replace"),
        "\n".join(line[: rng.randrange(len(line) + 1)] for line in lines),
        text.replace(" ", ""),
        "\n".join(line + line[::-1] for line in lines[:50]),
    ]


def test_no_damage_to_a_sample_raises(shared: Path) -> None:
    rng = random.Random(7)
    for path in sorted([*(shared / "tools").glob("*.*"), *(shared / "net").rglob("*.*")]):
        text = path.read_text(errors="replace")[:20_000]
        if not text:
            continue
        tool = parse("auto", text).tool
        for broken in damaged(text, rng):
            whole(parse("auto", broken))
            if tool != "unknown":
                whole(parse(tool, broken))


def test_a_cut_json_is_never_healthy(shared: Path) -> None:
    text = (shared / "net/mlxlink/eth400_healthy.json").read_text()
    assert all(parse("mlxlink", text[:end]).health == "unknown" for end in range(0, len(text.rstrip()) - 1, 7))


def test_a_half_row_is_never_healthy(shared: Path) -> None:
    lines = (shared / "tools/nvidia-smi-table-ok-v100.txt").read_text().split("\n")
    assert parse("nvidia-smi", "\n".join(lines[:12])).health == "unknown"


@pytest.mark.parametrize("tool", sorted(PARSERS))
def test_every_parser_takes_every_other_tool_s_output(shared: Path, tool: str) -> None:
    for path in sorted((shared / "tools").glob("*.*")):
        whole(parse(tool, path.read_text()))


@pytest.mark.parametrize("tool", sorted(PARSERS))
def test_no_text_at_all_is_unknown(tool: str) -> None:
    for text in ("", "\n\n", "\x00\x01\x02", "garbage of no tool"):
        parsed = whole(parse(tool, text))
        assert parsed.health == "unknown"


@LIMIT
@given(st.sampled_from(sorted(PARSERS)), st.text(max_size=300))
def test_no_text_raises(tool: str, text: str) -> None:
    whole(parse(tool, text))


@LIMIT
@given(st.sampled_from(sorted(PARSERS)), st.binary(max_size=300))
def test_no_bytes_raise(tool: str, raw: bytes) -> None:
    whole(parse(tool, raw))


def test_a_line_of_a_megabyte_is_cut_and_said_to_be() -> None:
    for tool in PARSERS:
        parsed = whole(parse(tool, "| 0 " + "A1:/ " * 200_000 + "|\nGPU 0: x (UUID: y)"))
        assert parsed.health != "healthy" or not PARSERS[tool].lined


NASTY = (
    "| 0 A" + " " * 4000 + "| x",
    "|" * 4000,
    "1" * 4000,
    ("1" + " " * 1300) * 3 + "x",
    "(" * 4000,
    " " * 4000 + "x",
    "a:" * 2000,
    '"a" ' * 1000,
    "==( " * 1000,
    "[a] " * 1000,
    "aA_" * 1300,
)


@pytest.mark.parametrize("tool", [*sorted(PARSERS), "auto"])
def test_no_line_makes_a_parser_slow(tool: str) -> None:
    slowest = 0.0
    for line in NASTY:
        begin = time.process_time()
        parse(tool, line)
        slowest = max(slowest, time.process_time() - begin)
    assert slowest < 1.0


def test_a_text_of_terminal_control_is_shown_harmless() -> None:
    parsed = parse("nvidia-smi", "Failed to initialize NVML: \x1b[31mUnknown Error\x07")
    assert "\x1b" not in parsed.findings[0].evidence


def test_a_name_of_nobody_names_the_nearest() -> None:
    with pytest.raises(UnknownTool, match="did you mean ibstat"):
        parse("ibsta", "x")
