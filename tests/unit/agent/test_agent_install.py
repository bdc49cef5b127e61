"""`aegis-agent install`: what is put into the folder and what is left alone. That it runs, also without Python: `test_containers.py`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from aegis_agent import install, own
from aegis_agent.main import main

ROOT = Path(__file__).parents[3]


def test_what_goes_along_is_of_the_base_or_of_the_extra_agent() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {text.partition("==")[0] for text in [*project["dependencies"], *project["optional-dependencies"]["agent"]]}
    assert set(install.DISTRIBUTIONS) <= declared
    assert declared - set(install.DISTRIBUTIONS) == {"cryptography", "PyYAML", "zstandard"}, "said in its docstring why not"


def test_a_folder_that_is_not_ours_is_left_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "opt" / "precious"
    kept.parent.mkdir()
    kept.write_text("x")
    assert main(["install", str(kept.parent)]) == 1
    assert "is no installation of ours" in capfd.readouterr().err and kept.read_text() == "x"
    assert main(["install", str(kept.parent), "--print-env"]) == 0
    assert capfd.readouterr().out == f'export PATH="{kept.parent}/bin:$PATH"\n'


def test_a_folder_is_copied_whole_and_an_earlier_one_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    (here / "bin").mkdir(parents=True)
    (here / "bin" / "aegis-agent").write_text("#!/bin/sh\nexit 0\n")
    (here / "bin" / "aegis-agent").chmod(0o755)
    (here / install.MARK).write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(here))
    target = tmp_path / "target"
    for stale in ("first", "second"):
        install.install(target)
        assert (target / "bin" / "aegis-agent").stat().st_mode & 0o777 == 0o755
        (target / stale).touch()
    assert [path.name for path in target.iterdir() if path.name in ("first", "second")] == ["second"]
    assert install.start_up(target, 1) > 0 and install.size(target) > 0
    (target / "bin" / "aegis-agent").write_text("#!/bin/sh\necho no such library >&2; exit 127\n")
    with pytest.raises(install.InstallError, match=r"does not run here \(exit 127\): no such library"):
        install.start_up(target, 1)


def test_a_checkpoint_engine_is_installed_once_and_never_in_the_way(tmp_path: Path) -> None:
    python = tmp_path / "python"
    log = tmp_path / "log"
    python.write_text(
        f'#!/bin/sh\necho "$3 $4" >> {log}\ncase "$3 $4" in "show present") exit 0;; "show "*) exit 1;; *) test "$5" != missing;; esac\n'
    )
    python.chmod(0o755)
    assert install.engine("present==1.0", str(python)) == "present==1.0 is present"
    assert install.engine("absent", str(python)) == "absent installed"
    assert install.engine("missing", str(python)).startswith("missing could not be installed: the training saves by itself")
    assert log.read_text().splitlines() == ["show present", "show absent", "install --no-input", "show missing", "install --no-input"]


def test_what_an_isolated_agent_starts_is_isolated_too() -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}; from aegis_agent import own; print(own.python())"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str([sys.executable, "-I"]) and own.python() == [sys.executable, "-P"]
