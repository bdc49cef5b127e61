"""What a job file may say, and with which words it is refused."""

from __future__ import annotations

import json

import pytest
from aegis_proto.job import MAX_SPEC_BYTES, SpecError, duration, nested_restarts, parse, validate
from aegis_proto.state import JobSpec

AEGIS_JOB = """
apiVersion: aegis/v1
kind: AegisJob
metadata: {name: ddp, namespace: ml, labels: {team: a}}
spec:
  workerNum: 4
  nprocPerNode: 8
  maxRetry: 10
  command: python train.py
  env: {LR: 0.1, DEBUG: true}
  hangTimeout: 10min
"""


def good(**changes: object) -> JobSpec:
    return JobSpec(**{"name": "ddp", "command": ("python", "train.py"), **changes})  # type: ignore[arg-type]


def test_the_object_that_kubectl_takes_and_its_flat_form_are_the_same_job() -> None:
    spec = parse(AEGIS_JOB)
    flat = dict(name="ddp", namespace="ml", labels={"team": "a"}, workers=4, nprocPerNode=8, maxRetry=10, command=["sh", "-c", "python train.py"])
    assert spec == parse(json.dumps({**flat, "env": {"LR": "0.1", "DEBUG": "true"}, "hangTimeout": 600}))
    assert (spec.workers, spec.hangTimeout, spec.env) == (4, 600.0, {"LR": "0.1", "DEBUG": "true"})


def test_a_namespace_is_filled_in_only_where_none_is_given() -> None:
    assert parse("name: a\ncommand: x", namespace="ml").namespace == "ml"
    assert parse("name: a\ncommand: x\nnamespace: other", namespace="ml").namespace == "other"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (dict(name="Llama_70B"), 'E110 job name "Llama_70B": use a-z, 0-9 and -, at most 40. Nearest: llama-70b'),
        (dict(name="x" * 41), "E110 job name"),
        (dict(namespace="ML"), 'E110 namespace "ML"'),
        (dict(workers=0), "E116 workers 0 is out of range: 1 to 20000"),
        (dict(workers=20001), "E116 workers 20001 is out of range: 1 to 20000"),
        (dict(maxRetry=-1), "E116 maxRetry -1 is out of range: 0 to 1000000"),
        (dict(maxRetry=1_000_001), "E116 maxRetry 1000001 is out of range: 0 to 1000000"),
        (dict(nprocPerNode=0), "E116 nprocPerNode 0 is out of range"),
        (dict(stopGrace=float("nan")), "E116 stopGrace nan s is out of range"),
        (dict(hangTimeout=float("inf")), "E116 hangTimeout inf s is out of range"),
        (dict(command=()), "E116 command is empty"),
        (dict(env={"1A": "x"}), 'E116 env "1A"'),
        (dict(env={"AEGIS_JOB": "x"}), "E116 env"),
        (dict(env={"A": "x\0y"}), "E116 command, cwd and env must not contain NUL"),
        (dict(riskTolerance="max"), 'E116 riskTolerance "max": expected one of low, normal, high'),
        (dict(exclude=("Node 1",)), 'E110 exclude "Node 1"'),
        (dict(masterPortRange=(30000, 20000)), "E116 masterPortRange 30000-20000"),
        (dict(gpuType="H100\n"), "E116 gpuType"),
        (
            dict(command=("torchrun", "--nproc_per_node", "4", "--max-restarts=3", "t.py")),
            "E112 the command starts torchrun --max-restarts=3: two budgets would multiply. Set it to 0, or drop torchrun and use --nproc-per-node 4",
        ),
        (
            dict(command=("torchrun", "--nproc-per-node=gpu", "--max-restarts=3", "t.py")),
            "E112 the command starts torchrun --max-restarts=3: two budgets would multiply. Set it to 0, or drop torchrun and use "
            "--nproc-per-node auto",
        ),
        (
            dict(command=("torchrun", "t.py"), env={"PET_MAX_RESTARTS": "2"}),
            "E112 the command starts torchrun --max-restarts=2: two budgets would multiply. Set it to 0, or drop torchrun and use --nproc-per-node 1",
        ),
        (
            dict(command=("torchrun", "--nnodes=2", "--max-restarts=3", "t.py"), nprocPerNode=8),
            "E112 the command starts torchrun --max-restarts=3: two budgets would multiply. Set it to 0, or drop torchrun and use --nproc-per-node 8",
        ),
        (dict(env={"A": "x" * MAX_SPEC_BYTES}), "E116 the specification has"),
    ],
)
def test_a_bad_value_is_refused_with_its_code_field_and_range(changes: dict[str, object], text: str) -> None:
    problems = validate(good(**changes))
    assert len(problems) == 1
    assert problems[0].message.startswith(text)
    assert problems[0].message.startswith(problems[0].code)


@pytest.mark.parametrize("changes", [dict(workers=1), dict(workers=20000), dict(maxRetry=0), dict(maxRetry=1_000_000), dict(name="a" * 40)])
def test_the_ends_of_each_range_are_allowed(changes: dict[str, object]) -> None:
    assert validate(good(**changes)) == []


def test_every_problem_is_named_not_only_the_first() -> None:
    with pytest.raises(SpecError) as refused:
        parse("name: Big\nworkers: 0\nmaxRetry: -5\ncommand: x")
    assert [problem.code for problem in refused.value.problems] == ["E110", "E116", "E116"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\ncommand: x\nworkrs: 3", "E117 unknown field workrs. Did you mean workers?"),
        ("name: a\ncommand: x\nhangTimeout: soon", 'E117 hangTimeout "soon"'),
        ("name: a\ncommand: x\nworkers: three", "E117 "),
        ("name: a\ncommand: {a: b}", "E117 command"),
        ("- 1\n- 2", "E117 a job file is a mapping"),
        ("a: [", "E117 the job file is not YAML or JSON"),
        ("kind: PyTorchJob\napiVersion: kubeflow.org/v1\nspec: {}", 'E117 "PyTorchJob"'),
        ("command: x", "E110 the job has no name"),
        ("", "E117 a job file is a mapping"),
        ("!!python/object/apply:os.system ['true']", "E117 the job file is not YAML or JSON"),
    ],
)
def test_a_file_that_is_no_job_says_why(text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(text)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("text", "seconds"), [("10min", 600.0), ("1.5h", 5400.0), ("90", 90.0), (5, 5.0), ("250ms", 0.25), ("2d", 172800.0)])
def test_durations_are_read_with_their_unit(text: object, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (("torchrun", "--max-restarts", "2", "t.py"), ("torchrun", 2)),
        (("python", "-m", "torch.distributed.run", "--max_restarts=1", "t.py"), ("torchrun", 1)),
        (("sh", "-c", "exec /usr/bin/torchrun --max-restarts=4 t.py"), ("torchrun", 4)),
        (("torchrun", "--max-restarts=0", "t.py"), None),
        (("accelerate", "launch", "--max_restarts", "2", "t.py"), ("accelerate", 2)),
        (("/opt/bin/accelerate-launch", "--max_restarts=1", "t.py"), ("accelerate", 1)),
        (("python", "-m", "accelerate.commands.launch", "--max_restarts=1", "t.py"), ("accelerate", 1)),
        (("accelerate", "config", "--max_restarts=1"), None),
        (("python", "t.py", "--max-restarts=3"), None),
        (("sh", "-c", "echo 'unbalanced"), None),
    ],
)
def test_a_launcher_with_restarts_of_its_own_is_recognised(command: tuple[str, ...], found: object) -> None:
    assert nested_restarts(command) == found
