"""Nested launchers: recognised where they are the command, and only there."""

from __future__ import annotations

import pytest
from aegis_agent.nested import detect, with_flags

VALUES = dict(workers=4, index=2, world=32, address="10.0.0.1", port=23456)


def sh(text: str) -> list[str]:
    return ["bash", "-c", text]


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["torchrun", "train.py"], "torchrun"),
        (["/opt/venv/bin/torchrun", "--nproc-per-node=8", "train.py"], "torchrun"),
        (["python", "-m", "torch.distributed.run", "train.py"], "torch.distributed.run"),
        (["python3.11", "-u", "-X", "dev", "-m", "torch.distributed.launch", "train.py"], "torch.distributed.launch"),
        (["accelerate", "launch", "train.py"], "accelerate"),
        (["python", "-m", "accelerate.commands.launch", "train.py"], "accelerate"),
        (["deepspeed", "--num_gpus=8", "train.py"], "deepspeed"),
        (sh("torchrun train.py"), "torchrun"),
        (sh("cd /work && export A=1; NCCL_DEBUG=INFO torchrun --nnodes=2 train.py --x 1"), "torchrun"),
        (sh("exec numactl --cpunodebind=0 --membind=0 torchrun train.py 2>&1 | tee log"), "torchrun"),
        (sh("set -e\npip install x\ntorchrun \\\n  --nproc-per-node 8 \\\n  train.py\n"), "torchrun"),
        (["env", "A=1", "nice", "-n", "5", "timeout", "-s", "INT", "3600", "torchrun", "train.py"], "torchrun"),
        (["/bin/sh", "-ec", "python -m torch.distributed.run train.py"], "torch.distributed.run"),
    ],
)
def test_a_launcher_is_recognised(argv: list[str], name: str) -> None:
    found = detect(argv)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    "argv",
    [
        ["python", "train.py"],
        ["python", "-m", "train"],
        ["python", "train.py", "-m", "torch.distributed.run"],
        sh("echo torchrun train.py"),
        sh("python train.py --launcher torchrun"),
        sh("grep torchrun log; python train.py"),
        ["accelerate", "config"],
        sh("python 'unclosed"),
        sh(""),
        [],
    ],
)
def test_what_only_looks_like_one_is_not(argv: list[str]) -> None:
    assert detect(argv) is None


@pytest.mark.parametrize("text", ["--max-restarts=3", "--max-restarts 3", "--max_restarts=3", "--max_restarts 3"])
def test_its_own_restarts_are_warned_of(text: str) -> None:
    found = detect(sh(f"torchrun --nnodes=1 {text} train.py"))
    assert found is not None and found.warning is not None
    assert found.warning.startswith("E112 the command starts torchrun --max-restarts=3: two budgets would multiply.")


def test_the_warning_proposes_the_launchers_own_number_of_processes() -> None:
    found = detect(["torchrun", "--nproc_per_node", "4", "--max-restarts=3", "t.py"])
    assert found is not None and found.warning is not None and found.warning.endswith("use --nproc-per-node 4")


def test_no_restarts_no_warning() -> None:
    for argv in (["torchrun", "--max-restarts=0", "t.py"], ["torchrun", "t.py"]):
        found = detect(argv)
        assert found is not None and found.warning is None


def test_restarts_given_by_environment_are_warned_of() -> None:
    found = detect(["torchrun", "t.py"], {"PET_MAX_RESTARTS": "2"})
    assert found is not None and found.warning is not None and "--max-restarts=2" in found.warning


def test_torchrun_needs_no_flags() -> None:
    argv = sh("torchrun train.py")
    found = detect(argv)
    assert found is not None and found.pet and with_flags(argv, found, VALUES) == argv


def test_accelerate_is_told_its_world_by_flags() -> None:
    argv = ["accelerate", "launch", "--mixed_precision", "bf16", "train.py"]
    found = detect(argv)
    assert found is not None
    told = with_flags(argv, found, VALUES)
    assert told[:2] == ["accelerate", "launch"] and told[12:] == argv[2:]
    assert dict(zip(told[2:12:2], told[3:12:2], strict=True)) == {
        "--num_machines": "4",
        "--machine_rank": "2",
        "--num_processes": "32",
        "--main_process_ip": "10.0.0.1",
        "--main_process_port": "23456",
    }


def test_flags_the_user_gave_stay() -> None:
    argv = ["accelerate", "launch", "--num-processes=16", "--main_process_port", "1", "t.py"]
    found = detect(argv)
    assert found is not None
    told = with_flags(argv, found, VALUES)
    assert "--num_processes" not in told and told.count("--main_process_port") == 1 and "--machine_rank" in told


def test_flags_go_into_a_shell_text_right_behind_the_launcher() -> None:
    argv = sh("cd /w && A=1 deepspeed --num_gpus 8 train.py > log")
    found = detect(argv)
    assert found is not None
    assert with_flags(argv, found, VALUES)[2] == "cd /w && A=1 deepspeed --master_addr 10.0.0.1 --master_port 23456 --num_gpus 8 train.py > log"


def test_a_text_in_which_the_place_is_not_sure_is_left_alone() -> None:
    argv = sh("deepspeed a.py; deepspeed b.py")
    found = detect(argv)
    assert found is not None and with_flags(argv, found, VALUES) == argv
