"""Aegis in an allocation of Slurm, what needs no Slurm: where a task stands, the budget over requeues, what a signal and an end mean."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest
from aegis_bus import config
from aegis_cli.commands import doctor
from aegis_cli.commands.doctor import slurm_settings
from aegis_cli.commands.slurm import read_scores
from aegis_cli.errors import CliError
from aegis_cli.slurm import control, ledger, records, step
from aegis_cli.slurm.ending import Ending, ending, interrupted, used
from aegis_cli.slurm.folder import End, Folder
from aegis_cli.slurm.ledger import Avoided, Ledger, Start
from aegis_cli.slurm.main import parser, specification
from aegis_cli.slurm.records import Notice
from aegis_cli.slurm.script import job_file, script
from aegis_parsers.slurm import changes, record
from aegis_proto.state import JobSpec
from cli_data import detail

STEP = {
    "SLURM_JOB_ID": "48213",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURMD_NODENAME": "cn-101",
    "SLURM_STEP_NODELIST": "cn-[100-104]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x5)",
    "SLURM_SUBMIT_DIR": "/home/a/run",
}


def test_a_task_knows_its_place() -> None:
    here = step.read(STEP)
    assert (here.name, here.owner, here.deputy, here.restart, here.node) == ("slurm-48213", False, True, 0, "cn-101")
    assert step.read({**STEP, "SLURM_STEP_ID": "2", "SLURM_RESTART_COUNT": "3"}).name == "slurm-48213-2"


@pytest.mark.parametrize(
    ("environ", "code", "said"),
    [
        ({}, "E114", "need an allocation"),
        ({"SLURM_JOB_ID": "7"}, "E115", "not a step: start by srun"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, "E115", "8 agents on cn-101 for one job: srun needs --ntasks-per-node=1"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "1,2"}, "E115", "--ntasks-per-node=1"),
    ],
)
def test_what_cannot_work_is_refused(environ: dict[str, str], code: str, said: str) -> None:
    with pytest.raises(CliError) as error:
        step.read(environ)
    assert error.value.code == code and said in error.value.message


def test_the_training_sees_the_job_and_not_this_one_task() -> None:
    seen = step.daemon_environment(
        {**STEP, "SLURM_LOCALID": "0", "PMI_RANK": "1", "PATH": "/bin", "AEGIS_BUS_CREDS": "x", "AEGIS_CHECKS_MOUNTS": "/d"}
    )
    assert set(seen) == {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME", "SLURM_STEP_NODELIST", "SLURM_SUBMIT_DIR", "PATH", "AEGIS_CHECKS_MOUNTS"}


def test_names_of_nodes_become_ids_and_stay_apart() -> None:
    assert step.node_ids(("cn-1", "CN_1", "gpu.a")) == {"cn-1": "cn-1", "CN_1": "cn-1-2", "gpu.a": "gpu-a"}


def test_the_budget_is_carried_over_requeues_and_a_start_without_a_word_is_a_fault() -> None:
    kept = ledger.begin(Ledger(), Start(0, 1, ("a", "b")))
    assert kept.spent == 1  # it is open: whoever finds it so knows of no end
    kept = ledger.update(kept, 0, used=2, end="time limit", code=75)
    kept = ledger.begin(kept, Start(1, 2, ("a", "b")))
    kept = ledger.begin(ledger.avoid(kept, Avoided("b", "XID 79"), Avoided("b", "again")), Start(2, 3, ("a", "c")))
    assert (kept.spent, kept.names, [item.reason for item in kept.avoided]) == (2 + 1 + 1, ("b",), ["XID 79"])
    for restart in range(3, 3 + ledger.STARTS):
        kept = ledger.update(ledger.begin(kept, Start(restart, 1)), restart, end="time limit")
    assert (len(kept.starts), kept.spent) == (ledger.STARTS, 4)  # the first ones are kept as a sum


def test_a_ledger_that_cannot_be_read_is_no_full_budget(tmp_path: Path) -> None:
    folder = Folder(tmp_path / ".aegis" / "slurm-7")
    folder.make()
    assert folder.ledger() == Ledger()
    folder.write_ledger(ledger.begin(Ledger(), Start(0, 1)))
    assert folder.ledger().spent == 1 and (folder.path / "ledger.json").stat().st_mode & 0o777 == 0o600
    folder.write_end(End(0, 76))
    assert ((folder.path / "exit").read_text(), folder.end(0), folder.end(1)) == ("76\n", End(0, 76), None)
    (folder.path / "ledger.json").write_text("{")
    with pytest.raises(CliError, match="cannot be read"):
        folder.ledger()
    folder.path.chmod(0o755)
    with pytest.raises(CliError, match="not yours alone"):
        folder.make()


RECORD = (
    "JobId=3 JobName=t2.sh UserId=root(0) JobState=RUNNING Reason=None Requeue=1 Restarts=0 EndTime=2026-11-30T07:00:57 PreemptTime=None "
    "ReqNodeList=(null) ExcNodeList=cn-[1-2] Comment=two words Command=/tmp/t2.sh"
)


def test_what_scontrol_prints_is_read() -> None:
    found = record(RECORD)
    assert (found["JobId"], found["ExcNodeList"], found["ReqNodeList"], found["Comment"]) == ("3", "cn-[1-2]", "", "two words")
    assert records.settings("KillWait                = 30 sec\nPrologFlags             = (null)\n") == {"KillWait": "30 sec", "PrologFlags": ""}
    assert control.together("cn-[1-2,4],a", ("b", "a")) == "cn-[1-2,4],a,b"
    with pytest.raises(control.SlurmRefused, match="brackets"):
        control.together("cn-[1-2", ("b",))
    down = [records.down({"State": state}) for state in ("IDLE", "ALLOCATED+DRAIN", "DOWN*+DRAIN", "ALLOCATED*", "MIXED+FAIL")]
    assert down == [False, False, True, True, True]


NOW = datetime.datetime(2026, 11, 30, 7, 0, 0)


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({}, Notice("time limit", 52.0, True)),
        ({"Requeue": "0"}, Notice("time limit", 52.0, False)),
        ({"PreemptTime": "2026-11-30T06:59:57"}, Notice("preempted", 52.0, True)),
        ({"EndTime": ""}, Notice("asked by a signal", 1e9, True)),
        ({"EndTime": "2027-11-30T07:00:00"}, Notice("asked by a signal", 31535995.0, True)),
        ({"EndTime": "2026-11-30T06:59:00"}, Notice("time limit", 1.0, True)),
        ({"JobState": "COMPLETING"}, Notice("ended by Slurm", 25.0, False)),
        ({"JobState": "COMPLETING", "Restarts": "1"}, Notice("requeued by Slurm", 25.0, False, True)),
        ({"JobState": "PENDING"}, Notice("requeued by Slurm", 25.0, False, True)),
        ({"JobState": ""}, Notice("ended by Slurm", 25.0, False)),
    ],
)
def test_what_a_signal_means(changed: dict[str, str], wanted: Notice) -> None:
    assert records.notice({**record(RECORD), **changed}, 0, 30.0, NOW) == wanted


def test_a_step_that_was_signalled_runs_again_only_where_slurm_did_not_end_it() -> None:
    assert [interrupted(notice) for notice in (LIMIT, CANCEL, REQUEUED)] == [
        Ending(75, "ask", "time limit"),
        Ending(143, "", "ended by Slurm"),
        Ending(75, "hasten", "requeued by Slurm"),
    ]


LIMIT, CANCEL, REQUEUED = Notice("time limit", 52.0, True), Notice("ended by Slurm", 25.0, False), Notice("requeued by Slurm", 25.0, False, True)


@pytest.mark.parametrize(
    ("phase", "reason", "more", "notice", "wanted"),
    [
        ("Succeed", "", {"exitCode": 0}, None, Ending(0, "", "succeeded")),
        ("Succeed", "", {"exitCode": 0}, LIMIT, Ending(0, "", "succeeded")),
        ("Failed", "stopped", {"exitCode": 143}, LIMIT, Ending(75, "ask", "time limit")),
        ("Failed", "budget", {"exitCode": 1}, LIMIT, Ending(75, "ask", "time limit")),
        ("Failed", "command", {"exitCode": 127}, LIMIT, Ending(127, "", "command")),
        ("Failed", "stopped", {"exitCode": 143}, CANCEL, Ending(143, "", "stopped")),
        ("Failed", "stopped", {"exitCode": 143}, None, Ending(143, "", "stopped")),
        ("Failed", "placing", {}, None, Ending(75, "ask", "placing")),
        ("Failed", "boot", {}, None, Ending(75, "ask", "boot")),
        ("Failed", "progress", {}, None, Ending(76, "", "progress")),
        ("Failed", "budget", {"exitCode": 1, "lastReason": "error", "maxRetry": 0}, None, Ending(76, "", "budget")),
        ("Failed", "budget", {"exitCode": 137, "lastReason": "gpuLost"}, None, Ending(76, "", "budget")),
    ],
)
def test_how_a_start_ends(phase: str, reason: str, more: dict[str, object], notice: Notice | None, wanted: Ending) -> None:
    found = msgspec.structs.replace(detail(phase=phase, failedReason=reason, **more), transitions=())
    assert ending(found, 3, notice) == wanted


def test_faults_of_a_start_are_those_of_its_worst_place() -> None:
    assert [used(msgspec.structs.replace(detail(), retries=text)) for text in ("0:0", "2:3:2", "12:3:...", "")] == [0, 3, 12, 0]


def test_the_batch_script_asks_for_what_the_job_needs() -> None:
    job = JobSpec("llm", ("python", "train.py"), workers=4, spares=1, nprocPerNode=8, cwd="/w", exclude=("n-1",), nodes=("n-2",), gpuType="H200")
    text = script(job, limit="1-00:00:00")
    for line in (
        "#SBATCH --nodes=5  # 4 to train, 1 spare",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --requeue",
        "#SBATCH --no-kill",
        "#SBATCH --signal=B:TERM@330",
        "#SBATCH --time=1-00:00:00",
        "#SBATCH --exclude=n-1",
        "#SBATCH --nodelist=n-2",
        "cd /w || exit 1",
    ):
        assert line in text
    assert not {"exclude", "nodes", "gpuType", "cwd"} & json.loads(job_file(job)).keys() and "# GPUs of type H200" in text


FAKE_SRUN = """#!/bin/sh
[ "$FAKE" = ends ] && echo 76 > "$SLURM_SUBMIT_DIR/.aegis/slurm-7/exit"
printf '%s\\n' "$@" > "$SLURM_SUBMIT_DIR/argv"
exit 9
"""


def test_the_batch_script_gives_every_task_the_whole_job_and_ends_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = JobSpec(
        "llm", ("sh", "-c", "echo 'a b' \"$X\"\nJOB\n#SBATCH -N 9"), workers=3, maxRetry=0, env={"TOKEN": "s3 'cret'\nJOB"}, cwd=str(tmp_path)
    )
    job = msgspec.structs.replace(job, stopGrace=7.0, preemptGrace=900.0, hangTimeout=99.0, hangSilence=33.0, placingTimeout=1800.0, actions="advise")
    job = msgspec.structs.replace(job, warm=True, checkpointDir="ckpt", labels={"a": "b"}, masterPortRange=(30000, 30100), firstStepTimeout=77.0)
    text = script(job)
    assert "#SBATCH --signal=B:TERM@930" in text
    (tmp_path / "srun").write_text(FAKE_SRUN)
    (tmp_path / "srun").chmod(0o755)
    folder = tmp_path / ".aegis" / "slurm-7"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "exit").write_text("75\n")  # of a start whose end Slurm made
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7"}
    codes = [subprocess.run(["bash"], input=text, text=True, env={**environ, "FAKE": how}, check=False).returncode for how in ("dies", "ends")]
    assert codes == [9, 76]

    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[-4:] == ["aegis-agent", "run", "--file", str(folder / "job.json")] and "cret" not in " ".join(argv)
    assert (folder / "job.json").stat().st_mode & 0o777 == 0o600
    monkeypatch.chdir(tmp_path)
    here = step.read({**STEP, "SLURM_JOB_USER": "ada"})
    found = specification(parser().parse_args(argv[-2:]), here, config.load(cwd=tmp_path, home=tmp_path, env={"AEGIS_JOB_PREEMPT_GRACE": "5s"}), 3)
    assert found == msgspec.structs.replace(job, name="slurm-48213", user="ada")


def test_nodes_that_fail_jobs_are_given_last() -> None:
    nodes = {
        "a": {"Weight": "1", "AvailableFeatures": "h200"},
        "b": {"Weight": "1", "AvailableFeatures": ""},
        "c": {"Weight": "701", "AvailableFeatures": "h200,aegis_base_1,aegis_suspect"},
        "d": {"Weight": "301", "AvailableFeatures": "aegis_base_1"},
    }
    found = {change.node: change for change in changes([("b", 0.9, True), ("d", 0.3, False), ("gone", 1.0, True)], nodes)}
    assert {name: (change.weight, change.features) for name, change in found.items()} == {
        "b": (901, ("aegis_base_1", "aegis_suspect")),
        "c": (1, ("h200",)),
    }
    features = "AvailableFeatures=aegis_base_1,aegis_suspect", "ActiveFeatures=aegis_base_1,aegis_suspect"
    assert found["b"].words[2:] == ("NodeName=b", "Weight=901", *features)
    with pytest.raises(ValueError, match="expected 0 to 1"):
        changes([("a", 1.5, True)], nodes)


@pytest.mark.parametrize(("detector", "score", "wanted"), [("blame", 0.7, 0.7), ("count", 6.0, 1.0)])
def test_scores_are_those_that_the_ranking_prints(tmp_path: Path, detector: str, score: float, wanted: float) -> None:
    ranking = {"kind": "LemonRanking", "detector": detector, "nodes": [{"node": "a", "score": score, "flagged": True}, {"node": "b"}]}
    (tmp_path / "ranking.json").write_text(json.dumps(ranking))
    assert read_scores(tmp_path / "ranking.json") == [("a", wanted, True), ("b", 0.0, False)]
    (tmp_path / "ranking.json").write_text('{"items": []}')
    with pytest.raises(CliError, match="lemon rank"):
        read_scores(tmp_path / "ranking.json")


def test_doctor_says_what_slurm_lets_a_job_do() -> None:
    mine = {"SLURM_VERSION": "22.05.8", "RequeueExit": "75", "SlurmUser": "root(0)", "HealthCheckProgram": "/opt/aegis/slurm/health.sh"}
    assert {row.level for row in slurm_settings(mine, "root", 0)} == {"ok"}
    told = {row.check: row.level for row in slurm_settings({"RequeueExit": "", "SlurmUser": "slurm(64)"}, "ada", 1000)}
    assert told == {"slurm version": "ok", "slurm requeue": "warn", "slurm nodes": "warn", "slurm health": "warn"}
    wanted = {"75": "ok", "1,70-80": "ok", "74, 75": "ok", "1-74,76": "warn", "175": "warn"}
    assert {text: {row.check: row.level for row in slurm_settings({"RequeueExit": text}, "", 0)}["slurm requeue"] for text in wanted} == wanted


def test_doctor_needs_no_name_of_who_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr(doctor, "slurm_here", lambda: True)
    monkeypatch.setattr(control, "config", lambda: {"SlurmUser": "slurm(64)"})
    assert "slurm requeue" in {row.check for row in doctor.login_node()}
