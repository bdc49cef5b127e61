"""A checkpoint is a safe point only when all of it is there, and only for the run that wrote it."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from aegis_agent.ckpt.layouts import complete
from aegis_agent.ckpt.tree import DiskTree
from aegis_agent.ckpt.watch import News, find_folder


def torch_file(path: Path) -> None:
    """What torch.save writes: a zip file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)


def safetensors(path: Path) -> None:
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 40)


def megatron(root: Path, step: int) -> list[Path]:
    """Written in this order; the last one makes it complete."""
    folder = root / f"iter_{step:07d}"
    files = [folder / "mp_rank_00" / "model_optim_rng.pt", folder / "mp_rank_01" / "model_optim_rng.pt"]
    for path in files:
        torch_file(path)
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))
    return [*files, root / "latest_checkpointed_iteration.txt"]


def megatron_dist(root: Path, step: int) -> list[Path]:
    folder = root / f"iter_{step:07d}"
    torch_file(folder / "common.pt")
    (folder / "__0_0.distcp").write_bytes(b"data")
    (folder / ".metadata").write_bytes(b"\x80\x04.")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (root / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")
    return [folder / "common.pt", root / "latest_checkpointed_iteration.txt"]


def deepspeed(root: Path, step: int) -> list[Path]:
    tag = f"global_step{step}"
    files = [root / tag / "mp_rank_00_model_states.pt", root / tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    for path in files:
        torch_file(path)
    (root / "latest").write_text(tag)
    return [*files, root / "latest"]


def dcp(root: Path, step: int) -> list[Path]:
    folder = root / f"step-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        (folder / f"__{rank}_0.distcp").write_bytes(b"data")
    (folder / ".metadata").write_bytes(b"\x80\x04}.")
    return [folder / ".metadata"]


def huggingface(root: Path, step: int) -> list[Path]:
    folder = root / f"checkpoint-{step}"
    for shard in (1, 2):
        safetensors(folder / f"model-0000{shard}-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    torch_file(folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "optimizer.pt", "trainer_state.json"]
    return [folder / name for name in files]


LAYOUTS: dict[str, Callable[[Path, int], list[Path]]] = {
    "megatron": megatron,
    "megatron_dist": megatron_dist,
    "deepspeed": deepspeed,
    "dcp": dcp,
    "huggingface": huggingface,
}


def steps(root: Path) -> list[int]:
    return [one.step for one in complete(DiskTree(root))]


@pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS)
def test_each_layout_is_known_when_complete(write: Callable[[Path, int], list[Path]], tmp_path: Path) -> None:
    assert steps(tmp_path) == []
    write(tmp_path, 500)
    assert steps(tmp_path) == [500]
    write(tmp_path, 1000)
    assert steps(tmp_path)[-1] == 1000


@pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS)
def test_one_that_was_killed_in_mid_save_is_no_safe_point(write: Callable[[Path, int], list[Path]], tmp_path: Path) -> None:
    """Killed before, at and after the begin of each file: what comes later is not there. Also: all is there, but one file is shorter than it was."""
    (tmp_path / "a").mkdir()
    count = len(write(tmp_path / "a", 500))
    for number in range(count):
        for damage in ("absent", "empty", "cut"):
            for later in ("absent", "there"):
                if (damage, later) == ("absent", "there") and number < count - 1:
                    continue  # which files belong to it, only the framework knows; they were all there when the last was written
                root = tmp_path / f"{number}-{damage}-{later}"
                root.mkdir()
                files = write(root, 500)
                data = files[number].read_bytes()
                if damage == "absent":
                    files[number].unlink()
                else:
                    files[number].write_bytes(b"" if damage == "empty" else data[: len(data) // 2])
                for path in files[number + 1 :] if later == "absent" else []:
                    path.unlink()
                assert steps(root) == [], (files[number], damage, later)


@pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS)
def test_nothing_that_lies_there_makes_it_raise(write: Callable[[Path, int], list[Path]], tmp_path: Path) -> None:
    """Every file cut at every quarter, replaced by junk, by a folder, by a fifo, by a link to itself."""
    for number, victim in enumerate(write(tmp_path, 500)):
        data = victim.read_bytes()
        for cut in (0, len(data) // 4, len(data) // 2, len(data) - 1):
            victim.write_bytes(data[:cut])
            steps(tmp_path)
        victim.write_bytes(b"\xff" * 100)
        steps(tmp_path)
        victim.unlink()
        os.mkfifo(victim)
        steps(tmp_path)
        victim.unlink()
        victim.symlink_to(victim)
        steps(tmp_path)
        victim.unlink()
        victim.mkdir()
        steps(tmp_path)
        victim.rmdir()
        victim.write_bytes(data)
        assert steps(tmp_path) == [500], number


def test_a_release_of_weights_is_no_step(tmp_path: Path) -> None:
    torch_file(tmp_path / "release" / "mp_rank_00" / "model_optim_rng.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert steps(tmp_path) == []


@pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS)
def test_what_an_earlier_incarnation_left_is_no_news_of_this_one(write: Callable[[Path, int], list[Path]], tmp_path: Path) -> None:
    write(tmp_path, 500)
    news = News()
    assert news.look(DiskTree(tmp_path)) == []
    assert news.look(DiskTree(tmp_path)) == []
    last = write(tmp_path, 600)[-1]
    assert [one.step for one in news.look(DiskTree(tmp_path)) if one.step > 500] == [600]
    assert news.look(DiskTree(tmp_path)) == []
    told = last.stat()
    os.utime(last, ns=(told.st_atime_ns, told.st_mtime_ns + 1))  # the same step saved anew after a restart
    assert [one.step for one in news.look(DiskTree(tmp_path))] == [600]


@pytest.mark.parametrize(
    ("named", "command", "folder"),
    [
        ("ckpt", ("python", "train.py"), "/w/ckpt"),
        ("/abs", ("python", "train.py", "--save", "x"), "/abs"),
        ("", ("python", "pretrain_gpt.py", "--save", "/c/gpt", "--load", "/c/gpt"), "/c/gpt"),
        ("auto", ("sh", "-c", "python run.py --output_dir=out --x 1"), "/w/out"),
        ("", ("sh", "-c", "python run.py --output_dir=$OUT"), None),
        ("", ("python", "train.py", "--save"), None),
        ("", ("sh", "-c", 'unbalanced "'), None),
    ],
)
def test_the_folder_is_found_in_the_job_or_on_the_command_line(named: str, command: tuple[str, ...], folder: str | None) -> None:
    found = find_folder(named, command, "/w")
    assert (str(found) if found is not None else None) == folder
