"""One stack per user, shared, and gone with its last user: the real keeper, the real parts.

The stack is found by what it owns: every process of it descends from its guard, and carries its mark.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aegis_cli.errors import CliError
from aegis_cli.stack import client, guard, parts, place, users

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "stack"
    monkeypatch.setenv("AEGIS_STACK_DIR", str(folder))
    yield folder
    mark = client.read_info(folder).get("mark")
    if folder.is_dir() and not folder.is_symlink() and not client.lock_free(folder):
        client.end(folder)
    if mark:
        assert guard.end_marked(mark)


def eventually(test: Callable[[], Any], what: str, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not test():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)


def pids(info: dict[str, Any]) -> list[int]:
    return [int(part["pid"]) for part in info["parts"]]


def alive(pid: int) -> bool:
    return pid in guard.processes()


USER = """
import sys, time
from pathlib import Path
from aegis_cli.stack import client
stack = client.join(Path(sys.argv[1]))
print("joined", stack.info["mark"], int(stack.started), flush=True)
time.sleep(600)
"""


def user_process(base: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", USER, str(base)], stdout=subprocess.PIPE, text=True)


def joined(process: subprocess.Popen[str]) -> tuple[str, bool]:
    assert process.stdout is not None
    word, mark, started = process.stdout.readline().split()
    assert word == "joined"
    return mark, started == "1"


# --- one stack, shared -----------------------------------------------------------------------------------------------------------


def test_two_users_at_once_share_one_stack_and_the_last_takes_it_along(base: Path) -> None:
    first, second = user_process(base), user_process(base)
    try:
        told = [joined(first), joined(second)]
        assert told[0][0] == told[1][0]
        assert [started for _, started in told].count(True) == 1
        info = client.read_info(base)
        keeper = info["pid"]
        assert all(map(alive, pids(info)))
        first.kill()  # kill -9 of a command: its lock goes with it
        first.wait()
        eventually(lambda: users.in_use(base) == 1, "the lock of the killed user is free")
        time.sleep(1.5)  # several looks of the keeper: nothing may happen in this time
        assert all(map(alive, [keeper, *pids(info)]))
        second.kill()
        second.wait()
        eventually(lambda: client.lock_free(base), "the stack has gone")
        assert not [pid for pid in [keeper, *pids(info)] if alive(pid)]
        assert not guard.marked(info["mark"])
        assert not (base / "store").exists()
        assert not (base / "creds").exists()
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def test_kill_9_of_the_keeper_takes_everything_along_and_the_next_user_gets_a_new_stack(base: Path) -> None:
    stack = client.join(base)
    info = stack.info
    try:
        os.kill(info["pid"], signal.SIGKILL)
        eventually(lambda: client.lock_free(base), "guard and parts have gone")
        assert not [pid for pid in pids(info) if alive(pid)]
        assert (base / "keeper.json").exists()  # it had no time to clean up
        again = client.join(base)
        try:
            assert again.started
            assert again.info["mark"] != info["mark"]
            assert all(map(alive, pids(again.info)))
        finally:
            again.leave()
    finally:
        stack.leave()
    eventually(lambda: client.lock_free(base), "the second stack goes with its last user")


def test_kill_9_of_guard_and_keeper_at_once_leaves_nothing_for_the_next_user(base: Path) -> None:
    stack = client.join(base)
    info = stack.info
    stack.leave()
    keeper = info["pid"]
    parent = guard.processes()[keeper]
    stray = subprocess.Popen(["sleep", "600"], env={**os.environ, guard.VARIABLE: info["mark"]}, start_new_session=True)
    os.kill(parent, signal.SIGSTOP)  # it cannot clean up
    os.kill(keeper, signal.SIGKILL)
    os.kill(parent, signal.SIGKILL)
    eventually(lambda: client.lock_free(base), "both are gone")
    assert stray.poll() is None
    again = client.join(base)
    try:
        assert stray.wait(5) == -signal.SIGKILL
        assert not [pid for pid in pids(info) if alive(pid)]
    finally:
        again.leave()
        stray.kill()
        stray.wait()


def test_a_part_that_dies_is_started_again_and_status_says_so(base: Path) -> None:
    stack = client.join(base)
    try:
        before = {part["name"]: part for part in stack.info["parts"]}
        for name in ("jobcontroller", "nats-server"):
            os.kill(before[name]["pid"], signal.SIGKILL)

        def back() -> bool:
            now = {part["name"]: part for part in client.read_info(base)["parts"]}
            return all(now[name]["state"] == "up" and now[name]["pid"] != before[name]["pid"] for name in ("jobcontroller", "nats-server"))

        eventually(back, "both are up again, with new processes")
        now = {part["name"]: part for part in client.read_info(base)["parts"]}
        assert now["jobcontroller"]["restarts"] == 1
        assert now["jobcontroller"]["last"] == "signal 9"
        assert now["nats-server"]["address"] == before["nats-server"]["address"]
    finally:
        stack.leave()


def test_a_pinned_stack_stays_until_it_is_told_to_go_and_more_nodes_can_be_asked_for(base: Path) -> None:
    stack = client.join(base, pin=True)
    info = stack.info
    stack.leave()
    time.sleep(1.5)  # several looks of the keeper: nothing may happen in this time
    assert alive(info["pid"])
    more = client.join(base, nodes=3)
    assert more.nodes == ["node1", "node2", "node3"]
    assert not more.started
    more.leave()
    assert client.end(base)
    assert not alive(info["pid"])
    assert not client.end(base)


def test_state_is_kept_where_it_was_asked_for(base: Path, tmp_path: Path) -> None:
    store = tmp_path / "kept"
    stack = client.join(base, store=store)
    secret = (store / "site" / "root.secret").read_text()
    with pytest.raises(CliError, match="E105"):
        client.join(base, store=tmp_path / "other")
    stack.leave()
    eventually(lambda: client.lock_free(base), "the stack has gone")
    assert (store / "nats" / "js").is_dir()
    again = client.join(base, store=store)
    try:
        assert (store / "site" / "root.secret").read_text() == secret
    finally:
        again.leave()


def test_the_network_monitor_is_part_of_the_stack_where_it_is_configured(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AEGIS_NETMON_ROUND", "1s")
    (tmp_path / "home/.config/aegis").mkdir(parents=True)
    assert not parts.wants_netmon(tmp_path), "what one command's environment says is not for a stack that others share"
    (tmp_path / "home/.config/aegis/aegis.toml").write_text('[netmon]\nround = "0.5s"\n')
    stack = client.join(base)
    try:

        def up() -> bool:
            return any(part["kind"] == "netmon" and part["state"] == "up" for part in client.read_info(base)["parts"])

        eventually(up, "netmon is up")
    finally:
        stack.leave()


def test_two_stacks_never_share_one_state(base: Path, tmp_path: Path) -> None:
    store, other = tmp_path / "kept", tmp_path / "other-stack"
    stack = client.join(base, store=store)
    try:
        with pytest.raises(CliError, match=r"E105 the state in .*/kept is in use by another stack"):
            client.join(other, store=store)
        eventually(lambda: client.lock_free(other), "nothing is left of the second")
        assert (store / "site" / "root.secret").exists()
        assert client.running(base) is not None
    finally:
        stack.leave()


def test_a_node_of_the_stack_is_cut_off_by_name_and_let_in_again_by_a_new_start(base: Path, tmp_path: Path) -> None:
    store = tmp_path / "kept"

    def aegis(*words: str) -> str:
        command = [sys.executable, "-m", "aegis_cli", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False).stdout

    def health() -> dict[str, str]:
        return {node["node"]: node.get("health", "ok") for node in json.loads(aegis("node", "ls", "-o", "json") or '{"items": []}')["items"]}

    def keys() -> list[str]:
        return [(base / "creds" / f"{node}.creds").read_text() for node in ("node1", "node2")]

    stack = client.join(base, nodes=2, store=store)
    first = keys()
    stack.leave()
    eventually(lambda: client.lock_free(base), "the stack has gone")
    stack = client.join(base, nodes=2, store=store)
    assert keys() == first, "one key per node, however often the stack is started"
    assert json.loads(aegis("creds", "revoke", "--node", "node2", "-o", "json"))["revoked"] is True
    eventually(lambda: health() == {"node1": "ok", "node2": "silent"}, "its daemon is cut off, and no other", 60)
    stack.leave()
    eventually(lambda: client.lock_free(base), "the stack has gone")
    stack = client.join(base, nodes=2, store=store)
    try:
        assert [old == new for old, new in zip(first, keys(), strict=True)] == [True, False]
        eventually(lambda: health() == {"node1": "ok", "node2": "ok"}, "both are there", 60)
    finally:
        stack.leave()


def test_a_stack_that_cannot_start_says_why_and_leaves_nothing(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho nats-server: v2.10.7\n")
    old.chmod(0o755)
    monkeypatch.setenv("AEGIS_NATS_SERVER", str(old))
    with pytest.raises(CliError, match=r"E120 nats-server 2\.10\.7 at .*: 2\.12 or newer"):
        client.join(base)
    eventually(lambda: client.lock_free(base), "nothing is left")


def test_secrets_of_the_stack_are_for_its_owner_only(base: Path) -> None:
    stack = client.join(base)
    try:
        assert stat.S_IMODE(base.stat().st_mode) == 0o700
        for path in [*base.glob("creds/*"), base / "store/site/root.secret", base / "store/site/operator.seed"]:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert not (base / "creds" / "admin.creds").exists()
        for pid in pids(stack.info):
            words = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert b"SUA" not in words
            assert (base / "store/site/root.secret").read_bytes().strip() not in words
    finally:
        stack.leave()


# --- what was left, what is hostile ----------------------------------------------------------------------------------------------


def test_leftovers_of_a_dead_stack_do_not_matter(base: Path) -> None:
    base.mkdir(mode=0o700)
    (base / "keeper.json").write_text('{"state": "up", "pid": 1, "servers": ["nats://127.0.0.1:1"], "parts": [], "mark": "feed"}')
    (base / "pinned").touch()
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(base, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{folder}/control.sock")
    listener.close()
    os.close(folder)
    (base / "users").mkdir()
    (base / "users" / "4711-dead").touch()
    assert client.running(base) is None
    stack = client.join(base)
    try:
        assert stack.started
        assert not users.pinned(base)
        assert client.ask(base, {"do": "status"})["state"] == "up"
    finally:
        stack.leave()


def test_the_folder_is_by_runtime_dir_else_by_uid_in_tmp(tmp_path: Path) -> None:
    assert place.base_dir({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "aegis"
    assert place.base_dir({"XDG_RUNTIME_DIR": str(tmp_path / "absent")}, uid=4711) == Path("/tmp/aegis-4711")
    assert place.base_dir({}, uid=4711) == Path("/tmp/aegis-4711")
    assert place.base_dir({"AEGIS_STACK_DIR": "/x", "XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/x")


def test_a_symbolic_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "stack").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CliError, match=r"E122 .* is a symbolic link"):
        client.join(tmp_path / "stack")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack").chmod(0o755)
    with pytest.raises(CliError, match=r"E122 .* has mode 755: others may enter\. Do: chmod 700"):
        client.join(tmp_path / "stack")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a folder of another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir(mode=0o700)
    shutil.chown(tmp_path / "stack", 65534)
    with pytest.raises(CliError, match=r"E122 .* belongs to uid 65534"):
        client.join(tmp_path / "stack")


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "stack").touch()
    with pytest.raises(CliError, match=r"E122 .* is not a folder"):
        client.join(tmp_path / "stack")


def test_a_link_instead_of_a_lock_file_is_not_followed(tmp_path: Path) -> None:
    base = tmp_path / "stack"
    base.mkdir(mode=0o700)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (base / "gate").symlink_to(victim)
    with pytest.raises(OSError):
        client.join(base)
    assert victim.read_text() == "precious"


def test_state_on_a_shared_file_system_is_refused(tmp_path: Path) -> None:
    mounts = f"rootfs / ext4 rw 0 0\nserver:/export {tmp_path} nfs4 rw 0 0\n"
    with pytest.raises(CliError, match=r"E121 .*nfs4.*Use a local disk"):
        place.check_local(tmp_path / "state", mounts)


# --- the locks -------------------------------------------------------------------------------------------------------------------


def test_a_user_is_counted_while_it_lives_and_its_file_is_removed_after(tmp_path: Path) -> None:
    user = users.User(tmp_path)
    assert users.in_use(tmp_path) == 1
    user.close()
    assert users.in_use(tmp_path) == 0
    (tmp_path / "users" / "1-dead").touch()
    assert users.in_use(tmp_path) == 0
    assert (tmp_path / "users" / "1-dead").exists()
    assert users.in_use(tmp_path, clean=True) == 0
    assert not list((tmp_path / "users").iterdir())


def test_the_gate_lets_one_through_at_a_time(tmp_path: Path) -> None:
    inside: list[str] = []
    waiting = threading.Event()

    def other() -> None:
        waiting.set()
        with users.gate(tmp_path):
            inside.append("second")

    with users.gate(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        waiting.wait(5)
        with pytest.raises(CliError, match="E123 waited"), users.gate(tmp_path, timeout=0.2):
            pass
        inside.append("first")
    thread.join(10)
    assert inside == ["first", "second"]


def test_the_keeper_refuses_requests_that_make_no_sense(base: Path) -> None:
    stack = client.join(base)
    try:
        for request in ({"do": "dance"}, {"do": "nodes", "count": "many"}, {}):
            with pytest.raises(CliError, match="E107"):
                client.ask(base, request)
        folder = os.open(base, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"/proc/self/fd/{folder}/control.sock")
            connection.sendall(b"\x00\xff not json\n")
            assert "error" in json.loads(connection.recv(4096))
        os.close(folder)
        assert client.ask(base, {"do": "status"})["state"] == "up"
    finally:
        stack.leave()
