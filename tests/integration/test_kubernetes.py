"""Platform `kubernetes` on a real API server, scheduler and controller manager: jobs as users submit them, faults as clusters have them.

The job controller has the rights of the chart; pods run as real processes (`support.kubelet`); everything else is the real stack.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aegis_agent.handover import Exit
from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.resources import AEGISJOBS, EVENTS, PODS, RECORDS, SECRETS
from aegis_jobcontroller.kubernetes.resources import NODES as NODE_OBJECTS
from aegis_jobcontroller.kubernetes.seen import LABEL_RISK
from aegis_proto import subjects
from aegis_proto.api import read_reply
from aegis_proto.api_nodes import TaintAnswer, TaintRequest
from aegis_proto.lemon import Risk
from aegis_proto.messages import encode
from harness.chart import NAMESPACE, render
from harness.waiting import until
from support.controlplane import DEPLOY, KINDS, ControlPlane, documents
from support.house import Child, House, house
from support.kubelet import Kubelet, image

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
ROLES = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
NODES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
TRAIN = """
import os, sys, time
folder = os.environ["WORK"]
name = f"{os.environ['AEGIS_POD']}-i{os.environ['AEGIS_INCARNATION']}"
print("on", os.environ["AEGIS_NODE"], flush=True)
open(f"{folder}/{name}", "w").write(os.environ["AEGIS_NODE"])
while not os.path.exists(f"{folder}/done"):
    if os.path.exists(f"{folder}/fail-{os.environ['AEGIS_POD']}-i{os.environ['AEGIS_INCARNATION']}"):
        sys.exit(3)
    time.sleep(0.05)
"""


@dataclass
class Lab:
    """The cluster, its nodes and the stack beside it."""

    plane: ControlPlane
    kubelet: Kubelet
    stack: House
    folder: Path

    @property
    def api(self) -> Client:
        assert self.plane.admin is not None
        return self.plane.admin

    @property
    def controller(self) -> Child:
        return self.stack.children["k8s"]

    async def submit(self, name: str, workers: int = 2, **spec: Any) -> Path:
        """Create an AegisJob; the folder in which its workers leave what they do."""
        work = self.folder / name
        work.mkdir()
        container = {"name": "train", "image": "any", "command": [sys.executable, "-c", TRAIN], "env": [{"name": "WORK", "value": str(work)}]}
        body = {"apiVersion": AEGISJOBS.api, "kind": "AegisJob", "metadata": {"name": name, "namespace": "default"}}
        fields = {"workers": workers, "maxRetry": 2, "stopGrace": "2s", "preemptGrace": "5s", "template": {"spec": {"containers": [container]}}}
        await self.api.create(AEGISJOBS, "default", {**body, "spec": {**fields, **spec}})
        return work

    async def status(self, name: str) -> dict[str, Any]:
        return dict((await self.api.get(AEGISJOBS, "default", name)).get("status") or {})

    async def when(self, name: str, timeout: float = 60.0, **wanted: Any) -> dict[str, Any]:
        """The first status in which every field of `wanted` is as given."""

        async def there() -> dict[str, Any] | None:
            with contextlib.suppress(KubeError):
                found = await self.status(name)
                return found if all(found.get(key) == value for key, value in wanted.items()) else None
            return None

        try:
            return dict(await until(there, timeout, f"{name}: {wanted}"))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.describe(name)}") from None

    async def job(self, name: str) -> str:
        async def known() -> str:
            return str((await self.status(name)).get("job") or "")

        return str(await until(known, 60, f"{name} has its job"))

    async def pods(self, job: str) -> dict[str, dict[str, Any]]:
        found = await self.api.list(PODS, "default", labelSelector=f"aegis.train/job={job}")
        return {item["metadata"]["name"]: dict(item) for item in found["items"]}

    async def runs(self, work: Path, incarnation: int, workers: int = 2, timeout: float = 60.0) -> dict[str, str]:
        """Worker -> node, once all of them run `incarnation`."""

        def there() -> dict[str, str] | None:
            found = {p.name.split("-")[0]: p.read_text() for p in work.glob(f"w*-i{incarnation}")}
            return found if len(found) == workers and all(found.values()) else None

        try:
            return dict(await until(there, timeout, f"all run incarnation {incarnation}"))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{await self.describe(work.name)}") from None

    async def describe(self, name: str) -> str:
        found = await self.status(name)
        story = await self.stack.describe(found["job"]) if found.get("job") else self.controller.log.read_text()[-3000:]
        return f"status {found}\npods started {self.kubelet.ran}\n{story}\n{self.kubelet.logs()}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    folder = tmp_path_factory.mktemp("k8s")
    plane = ControlPlane(folder / "plane")
    try:
        await plane.start()
        await plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await plane.apply(*(document for path in sorted((DEPLOY / "crds").glob("*.yaml")) for document in documents(path)))
        await plane.apply(*(document for document in render() if document["kind"] in ROLES))
        assert plane.admin is not None
        (folder / "stack").mkdir()
        async with house(folder / "stack", nodes=0, controllers=0) as stack:
            await stack.start_controller("k8s", **controller_settings(plane, stack))
            reader = {"AEGIS_BUS_CREDS": stack.creds("mirror", "reader"), "AEGIS_JOBCONTROLLER_KUBECONFIG": str(plane.kubeconfig("mirror"))}
            await stack.start("mirror", "-m", "aegis_jobcontroller.kubernetes.mirror", env=reader)
            image(folder / "bin", sys.executable)
            environ = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            environ |= {"AEGIS_TEST_HOUSE": str(folder / "stack"), "HOME": str(folder)}
            kubelet = await Kubelet(plane.admin, folder / "pods", NODES, environ).start()
            try:
                yield Lab(plane, kubelet, stack, folder)
            finally:
                await kubelet.stop()
    finally:
        await plane.stop()


def controller_settings(plane: ControlPlane, stack: House) -> dict[str, str]:
    """As a service account with the shipped role."""
    kubeconfig = str(plane.kubeconfig("jobcontroller"))
    return {
        "AEGIS_JOBCONTROLLER_PLATFORM": "kubernetes",
        "AEGIS_JOBCONTROLLER_KUBECONFIG": kubeconfig,
        "AEGIS_CREDENTIALS_TLS_CA": str(stack.site.ca_pem),
    }


async def test_a_killed_command_restarts_in_place_and_the_job_ends_well(lab: Lab) -> None:
    work = await lab.submit("inplace")
    job = await lab.job("inplace")
    nodes = await lab.runs(work, 0)
    assert len(set(nodes.values())) == 2, "one worker per node"
    await lab.when("inplace", phase="Running", workers="2/2", restarts="0/2")
    before = await lab.pods(job)
    for pid in await lab.stack.rank_pids(job, "w1"):
        os.kill(pid, signal.SIGKILL)
    assert await lab.runs(work, 1) == nodes
    await lab.when("inplace", phase="Running", restarts="1/2")
    assert {p["metadata"]["uid"] for p in (await lab.pods(job)).values()} == {p["metadata"]["uid"] for p in before.values()}
    (work / "done").touch()
    ended = await lab.when("inplace", phase="Succeeded")
    assert {c["type"] for c in ended["conditions"] if c["status"] == "True"} == {"Accepted", "Succeeded"}

    async def mirrored() -> dict[str, Any] | None:
        found = dict(await lab.api.get(RECORDS, "default", job))
        return found if found.get("status", {}).get("phase") == "Succeed" else None

    selector = "involvedObject.kind=AegisJob,involvedObject.name=inplace"

    async def counted() -> list[dict[str, Any]]:
        found = (await lab.api.list(EVENTS, "default", fieldSelector=selector))["items"]
        return [dict(item) for item in found if item["type"] == "Warning" and "(counted" in item["message"]]

    told = await until(counted, 30, "an event of the decision")
    assert len(told) == 1 and told[0]["message"].startswith("w1"), told

    record = dict(await until(mirrored, 30, "the record shows the end"))
    assert record["spec"] == {"JobName": "inplace", "WorkerNum": 2, "MaxRetry": 2}
    infos = record["status"]["podInfos"]
    assert set(infos) == {"w0", "w1"} and record["status"]["recoverCount"] == 1 and not record["status"]["shouldQuit"]
    assert set(infos["w1"]) == {"podIP", "innerPhase", "finished", "retries", "lastFailedReason", "updatedTimestamp"}
    assert (infos["w1"]["retries"], infos["w1"]["finished"]) == (1, True)
    await until(lambda: _over(lab, job), 60, "all pods have ended by themselves")


async def test_a_deleted_pod_is_placed_anew_off_the_node_that_is_excluded_and_nothing_is_counted(lab: Lab) -> None:
    work = await lab.submit("moved", exclude=["gpu-1"])
    job = await lab.job("moved")
    nodes = await lab.runs(work, 0)
    tainted = nodes["w1"]
    request = TaintRequest(tainted, seconds=600.0, reason="xid 79", by="alice")
    answer = read_reply(TaintAnswer, await lab.stack.ask(subjects.rpc_do("jobcontroller", "taint", "default"), encode(request)))
    assert answer.after == "excluded (xid 79)"
    await lab.api.delete(PODS, "default", f"{job}-w1-a1")
    after = await lab.runs(work, 1)
    assert after["w1"] not in (tainted, "gpu-1") and after["w0"] == nodes["w0"] != "gpu-1"
    await lab.when("moved", phase="Running", restarts="0/2")
    pods = await lab.pods(job)
    terms = pods[f"{job}-w1-a2"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": sorted({tainted, "gpu-1"})}]}]
    await lab.stack.ask(subjects.rpc_do("jobcontroller", "untaint", "default"), encode(TaintRequest(tainted, reason="", by="alice")))
    (work / "done").touch()
    await lab.when("moved", phase="Succeeded")


async def test_a_pod_removed_by_force_is_counted_and_its_place_is_filled_when_its_command_has_ended(lab: Lab) -> None:
    work = await lab.submit("forced")
    job = await lab.job("forced")
    nodes = await lab.runs(work, 0)
    await lab.when("forced", phase="Running")
    first = lab.kubelet.of(f"{job}-w0-a1")
    lab.kubelet.deaf.add(nodes["w0"])  # who forces does so because the node does not answer; a node that did could send its notice first, for free
    await lab.api.delete(PODS, "default", f"{job}-w0-a1", 0)
    await lab.runs(work, 1)
    await lab.when("forced", phase="Running", restarts="1/2")
    await until(lambda: first.code is not None, 40, "the agent that was removed leaves by itself")
    died = msgspec.json.decode((first.folder / "termination").read_bytes(), type=Exit).at
    began = (work / "w0-i1").stat().st_mtime_ns // 1_000_000
    assert died <= began, f"the command ran twice: until {died}, and from {began}"
    assert "Forbidden" not in lab.controller.log.read_text()
    lab.kubelet.deaf.discard(nodes["w0"])
    (work / "done").touch()
    await lab.when("forced", phase="Succeeded")


async def test_what_happens_while_the_api_server_is_away_is_counted_once(lab: Lab) -> None:
    work = await lab.submit("away")
    job = await lab.job("away")
    await lab.runs(work, 0)
    await lab.when("away", phase="Running", restarts="0/2")
    killed = lab.kubelet.of(f"{job}-w0-a1")
    lab.plane.kill9_apiserver()
    try:
        os.kill(killed.pid, signal.SIGKILL)
        await until(lambda: killed.code is not None, 20)
    finally:
        lab.plane.start_apiserver()
        await until(lab.plane.answers, 60, "the API server is back")
    assert killed.code == 137
    await lab.runs(work, 1)
    status = await lab.when("away", phase="Running", restarts="1/2")
    assert status["lastFailure"]["worker"] == "w0"
    assert set(await lab.pods(job)) == {f"{job}-w0-a1", f"{job}-w0-a2", f"{job}-w1-a1"}, "the failed pod is kept for reading"
    (work / "done").touch()
    await lab.when("away", phase="Succeeded")


async def test_a_controller_killed_between_any_two_steps_leaves_one_pod_per_attempt(lab: Lab) -> None:
    await lab.controller.kill9()
    work = await lab.submit("crashed")
    for point in ("jobcontroller.before-place", "jobcontroller.after-place", "jobcontroller.before-fact", "jobcontroller.after-fact"):
        await lab.controller.start({"AEGIS_CRASH_AT": point})
        assert await lab.controller.ended(60) == -signal.SIGKILL, point
    await lab.controller.start()
    await lab.runs(work, 0)
    job = await lab.job("crashed")
    await lab.when("crashed", phase="Running", restarts="0/2", workers="2/2")
    assert set(await lab.pods(job)) == {f"{job}-w0-a1", f"{job}-w1-a1"}
    assert sorted(pod for pod, _ in lab.kubelet.ran if pod.startswith(job)) == [f"{job}-w0-a1", f"{job}-w1-a1"]
    (work / "done").touch()
    await lab.when("crashed", phase="Succeeded")


async def test_when_the_budget_is_spent_the_running_are_stopped_and_the_failed_are_kept(lab: Lab) -> None:
    work = await lab.submit("spent", maxRetry=1)
    job = await lab.job("spent")
    await lab.runs(work, 0)
    (work / "fail-w0-i0").touch()
    await lab.runs(work, 1)
    killed = lab.kubelet.of(f"{job}-w1-a1")
    os.kill(killed.pid, signal.SIGKILL)
    status = await lab.when("spent", phase="Failed", reason="MaxRetryExceeded", restarts="2/1")
    assert next(c for c in status["conditions"] if c["type"] == "Failed")["reason"] == "MaxRetryExceeded"
    kept = (await lab.pods(job))[f"{job}-w1-a1"]
    assert kept["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    await until(lambda: lab.kubelet.of(f"{job}-w0-a1").code is not None, 40, "what ran is stopped")


async def test_a_node_that_leaves_the_cluster_is_a_lost_node(lab: Lab) -> None:
    work = await lab.submit("lost")
    job = await lab.job("lost")
    nodes = await lab.runs(work, 0)
    await lab.when("lost", phase="Running")
    await lab.kubelet.lose(nodes["w1"])
    await lab.api.delete(NODE_OBJECTS, "", nodes["w1"])
    after = await lab.runs(work, 1)
    assert after["w1"] != nodes["w1"]
    status = await lab.when("lost", phase="Running", restarts="1/2")
    assert status["lastFailure"] | {"time": ""} == {"worker": "w1", "node": nodes["w1"], "reason": "nodeLost", "time": ""}
    (work / "done").touch()
    await lab.when("lost", phase="Succeeded")
    assert job


async def test_a_suspended_job_has_no_pods_and_goes_on_when_it_is_resumed(lab: Lab) -> None:
    work = await lab.submit("pause", suspend=True)
    job = await lab.job("pause")
    await lab.when("pause", phase="Suspended")
    assert await lab.pods(job) == {}
    await lab.api.patch(AEGISJOBS, "default", "pause", {"spec": {"suspend": False}})
    await lab.runs(work, 0)
    await lab.api.patch(AEGISJOBS, "default", "pause", {"spec": {"suspend": True}})
    await lab.when("pause", phase="Suspended", suspend=True)
    await until(lambda: _over(lab, job, "Failed", "Succeeded"), 60, "no pod runs")
    await lab.api.patch(AEGISJOBS, "default", "pause", {"spec": {"suspend": False}})
    await lab.when("pause", phase="Running", restarts="0/2")
    (work / "done").touch()
    await lab.when("pause", phase="Succeeded")


async def test_who_deletes_the_object_ends_the_job_and_all_of_it(lab: Lab) -> None:
    work = await lab.submit("deleted")
    job = await lab.job("deleted")
    await lab.runs(work, 0)
    await lab.api.delete(AEGISJOBS, "default", "deleted")
    state = await lab.stack.ended(job, 60)
    assert state.head.failedReason == "stopped"

    async def nothing() -> bool:
        return not await lab.pods(job)

    await until(nothing, 60, "pods of the job")


async def test_an_object_that_can_be_no_job_is_told_why(lab: Lab) -> None:
    await lab.submit("wrong", stopGrace="soon")
    status = await lab.when("wrong", phase="Failed", reason="InvalidTemplate")
    assert "stopGrace" in status["message"]


async def test_a_nodes_risk_is_its_label_while_it_has_one(lab: Lab) -> None:
    node = (await lab.api.list(NODE_OBJECTS))["items"][0]["metadata"]["name"]  # one that has not left the cluster

    async def label() -> str:
        found = await lab.api.get(NODE_OBJECTS, "", node)
        return str(found["metadata"].get("labels", {}).get(LABEL_RISK, "none"))

    async def shows(wish: str) -> bool:
        return await label() == wish

    assert lab.stack.admin is not None
    for risk, wish in ((0.61, "60"), (0.0, "none")):
        await lab.stack.admin.publish(subjects.node_risk(node), encode(Risk(node, risk)))
        await until(lambda wish=wish: shows(wish), 60, lambda: lab.controller.log.read_text()[-2000:])


async def test_the_shipped_roles_may_do_their_work_and_nothing_more(lab: Lab) -> None:
    controller = await Client.connect(str(lab.plane.kubeconfig("jobcontroller")))
    mirror = await Client.connect(str(lab.plane.kubeconfig("mirror")))
    try:
        for client, resource, verb in (
            (controller, SECRETS, "list"),
            (controller, SECRETS, "delete"),
            (controller, NODE_OBJECTS, "delete"),
            (controller, RECORDS, "list"),
            (mirror, AEGISJOBS, "list"),
            (mirror, PODS, "list"),
            (mirror, RECORDS, "delete"),
        ):
            with pytest.raises(KubeError) as refused:
                await (client.list(resource) if verb == "list" else client.delete(resource, "default", "x"))
            assert refused.value.code == 403, (resource, verb)
        with pytest.raises(KubeError) as absent:
            await controller.patch(SECRETS, "default", "x", {"data": {}})
        assert absent.value.absent, "a token that comes late is written"
    finally:
        await controller.close()
        await mirror.close()


async def test_all_of_the_chart_and_the_example_are_accepted_by_a_real_server(lab: Lab) -> None:
    whole = [document for document in render(nats={"replicas": 3}) if document["kind"] not in ROLES]
    assert {document["kind"] for document in whole} == {"ConfigMap", "Deployment", "Job", "NetworkPolicy", "Service", "StatefulSet"}
    for document in [*whole, *documents(DEPLOY / "example.yaml")]:
        resource = AEGISJOBS if document["kind"] == "AegisJob" else KINDS[document["kind"]]
        await lab.api.create(resource, document["metadata"]["namespace"], document, dryRun="All")


async def test_doctor_says_of_a_real_cluster_what_is_there_and_what_is_not(lab: Lab) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("SKIPPED: no kubectl")
    environ = {**os.environ, "KUBECONFIG": str(lab.plane.kubeconfig("admin")), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    words = [sys.executable, "-m", "aegis_cli", "doctor", "--platform", "kubernetes", "--json"]
    done = await asyncio.to_thread(subprocess.run, words, env=environ, capture_output=True, text=True, timeout=120, check=False)
    rows = {row["check"]: row for row in json.loads(done.stdout)["items"]}
    assert done.returncode == 1 and rows["storage"]["level"] == "fail", done.stdout + done.stderr
    assert {check: row["level"] for check, row in rows.items() if row["level"] != "ok"} == {"storage": "fail"}, rows
    assert rows["rights of aegis-mirror"]["finding"] == "1 of 1"


async def test_when_the_chart_is_gone_pods_train_on_and_are_looked_after_again_when_it_is_back(lab: Lab) -> None:
    work = await lab.submit("bare")
    job = await lab.job("bare")
    await lab.runs(work, 0)
    before = {name: pod["metadata"]["uid"] for name, pod in (await lab.pods(job)).items()}
    for name in ("k8s", "mirror", "m1", "credentials"):
        await lab.stack.children[name].kill9()
    roles = [document for document in render() if document["kind"] in ROLES]
    for document in roles:
        await lab.api.delete(KINDS[document["kind"]], document["metadata"].get("namespace", ""), document["metadata"]["name"])
    ranks = {worker: await lab.stack.rank_pids(job, worker) for worker in ("w0", "w1")}
    assert all(ranks.values()) and {name: pod["metadata"]["uid"] for name, pod in (await lab.pods(job)).items()} == before
    await lab.plane.apply(*roles)
    for name in ("credentials", "m1", "mirror", "k8s"):
        await lab.stack.children[name].start()
    await lab.when("bare", phase="Running", workers="2/2", restarts="0/2")
    assert {worker: await lab.stack.rank_pids(job, worker) for worker in ("w0", "w1")} == ranks, "the same processes"
    (work / "done").touch()
    await lab.when("bare", phase="Succeeded")


async def test_a_worker_that_never_reaches_the_bus_has_all_run_plain_where_they_are(lab: Lab) -> None:
    """`controlled` goes: one failure is counted, no pod comes anew, and the exit codes are those of a plain job."""
    await lab.controller.kill9()
    await lab.controller.start({"AEGIS_JOBCONTROLLER_CONNECT_DEADLINE": "6s"})
    apart, other = [name for name in NODES if name not in lab.kubelet.silent][-2:]  # one may have left the cluster before
    lab.kubelet.of_node[apart] = {"AEGIS_AGENT_SERVERS": "nats://127.0.0.1:9", "AEGIS_AGENT_START_WAIT": "3"}
    script = "import os, time\nopen(f'{os.environ[\"WORK\"]}/r{os.environ[\"RANK\"]}-{os.getpid()}', 'w').close()\n"
    script += "while not os.path.exists(os.environ['WORK'] + '/done'): time.sleep(0.05)"
    try:
        work = await lab.submit("alone", nodes=[apart, other], command=[sys.executable, "-c", script])
        job = await lab.job("alone")
        await until(lambda: {path.name.split("-")[0] for path in work.glob("r?-*")} == {"r0", "r1"}, 90, "both run")
        await lab.when("alone", phase="Running", restarts="1/2")

        async def uncontrolled() -> bool:
            with contextlib.suppress(KubeError):
                found = dict(await lab.api.get(RECORDS, "default", job)).get("status", {})
                return found.get("controlled") is False and found.get("recoverCount") == 1
            return False

        await until(uncontrolled, 60, "the record says that nobody controls it")
        assert set(await lab.pods(job)) == {f"{job}-w0-a1", f"{job}-w1-a1"}
        (work / "done").touch()
        await lab.when("alone", phase="Succeeded")
        assert len(list(work.glob("r?-*"))) == 2 and set(await lab.pods(job)) == {f"{job}-w0-a1", f"{job}-w1-a1"}, "each ran once"
    finally:
        lab.kubelet.of_node.clear()
        await lab.controller.kill9()
        await lab.controller.start()


async def _over(lab: Lab, job: str, *phases: str) -> bool:
    return all(pod["status"]["phase"] in (phases or ("Succeeded",)) for pod in (await lab.pods(job)).values())
