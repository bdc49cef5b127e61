"""Commands against a real stack: what they print, in which shape, and how they end. One stack for all of them, two virtual nodes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import time
from pathlib import Path

import pytest
from aegis_bus.natsserver import NatsServer
from aegis_cli.stack import client as stacks
from aegis_cli.stack import guard
from cli_process import WAIT, Aegis, started

pytestmark = pytest.mark.timeout(300)


# --- run -------------------------------------------------------------------------------------------------------------------------


def test_a_run_that_succeeds_prints_its_workers_on_stdout_and_all_else_on_stderr(aegis: Aegis) -> None:
    code, out, err = aegis(
        "run", "-N", "2", "--nproc-per-node", "2", "--report", "report.json", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE, $GREETING"'
    )
    assert code == 0
    assert sorted(out.splitlines()) == [f"[w{rank // 2}/r{rank} i0] rank {rank} of 4, " for rank in range(4)]
    assert "2 workers: node1 node2 are virtual nodes of this machine" in err
    assert "Succeed inc 0" in err
    report = json.loads((aegis.folder / "report.json").read_text())
    assert (report["apiVersion"], report["kind"]) == ("aegis/v1", "RunReport")
    assert (report["result"], report["exitCode"], report["incarnations"], report["recoverCount"]) == ("Succeed", 0, 1, 0)
    assert [phase["phase"] for phase in report["phases"]][-3:] == ["BootChecking", "RunCommand", "Succeed"]


def test_the_callers_environment_and_folder_reach_a_local_job(aegis: Aegis) -> None:
    aegis.environ["GREETING"] = "hello"
    code, out, _ = aegis("run", "sh", "-c", 'echo "$GREETING from $(pwd)"')
    assert (code, out) == (0, f"[w0/r0 i0] hello from {aegis.folder}\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--max-retry", "0", "sh", "-c", "exit 3"), 3, "E301 Failed: 1 fault, 0 allowed"),
        (("--max-retry", "1", "sh", "-c", "exit 3"), 76, "E301 Failed: 2 faults, 1 allowed (2 error"),
        (("--max-retry", "1", "sh", "-c", "kill -9 $$"), 75, "E301 Failed: 2 faults, 1 allowed (2 signal"),
        (("--max-retry", "1", "sh", "-c", "kill -SEGV $$"), 76, "E301 Failed: 2 faults, 1 allowed (2 signal"),
        (("pyhton", "train.py"), 127, '"pyhton" not found in PATH (exit 127). Not counted, not retried. Did you mean python'),
    ],
    ids=["own-code", "your-code", "infrastructure", "your-crash", "not-found"],
)
def test_exit_codes_of_a_run_that_fails(aegis: Aegis, words: tuple[str, ...], code: int, text: str) -> None:
    status, _, err = aegis("run", *words)
    assert status == code
    assert text in err
    assert err.count("Did you mean") == text.count("Did you mean")


def test_ctrl_c_stops_with_grace(aegis: Aegis) -> None:
    process = aegis.start(
        "run", "--grace", "20s", "sh", "-c", "trap 'sleep 1; echo saved > saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    )
    started(aegis, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert "stopping" in err and "E303" in err
    assert (aegis.folder / "saved").read_text() == "saved\n"


def test_a_run_whose_worker_ignores_the_stop_is_killed_after_the_grace(aegis: Aegis) -> None:
    process = aegis.start("run", "--grace", "1s", "sh", "-c", "trap '' TERM; echo $$ > pid; echo ready; while :; do sleep 0.1; done")
    started(aegis, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT)
    assert process.returncode == 143
    assert int((aegis.folder / "pid").read_text()) not in guard.processes()


def test_on_a_terminal_there_is_a_live_screen_and_never_the_alternate_one(aegis: Aegis) -> None:
    controller, terminal = pty.openpty()
    aegis.environ |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    aegis.environ.pop("CI", None)
    process = aegis.start("run", "--name", "screen", "sh", "-c", "echo from-the-worker; sleep 1", stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = b""
    while True:
        if not select.select([controller], [], [], WAIT)[0]:
            break
        try:
            data = os.read(controller, 65536)
        except OSError:
            break
        seen += data
    os.close(controller)
    text = seen.decode()
    assert process.wait(WAIT) == 0
    assert "[w0/r0 i0] from-the-worker" in text
    assert "● run" in text
    assert "Succeed" in text
    assert "\x1b[?1049h" not in text
    assert "\x1b[?25h" in text.rpartition("Succeed")[2]  # the cursor is back


def test_with_ci_set_a_terminal_gets_lines(aegis: Aegis) -> None:
    controller, terminal = pty.openpty()
    aegis.environ |= {"TERM": "xterm", "CI": "1", "NO_COLOR": "1"}
    with open(aegis.folder / "said", "wb") as said:
        process = aegis.start("run", "sh", "-c", "echo from-the-worker", stdin=terminal, stdout=terminal, stderr=said)
    os.close(terminal)
    assert process.wait(WAIT) == 0, (aegis.folder / "said").read_text()
    assert os.read(controller, 65536) == b"[w0/r0 i0] from-the-worker\r\n"
    os.close(controller)


def test_json_of_a_run_is_one_report_on_stdout(aegis: Aegis) -> None:
    code, out, err = aegis("run", "-o", "json", "sh", "-c", "echo noise")
    assert code == 0, out + err
    assert json.loads(out)["kind"] == "RunReport"


# --- jobs ------------------------------------------------------------------------------------------------------------------------


def test_a_detached_job_is_listed_shown_explained_waited_for(aegis: Aegis) -> None:
    code, out, err = aegis("run", "-d", "--name", "walk", "sh", "-c", "echo walking; sleep 1; echo arrived")
    job = out.strip()
    assert code == 0
    assert f"aegis job attach {job}" in err
    listed = aegis.json("job", "ls", "--all")
    assert listed["kind"] == "JobList"
    assert job in [item["job"] for item in listed["items"]]
    code, out, _ = aegis("job", "wait", "walk", "--timeout", "60s")
    assert (code, out) == (0, f"{job} Succeed\n")
    shown = aegis.json("job", "show", "walk")
    assert (shown["kind"], shown["summary"]["job"], len(shown["workers"])) == ("Job", job, 1)
    events = aegis.json("job", "events", job)
    assert events["kind"] == "EventList"
    assert events["items"][-1]["phase"] == "Succeed"
    explained = aegis.json("job", "why", job)
    assert explained["kind"] == "Explanation"
    assert "succeeded after 1 incarnation" in explained["now"]
    assert explained["lines"][-1]["what"] == "all finished"
    assert aegis("job", "ls", "--all", "-o", "name")[1].split().count(job) == 1
    assert aegis("job", "wait", job, "--for", "phase=Succeed")[0] == 0
    lines = [json.loads(line) for line in aegis("logs", job, "-o", "json")[1].splitlines()]
    assert [line["message"] for line in lines] == ["walking", "arrived"]
    assert {line["kind"] for line in lines} == {"LogLine"}
    assert aegis("job", "logs", job, "--grep", "arr", "--worker", "w0", "--rank", "0", "--incarnation", "0")[1] == "[w0/r0 i0] arrived\n"
    assert aegis("job", "logs", job, "--rank", "1")[1] == ""
    header = aegis("job", "show", job, "--lang", "zh")[1]
    assert "您的最大重启次数为 3 次,目前已重启 0 次" in header


def test_a_job_that_cannot_be_placed_says_why_and_waits(aegis: Aegis) -> None:
    job = aegis.submit("-N", "3", "--name", "wide", "--", "true")
    aegis.until(job, lambda found: found["summary"]["phase"] == "Pending")
    deadline = time.monotonic() + WAIT
    while "E113" not in (waiting := aegis.json("job", "why", job)["waiting"]):
        assert time.monotonic() < deadline, waiting
    assert "3 workers asked, 2 nodes usable" in waiting
    code, out, _ = aegis("job", "stop", job, "--reason", "not today")
    assert code == 0
    assert re.search(rf"{job}\s+Pending\s+Failed", out)
    assert aegis("job", "wait", job)[0] == 143
    assert aegis("job", "stop", job)[0] == 7


def test_one_unknown_name_does_not_lose_what_was_done_to_the_others(aegis: Aegis) -> None:
    first, second = (aegis.submit("--name", name, "--", "sleep", "600") for name in ("left", "right"))
    code, out, err = aegis("job", "stop", first, "nobody", second, first, "--grace", "0s", "-o", "json")
    assert code == 3
    assert [item["job"] for item in json.loads(out)["items"]] == [first, second]
    assert json.loads(err)["error"]["code"] == "E104"
    code, out, err = aegis("job", "stop", first, "nobody")
    assert (code, out) == (7, "")
    assert "E104" in err and "E105" in err
    code, out, err = aegis("node", "taint", "node1", "nowhere", "--dry-run", "-o", "json")
    assert (code, [item["node"] for item in json.loads(out)["items"]]) == (3, ["node1"])
    code, out, err = aegis("job", "show", "nobody", second)
    assert code == 3
    assert f"Job {second}" in out and "E104" in err


def test_the_last_lines_of_two_workers_then_what_comes(aegis: Aegis) -> None:
    text = "for i in 1 2 3; do echo $RANK-$i; sleep 0.4; done; while [ ! -e go ]; do sleep 0.05; done; echo $RANK-more"
    job = aegis.submit("-N", "2", "--name", "talk", "--", "sh", "-c", text)
    deadline = time.monotonic() + WAIT
    while len(aegis("logs", job)[1].splitlines()) < 6:
        assert time.monotonic() < deadline
    told = [json.loads(line) for line in aegis("logs", job, "-o", "json", "--tail", "0")[1].splitlines()]
    assert [line["time"] for line in told] == sorted(line["time"] for line in told)
    last = aegis("logs", job, "--tail", "3")[1].splitlines()
    assert len(last) == 3 and {line.rpartition("-")[2] for line in last} <= {"2", "3"}
    assert {line[:3] for line in last} == {"[w0", "[w1"}
    following = aegis.start("logs", job, "-f", "--tail", "2")
    assert following.stdout is not None
    first = [following.stdout.readline().strip() for _ in range(2)]
    assert first == last[1:]
    (aegis.folder / "go").touch()
    rest, _ = following.communicate(timeout=WAIT)
    assert sorted(rest.split()[2::3]) == ["0-more", "1-more"]
    assert aegis("logs", job, "--worker", "1", "--tail", "1")[1].endswith("1-more\n")
    assert aegis("logs", job, "--worker", "node1")[0] == 2


def test_dry_run_of_an_acting_verb_changes_nothing(aegis: Aegis) -> None:
    job = aegis.submit("--name", "stay", "--", "sleep", "600")
    aegis.until(job, lambda found: found["summary"]["phase"] == "RunCommand")
    acted = aegis.json("job", "stop", job, "--dry-run")
    assert acted["kind"] == "ActionList"
    assert acted["items"] == [{"job": job, "before": "RunCommand", "after": "(would stop)"}]
    assert aegis.json("job", "show", job)["summary"]["phase"] == "RunCommand"
    assert aegis("job", "stop", job, "--grace", "0s")[0] == 0


def test_restart_suspend_resume_and_set_do_what_they_say(aegis: Aegis) -> None:
    job = aegis.submit("--name", "verbs", "--", "sleep", "600")
    running = aegis.until(job, lambda found: found["summary"]["phase"] == "RunCommand")
    assert running["summary"]["recoverCount"] == 0
    assert aegis("job", "restart", job, "--reason", "new driver")[0] == 0
    again = aegis.until(job, lambda found: found["summary"]["phase"] == "RunCommand" and found["summary"]["incarnation"] == 1)
    assert again["summary"]["recoverCount"] == 0
    code, out, _ = aegis("job", "set", job, "max-retry=9")
    assert (code, out.split()) == (0, ["KEY", "OLD", "NEW", "max-retry", "3", "9"])
    aegis.until(job, lambda found: found["summary"]["maxRetry"] == 9)
    code, _, err = aegis("job", "suspend", job, "--reason", "maintenance")
    assert code == 0
    assert "the workers keep their nodes" in err
    assert [node["free"] for node in aegis.json("node", "ls", "--job", job)["items"]] == [3]
    aegis.until(job, lambda found: found["summary"].get("suspended", False))
    assert aegis("job", "resume", job, "--reason", "done")[0] == 0
    aegis.until(job, lambda found: found["summary"]["phase"] == "RunCommand" and not found["summary"].get("suspended", False))
    story = [line["what"] for line in aegis.json("job", "why", job)["lines"]]
    for verb, reason in (("restart", "new driver"), ("suspended", "maintenance"), ("resumed", "done")):
        assert any(verb in what and reason in what for what in story), story
    assert aegis("job", "stop", job, "--grace", "0s")[0] == 0


def test_a_job_that_is_not_there_is_not_found(aegis: Aegis) -> None:
    for words in (("job", "show", "nobody"), ("job", "why", "nobody"), ("job", "stop", "nobody"), ("logs", "nobody"), ("node", "show", "nobody")):
        code, out, err = aegis(*words)
        assert (code, out) == (3, "")
        assert "E104" in err or "E109" in err


def test_wait_ends_with_6_when_it_takes_too_long(aegis: Aegis) -> None:
    job = aegis.submit("--name", "slow", "--", "sleep", "600")
    code, _, err = aegis("job", "wait", job, "--timeout", "1s")
    assert code == 6
    assert "E119" in err
    assert aegis("job", "stop", job, "--grace", "0s")[0] == 0


# --- nodes, credentials, the stack -----------------------------------------------------------------------------------------------


def test_an_excluded_node_is_shown_and_let_in_again(aegis: Aegis) -> None:
    code, out, _ = aegis("node", "taint", "node2", "--for", "1h", "--reason", "noisy fan")
    assert code == 0
    assert "excluded" in out
    found = {node["node"]: node for node in aegis.json("node", "ls")["items"]}
    assert found["node2"]["excluded"] is True
    assert found["node2"]["reason"] == "noisy fan"
    assert [node["node"] for node in aegis.json("node", "ls", "--excluded")["items"]] == ["node2"]
    assert "Excluded until" in aegis("node", "show", "node2")[1]
    assert aegis("node", "untaint", "node2")[0] == 0
    assert aegis.json("node", "ls", "--excluded")["items"] == []


def test_a_reader_sees_and_may_not_act(aegis: Aegis, base: Path) -> None:
    job = aegis.submit("--name", "guarded", "--", "sh", "-c", "echo for all to see; exec sleep 600")
    code, _, err = aegis("creds", "issue", "--role", "reader", "--out", "reader.creds", "--name", "visitor", "--ttl", "1h")
    assert code == 0, err
    assert (aegis.folder / "reader.creds").stat().st_mode & 0o077 == 0
    server = stacks.read_info(base)["servers"][0]
    assert aegis("context", "add", "visit", "--server", server, "--creds", "reader.creds")[0] == 0
    assert job in [item["job"] for item in aegis.json("job", "ls", "-c", "visit")["items"]]
    code, _, err = aegis("job", "stop", job, "-c", "visit")
    assert code == 4
    assert "E103 visitor may not stop jobs (needs role user in namespace default, or operator). Context visit" in err
    deadline = time.monotonic() + 30
    while "for all to see" not in aegis("logs", job, "-c", "visit")[1]:
        assert time.monotonic() < deadline, "a reader sees the lines"
    assert aegis("context", "use", "none")[0] == 0
    assert aegis("creds", "revoke", "reader.creds")[0] == 0
    code, _, err = aegis("job", "ls", "-c", "visit")
    assert code == 4
    assert "E102" in err
    assert aegis("job", "stop", job, "--grace", "0s")[0] == 0


def test_issue_never_writes_over_a_file(aegis: Aegis) -> None:
    (aegis.folder / "mine.creds").write_text("precious")
    assert aegis("creds", "issue", "--role", "reader", "--out", "mine.creds")[0] == 7
    assert (aegis.folder / "mine.creds").read_text() == "precious"


def test_status_names_every_part(aegis: Aegis) -> None:
    found = aegis.json("status")
    parts = {item["part"]: item for item in found["items"]}
    assert {"stack", "nats-server", "credentials", "jobcontroller", "master-1", "node1", "node2", "bus", "masters", "nodes"} <= set(parts)
    assert {item["state"] for item in parts.values()} == {"up"}
    assert parts["nats-server"]["version"].startswith("2.")


def test_doctor_finds_nothing_wrong_and_speaks_to_the_bus(aegis: Aegis) -> None:
    rows = {row["check"]: row for row in aegis.json("doctor")["items"]}
    assert {"python", "nats-server", "state", "ports", "clock", "/dev/shm", "torch", "bus", "master", "jetstream"} <= set(rows)
    assert "fail" not in {row["level"] for row in rows.values()}


def test_setup_makes_a_site_once_and_refuses_a_strange_one(aegis: Aegis) -> None:
    code, out, _ = aegis("setup", "--state", "site", "-o", "json")
    assert code == 0
    assert json.loads(out)["kind"] == "Site"
    secret = (aegis.folder / "site" / "root.secret").read_bytes()
    assert aegis("setup", "--state", "site")[0] == 0
    assert (aegis.folder / "site" / "root.secret").read_bytes() == secret
    assert secret.strip() not in out.encode()


def test_setup_makes_the_streams_once_and_a_new_era_when_restored(aegis: Aegis, tmp_path: Path) -> None:
    assert aegis("setup", "--state", "site")[0] == 0
    with NatsServer(tmp_path / "nats", auth_conf=(aegis.folder / "site" / "auth.conf").read_text(), die_with_parent=True) as server:
        words = ("setup", "--state", "site", "--server", server.url)
        first, again = aegis.json(*words), aegis.json(*words)
        assert first["era"] and again["era"] == first["era"]
        assert aegis.json(*words, "--restored")["era"] > first["era"]


def test_a_run_ends_when_its_stack_does(aegis: Aegis, tmp_path: Path) -> None:
    aegis.environ["AEGIS_STACK_DIR"] = str(tmp_path / "own-stack")
    process = aegis.start("run", "sh", "-c", "echo ready; sleep 600")
    started(aegis, process)
    assert aegis("down")[0] == 0
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 5
    assert "E123 the stack of this machine has ended" in err
    code, out, err = aegis("job", "why", "sh")
    assert (code, "its stack with it" in err) == (0, True)
    assert "is RunCommand" in out


def test_a_run_without_a_stack_starts_one_and_two_at_once_share_it(aegis: Aegis, tmp_path: Path) -> None:
    own = tmp_path / "own-stack"
    aegis.environ["AEGIS_STACK_DIR"] = str(own)
    both = [aegis.start("run", "--name", name, "sh", "-c", "echo ready; sleep 3") for name in ("one", "two")]
    ends = [process.communicate(timeout=2 * WAIT) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert [out for out, _ in ends] == ["[w0/r0 i0] ready\n"] * 2
    assert sum("starting a stack on this machine" in err for _, err in ends) == 1
    deadline = time.monotonic() + WAIT
    while not stacks.lock_free(own):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not guard.marked(stacks.read_info(own)["mark"])
