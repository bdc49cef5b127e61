"""Every test here runs in UTC, unless it names another zone; those that ask for `aegis` share one real stack per module, of two virtual nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aegis_cli.stack import client as stacks
from aegis_cli.stack import guard
from cli_process import Aegis


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cli") / "stack"
    stack = stacks.join(folder, nodes=2, pin=True)
    stack.leave()
    yield folder
    mark = stack.info["mark"]
    stacks.end(folder)
    assert not guard.marked(mark)


@pytest.fixture
def environ(base: Path, tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AEGIS_")}
    return {**kept, "AEGIS_STACK_DIR": str(base), "HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def aegis(environ: dict[str, str], tmp_path: Path) -> Aegis:
    folder = tmp_path / "work"
    folder.mkdir()
    return Aegis(environ, folder)
