"""The folder of the saver: a checkpoint is complete only when all of it is there; an earlier incarnation is refused."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from aegis_saver.folder import Manifest, Refused, claim, commit, complete, prune, run_id, sizes


def part(folder: Path, name: str, data: bytes = b"x" * 10) -> str:
    target = folder / "parts" / name
    target.mkdir(parents=True)
    (target / "__0_0.distcp").write_bytes(data)
    (target / ".metadata").write_bytes(b"m")
    return name


def test_a_checkpoint_is_complete_only_with_every_file_whole(tmp_path: Path) -> None:
    name = part(tmp_path, "fault-j-i0-10")
    commit(tmp_path, Manifest("fault-j-i0", 0, 10, {"a": name}, sizes(tmp_path, name)))
    assert [one.step for one in complete(tmp_path)] == [10]
    (tmp_path / "parts" / name / "__0_0.distcp").write_bytes(b"x" * 9)
    assert complete(tmp_path) == []
    (tmp_path / "step-000000020.json").write_text('{"v": 1, "run": "x"')
    assert complete(tmp_path) == []


def test_what_no_complete_checkpoint_needs_goes_and_a_save_that_goes_on_stays(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        part(tmp_path, f"fault-j-i0-{step}")
    part(tmp_path, "fault-j-i0-15")  # cut
    for path in (tmp_path / "parts").iterdir():
        os.utime(path, (1, 1))
    for step, holds in ((10, {"a": 10}), (20, {"a": 10, "b": 20}), (30, {"a": 10, "b": 30})):
        keys = {key: f"fault-j-i0-{at}" for key, at in holds.items()}
        files = {name: size for held in set(keys.values()) for name, size in sizes(tmp_path, held).items()}
        commit(tmp_path, Manifest("fault-j-i0", 0, step, keys, files))
    prune(tmp_path, keep=1)
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["fault-j-i0-10", "fault-j-i0-30", "fault-j-i0-40"]
    assert [one.step for one in complete(tmp_path)] == [30]
    shutil.rmtree(tmp_path / "parts" / "fault-j-i0-10")
    assert complete(tmp_path) == [] and prune(tmp_path) == []


def test_an_earlier_incarnation_of_the_job_is_refused(tmp_path: Path) -> None:
    claim(tmp_path, "job-1", 3)
    claim(tmp_path, "job-1", 3)
    with pytest.raises(Refused, match="incarnation 3 of job-1"):
        claim(tmp_path, "job-1", 2)
    claim(tmp_path, "job-2", 0)
    assert run_id({"AEGIS_JOB": "j", "AEGIS_INCARNATION": "4"}) == "fault-j-i4"


@pytest.mark.torch
@pytest.mark.parametrize("fails", ["parts", "manifest"])
def test_a_save_that_failed_raises_holds_nobody_up_and_is_made_good_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("AEGIS_CONTROL_SOCKET", "")
    from aegis_saver import saver as module

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    net = torch.nn.Linear(4, 4)
    one = module.Saver(tmp_path, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    one.save(1)
    one.wait()
    with torch.no_grad():
        net.weight.fill_(7.0)
    with monkeypatch.context() as broken:
        if fails == "manifest":
            broken.setattr(module, "commit", full)
        else:
            broken.setattr("torch.distributed.checkpoint.filesystem.FileSystemWriter.write_data", full)
        one.save(2)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                one.wait()
            except BaseException as error:
                errors.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        waiting.join(20)
        assert len(errors) == 1, "its error is raised, and nobody waits for ever"
    assert [found.step for found in complete(tmp_path)] == [1]
    one.save(3)
    one.wait()
    net.weight.data.zero_()
    assert module.Saver(tmp_path, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1)).start() == 3
    assert torch.all(net.weight == 7.0), "what the failed save was to write is in the next one"


@pytest.mark.torch
def test_a_step_that_is_saved_again_loses_nothing_of_what_was_saved_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("AEGIS_CONTROL_SOCKET", "")
    from aegis_saver import Saver

    net = torch.nn.Linear(4, 4)
    first = Saver(tmp_path, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.5))
    for rate in (0.5, 0.25, 0.125):  # a schedule goes on after the last step was saved
        first.optimizer.param_groups[0]["lr"] = rate
        first.save(10)
        first.wait()
    weights = net.weight.detach().clone()
    net.weight.data.zero_()
    again = Saver(tmp_path, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.0))
    assert again.start() == 10 and torch.equal(net.weight, weights)
    assert again.optimizer.param_groups[0]["lr"] == 0.125
    kept = {path.name for path in (tmp_path / "parts").iterdir()}
    assert len(kept) == 3 and len(prune(tmp_path)) == 1, "what no manifest names any more goes"
