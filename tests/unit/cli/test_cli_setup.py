"""A site that `aegis setup` made is started by hand, from exactly what it wrote; a node joins with credentials issued by the command line."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aegis_bus.natsserver import find_server, free_port

pytestmark = pytest.mark.timeout(180)
WAIT = 60.0


class Hand:
    """A person at a shell: starts commands with an environment, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith("AEGIS_")}
        self.environ |= {"HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "config"), "AEGIS_STACK_DIR": str(folder / "no-stack")}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self.started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=self.environ | variables, cwd=self.folder, stdout=file, stderr=file)
        self.started.append(process)
        return process

    def module(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        return self.start(sys.executable, "-m", *words, **variables)

    def aegis(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "aegis_cli", *words], env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=WAIT, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def json(self, *words: str) -> Any:
        code, out, err = self.aegis(*words, "-o", "json")
        assert code == 0, err
        return json.loads(out)

    def until(self, test: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WAIT
        while not (found := test()):
            logs = "\n".join(path.read_text(errors="replace")[-600:] for path in sorted(self.folder.glob("*.log")))
            assert time.monotonic() < deadline, f"{what}\n{logs}"
            for process in self.started:
                assert process.poll() is None, f"{process.args} ended\n{logs}"
            time.sleep(0.1)
        return found

    def end(self) -> None:
        for process in reversed(self.started):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in reversed(self.started):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    made = Hand(tmp_path)
    yield made
    made.end()


def test_setup_writes_the_first_credentials_once_for_their_owner_alone(hand: Hand) -> None:
    site = hand.json("setup", "--state", "site")
    assert set(site["creds"]) == {"master", "jobcontroller", "lognexus", "lemon", "netmon", "operator", "mirror"}
    before = {}
    for path in map(Path, site["creds"].values()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        before[path] = path.read_bytes()
    code, out, _ = hand.aegis("setup", "--state", "site")
    assert code == 0
    assert out.count("as it was") == 7 and all(str(path) in out for path in before)
    assert {path: path.read_bytes() for path in before} == before


def test_a_site_starts_by_hand_from_exactly_what_setup_wrote_and_revoking_a_node_cuts_it(hand: Hand) -> None:
    """The commands of docs/operations.md, in its order."""
    url, grpc = f"nats://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    site = hand.json("setup", "--state", "site")
    folder, creds = Path(site["site"]), site["creds"]
    hand.start(
        find_server().path,
        "-c",
        str(folder / "nats.conf"),
        AEGIS_NATS_NAME="bus1",
        AEGIS_NATS_LISTEN=url.removeprefix("nats://"),
        AEGIS_NATS_HTTP=f"127.0.0.1:{free_port()}",
        AEGIS_NATS_SYNC="always",
        AEGIS_NATS_STORE=str(hand.folder / "js"),
        AEGIS_NATS_JWT=str(hand.folder / "jwt"),
    )
    hand.until(lambda: hand.aegis("setup", "--state", "site", "--server", url)[0] == 0, "streams")
    for name in ("credentials", "master", "jobcontroller"):
        own = {"AEGIS_BUS_CREDS": creds[name]} if name in creds else {"AEGIS_CREDENTIALS_STATE": str(folder), "AEGIS_CREDENTIALS_LISTEN": grpc}
        own |= {"AEGIS_CREDENTIALS_SERVER": grpc} if name == "jobcontroller" else {}
        hand.module(f"aegis_{name}", AEGIS_BUS_SERVERS=url, **own)
    assert hand.aegis("context", "add", "site", "--server", url, "--creds", creds["operator"])[0] == 0
    assert hand.aegis("context", "use", "site")[0] == 0
    hand.until(lambda: hand.aegis("creds", "issue", "--role", "node", "--node", "n1", "--out", "n1.creds")[0] == 0, "credentials of a node")
    node = ("aegis_agent", "node", "--node", "n1", "--servers", url, "--creds", "n1.creds", "--virtual")
    daemon = hand.module(*node, "--credentials-ca", str(folder / "tls" / "ca.pem"), "--state", str(hand.folder / "n1"))

    def health() -> str:
        code, out, _ = hand.aegis("node", "ls", "-o", "json")
        nodes = json.loads(out)["items"] if code == 0 else []
        return str(nodes[0].get("health", "ok")) if nodes else ""  # a default is not written

    hand.until(lambda: health() == "ok", "the node is there")
    job = hand.aegis("job", "submit", "sh", "-c", "echo $AEGIS_JOB > done.txt")[1].strip()
    assert hand.aegis("job", "wait", job)[0] == 0, hand.aegis("job", "why", job)
    hand.started.remove(daemon)
    try:
        assert hand.json("creds", "revoke", "--node", "n1")["revoked"] is True
        [listed] = hand.json("creds", "ls")["items"]
        assert (listed["name"], listed["role"], listed["scope"], listed["expires"], listed["revoked"]) == ("n1", "node", "n1", None, True)
        hand.until(lambda: health() == "silent", "the daemon is cut off")
    finally:
        daemon.terminate()
        daemon.wait(15)
    code, _, err = hand.aegis("node", "lost", "n1", "--reason", "revoked", "-y")
    assert code == 0, err
