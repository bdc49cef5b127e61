"""Platform `kubernetes` on a real API server, scheduler and controller manager: jobs as users submit them, faults as clusters have them.

The job controller has the rights of `deploy/kubernetes/rbac.yaml`; pods run as real processes (`support.kubelet`); everything else is the real stack.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.resources import AEGISJOBS, PODS, RECORDS
from harness.waiting import until
from support.controlplane import DEPLOY, ControlPlane
from support.house import Child, House, house
from support.kubelet import Kubelet, image

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]
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
        await plane.apply(DEPLOY / "namespace.yaml", *sorted((DEPLOY / "crds").glob("*.yaml")), DEPLOY / "rbac.yaml")
        assert plane.admin is not None
        (folder / "stack").mkdir()
        async with house(folder / "stack", nodes=0, controllers=0) as stack:
            await stack.start_controller("k8s", **controller_settings(plane, stack))
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
    record = await lab.api.get(RECORDS, "default", job)
    assert record["spec"] == {"JobName": "inplace", "WorkerNum": 2, "MaxRetry": 2}
    await until(lambda: _over(lab, job), 60, "all pods have ended by themselves")


async def _over(lab: Lab, job: str) -> bool:
    return all(pod["status"]["phase"] == "Succeeded" for pod in (await lab.pods(job)).values())
