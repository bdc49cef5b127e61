"""What a history says of a whole fleet: causes in the specification's four groups, goodput lost in two orders, and its pictures in every form."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from aegis_cli import codes
from aegis_lemon.history import observe
from aegis_lemon.history import read as read_history
from aegis_lemon.history.causes import GROUPS, causes, group_of
from aegis_lemon.history.loss import goodput_loss, second_share
from aegis_lemon.history.schema import SIGNALS
from harness.commands import aegis, read

JOBS = "job,start,end,nodes,state,failure,blame,cause\n"
EVENTS = "time,node,kind,end,value\n"
DAY = 86_400
LEDGER = "job,state,start,end,stopped,gpus\n"


@pytest.mark.parametrize(
    ("cause", "group"),
    [
        ("gpu_hw", "node_hardware"),
        ("node_hw", "node_hardware"),
        ("xid 79", "node_hardware"),
        ("NHC: gpu xid 94", "node_hardware"),
        ("Hardware", "node_hardware"),
        ("PSU failure", "node_hardware"),
        ("network", "network"),
        ("IB link flapping", "network"),
        ("storage", "software"),
        ("Software", "software"),
        ("Human Error", "software"),
        ("Prolog error", "software"),
        ("host_oom", "contention"),
        ("contention", "contention"),
        ("Facilities", "unknown"),
        ("Not responding", "unknown"),
        ("xid 13", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_cause_falls_into_one_of_the_four_groups_or_is_said_to_be_unknown(cause: str, group: str) -> None:
    assert group_of(cause) == group


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Sixteen nodes over eight days."""
    jobs = [
        f"a,0,{DAY},n0;n1,node_fail,,n0,network",
        f"b,0,{2 * DAY},n2;n3,failed,,,",  # an XID 79 of n2 shortly before: hardware
        f"c,0,{3 * DAY},n4;n5,node_fail,,,contention",  # nobody is named, yet it is known why
        f"d,0,{3 * DAY},n6;n7,node_fail,,n6,",
        f"e,0,{4 * DAY},n8,failed,user,,user_code",  # no failure of ours
        # big fails after ten minutes and comes back half an hour later; small makes room for it, far only ends at the time.
        f"big-0,{5 * DAY},{5 * DAY + 600},n0;n1;n2;n3,node_fail,,n0,gpu_hw",
        f"big-1,{5 * DAY + 2400},{6 * DAY},n1;n2;n3;n4,completed,,,",
        f"small,{4 * DAY},{5 * DAY + 2390},n4,preempted,,,",
        f"far,{4 * DAY},{5 * DAY + 2390},n9,preempted,,,",
        f"early,{4 * DAY},{5 * DAY - 10},n3,preempted,,,",
    ]
    events = [f"{2 * DAY - 60},n2,xid,,79", f"{6 * DAY},n10,outage,{6 * DAY + 3600},Software", f"{7 * DAY},n15,ticket,,"]
    (tmp_path / "jobs.csv").write_text(JOBS + "\n".join(jobs) + "\n")
    (tmp_path / "events.csv").write_text(EVENTS + "\n".join(events) + "\n")
    return tmp_path


def test_every_failure_is_in_one_group_once(fleet: Path) -> None:
    found = {row.group: row for row in causes(observe(read_history(fleet)))}
    assert {group: row.failures for group, row in found.items()} == {
        "node_hardware": 2, "network": 1, "software": 1, "contention": 1, "unknown": 1,
    }  # fmt: skip
    assert sum(row.share for row in found.values()) == pytest.approx(1) and list(found) == list(GROUPS)
    assert found["node_hardware"].causes == (("xid 79", 1), ("gpu_hw", 1)) and found["unknown"].causes == (("nobody told", 1),)
    body = read("lemon", "report", "causes", "--history", str(fleet))
    assert [(row["group"], row["failures"]) for row in body["groups"]] == [(row.group, row.failures) for row in found.values()]
    text = aegis("lemon", "report", "causes", "--history", str(fleet))[1]
    assert "hardware of a node" in text and "33.3%" in text


def test_a_job_that_makes_room_for_one_that_comes_back_is_a_loss_of_second_order(fleet: Path) -> None:
    rows = goodput_loss(read_history(fleet))
    assert [(row.low, row.high, row.failed, row.preempted) for row in rows] == [(2, 2, 4, 0), (3, 4, 1, 1)]
    two, four = rows
    assert two.first == pytest.approx(4 * 1800 * 2 * 8 / 3600)
    assert four.first == pytest.approx(600 * 4 * 8 / 3600)  # it ran ten minutes only
    assert four.second == pytest.approx(1800 * 1 * 8 / 3600)
    assert second_share(rows) == pytest.approx(four.second / (two.first + four.first + four.second))


@pytest.mark.parametrize(
    ("what", "shown"), [("causes", "network"), ("signals", SIGNALS[0]), ("days", "n0"), ("mttf", "HOURS"), ("loss", "PREEMPTED")]
)
def test_every_report_has_a_table_and_a_picture_in_the_terminal(fleet: Path, what: str, shown: str) -> None:
    table, picture = aegis("lemon", "report", what, "--history", str(fleet), "--draw")[1].split("\n\n", 1)
    assert shown in table and len(picture.splitlines()) > 3 and "\x1b" not in picture


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_all_pictures_are_one_page_that_needs_nothing_from_the_net_and_one_png(fleet: Path, tmp_path: Path) -> None:
    page, png = tmp_path / "page.html", tmp_path / "page.png"
    code, _, err = aegis("lemon", "rank", "--history", str(fleet), "--html", str(page), "--png", str(png))
    assert code == 0 and str(page) in err and str(png) in err
    text = page.read_text()
    for name in (*SIGNALS, "Failures by cause", "Failures that name their node", "Mean time to failure", "Goodput lost", "r_f = "):
        assert name in text
    assert "vegaEmbed" in text and "<script src=" not in text and "<link" not in text
    width, height = size(png.read_bytes())
    assert width > 800 and height > 1000


def test_ettr_is_drawn_as_contour_and_against_what_one_rate_gives(tmp_path: Path) -> None:
    png = tmp_path / "contour.png"
    out = aegis("ettr", "contour", "--gpus", "12288", "--points", "20", "--png", str(png), "--draw")[1]
    assert size(png.read_bytes())[0] > 400 and "failures per 1000" in out and "@" in out
    rows = []
    for job, gpus, days in (("small", 64, 8), ("large", 2048, 2)):
        for cycle in range(4):
            at = cycle * days * DAY
            rows += [f"{job},queued,{at},{at + 60},,{gpus}", f"{job},restoring,{at + 60},{at + 360},,{gpus}"]
            rows += [
                f"{job},productive,{at + 360},{at + days * DAY - 1800},,{gpus}",
                f"{job},lost,{at + days * DAY - 1800},{at + days * DAY},1,{gpus}",
            ]
    ledger = tmp_path / "l.csv"
    ledger.write_text(LEDGER + "\n".join(rows) + "\n")
    body = read("ettr", "measured", "--ledger", str(ledger))
    node_days = 8 * 32 + 256 * 8
    assert body["rf"] == pytest.approx(8 / node_days * 1000)
    large = next(row for row in body["groups"] if row["group"] == "1025-2048")
    # Every 3600 s by what was lost, 60 s of queue, 300 s of restart per start (4 failures, 1 run): e^-Lu L dt / (e^(L dt) - 1) / (1 + L q).
    assert large["expected"] == pytest.approx(0.9777, abs=2e-3) and body["groups"][0]["expected"] is None
    assert "ETTR by size of job" in aegis("ettr", "measured", "--ledger", str(ledger), "--draw")[1]


def test_a_plan_reads_saves_restarts_and_failures_of_the_job(tmp_path: Path) -> None:
    rows = ["a,restoring,0,100,,64", "b,productive,0,10,,8"]
    at = 100
    for _ in range(5):
        rows += [f"a,productive,{at},{at + 1000},,64", f"a,saving,{at + 1000},{at + 1020},,64"]
        at += 1020
    rows += [f"a,lost,{at},{at + 500},1,64", f"a,restoring,{at + 500},{at + 700},,64", f"a,productive,{at + 700},{at + 900},,64"]
    ledger = tmp_path / "l.csv"
    ledger.write_text(LEDGER + "\n".join(rows) + "\n")
    body = read("ettr", "plan", "a", "--ledger", str(ledger))
    assert (body["gpus"], body["write"], body["restart"], body["failures"]) == (64, 20, 150, 1)
    assert body["interval_now"] == pytest.approx((5000 + 500 + 200) / 5)
    assert body["interval_low"] < body["interval"] < body["interval_high"]
    assert read("ettr", "plan", "a", "--ledger", str(ledger), "--write", "5")["interval"] < body["interval"]
    for words, said in ((("plan", "--ledger", str(ledger)), "which job"), (("plan", "b", "--ledger", str(ledger)), "--write is not said")):
        code, _, err = aegis("ettr", *words)
        assert code == codes.USAGE and said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lemon", "report", "guesses", "--history", "x"), "causes, signals, days, mttf, loss"),
        (("lemon", "report", "mttf"), "--history DIR"),
        (("lemon", "report", "causes", "--history", "no-such"), "no file or folder"),
        (("ettr", "contour", "--gpus", "8", "--points", "5", "--html", "/no/where.html"), "--html"),
        (("ettr", "contour", "--gpus", "8", "--points", "5", "--png", "/no/where.png"), "--png"),
    ],
)
def test_what_cannot_be_is_a_usage_error(words: tuple[str, ...], said: str) -> None:
    code, out, err = aegis(*words)
    assert (code, out) == (codes.USAGE, "") and said in err
