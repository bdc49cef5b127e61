"""`aegis job convert`: other kinds of job to an AegisJob that the custom resource takes; what has no place in it is named, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from aegis_cli.convert import NotConvertible, convert
from aegis_cli.main import app
from aegis_proto.job import from_mapping
from typer.testing import CliRunner

CRD = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "kubernetes" / "crds" / "aegisjobs.yaml").read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
TEMPLATE = {"spec": {"restartPolicy": "OnFailure", "containers": [{"name": "pytorch", "image": "x", "command": ["python", "train.py"]}]}}
PYTORCH = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "bert", "namespace": "ml", "uid": "1", "labels": {"kueue.x-k8s.io/queue-name": "gold"}},
    "spec": {
        "nprocPerNode": "8",
        "elasticPolicy": {"maxRestarts": 10, "minReplicas": 2, "rdzvBackend": "c10d"},
        "runPolicy": {"cleanPodPolicy": "None", "suspend": False, "schedulingPolicy": {"minAvailable": 4}, "activeDeadlineSeconds": 3600},
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": TEMPLATE},
            "Worker": {"replicas": 3, "restartPolicy": "OnFailure", "template": TEMPLATE},
        },
    },
}
TRAIN = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": "llama"},
    "spec": {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {"image": "x", "command": ["torchrun", "train.py"], "numNodes": 4, "numProcPerNode": 8, "env": [{"name": "A", "value": "b"}]},
        "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {"serviceAccountName": "sa"}}],
    },
}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "pretrain"},
    "spec": {
        "failurePolicy": {"maxRestarts": 5, "restartStrategy": "BlockingRecreate"},
        "replicatedJobs": [
            {"name": "driver", "replicas": 1, "template": {"spec": {"template": TEMPLATE}}},
            {"name": "workers", "replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 4, "backoffLimit": 0, "template": TEMPLATE}}},
        ],
    },
}
VOLCANO = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "Resnet_50"},
    "spec": {
        "minAvailable": 3,
        "schedulerName": "volcano",
        "queue": "research",
        "maxRetry": 2,
        "plugins": {"pytorch": ["--master=master"]},
        "tasks": [
            {"name": "master", "replicas": 1, "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}], "template": TEMPLATE},
            {"name": "worker", "replicas": 2, "template": TEMPLATE},
        ],
    },
}
RESULTS = [
    (PYTORCH, {"workers": 4, "nprocPerNode": 8, "maxRetry": 10, "cleanPodPolicy": "None", "suspend": False}),
    (TRAIN, {"workers": 4, "nprocPerNode": 8}),
    (JOBSET, {"workers": 8, "maxRetry": 5}),
    (VOLCANO, {"workers": 3, "maxRetry": 2}),
]
DROPPED = {
    "PyTorchJob": [
        "spec.elasticPolicy.minReplicas: 2",
        'spec.runPolicy.schedulingPolicy: {"minAvailable": 4}',
        "spec.runPolicy.activeDeadlineSeconds: 3600",
    ],
    "TrainJob": ["spec.podTemplateOverrides"],
    "JobSet": ["spec.failurePolicy.restartStrategy: BlockingRecreate", "spec.replicatedJobs[0]"],
    "Job": ["spec.queue: research"],
}


@pytest.mark.parametrize(("source", "wanted"), RESULTS, ids=[source["kind"] for source, _ in RESULTS])
def test_a_job_of_another_kind_becomes_one_that_is_taken_and_nothing_goes_unsaid(source: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = convert(source)
    spec = dict(found.job["spec"])
    template = spec.pop("template")
    assert spec == wanted
    assert template["spec"]["containers"][0]["command"][-1] == "train.py" and "restartPolicy" not in template["spec"]
    assert list(found.dropped) == DROPPED[source["kind"]]
    jsonschema.validate(found.job, SCHEMA)
    job = from_mapping(found.job)
    assert (job.workers, job.command[-1]) == (wanted["workers"], "train.py")
    assert job.name == {"Resnet_50": "resnet-50"}.get(source["metadata"]["name"], source["metadata"]["name"])


def test_every_value_of_a_source_is_taken_or_named() -> None:
    source = {**PYTORCH, "spec": {**PYTORCH["spec"], "somethingNew": {"a": [1, {"b": 2}]}}}
    assert 'spec.somethingNew: {"a": [1, {"b": 2}]}' in convert(source).dropped
    masters = {**TEMPLATE, "metadata": {"labels": {"role": "master"}}}
    specs = {**PYTORCH["spec"]["pytorchReplicaSpecs"], "Master": {"template": masters}}
    assert any("Master differs" in note for note in convert({**PYTORCH, "spec": {**PYTORCH["spec"], "pytorchReplicaSpecs": specs}}).notes)


def test_what_is_no_such_job_is_refused_with_what_is_known() -> None:
    for document in ({"kind": "CronJob", "apiVersion": "batch/v1"}, ["x"], {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {}}):
        with pytest.raises(NotConvertible, match="E117"):
            convert(document)


def test_the_command_prints_yaml_and_says_on_stderr_what_was_dropped(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all([VOLCANO]))
    done = CliRunner().invoke(app, ["job", "convert", "-f", str(path)])
    assert done.exit_code == 0, done.stderr
    assert yaml.safe_load(done.stdout)["metadata"]["name"] == "resnet-50"
    assert "dropped  spec.queue: research" in done.stderr
    assert CliRunner().invoke(app, ["job", "convert", "-f", str(path), "--strict"]).exit_code == 1
