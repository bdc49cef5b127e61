"""Times: local for people, RFC 3339 in UTC for programs; one rule for every screen and every document."""

from __future__ import annotations

import json
import re
import time

import msgspec
import pytest
from aegis_cli import outcome, screen, times, why
from aegis_cli.commands import job
from aegis_cli.output import Output
from aegis_proto.messages import Verdict
from cli_data import BEGAN, detail, event, with_error_node


@pytest.fixture
def kolkata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()


def test_people_read_local_time_with_the_offset_where_the_day_matters(kolkata: None) -> None:
    assert times.clock(BEGAN / 1000) == "01:56:40"
    assert times.moment(BEGAN / 1000) == "2026-11-30 01:56:40+05:30"
    assert times.clock_of("2026-11-29T20:26:40.123Z") == "01:56:40"
    assert times.moment_of("2026-11-29T20:26:40.123Z") == "2026-11-30 01:56:40+05:30"
    assert times.clock_of("") == "--:--:--"


def test_live_screen_lines_and_why_say_the_same_time(kolkata: None) -> None:
    happened = event(5, "all passed, run")
    told = why.render(why.explain(detail(), [happened], None)).splitlines()[-1]
    assert {screen.event_line(happened).plain[:8], screen.plain(happened)[:8], told[:8]} == {"02:00:05"}


def test_programs_read_rfc_3339_in_utc(kolkata: None, capsys: pytest.CaptureFixture[str]) -> None:
    shown = with_error_node(detail())
    shown = msgspec.structs.replace(shown, summary=msgspec.structs.replace(shown.summary, checkpointAt=shown.summary.createdAt, ettr=0.941))
    Output("json").document("Job", shown)
    assert re.search(r"   checkpoint \S+ ago   ETTR 0\.94\n", job.header(shown)) and "ETTR" not in job.header(detail())
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["createdAt"] == found["summary"]["checkpointAt"] == "2026-11-29T20:26:40.000Z"
    assert found["summary"]["phaseSince"] == "2026-11-29T20:41:50.000Z"
    assert found["transitions"][0]["timeStamp"] == "2026-11-29T20:26:42.000Z"
    assert found["errorNodes"][0]["timeStamp"] == "2026-11-29T20:26:41.000Z"
    report = outcome.report(with_error_node(detail()))
    assert report["phases"][0]["time"] == "2026-11-29T20:26:42.000Z"
    assert report["errorNodes"][0]["time"] == "2026-11-29T20:26:41.000Z"
    assert why.explain(detail(), [], None).lines[0].time == "2026-11-29T20:26:42.000Z"


def test_what_has_no_time_is_null_and_numbers_that_are_no_times_stay() -> None:
    assert times.for_programs({"until": 0, "items": [{"ts": 1000, "retries": 1000}], "until2": 5}) == {
        "until": None,
        "items": [{"ts": "1970-01-01T00:00:01.000Z", "retries": 1000}],
        "until2": 5,
    }


def test_a_verdict_stands_in_the_story_where_it_was_found() -> None:
    found = times.of_text("2026-11-29T20:30:07Z")
    assert found is not None
    verdict = Verdict("x-0", "lognexus", "user_code", sentence="w1/r1: KeyError", confidence=0.7, missing=("no flight records",), incarnation=0)
    verdict = msgspec.structs.replace(verdict, at=int(found * 1000))
    lines = why.explain(detail(), [event(5, "w1 failed", counted=True), event(9, "all run")], None, verdicts=(verdict,)).lines
    assert [line.what for line in lines] == ["w1 failed", "w1/r1: KeyError", "all run"]
    assert (lines[1].who, lines[1].evidence) == ("lognexus", "user_code, confidence 70%; not at hand: no flight records")
