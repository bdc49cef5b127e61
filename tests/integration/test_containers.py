"""Containers for real: the pod that the controller makes, by podman's `kube play`, in an image without Python; and the compose file, up and down."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aegis_agent.install import install
from aegis_bus.connection import Bus
from aegis_bus.identity import Identity
from aegis_bus.natsserver import free_port
from aegis_jobcontroller import tokens
from aegis_jobcontroller.kubernetes import manifest, seen
from aegis_jobcontroller.world import Job
from aegis_proto.credapi import JoinRequest
from aegis_proto.job import CLUSTER_LABEL
from harness.waiting import until, until_sync
from support import podman as containers
from support.house import house, retries
from support.podman import AGENT, IMAGE, NATS, ROOT, SMALL, Podman

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
TRAIN = "touch run-$AEGIS_POD-$AEGIS_INCARNATION-$$; while [ ! -e finish ]; do [ -e raise-$AEGIS_POD-$AEGIS_INCARNATION ] && exit 3; sleep 0.1; done"
"""One line: podman 4.3 writes a document with several into one that it cannot read."""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    containers.need()
    made = Podman(tmp_path_factory.mktemp("podman"))
    try:
        yield made
    finally:
        made.close()


# --- the pod ------------------------------------------------------------------------------------------------------------------


def as_a_kubelet(pod: dict[str, Any], secret: dict[str, Any], node: str, folder: Path) -> dict[str, Any]:
    """What a kubelet fills in before a container is started: secrets and empty folders as folders, names of this node in the environment."""
    pod = copy.deepcopy(pod)
    fields = {"spec.nodeName": node, "status.podIP": "127.0.0.1"}
    for volume in pod["spec"]["volumes"]:
        path = folder / pod["metadata"]["name"] / volume["name"]
        if "secret" in volume:
            path.mkdir(parents=True)
            for name, value in secret["data"].items():
                (path / name).write_bytes(base64.b64decode(value))
        elif "emptyDir" in volume:
            path.mkdir(parents=True)
        else:
            continue
        for key in ("secret", "emptyDir"):
            volume.pop(key, None)
        volume["hostPath"] = {"path": str(path), "type": "Directory"}
    for container in pod["spec"]["containers"]:
        for entry in container["env"]:
            if source := entry.pop("valueFrom", None):
                entry["value"] = fields[source["fieldRef"]["fieldPath"]]
    return pod


async def test_the_pods_that_the_controller_makes_are_played_in_an_image_without_python(podman: Podman, tmp_path: Path) -> None:
    bundle = await asyncio.to_thread(install, tmp_path / "bundle")
    await asyncio.to_thread(podman.make_small_images, bundle)
    assert b"Python" not in podman.run("run", "--rm", SMALL, "sh", "-c", "python3 -V; python -V", check=False).stdout
    work = tmp_path / "work"
    work.mkdir()
    container = {"name": "train", "image": SMALL, "imagePullPolicy": "Never", "command": ["sh", "-c", TRAIN], "workingDir": str(work)}
    container["volumeMounts"] = [{"name": "work", "mountPath": str(work)}]
    template = {"spec": {"hostNetwork": True, "containers": [container], "volumes": [{"name": "work", "hostPath": {"path": str(work)}}]}}
    async with house(tmp_path / "stack", nodes=0) as h:
        name = await h.submit(["sh", "-c", TRAIN], name="played", workers=2, cwd=str(work), labels={CLUSTER_LABEL: "podman"})
        state = await h.state(name)
        job = Job(state.head, tuple(state.pods()), state.spec)
        owner = seen.job({"metadata": {"name": "played", "namespace": "default", "uid": state.head.uid}, "spec": {"template": template}})
        site = manifest.Site(await h.grpc_address(), h.site.ca_pem.read_text(), AGENT)
        bus = await Bus.connect(Identity.from_creds(h.site.issue("jobcontroller")), [h.nats.url], name="jobcontroller-test")
        joins = await tokens.joins(bus, [("default", JoinRequest(name, pod, 1)) for pod in ("w0", "w1")])
        await bus.close()
        documents = []
        for index, pod in enumerate(("w0", "w1")):
            secret = manifest.secret(job, owner, index, 1, site, token=joins[name, pod].token)
            documents.append(as_a_kubelet(manifest.pod(job, owner, index, 1, site), secret, f"node-{index}", tmp_path / "kubelet"))
        played = tmp_path / "pods.yaml"
        played.write_text("\n---\n".join(map(json.dumps, documents)))
        await asyncio.to_thread(podman.run, "kube", "play", "--network=host", str(played))
        names = [f"{document['metadata']['name']}-train" for document in documents]
        try:
            await _run(podman, h, name, work, names)
        except AssertionError as error:
            logs = [podman.run("logs", one, check=False).stdout.decode(errors="replace")[-3000:] for one in names]
            raise AssertionError("\n".join([str(error), podman.text("ps", "-a"), *logs])) from None
        finally:
            await asyncio.to_thread(podman.run, "kube", "down", str(played), check=False)
        assert podman.text("ps", "-aq", "--filter", "name=played") == ""


async def _run(podman: Podman, h: Any, job: str, work: Path, names: list[str]) -> None:
    def runs(incarnation: int) -> bool:
        return {path.name.split("-")[1] for path in work.glob(f"run-w*-{incarnation}-*")} == {"w0", "w1"}

    await until(lambda: runs(0), 90, "both run")
    first = [json.loads(podman.text("inspect", one))[0]["State"]["StartedAt"] for one in names]
    assert b"aegis_agent" in podman.run("exec", names[0], "cat", "/proc/1/cmdline").stdout, "the agent is the first process of its container"
    (work / "raise-w1-0").touch()
    await until(lambda: runs(1), 90, "both run again")
    state = await h.state(job)
    assert (retries(state), state.head.recoverCount) == ("1:1", 1), await h.describe(job)
    assert [json.loads(podman.text("inspect", one))[0]["State"]["StartedAt"] for one in names] == first, "in the containers that were there"
    (work / "finish").touch()
    assert (await h.ended(job, 60)).head.phase == "Succeed", await h.describe(job)
    for one in names:
        assert podman.text("wait", one).strip() == "0"
        with tarfile.open(fileobj=io.BytesIO(podman.run("cp", f"{one}:{manifest.TERMINATION}", "-").stdout)) as tar:
            word = tar.extractfile(tar.getmembers()[0])
            assert word is not None and json.loads(word.read())["code"] == 0


# --- compose --------------------------------------------------------------------------------------------------------------------

SERVICES = ("setup", "streams", "credentials", "master", "jobcontroller", "lognexus", "lemon", "netmon")


def service(container: dict[str, Any]) -> str:
    return str(container["Labels"]["com.docker.compose.service"])


def certificate(port: int, first: bytes) -> bytes:
    """What the server at this port shows; `first`: what it says before TLS begins."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        if first:
            assert plain.recv(65536).startswith(first)
        with context.wrap_socket(plain) as secured:
            return secured.getpeercert(binary_form=True) or b""


class Compose:
    """A copy of `deploy/compose` in a folder, with this machine's programs mounted into the services."""

    def __init__(self, podman: Podman, folder: Path) -> None:
        self.podman, self.name = podman, f"aegis{os.getpid()}"
        shutil.copytree(ROOT / "deploy" / "compose", folder / "compose", ignore=shutil.ignore_patterns("site", "data"))
        shutil.copytree(ROOT / "deploy" / "monitoring", folder / "monitoring")
        self.folder = folder / "compose"
        mounted = [f"{path}:{path}:ro" for path in containers.mounts()]
        override = {"services": {name: {"volumes": mounted} for name in SERVICES}}
        (self.folder / "machine.yaml").write_text(yaml.safe_dump(override))
        self.bus, self.credentials = free_port(), free_port()
        self.environ = {
            **podman.environ,
            "AEGIS_IMAGE": IMAGE,
            "NATS_IMAGE": NATS,
            "AEGIS_UID": "0",
            "AEGIS_GID": "0",
            "AEGIS_HOST": "127.0.0.1",
            "AEGIS_BUS_PORT": str(self.bus),
            "AEGIS_BUS_OUTSIDE": f"tls://127.0.0.1:{self.bus}",
            "AEGIS_CREDENTIALS_PORT": str(self.credentials),
        }

    def run(self, *words: str, timeout: float = 180) -> str:
        argv = [sys.executable, "-m", "podman_compose", "-p", self.name, "-f", "compose.yaml", "-f", "machine.yaml", *words]
        done = subprocess.run(argv, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def all(self) -> list[dict[str, Any]]:
        """Its containers, also those that have ended."""
        said = self.podman.text("ps", "-a", "--format", "json", "--filter", f"label=io.podman.compose.project={self.name}")
        return list(json.loads(said or "[]"))

    def healthy(self) -> bool:
        """Every service says so by the healthcheck of the file (podman has no timer for it here)."""
        names = [one["Names"][0] for one in self.all() if service(one) not in ("setup", "streams", "nats")]
        return len(names) == 7 and all(self.podman.run("healthcheck", "run", name, check=False).returncode == 0 for name in names)

    def rotate(self) -> None:
        """New certificates while a job runs: both servers show them, one by itself and the bus when it is told."""
        site = self.folder / "site"
        (site / "tls" / "server.pem").unlink()
        setup = [sys.executable, "-m", "aegis_cli", "setup", "--state", str(site), "--host", "127.0.0.1", "--host", "nats", "--host", "credentials"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        subprocess.run(setup, env=environ, check=True, capture_output=True, timeout=60)
        wanted = ssl.PEM_cert_to_DER_cert((site / "tls" / "server.pem").read_text())
        self.podman.run("kill", "--signal", "HUP", next(one["Names"][0] for one in self.all() if service(one) == "nats"))
        until_sync(lambda: certificate(self.credentials, b"") == wanted, 60, "the credentials service shows the new certificate")
        until_sync(lambda: certificate(self.bus, b"INFO") == wanted, 60, "the bus shows the new certificate")

    def cli(self, *words: str) -> str:
        site = self.folder / "site"
        bus = {"AEGIS_BUS_SERVERS": f"tls://127.0.0.1:{self.bus}", "AEGIS_BUS_CREDS": str(site / "creds" / "operator.creds")}
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
            **bus,
            "AEGIS_BUS_TLS_CA": str(site / "tls" / "ca.pem"),
        }
        argv = [sys.executable, "-m", "aegis_cli", *words]
        done = subprocess.run(argv, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def logs(self) -> str:
        return "\n".join(self.podman.run("logs", "--tail", "8", one["Names"][0], check=False).stderr.decode(errors="replace") for one in self.all())


def test_the_compose_file_comes_up_runs_a_job_and_goes_down_within_the_grace(podman: Podman, tmp_path: Path) -> None:
    podman.make_images({})
    compose = Compose(podman, tmp_path)
    site = compose.folder / "site"
    daemon: subprocess.Popen[bytes] | None = None
    try:
        compose.run("--profile", "setup", "run", "--rm", "setup")
        assert (site / "root.secret").stat().st_mode & 0o777 == 0o600
        compose.run("up", "-d", "--scale", "master=2")
        until_sync(compose.healthy, 120, lambda: f"health of all\n{podman.text('ps', '-a')}\n{compose.logs()}")
        compose.cli("creds", "issue", "--role", "node", "--node", "n1", "--out", str(tmp_path / "n1.creds"))
        flags = [
            "--node",
            "n1",
            "--servers",
            f"tls://127.0.0.1:{compose.bus}",
            "--creds",
            str(tmp_path / "n1.creds"),
            "--state",
            str(tmp_path / "n1"),
        ]
        flags += ["--tls-ca", str(site / "tls" / "ca.pem"), "--credentials-ca", str(site / "tls" / "ca.pem"), "--virtual"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
        with (tmp_path / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen([sys.executable, "-m", "aegis_agent", "node", *flags], env=environ, stdout=log, stderr=log, cwd=tmp_path)
        done = tmp_path / "done"
        command = f"echo through compose; until [ -e {done} ]; do sleep 0.1; done"
        job = compose.cli("job", "submit", "-o", "name", "--", "sh", "-c", command).splitlines()[-1]
        compose.cli("job", "wait", job, "--for", "phase=RunCommand", "--timeout", "90s")
        compose.rotate()
        done.touch()
        compose.cli("job", "wait", job, "--timeout", "90s")
        shown = json.loads(compose.cli("job", "show", job, "--json"))["summary"]
        assert (shown.get("mode", "managed"), shown["recoverCount"], shown["incarnation"]) == ("managed", 0, 0), "new certificates disturb nobody"
        daemon.terminate()
        daemon.wait(30)
        before = {one["Names"][0] for one in compose.all()}
        began = time.monotonic()
        compose.run("stop")
        took = time.monotonic() - began
        ended = {one["Names"][0]: one["ExitCode"] for one in compose.all()}
        assert set(ended) == before and not {name: code for name, code in ended.items() if code != 0}, f"{ended}\n{compose.logs()}"
        print(f"down in {took:.1f} s of {len(ended)} containers")
        assert took < 60
    except AssertionError as error:
        log = (tmp_path / "daemon.log").read_text()[-2000:] if (tmp_path / "daemon.log").exists() else ""
        raise AssertionError(f"{error}\n{compose.logs()}\n{log}") from None
    finally:
        if daemon is not None and daemon.poll() is None:
            daemon.kill()
            daemon.wait(30)
        for _ in range(2):  # replicas beyond the file are orphans to it, and what they require goes only after them
            compose.run("down", "-v", "-t", "5", "--remove-orphans")
    assert compose.all() == []
