"""Every file here is a story: a title that tells it, commands, and under `----` what the phase machine did.

`python -m pytest tests/scenarios --rewrite` writes what it does now; the diff is then read by a person.
"""

from pathlib import Path

import pytest
from scenario_player import play

HERE = Path(__file__).parent
STORIES = sorted(HERE.glob("*.txt"))


def test_there_are_stories() -> None:
    assert len(STORIES) >= 20


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    played = play(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played)
    assert played == path.read_text()
