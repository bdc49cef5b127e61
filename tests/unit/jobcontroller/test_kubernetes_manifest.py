"""What is created in a cluster, against the schemas that are shipped, and what a user is shown."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from aegis_jobcontroller.kubernetes import manifest, projection
from aegis_jobcontroller.kubernetes.events import events
from aegis_jobcontroller.kubernetes.status import conditions, differs, status
from aegis_jobcontroller.kubernetes.submit import spec_of
from aegis_proto.api import JobDetail, JobSummary, WorkerView
from aegis_proto.job import ALIASES, KUBERNETES_ONLY, SpecError, from_mapping, parse
from aegis_proto.phases import FailedReason, Phase
from aegis_proto.state import ErrorNode, JobSpec, Transition
from clusters import ID, NOW, SITE, UID, aegisjob, job, pod

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
CRDS = DEPLOY / "crds"


def schema(name: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / name).read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def test_the_users_command_is_run_by_the_agent_as_it_was() -> None:
    def runs(*command: str) -> list[str]:
        made = job(pod(), spec={})
        made = type(made)(made.head, made.pods, msgspec.structs.replace(made.spec, command=command))
        found: list[str] = manifest.pod(made, aegisjob(), 0, 1, SITE)["spec"]["containers"][0]["command"]
        return found

    assert runs("python", "train.py", "--name", "a b") == ["/opt/aegis/bin/aegis-agent", "-c", "python train.py --name 'a b'"]
    assert runs("/bin/bash", "-c", "a && b $X") == ["/opt/aegis/bin/aegis-agent", "-c", "a && b $X"]


def test_a_pod_is_the_template_with_what_aegis_needs_and_nothing_else_changed() -> None:
    container = {"name": "train", "image": "x", "command": ["python"], "args": ["t.py"], "env": [{"name": "A", "value": "1"}, {"name": "AEGIS_JOB"}]}
    sidecar = {"name": "logs", "image": "y"}
    template = {
        "metadata": {"labels": {"team": "a", "aegis.train/uid": "no"}},
        "spec": {"containers": [container, sidecar], "nodeSelector": {"gpu": "a"}},
    }
    made = manifest.pod(job(pod(), pod(3)), aegisjob(template=template), 1, 3, SITE)
    spec, labels = made["spec"], made["metadata"]["labels"]
    assert made["metadata"]["name"] == "ddp-abc123-w1-a3" and labels["team"] == "a" and labels["aegis.train/uid"] == UID
    assert spec["restartPolicy"] == "Never" and spec["nodeSelector"] == {"gpu": "a"} and spec["containers"][1] == sidecar
    worker = spec["containers"][0]
    assert "args" not in worker and worker["image"] == "x"
    names = [entry["name"] for entry in worker["env"]]
    assert len(names) == len(set(names)) and names[0] == "A"
    values = {entry["name"]: entry.get("value") for entry in worker["env"]}
    assert (values["AEGIS_JOB"], values["AEGIS_POD"], values["AEGIS_ATTEMPT"], values["AEGIS_WORKERS"]) == ("ddp-abc123", "w1", "3", "2")
    assert spec["initContainers"][0]["image"] == SITE.agent_image
    assert {volume["name"] for volume in spec["volumes"]} == {"aegis-join", "aegis-state", "aegis-agent"}
    assert container["args"] == ["t.py"], "the template itself is left as it was"
    assert made["metadata"]["ownerReferences"][0]["uid"] == UID


def test_every_alternative_of_a_node_affinity_keeps_off_the_bad_nodes() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    given = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zone]}, fields]}}}
    made = manifest.affinity(given, UID, ["h1", "h2"], "h3")
    terms = made["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    forbidden = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["h1", "h2"]}
    assert terms == [{"matchExpressions": [zone, forbidden]}, {**fields, "matchExpressions": [forbidden]}]
    assert "nodeAffinity" not in manifest.affinity({}, UID, [], "")
    assert manifest.affinity({}, UID, ["h1"], "")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [{**forbidden, "values": ["h1"]}]}
    ]


@pytest.mark.parametrize(("minds", "operator"), [(True, "NotIn"), (False, "In")])
def test_doubtful_nodes_are_wished_against_or_for_and_never_forbidden(minds: bool, operator: str) -> None:
    made = manifest.affinity({}, UID, [], "h3", (("h7",), minds))["nodeAffinity"]
    wishes = made.pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert not made and [wish["weight"] for wish in wishes] == [100, 50]
    assert wishes[1]["preference"]["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": operator, "values": ["h7"]}]


def test_a_join_token_is_in_the_secret_of_its_own_pod_alone() -> None:
    made = manifest.secret(job(pod(), pod(2)), aegisjob(), 1, 2, SITE, token="t-1")
    assert made["metadata"]["name"] == "ddp-abc123-w1-a2"
    assert base64.b64decode(made["data"]["token"]) == b"t-1"
    spec = msgspec.json.decode(base64.b64decode(made["data"]["spec.json"]), type=JobSpec)
    assert spec.command == ("python", "train.py")
    pods = str(manifest.pod(job(pod(), pod(2)), aegisjob(), 1, 2, SITE))
    assert "t-1" not in pods and "AEGIS_JOIN_TOKEN'" not in pods


def test_the_schema_of_a_job_has_every_field_of_a_job_file() -> None:
    fields = {field.name for field in msgspec.structs.fields(JobSpec)} - {"namespace"}
    aliases = {alias for alias in ALIASES if alias[0].islower()}
    found = schema("aegisjobs.yaml")["properties"]["spec"]["properties"]
    wanted = fields | aliases | set(KUBERNETES_ONLY)
    assert set(found) == wanted, f"write into {CRDS / 'aegisjobs.yaml'}: {wanted - set(found)}, strike {set(found) - wanted}"


def test_what_is_written_fits_the_schemas() -> None:
    seen = aegisjob(workers=2, maxRetry=1, hangTimeout="10min")
    jsonschema.validate(seen.body, schema("aegisjobs.yaml"))
    for phase, head in (
        (Phase.PENDING, {}),
        (Phase.RUN_COMMAND, {"started": True, "step": 5}),
        (Phase.FAILED, {"started": True, "failedReason": FailedReason.BUDGET}),
    ):
        made = {key: value for key, value in status(job(pod(), pod(), phase=phase, **head), seen, now=NOW).items() if value is not None}
        jsonschema.validate({**seen.body, "status": made}, schema("aegisjobs.yaml"))
    jsonschema.validate(manifest.record(job(pod(), pod()), seen), schema("aegises.yaml"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**seen.body, "spec": {**seen.spec, "workers": 0}}, schema("aegisjobs.yaml"))


def test_one_job_file_serves_every_platform() -> None:
    seen = aegisjob(workers=2, stopGrace="1min", suspend=True, cleanPodPolicy="All")
    here, there = spec_of(seen, ID), from_mapping(dict(seen.body))
    assert msgspec.structs.replace(here, labels={}) == msgspec.structs.replace(there, labels={})
    assert here.command == ("python", "train.py") and here.stopGrace == 60.0 and here.workers == 2
    with pytest.raises(SpecError, match="workerz"):
        spec_of(aegisjob(workerz=2), ID)


def test_a_condition_is_dated_when_it_changes_and_never_empty() -> None:
    first = conditions((), "Running", "", "", NOW)
    assert all(entry["reason"] and entry["message"] for entry in first)
    again = conditions(first, "Running", "", "step 5", NOW + 60_000)
    assert [entry["lastTransitionTime"] for entry in again] == [entry["lastTransitionTime"] for entry in first]
    after = {entry["type"]: entry for entry in conditions(again, "Failed", "MaxRetryExceeded", "spent", NOW + 60_000)}
    assert after["Running"]["status"] == "False" and after["Running"]["lastTransitionTime"] != first[1]["lastTransitionTime"]
    assert after["Failed"]["reason"] == "MaxRetryExceeded"


def test_the_example_is_a_job_here_and_everywhere() -> None:
    text = (DEPLOY / "example.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), schema("aegisjobs.yaml"))
    spec = parse(text)
    assert (spec.workers, spec.nprocPerNode, spec.command) == (4, 8, ("python", "train.py"))


def test_the_record_shows_every_worker_of_a_small_job_and_the_odd_ones_of_a_large_one() -> None:
    summary = JobSummary("j", "j", "ml", "RunCommand", 2, 2, 1, 3, 1)
    workers = [WorkerView(f"w{i}", state="RunCommand", retries=1, ip="10.0.0.1", ts=5) for i in range(600)]
    workers[7] = WorkerView("w7", state="suspect", retries=2, reason="killed", ts=9)
    workers[8] = WorkerView("w8", state="empty", retries=1)
    detail = JobDetail(summary, (), (), (), (ErrorNode("n1", "gpu", 4, "w7"),), "1:1", 7, 0, 0)
    large = projection.status(detail, workers)
    assert set(large["podInfos"]) == {"w7", "w8"} and large["podInfos"]["w8"]["innerPhase"] == "Pending"
    assert large["podInfos"]["w7"] == {
        "podIP": "",
        "innerPhase": "RunCommand",
        "finished": False,
        "retries": 2,
        "lastFailedReason": "killed",
        "updatedTimestamp": 9,
    }
    small = projection.status(detail, workers[:3])
    assert set(small["podInfos"]) == {"w0", "w1", "w2"}
    for made in (large, small):
        record = manifest.record(job(pod(), pod()), aegisjob())
        jsonschema.validate({**record, "status": made}, schema("aegises.yaml"))


def test_only_what_is_other_than_it_was_is_patched() -> None:
    seen = aegisjob()
    whole = status(job(pod(1, "b"), phase=Phase.RUN_COMMAND, started=True), seen, now=NOW)
    have = {key: value for key, value in whole.items() if value is not None}
    assert differs(whole, have) == {}
    assert differs({**whole, "step": 7}, have) == {"step": 7}


def test_every_way_to_fail_has_a_reason_for_users() -> None:
    for reason in FailedReason:
        found = status(job(pod(), phase=Phase.FAILED, failedReason=reason), aegisjob())
        assert found["reason"] and found["phase"] == "Failed"


def test_each_decision_is_one_event_whoever_tells_it_and_old_ones_are_no_news() -> None:
    def step(ago: int, cause: str, counted: bool = False, **more: Any) -> Transition:
        at = (NOW - ago, Phase.RUN_COMMAND, Phase.RESTARTING, 4, 1, 1, "1:0")
        return Transition(*at, cause, counted=counted, **more)

    steps = (step(700_000, "killed"), step(5_000, "nodeLost", True, podName="w0", nodeName="n1", message="n1 is off"), step(1, "ready"))
    made = job(pod(), recent=steps, failures=1)
    first, second = list(events(made, aegisjob(), NOW)), list(events(made, aegisjob(), NOW + 10))
    assert [name for name, _ in first] == [name for name, _ in second] and len({name for name, _ in first}) == 2
    lost, ready = first[0][1], first[1][1]
    assert (lost["reason"], lost["type"], lost["message"]) == ("NodeLost", "Warning", "w0 on n1: n1 is off (counted)")
    assert (ready["reason"], ready["type"]) == ("Ready", "Normal")
    assert lost["involvedObject"]["uid"] == UID and all(value for value in lost.values())


def test_the_pods_of_a_job_in_a_queue_are_one_group_of_it() -> None:
    seen = aegisjob()
    seen.body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}  # type: ignore[index]
    metadata = manifest.pod(job(pod(), pod()), seen, 1, 1, SITE)["metadata"]
    assert {key: value for key, value in metadata["labels"].items() if "kueue" in key} == {
        "kueue.x-k8s.io/queue-name": "research",
        "kueue.x-k8s.io/pod-group-name": "ddp-abc123",
    }
    assert metadata["annotations"] == {"kueue.x-k8s.io/pod-group-total-count": "2"}
    assert "annotations" not in manifest.pod(job(pod()), aegisjob(), 0, 1, SITE)["metadata"]
