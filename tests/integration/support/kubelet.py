"""The nodes of a test cluster: registers them, renews their leases, runs the containers of the pods bound to them as real processes.

Each container gets a mount namespace with its volumes where its manifest says, and a pid namespace in which its own process is the first; the
network is the machine's. Root. What a kubelet says of a pod is said in its order: running; terminated with exit code and message; removed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.resources import NODES, PODS, SECRETS, Resource

CONTAINER = Path(__file__).with_name("container.py")
LEASES = Resource("coordination.k8s.io/v1", "leases")
LOOK = 0.15
"""Seconds between two looks at the pods and their processes."""
RENEW = 2.0


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Container:
    """A pod's process, and its parent outside of the pid namespace."""

    pod: Mapping[str, Any]
    folder: Path
    process: asyncio.subprocess.Process | None = None
    started: str = ""
    kill_at: float = 0.0
    told: str = ""

    @property
    def pid(self) -> int:
        """Host pid of the container's pid 1; 0 when it is gone."""
        if self.process is None or self.process.returncode is not None:
            return 0
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self.process.pid).children()
            return below[0].pid if below else 0
        return 0

    @property
    def code(self) -> int | None:
        code = self.process.returncode if self.process is not None else None
        return code if code is None or code >= 0 else 128 - code


@dataclass
class Kubelet:
    """`nodes`: names. `environ`: what every container's image has set. `path`: a folder with the programs of the image."""

    client: Client
    folder: Path
    nodes: Sequence[str]
    environ: Mapping[str, str]
    silent: set[str] = field(default_factory=set)
    """Nodes whose kubelet is dead: their containers run on, nothing is said of them."""
    deaf: set[str] = field(default_factory=set)
    """Nodes that do not end a pod that is deleted."""
    of_node: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """More environment of the containers of a node."""
    containers: dict[str, Container] = field(default_factory=dict)
    ran: list[tuple[str, str]] = field(default_factory=list)
    """(pod, node), in the order in which they were started."""

    async def start(self) -> Kubelet:
        for name in self.nodes:
            labels = {"kubernetes.io/hostname": name}
            await self.client.create(NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
            ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
            room = {"cpu": "64", "memory": "64Gi", "pods": "100", "nvidia.com/gpu": "8"}
            await self.client.patch(NODES, "", name, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}, "status")
            body = {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": self._lease(name)}
            await self.client.create(LEASES, "kube-node-lease", {"apiVersion": LEASES.api, "kind": "Lease", **body})
        self._tasks = [asyncio.create_task(self._renew()), asyncio.create_task(self._loop())]
        return self

    def _lease(self, name: str) -> dict[str, Any]:
        return {"holderIdentity": name, "leaseDurationSeconds": 10, "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for container in self.containers.values():
            self._kill(container, signal.SIGKILL)
            if container.process is not None:
                await container.process.wait()

    async def _renew(self) -> None:
        while True:
            for name in self.nodes:
                if name not in self.silent:
                    with contextlib.suppress(KubeError):
                        await self.client.patch(LEASES, "kube-node-lease", name, {"spec": self._lease(name)})
                        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready", "lastHeartbeatTime": now()}
                        found = await self.client.get(NODES, "", name)
                        others = [c for c in found["status"]["conditions"] if c["type"] == "Ready"]
                        if others and others[0]["status"] != "True":
                            ready["lastTransitionTime"] = now()
                            await self.client.patch(NODES, "", name, {"status": {"conditions": [ready]}}, "status")
            await asyncio.sleep(RENEW)

    async def _loop(self) -> None:
        while True:
            with contextlib.suppress(KubeError):
                found = (await self.client.list(PODS))["items"]
                for pod in found:
                    node = pod["spec"].get("nodeName")
                    if node in self.nodes and node not in self.silent:
                        await self._look(pod)
                self._end_removed({pod["metadata"]["uid"] for pod in found})
            await asyncio.sleep(LOOK)

    # --- one pod -------------------------------------------------------------------------------------------------------------------

    async def _look(self, pod: Mapping[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        container = self.containers.get(uid)
        deleting = pod["metadata"].get("deletionTimestamp")
        if container is None:
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                if deleting:
                    await self._remove(pod)
                return
            if deleting:
                await self._remove(pod)
                return
            container = self.containers[uid] = Container(pod, self.folder / uid)
            await self._begin(container)
        if pod["spec"]["nodeName"] in self.deaf:
            return
        await self._refresh(container)
        if container.code is None and container.process is not None:
            if deleting and not container.kill_at:
                container.kill_at = time.monotonic() + float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
                self._kill(container, signal.SIGTERM)
            elif container.kill_at and time.monotonic() >= container.kill_at:
                self._kill(container, signal.SIGKILL)
            return
        await self._tell_end(container)
        if deleting:
            await self._remove(pod)

    def _end_removed(self, present: set[str]) -> None:
        """A pod that is no more in the API has no right to run: it is told to end, with its own grace."""
        for uid, container in self.containers.items():
            node = container.pod["spec"]["nodeName"]
            if uid in present or container.code is not None or node in self.silent or node in self.deaf:
                continue
            if not container.kill_at:
                container.kill_at = time.monotonic() + float(container.pod["spec"].get("terminationGracePeriodSeconds") or 30)
                self._kill(container, signal.SIGTERM)
            elif time.monotonic() >= container.kill_at:
                self._kill(container, signal.SIGKILL)

    async def _begin(self, container: Container) -> None:
        pod, spec = container.pod, container.pod["spec"]
        container.folder.mkdir(parents=True)
        mounts = await self._mounts(container, spec["containers"][0])
        argv = [*spec["containers"][0].get("command", []), *spec["containers"][0].get("args", [])]
        environ = {**self.environ, **self._environment(pod, spec["containers"][0]), **self.of_node.get(spec["nodeName"], {})}
        bound = ",".join(f"{source}={target}" for source, target in mounts)
        with (container.folder / "log").open("ab") as out:
            container.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-S", "-E", str(CONTAINER), bound, *argv),
                env=environ,
                cwd=container.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        container.started = now()
        self.ran.append((pod["metadata"]["name"], spec["nodeName"]))
        state = {"running": {"startedAt": container.started}}
        await self._status(container, "Running", state, True)

    async def _mounts(self, container: Container, spec: Mapping[str, Any]) -> list[tuple[Path, str]]:
        volumes: dict[str, Path] = {}
        for volume in container.pod["spec"].get("volumes", []):
            path = container.folder / volume["name"]
            if "hostPath" in volume:
                path = Path(volume["hostPath"]["path"])
            else:
                path.mkdir()
            volumes[volume["name"]] = path
        await self._refresh(container)
        word = container.folder / "termination"
        word.touch()
        mounts = [(volumes[m["name"]], m["mountPath"]) for m in spec.get("volumeMounts", []) if m["name"] in volumes]
        return [*mounts, (word, spec.get("terminationMessagePath", "/run/termination-log"))]

    async def _refresh(self, container: Container) -> None:
        """Secrets are kept live in the container."""
        for volume in container.pod["spec"].get("volumes", []):
            if "secret" in volume:
                with contextlib.suppress(KubeError):
                    found = await self.client.get(SECRETS, container.pod["metadata"]["namespace"], volume["secret"]["secretName"])
                    for key, value in (found.get("data") or {}).items():
                        path = container.folder / volume["name"] / key
                        data = base64.b64decode(value)
                        if not path.exists() or path.read_bytes() != data:
                            path.write_bytes(data)

    def _environment(self, pod: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, str]:
        fields = {"spec.nodeName": pod["spec"]["nodeName"], "status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        found = {}
        for entry in spec.get("env", []):
            source = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            found[entry["name"]] = fields[source] if source else entry.get("value", "")
        return found

    def _kill(self, container: Container, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if container.pid:
                os.kill(container.pid, number)
            elif container.code is None and container.process is not None and number == signal.SIGKILL:
                container.process.kill()

    async def _tell_end(self, container: Container) -> None:
        if container.told or container.code is None:
            return
        message = (container.folder / "termination").read_text(errors="replace")[:4096]
        ended = {"exitCode": container.code, "reason": "Completed" if container.code == 0 else "Error", "message": message}
        state = {"terminated": {**ended, "startedAt": container.started, "finishedAt": now()}}
        await self._status(container, "Succeeded" if container.code == 0 else "Failed", state, False)
        container.told = now()

    async def _status(self, container: Container, phase: str, state: Mapping[str, Any], ready: bool) -> None:
        metadata, spec = container.pod["metadata"], container.pod["spec"]
        entry = {"name": spec["containers"][0]["name"], "state": state, "ready": ready, "restartCount": 0, "image": "test", "imageID": "test"}
        status = {"phase": phase, "podIP": "127.0.0.1", "hostIP": "127.0.0.1", "startTime": container.started, "containerStatuses": [entry]}
        with contextlib.suppress(KubeError):
            await self.client.patch(PODS, metadata["namespace"], metadata["name"], {"metadata": {"uid": metadata["uid"]}, "status": status}, "status")

    async def _remove(self, pod: Mapping[str, Any]) -> None:
        with contextlib.suppress(KubeError):
            await self.client.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], 0, pod["metadata"]["uid"])

    # --- for tests -----------------------------------------------------------------------------------------------------------------

    async def lose(self, node: str) -> None:
        """The machine is off: nothing of it runs, nobody says so."""
        self.silent.add(node)
        for container in self.containers.values():
            if container.pod["spec"]["nodeName"] == node:
                self._kill(container, signal.SIGKILL)

    def of(self, pod: str) -> Container:
        return next(c for c in self.containers.values() if c.pod["metadata"]["name"] == pod)

    def logs(self, lines: int = 12) -> str:
        found = []
        for container in self.containers.values():
            text = (container.folder / "log").read_text(errors="replace").splitlines()[-lines:]
            name = container.pod["metadata"]["name"]
            found += [f"--- {name} on {container.pod['spec']['nodeName']} code {container.code}", *text]
        return "\n".join(found)


def image(folder: Path, python: str) -> Path:
    """A folder with `aegis-agent`, as an image has it on its PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "aegis-agent"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} -m aegis_agent "$@"\n')
    script.chmod(0o755)
    return folder
