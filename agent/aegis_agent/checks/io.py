"""Check `io`: every configured mount and the working directory take 1 MiB, sync it and give it back; free space, read-only, stalls, kernel lines;
by hand SMART too.

Each mount is probed by a process of its own, so that one that does not answer is named and the others are judged all the same. None is waited for:
what a dead file system holds in the kernel has no end. Writes one hidden file per mount, which has no name any more once it is open: a probe that is
killed leaves nothing.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import time
from typing import Any

from aegis_agent.checks import kernellog
from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.limits import limit
from aegis_agent.checks.settings import Mount, Settings

SIZE = 1 << 20
SMART_SECONDS = 8.0
"""For all disks together."""
KERNEL_LABELS = ("block_io_error", "fs_readonly", "nvme_timeout", "nfs_not_responding", "parallel_fs")
"""Labels of the kernel rules (aegis_parsers, causes/patterns.toml) that are about storage."""


def probe(mount: Mount) -> dict[str, Any]:
    """What one mount answers: {"error", "code"} or times and space. Runs in its own process."""
    begun = time.monotonic()
    try:
        os.stat(mount.path)
        if mount.mounted and not os.path.ismount(mount.path):
            return {"code": "mount_missing", "error": "nothing is mounted there"}
        space = os.statvfs(mount.path)
        answer = {
            "free": space.f_bavail * space.f_frsize,
            "size": space.f_blocks * space.f_frsize,
            "inodes": space.f_files,
            "inodes_free": space.f_favail,
        }
        if mount.readonly or (mount.own and not os.access(mount.path, os.W_OK)):
            os.listdir(mount.path)
            return {"seconds": time.monotonic() - begun}  # what is only read may be full: an image of a data set always is
        if space.f_flag & os.ST_RDONLY:
            return {**answer, "code": "fs_readonly", "error": "the file system is read-only"}
        write_and_read(mount.path)
        return {**answer, "seconds": time.monotonic() - begun}
    except FileNotFoundError as error:
        return {"code": "mount_missing", "error": error.strerror}
    except OSError as error:
        code = {28: "disk_full", 30: "fs_readonly", 116: "stale_handle", 122: "disk_full"}.get(error.errno or 0, "io_error")
        return {"code": code, "error": error.strerror or str(error)}
    except ValueError as error:
        return {"code": "data_corrupt", "error": str(error)}


def write_and_read(folder: str) -> None:
    """OSError, or ValueError when what comes back is not what was written."""
    data = os.urandom(4096) * (SIZE // 4096)
    path = f"{folder}/.aegis-io-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.unlink(path)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        back = b""
        while len(back) < SIZE and (chunk := os.pread(fd, SIZE, len(back))):
            back += chunk
        if back != data:
            raise ValueError(f"read back {len(back)} bytes that are not those written")
    finally:
        os.close(fd)


def probe_all(mounts: list[Mount], seconds: float) -> dict[str, dict[str, Any]]:
    """Answers by path; a mount without one within `seconds` is stalled."""
    waiting: dict[int, tuple[int, Mount]] = {}
    answers: dict[str, dict[str, Any]] = {}
    for mount in mounts:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):  # a probe that hangs for ever must not hold the check's own output open
                os.dup2(null, fd)
            os.write(writer, json.dumps(probe(mount)).encode())
            os._exit(0)
        os.close(writer)
        waiting[reader] = (pid, mount)
    until = time.monotonic() + seconds
    while waiting and (left := until - time.monotonic()) > 0:
        for fd in select.select(list(waiting), [], [], left)[0]:
            pid, mount = waiting.pop(fd)
            text = os.read(fd, 65536)
            os.close(fd)
            os.waitpid(pid, os.WNOHANG)
            answers[mount.path] = json.loads(text) if text else {"code": "io_error", "error": "the probe died"}
    for pid, mount in waiting.values():
        os.kill(pid, signal.SIGKILL)
        answers[mount.path] = {"code": "mount_stalled", "error": f"no answer within {seconds:g} s"}
    return answers


def judge(answer: Answer, path: str, seen: dict[str, Any], own: bool = False) -> None:
    """`own`: the working directory, which nobody said anything about: little room there is a warning (check `process` says when it is none)."""
    if "code" in seen:
        answer.finding(seen["code"], "critical", path, seen["error"])
    if "free" in seen and "seconds" in seen:
        low, share, inodes = limit("io.free_bytes"), limit("io.free_share"), limit("io.free_inode_share")
        free = f"{seen['free'] >> 20} of {seen['size'] >> 20} MiB free"
        if seen["free"] < low.value:
            answer.finding("disk_full", "warning" if own else low.severity, path, free)
        elif seen["size"] and seen["free"] < share.value * seen["size"]:
            answer.finding("disk_nearly_full", share.severity, path, free)
        if seen["inodes"] and seen["inodes_free"] < inodes.value * seen["inodes"]:
            answer.finding("inodes_full", "warning" if own else inodes.severity, path, f"{seen['inodes_free']} of {seen['inodes']} inodes free")
    if "seconds" in seen:
        slow = limit("io.slow_seconds")
        if seen["seconds"] > slow.value:
            answer.finding("io_slow", slow.severity, path, f"{seen['seconds']:.1f} s for 1 MiB")
        answer.values[f"seconds {path}"] = round(seen["seconds"], 4)


def stuck(root: str = "/proc", samples: int = 3, pause: float = 0.1) -> dict[int, str]:
    """User processes in uninterruptible sleep in every sample, without a context switch between them."""
    seen: dict[int, tuple[str, str]] = {}
    for n in range(samples):
        now = dict(sleepers(root))
        seen = now if n == 0 else {pid: was for pid, was in seen.items() if now.get(pid) == was}
        if not seen:
            break
        if n < samples - 1:
            time.sleep(pause)
    return {pid: name for pid, (name, _) in seen.items()}


def sleepers(root: str) -> list[tuple[int, tuple[str, str]]]:
    found = []
    try:
        names = os.listdir(root)
    except OSError:
        return []
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"{root}/{name}/status", errors="replace") as file:  # a name is any bytes
                text = file.read()
        except OSError:
            continue
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if facts.get("State", "").strip().startswith("D") and "VmSize" in facts:
            switches = facts.get("voluntary_ctxt_switches", "").strip() + "/" + facts.get("nonvoluntary_ctxt_switches", "").strip()
            found.append((int(name), (facts.get("Name", "").strip(), switches)))
    return found


def kernel_lines(answer: Answer, settings: Settings, run_for: float | None) -> None:
    """Storage lines of the kernel. By hand (`run_for` None) those of the last hour fail, and older ones of this boot are noted. In a round only those
    of the last `run_for` seconds speak, since the run began, and they warn: which file system works now the probes say, and of whom they tell is not
    said in them.
    """
    log = kernellog.read(settings.kernel_log)
    if log.why:
        answer.note(log.why)
        return
    recent = limit("io.kernel_seconds").value if run_for is None else run_for
    new = [line for line in log.lines if ((age := kernellog.age(line)) is not None and age <= recent) or (age is None and run_for is None)]
    if run_for is not None and not new:
        return
    from aegis_parsers import parse  # not on the way of a round that has nothing to read

    if run_for is not None:
        for finding in parse("dmesg", "\n".join(new)).findings:
            if finding.code in KERNEL_LABELS and finding.severity != "info":
                answer.finding(finding.code, "warning", finding.item, finding.evidence)
        return
    fresh = {(f.code, f.item) for f in parse("dmesg", "\n".join(new)).findings} if new else set()
    for finding in parse("dmesg", "\n".join(log.lines)).findings if log.lines else ():
        if finding.code in KERNEL_LABELS and finding.severity != "info":
            if (finding.code, finding.item) in fresh:
                answer.take(finding)
            else:
                answer.note(f"earlier in this boot: {finding.code} {finding.item}")


def disks(root: str = "/sys") -> list[str]:
    """Disks of this machine, as device files."""
    try:
        return sorted(f"/dev/{name}" for name in os.listdir(f"{root}/block") if re.fullmatch(r"nvme\d+n\d+|sd[a-z]+", name))
    except OSError:
        return []


def smart(answer: Answer, settings: Settings) -> None:
    """What the disks say of themselves, where smartctl is installed and may ask them. One that tells nothing is noted: most virtual ones do."""
    import subprocess

    from aegis_agent.checks import tool

    program = shutil.which("smartctl")
    found = disks(settings.under("sys")) if program is not None else []
    until = time.monotonic() + SMART_SECONDS
    for disk in found:
        try:
            done = tool.ask([program or "", "--json", "-H", "-A", disk], max(0.1, until - time.monotonic()))
        except (OSError, subprocess.TimeoutExpired) as error:
            answer.note(f"{disk}: smartctl {'does not answer' if isinstance(error, subprocess.TimeoutExpired) else error}")
            continue
        from aegis_parsers import parse

        parsed = parse("smartctl", done.stdout)
        for finding in parsed.findings:
            answer.take(finding)
        for why in parsed.unreadable:
            answer.note(f"{disk}: {why}")


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    mounts = list(settings.mounts)
    cwd = context.get("cwd") or os.getcwd()
    if all(mount.path != cwd for mount in mounts):
        mounts.append(Mount(cwd, own=True))  # looked at by its probe alone: it may be what does not answer
    own = {mount.path for mount in mounts if mount.own}
    for path, seen in probe_all(mounts, limit("io.mount_seconds").value).items():
        judge(answer, path, seen, path in own)
    asleep = stuck(settings.under("proc"))
    if asleep:
        names = ", ".join(f"{name} ({pid})" for pid, name in list(asleep.items())[:8])
        answer.finding("processes_stuck", "warning", "node", f"in uninterruptible sleep: {names}")
    if not context.get("round"):
        smart(answer, settings)
    kernel_lines(answer, settings, float(context["run_for"]) if context.get("round") else None)
    return f"{len(mounts)} mounts: {', '.join(mount.path for mount in mounts)}"


if __name__ == "__main__":
    run("io", examine)
