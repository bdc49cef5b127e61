"""A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-scheduler, kube-controller-manager. No kubelet: see `kubelet.py`.

The programs are built once per machine by `build_kubernetes.sh`; without them a test says so and is skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from aegis_bus.natsserver import free_port
from aegis_jobcontroller.kubernetes.client import Client, KubeError
from aegis_jobcontroller.kubernetes.resources import Resource
from harness.waiting import until

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "kubernetes"
CACHE = Path(os.environ.get("AEGIS_K8S_CACHE") or Path.home() / ".cache" / "aegis-k8s")
PROGRAMS = ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
TOKENS = {
    "admin": ("admin", "system:masters"),
    "jobcontroller": ("system:serviceaccount:aegis-system:aegis-jobcontroller", "system:serviceaccounts"),
    "mirror": ("system:serviceaccount:aegis-system:aegis-mirror", "system:serviceaccounts"),
}
"""Token -> who it is. The service accounts have what the chart gives them, and nothing else."""
KINDS = {
    "Namespace": Resource("v1", "namespaces", False),
    "ServiceAccount": Resource("v1", "serviceaccounts"),
    "CustomResourceDefinition": Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "ClusterRole": Resource("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Deployment": Resource("apps/v1", "deployments"),
    "NetworkPolicy": Resource("networking.k8s.io/v1", "networkpolicies"),
    "ConfigMap": Resource("v1", "configmaps"),
    "Service": Resource("v1", "services"),
    "StatefulSet": Resource("apps/v1", "statefulsets"),
    "Job": Resource("batch/v1", "jobs"),
}


def programs() -> Path:
    """Folder of the built programs; skips the test, loudly, where there is none."""
    missing = [name for name in PROGRAMS if not (CACHE / "bin" / name).exists()]
    if not missing and shutil.which("etcd"):
        return CACHE / "bin"
    pytest.skip(f"NO KUBERNETES: {', '.join(missing) or 'etcd'} not in {CACHE / 'bin'}; build it once: make kubernetes (root, Debian 12, 6-15 min)")


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


class ControlPlane:
    """`start`, `stop`; `kubeconfig(who)` for a token of TOKENS; the API server may be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = programs()
        self.port, self._etcd, self._peer = free_port(), free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.admin: Client | None = None

    def _run(self, name: str, argv: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def kubeconfig(self, who: str) -> Path:
        path = self.folder / f"{who}.kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": who, "user": {"token": f"token-of-{who}"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": who}}],
            "current-context": "lab",
        }
        path.write_text(yaml.safe_dump(content))
        path.chmod(0o600)
        return path

    def _make_keys(self) -> None:
        key = str(self.folder / "sa.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "rsa", "-in", key, "-pubout", "-out", str(self.folder / "sa.pub")], check=True, capture_output=True)

    async def start(self, timeout: float = 90.0) -> ControlPlane:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_keys()
        rows = [f'token-of-{token},{name},{name},"{group}"' for token, (name, group) in TOKENS.items()]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n")
        client, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        argv = ["etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client]
        argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self._run("etcd", [*argv, "--unsafe-no-fsync", "--log-level", "warn"])
        self.start_apiserver()
        self.admin = await Client.connect(str(self.kubeconfig("admin")))
        await until(self.answers, timeout, "the API server is ready")
        config = str(self.kubeconfig("admin"))
        none = ["--leader-elect=false", "--port=0", "--secure-port=0", f"--kubeconfig={config}"]
        self._run("kube-scheduler", [str(self.bin / "kube-scheduler"), *none])
        controllers = ["--controllers=*,-serviceaccount,-serviceaccount-token", "--node-monitor-grace-period=10s", "--node-monitor-period=2s"]
        self._run("kube-controller-manager", [str(self.bin / "kube-controller-manager"), *none, *controllers, "--pod-eviction-timeout=5s"])
        return self

    def start_apiserver(self) -> None:
        folder = self.folder
        argv = [str(self.bin / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{self._etcd}", "--bind-address=127.0.0.1"]
        argv += ["--advertise-address=127.0.0.1", f"--secure-port={self.port}", f"--cert-dir={folder / 'certs'}", "--v=1"]
        argv += [f"--token-auth-file={folder / 'tokens.csv'}", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24"]
        argv += [f"--service-account-key-file={folder / 'sa.pub'}", f"--service-account-signing-key-file={folder / 'sa.key'}"]
        argv += ["--service-account-issuer=https://lab.invalid", "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"]
        self._run("kube-apiserver", argv)

    def kill9_apiserver(self) -> None:
        process = self.processes["kube-apiserver"]
        process.kill()
        process.wait()

    async def answers(self) -> bool:
        assert self.admin is not None
        try:
            await self.admin.get(Resource("v1", "namespaces", False), "", "default")
            await self.admin.get(Resource("v1", "namespaces", False), "", "kube-system")
            return True
        except KubeError:
            return False

    async def apply(self, *objects: dict[str, Any]) -> None:
        """Create them; one of that name that is there goes first."""
        assert self.admin is not None
        for document in objects:
            resource, namespace = KINDS[document["kind"]], document["metadata"].get("namespace", "")
            with contextlib.suppress(KubeError):
                await self.admin.delete(resource, namespace, document["metadata"]["name"])
            await self.admin.create(resource, namespace, document)

    async def stop(self) -> None:
        if self.admin is not None:
            await self.admin.close()
        for name in ("kube-controller-manager", "kube-scheduler", "kube-apiserver", "etcd"):
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 5
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.05)
            process.kill()
            process.wait()

    def log(self, name: str, lines: int = 15) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
