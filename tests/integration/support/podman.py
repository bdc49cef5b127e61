"""Containers for real, by podman with runc: images out of this machine's own programs (no registry is asked), storage in a folder of the test's own.

SMALL has a shell, a few programs and glibc, and no Python. IMAGE has nothing but links into /usr, which each container mounts read-only from this
machine, beside this Python and these sources. Root.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from aegis_bus.natsserver import find_server

ROOT = Path(__file__).parents[3]
CONF = """[containers]
default_ulimits = ["nofile=4096:4096", "nproc=8192:8192"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
IMAGE, NATS, SMALL, AGENT = (f"localhost/aegis-test{name}:1" for name in ("", "-nats", "-small", "-agent"))
PROGRAMS = ("sh", "cat", "chmod", "cp", "dirname", "readlink", "sleep", "touch")
LIBRARIES = (
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "libresolv.so.2",
    "libnss_files.so.2",
    "libnss_dns.so.2",
)
"""All of glibc that programs from elsewhere may ask for."""


def need() -> None:
    """Skips, loudly, where containers cannot be run."""
    missing = [name for name in ("podman", "runc", "conmon") if shutil.which(name) is None]
    if missing or os.getuid() != 0:
        pytest.skip(f"SKIPPED: no {', '.join(missing) or 'root'}: containers are not run for real (tests/integration/support/packages.sh)")


def mounts() -> list[Path]:
    """Folders of this machine that a container needs to run this Python with these sources, each where it is."""
    wanted = {Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), ROOT, *(Path(part) for part in sys.path if part and Path(part).is_dir())}
    return sorted(path for path in wanted if not any(path != other and path.is_relative_to(other) for other in wanted))


class Podman:
    """`run`: podman's own words, with storage and settings of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "containers.conf").write_text(CONF)
        storage = f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
        (folder / "storage.conf").write_text(storage)
        own = {"CONTAINERS_CONF": str(folder / "containers.conf"), "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
        self.environ = {**{k: v for k, v in os.environ.items() if not k.startswith("AEGIS_")}, **own}

    def run(self, *words: str, data: bytes = b"", check: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(["podman", *words], env=self.environ, input=data, capture_output=True, timeout=timeout, check=False)
        assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr.decode(errors='replace')[-3000:]}"
        return done

    def text(self, *words: str, **more: object) -> str:
        return self.run(*words, **more).stdout.decode(errors="replace")  # type: ignore[arg-type]

    def make_images(self, environ: Mapping[str, str]) -> None:
        """IMAGE has `python` and `aegis-agent` of this environment, NATS the server alone as its entry point."""
        path = f"/opt/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        said = {"PATH": path, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part), **environ}
        agent = f'#!/bin/sh\nexec {sys.executable} -m aegis_agent "$@"\n'.encode()
        command = f'#!/bin/sh\nexec {sys.executable} -m aegis_cli "$@"\n'.encode()
        changes = [word for key, value in said.items() for word in ("--change", f"ENV {key}={value}")]
        self.run("import", *changes, "-", IMAGE, data=_tar({"opt/bin/aegis-agent": agent, "opt/bin/aegis": command}))
        server = Path(find_server().path).read_bytes()
        self.run("import", "--change", 'ENTRYPOINT ["/opt/bin/nats-server"]', "-", NATS, data=_tar({"opt/bin/nats-server": server}))

    def make_small_images(self, bundle: Path) -> None:
        """SMALL, and AGENT: the same with the agent's folder at /opt/aegis."""
        files: dict[str, Path] = {}
        for name in PROGRAMS:
            program = Path(os.path.realpath(str(shutil.which(name, path="/usr/bin:/bin"))))
            files[f"usr/bin/{name}"] = program
            said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
            files |= {path.lstrip("/"): Path(path) for path in re.findall(r"(/\S+\.so\S*)", said)}
        libc = next(path for name, path in files.items() if name.endswith("/libc.so.6"))
        files |= {str(libc.with_name(name)).lstrip("/"): libc.with_name(name) for name in LIBRARIES if libc.with_name(name).exists()}
        found = {name.removeprefix("usr/") if name.startswith("usr/lib") else name: path.read_bytes() for name, path in files.items()}
        small = {f"usr/{name}" if name.startswith("lib") else name: data for name, data in found.items()}
        self.run("import", "--change", "ENV PATH=/usr/bin", "-", SMALL, data=_tar(small))
        more = {f"opt/aegis/{path.relative_to(bundle)}": path for path in bundle.rglob("*") if path.is_file()}
        modes = {name: path.stat().st_mode & 0o777 for name, path in more.items()}
        self.run("import", "--change", "ENV PATH=/usr/bin", "-", AGENT, data=_tar({**small, **{n: p.read_bytes() for n, p in more.items()}}, modes))

    def close(self) -> None:
        """Nothing of it is left."""
        for words in (("pod", "rm", "-f", "-t", "0", "-a"), ("rm", "-f", "-t", "0", "-a"), ("rmi", "-f", "-a")):
            self.run(*words, check=False)
        subprocess.run(["umount", str(self.folder / "storage" / "overlay")], capture_output=True, check=False)


def _tar(files: Mapping[str, bytes], modes: Mapping[str, int] = {}) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:

        def add(name: str, kind: bytes, mode: int, data: bytes = b"", link: str = "") -> None:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), link
            tar.addfile(entry, io.BytesIO(data))

        for name in ("usr", "etc", "run", "proc", "sys", "dev", "var", "root", "opt", "opt/bin"):
            add(name, tarfile.DIRTYPE, 0o755)
        add("tmp", tarfile.DIRTYPE, 0o1777)
        for name in ("bin", "sbin", "lib", "lib64"):
            add(name, tarfile.SYMTYPE, 0o777, link=f"usr/{name}")
        hosts = b"hosts: files dns\npasswd: files\ngroup: files\n"
        for name, data in {"etc/passwd": b"root:x:0:0::/root:/bin/sh\n", "etc/group": b"root:x:0:\n", "etc/nsswitch.conf": hosts}.items():
            add(name, tarfile.REGTYPE, 0o644, data)
        cache = Path("/etc/ld.so.cache")
        if cache.exists():
            add("etc/ld.so.cache", tarfile.REGTYPE, 0o644, cache.read_bytes())
        for name, data in files.items():
            add(name, tarfile.REGTYPE, modes.get(name, 0o755), data)
    return out.getvalue()
