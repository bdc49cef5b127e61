"""The environment of ranks: what torchrun, Kubeflow and PET users expect, and never a secret."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aegis_agent.env import RunPlan, bare_environment, nested_environment, rank_environment, without_secrets
from aegis_agent.nested import detect

PLAN = RunPlan(
    job="ddp-7f3a11",
    pod="w2",
    attempt=3,
    incarnation=4,
    index=2,
    workers=4,
    nproc=8,
    address="10.0.0.1",
    port=23456,
    max_restarts=10,
    scope="uid.w2.3.4",
    socket="/s/control.sock",
    error_dir="/s/logs/4",
    namespace="ml",
    node="cn-3",
)

TORCHRUN = {  # names and values of torch 2.x `_get_env` for rank 1 of node 2 of 4 with 8 ranks each
    "LOCAL_RANK": "1",
    "RANK": "17",
    "GROUP_RANK": "2",
    "ROLE_RANK": "17",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "8",
    "WORLD_SIZE": "32",
    "GROUP_WORLD_SIZE": "4",
    "ROLE_WORLD_SIZE": "32",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "23456",
    "TORCHELASTIC_RESTART_COUNT": "4",
    "TORCHELASTIC_MAX_RESTARTS": "10",
    "TORCHELASTIC_RUN_ID": "ddp-7f3a11-i4",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "TORCHELASTIC_ERROR_FILE": "/s/logs/4/error17.json",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "OMP_NUM_THREADS": "1",
}


def test_a_rank_gets_what_torchrun_gives() -> None:
    env = rank_environment({}, PLAN, 1)
    assert {name: env.get(name) for name in TORCHRUN} == TORCHRUN
    assert env["NODE_RANK"] == "2"
    assert {name: value for name, value in env.items() if name.startswith("AEGIS_")} == {
        "AEGIS_SCOPE": "uid.w2.3.4",
        "AEGIS_JOB": "ddp-7f3a11",
        "AEGIS_NAMESPACE": "ml",
        "AEGIS_POD": "w2",
        "AEGIS_NODE": "cn-3",
        "AEGIS_ATTEMPT": "3",
        "AEGIS_INCARNATION": "4",
        "AEGIS_CONTROL_SOCKET": "/s/control.sock",
    }


def test_pet_users_find_the_node_level_view() -> None:
    env = rank_environment({}, PLAN, 0)
    assert [env[f"PET_{name}"] for name in ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT")] == [
        "4",
        "2",
        "8",
        "10.0.0.1",
        "23456",
    ]
    assert (env["PET_MAX_RESTARTS"], env["PET_RDZV_ID"]) == ("0", "ddp-7f3a11-i4")


def test_the_ranks_of_all_workers_are_a_whole_world() -> None:
    ranks = [rank_environment({}, replace(PLAN, index=index), local)["RANK"] for index in range(4) for local in range(8)]
    assert ranks == [str(number) for number in range(32)]


def test_no_incarnation_meets_the_run_id_of_another() -> None:
    first, second = (rank_environment({}, replace(PLAN, incarnation=number), 0) for number in (0, 1))
    assert first["TORCHELASTIC_RUN_ID"] != second["TORCHELASTIC_RUN_ID"] and first["PET_RDZV_ID"] != second["PET_RDZV_ID"]


@pytest.mark.parametrize(
    "name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "PET_NNODES", "AEGIS_SCOPE"]
)
def test_a_stale_value_of_another_launcher_never_splits_the_world(name: str) -> None:
    assert rank_environment({name: "stale"}, PLAN, 0)[name] != "stale"


@pytest.mark.parametrize(
    "name", ["OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_ERROR_FILE", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES"]
)
def test_tuning_is_the_users(name: str) -> None:
    assert rank_environment({name: "mine"}, PLAN, 0)[name] == "mine"
    assert rank_environment({name: "image"}, replace(PLAN, user={name: "job"}), 0)[name] == "job"


def test_one_rank_keeps_its_threads() -> None:
    assert "OMP_NUM_THREADS" not in rank_environment({}, replace(PLAN, nproc=1), 0)


SECRETS = {
    "AEGIS_JOIN_TOKEN": "t",
    "AEGIS_JOIN_TOKEN_FILE": "/run/t",
    "AEGIS_CREDENTIALS": "c:1",
    "AEGIS_TLS_CA": "/ca",
    "AEGIS_UID": "u",
    "AEGIS_BUS_CREDS": "/creds",
    "AEGIS_BUS_SERVERS": "nats://x",
    "AEGIS_ROOT_SECRET": "x",
    "AEGIS_NKEY_SEED": "SU",
}


def test_no_secret_of_the_agent_reaches_the_command() -> None:
    nested = detect(["torchrun", "x.py"])
    assert nested is not None
    for env in (
        rank_environment(SECRETS, PLAN, 0),
        nested_environment(SECRETS, PLAN, nested),
        bare_environment(SECRETS, "s"),
        without_secrets(SECRETS),
    ):
        assert not set(env) & set(SECRETS)


def test_the_users_own_secrets_do() -> None:
    mine = {"HF_TOKEN": "a", "WANDB_API_KEY": "b", "AWS_SECRET_ACCESS_KEY": "c", "NATS_TOKEN": "d", "NATS_CREDS": "/e", "PATH": "/bin"}
    assert {name: rank_environment(mine, PLAN, 0)[name] for name in mine} == mine


def test_a_nested_launcher_is_told_nodes_and_no_ranks() -> None:
    nested = detect(["torchrun", "train.py"])
    assert nested is not None
    env = nested_environment({"RANK": "7", "WORLD_SIZE": "9", "TORCHELASTIC_RUN_ID": "old"}, PLAN, nested)
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"} & set(env)
    assert (env["PET_NODE_RANK"], env["PET_MASTER_PORT"], env["MASTER_ADDR"]) == ("2", "23456", "10.0.0.1")


def test_the_users_own_rendezvous_wins() -> None:
    nested = detect(["torchrun", "train.py"])
    assert nested is not None
    assert nested_environment({"PET_MAX_RESTARTS": "2"}, PLAN, nested)["PET_MAX_RESTARTS"] == "2"


def test_a_command_nobody_manages_keeps_its_environment() -> None:
    platform = {"RANK": "3", "MASTER_ADDR": "a", "PATH": "/bin"}
    assert bare_environment(platform, "scope") == {**platform, "AEGIS_SCOPE": "scope"}
