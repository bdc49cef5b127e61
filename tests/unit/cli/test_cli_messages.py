"""The sentences that these parts say: code, value, expected, what to do; and what a job file or option may be."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest
from aegis_cli import codes, login, screen, spec, units, why
from aegis_cli.commands import run, settings
from aegis_cli.errors import CliError, from_text
from aegis_cli.main import app
from aegis_proto import api, api_nodes
from aegis_proto.state import JobSpec
from cli_data import detail, event
from typer.testing import CliRunner


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AEGIS_CONTEXT", "AEGIS_BUS_SERVERS", "AEGIS_BUS_CREDS", "AEGIS_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AEGIS_STACK_DIR", str(tmp_path / "stack"))
    monkeypatch.chdir(tmp_path)


def aegis(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def refused(*words: str) -> tuple[int, str]:
    status, out, err = aegis(*words)
    assert out == ""
    return status, err


def test_e101_with_an_address_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEGIS_BUS_SERVERS", "nats://127.0.0.1:9")
    status, err = refused("job", "ls", "--timeout", "1s")
    assert status == codes.UNREACHABLE
    assert "E101 cannot reach the bus at nats://127.0.0.1:9" in err
    assert "aegis up" in err


def test_e110_proposes_the_nearest_name() -> None:
    status, err = refused("run", "--dry-run", "--name", "Llama_70B", "--", "python", "train.py")
    assert status == codes.USAGE
    assert err.strip() == 'E110 job name "Llama_70B": use a-z, 0-9 and -, at most 40. Nearest: llama-70b'


def test_e112_warns_of_two_budgets() -> None:
    status, err = refused("run", "--dry-run", "--nproc-per-node", "8", "--", "torchrun", "--max-restarts=3", "train.py")
    assert status == codes.USAGE
    assert "E112 the command starts torchrun --max-restarts=3: two budgets would multiply. Set it to 0, or drop torchrun" in err
    assert "--nproc-per-node 8" in err


def test_w201_is_said_when_no_checkpoint_is_known_or_none_was_written(tmp_path: Path) -> None:
    """Only where it matters: after a restart, or at an end that was no success. Silent once a file was written."""

    def noted(folder: str, **changes: object) -> list[str]:
        notes: list[str] = []
        env = Namespace(out=Namespace(note=notes.append))
        run.note_checkpoint(env, JobSpec("j", ("true",), cwd=str(tmp_path), checkpointDir=folder), detail(**changes))  # type: ignore[arg-type]
        return notes

    assert noted("", recoverCount=0) == []
    assert [note[:34] for note in noted("", recoverCount=1)] == ["W201 no checkpoint folder is known"]
    assert noted("ckpt", phase="Succeed") == []
    assert noted("ckpt", phase="Failed") == [f"W201 no checkpoint was written in {tmp_path}/ckpt: another start begins at step 0"]
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-40.pt").touch()
    assert noted("ckpt", phase="Failed") == []


def test_a_node_is_not_declared_lost_without_a_reason() -> None:
    status, err = refused("node", "lost", "n1", "-y")
    assert status == codes.USAGE
    assert "--reason" in err


@pytest.mark.parametrize(("option", "value"), [("--workers", "0"), ("--workers", "20001"), ("--max-retry", "-1"), ("--spares", "-1")])
def test_e116_names_field_value_and_range(option: str, value: str) -> None:
    status, err = refused("run", "--dry-run", option, value, "--", "true")
    assert status == codes.USAGE
    assert err.startswith("E116 ")
    assert f"{value} is out of range" in err


def test_nproc_auto_is_one_per_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "gpus", lambda: 4)
    assert json.loads(aegis("run", "--dry-run", "--json", "--nproc-per-node", "auto", "--", "true")[1])["nprocPerNode"] == 4
    monkeypatch.setattr(spec, "gpus", lambda: 0)
    assert "nprocPerNode" not in json.loads(aegis("run", "--dry-run", "--json", "--nproc-per-node", "auto", "--", "true")[1])
    assert refused("run", "--dry-run", "--nproc-per-node", "many", "--", "true")[1].startswith("E116 ")


@pytest.mark.parametrize(
    ("environ", "slurm", "login_node"),
    [({}, True, True), ({"SLURM_JOB_ID": "7"}, True, False), ({}, False, False), ({"AEGIS_ALLOW_LOGIN_NODE": "1"}, True, False)],
)
def test_a_login_node_is_one_with_slurm_and_without_an_allocation(environ: dict[str, str], slurm: bool, login_node: bool) -> None:
    assert login.is_login_node(environ, slurm) is login_node


def test_e114_nothing_is_started_on_a_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "scontrol"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for words in (("run", "--", "true"), ("up",)):
        status, err = refused(*words)
        assert status == codes.NEGATIVE
        assert "E114 this is a Slurm login node" in err
    assert not (tmp_path / "stack").exists()
    assert "E114 login node" in aegis("doctor", "--platform", "local")[1]


def test_a_batch_script_does_not_count_the_gpus_of_the_login_node() -> None:
    status, err = refused("job", "script", "--platform", "slurm", "--nproc-per-node", "auto", "--", "python", "train.py")
    assert status == codes.USAGE and "--nproc-per-node auto" in err


def test_commands_of_slurm_that_know_no_cluster_make_no_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for script, here in (("echo fatal >&2; exit 1", False), ("echo Slurmctld at c1 is DOWN; exit 1", True), ("exit 0", True)):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        assert login.slurm_here() is here, script


def test_e113_one_machine_has_a_bound_on_virtual_nodes() -> None:
    status, err = refused("run", "-N", "65", "--", "true")
    assert status == codes.NEGATIVE
    assert "E113 65 workers asked" in err
    assert "--nproc-per-node" in err


# --- job files -------------------------------------------------------------------------------------------------------------------

JOB = """
apiVersion: aegis/v1
kind: AegisJob
metadata: {name: ddp, namespace: ml}
spec:
  command: [python, train.py]
  workerNum: 2
  maxRetry: 7
  env: {LR: 0.1}
"""


def test_a_job_file_is_read_and_options_win(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    job = json.loads(aegis("run", "-f", "job.yaml", "--dry-run", "--json", "--max-retry", "9")[1])
    assert (job["name"], job["namespace"], job["workers"], job["maxRetry"]) == ("ddp", "ml", 2, 9)
    assert job["env"]["LR"] == "0.1"


def test_a_job_file_with_a_typo_names_file_field_and_nearest(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("maxRetry", "maxRetries"))
    status, err = refused("run", "-f", "job.yaml", "--dry-run")
    assert status == codes.USAGE
    assert "E117 job.yaml: unknown field maxRetries. Did you mean maxRetry?" in err


def test_a_job_file_that_is_not_there_or_not_yaml_is_refused(tmp_path: Path) -> None:
    assert "E117 nothing.yaml: No such file" in refused("run", "-f", "nothing.yaml", "--dry-run")[1]
    (tmp_path / "bad.yaml").write_text("{: [")
    assert refused("run", "-f", "bad.yaml", "--dry-run")[0] == codes.USAGE
    assert "both a job file and a command" in refused("run", "-f", "bad.yaml", "--dry-run", "--", "true")[1]


def test_the_environment_of_a_local_job_is_mine_without_other_launchers_ranks() -> None:
    mine = {
        "HOME": "/h",
        "LR": "1",
        "RANK": "3",
        "MASTER_ADDR": "x",
        "AEGIS_BUS_CREDS": "secret",
        "BASH_FUNC_f%%": "()",
        "SLURM_PROCID": "1",
        "PET_NNODES": "4",
    }
    job = spec.build(spec.Wishes(("true",), env=("LR=2", "HOME")), "default", mine)
    assert job.env == {"HOME": __import__("os").environ["HOME"], "LR": "2"}
    assert spec.build(spec.Wishes(("true",)), "default").env == {}


@pytest.mark.parametrize(
    ("command", "name"), [(("python", "my_train.py"), "my-train"), (("./run.sh", "x"), "run"), (("torchrun",), "torchrun"), (("/opt/X Y",), "x-y")]
)
def test_the_default_name_is_the_scripts(command: tuple[str, ...], name: str) -> None:
    assert spec.default_name(command) == name


# --- configuration ---------------------------------------------------------------------------------------------------------------


def test_e130_names_line_key_and_nearest(tmp_path: Path) -> None:
    (tmp_path / "aegis.toml").write_text('[job]\nmaxRetry = 5\n\n[hang]\ntimout = "10min"\n')
    for words in (("config", "show"), ("config", "check"), ("run", "--dry-run", "--", "true")):
        status, err = refused(*words)
        assert status == codes.USAGE
        assert err.strip() == 'E130 aegis.toml:5: unknown key hang.timout. Did you mean hang.timeout? (value "10min" would be read as 600 s)'


@pytest.mark.parametrize(
    ("section", "line", "said"),
    [
        ("lognexus", 'sinks = ["openobs+http://u:s3cret@logs:5080/api/a/b"]', "expected one of openobserve+https://HOST:PORT/api/ORG/STREAM"),
        ("lognexus", 'sinks = ["loki+http://loki:3100?tennant=ml"]', "unknown option tennant"),
        ("notify", 'urls = ["nonsense://user:s3cret@host"]', "number 1"),
        ("lognexus", 'maxage = "14d"', '"14d" would be read as 1209600 s'),
    ],
)
def test_config_check_reads_the_addresses_as_the_service_would(tmp_path: Path, section: str, line: str, said: str) -> None:
    (tmp_path / "site.toml").write_text(f"[{section}]\n{line}\n")
    status, err = refused("config", "check", "site.toml")
    assert (status, err[:5]) == (codes.USAGE, "E130 ") and said in err and "s3cret" not in err


def test_e130_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEGIS_JOB_MAX_RETRY", "often")
    status, err = refused("config", "show")
    assert status == codes.USAGE
    assert "E130 AEGIS_JOB_MAX_RETRY" in err


def test_the_folders_file_may_not_name_a_bus(tmp_path: Path) -> None:
    (tmp_path / "aegis.toml").write_text('[bus]\nservers = ["nats://evil:4222"]\n')
    assert "a cloned folder is not trusted" in refused("config", "show")[1]


def test_precedence_flag_then_variable_then_file_and_the_origin_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aegis.toml").write_text("[job]\nmaxRetry = 5\n")
    assert json.loads(aegis("run", "--dry-run", "--json", "--", "true")[1])["maxRetry"] == 5
    rows = json.loads(aegis("config", "show", "job.maxRetry", "--json")[1])["items"]
    assert rows[0]["origin"] == "aegis.toml:2"
    monkeypatch.setenv("AEGIS_JOB_MAX_RETRY", "6")
    assert json.loads(aegis("run", "--dry-run", "--json", "--", "true")[1])["maxRetry"] == 6
    assert json.loads(aegis("run", "--dry-run", "--json", "--max-retry", "7", "--", "true")[1])["maxRetry"] == 7
    assert "AEGIS_JOB_MAX_RETRY" in aegis("config", "show", "job", "--origin")[1]


def test_the_file_that_config_init_writes_into_the_working_folder_stops_no_command(tmp_path: Path) -> None:
    assert aegis("config", "init")[0] == 0
    assert aegis("config", "check")[0] == 0
    assert aegis("run", "--dry-run", "--", "true")[0] == 0
    (tmp_path / "aegis.toml").write_text((tmp_path / "aegis.toml").read_text().replace("# servers", "servers"))
    assert "a cloned folder is not trusted" in refused("config", "check")[1]


def test_durations_are_shown_as_plain_numbers() -> None:
    assert json.loads(aegis("config", "show", "lognexus.maxAge", "--json")[1])["items"][0]["value"] == 14 * 86400
    assert " 1209600" in aegis("config", "show", "lognexus.maxAge")[1]


@pytest.mark.parametrize(
    "words", [("run", "--report", "none/x.json", "--", "true"), ("run", "--report", ".", "--", "true"), ("demo", "--report", ".")]
)
def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(words: tuple[str, ...]) -> None:
    status, err = refused(*words)
    assert status == codes.USAGE
    assert err.startswith("E107 --report")


def test_a_credentials_file_that_is_not_there_is_said_plainly() -> None:
    assert refused("creds", "revoke", "none.creds") == (codes.USAGE, "E107 none.creds: No such file or directory\n")


def test_an_empty_job_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("")
    assert "this is empty" in refused("run", "-f", "job.yaml")[1]


def test_config_init_writes_a_file_that_check_accepts_once_its_lines_are_used(tmp_path: Path) -> None:
    assert aegis("config", "init", "mine.toml")[0] == 0
    text = (tmp_path / "mine.toml").read_text()
    used = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    (tmp_path / "used.toml").write_text(used)
    assert aegis("config", "check", "used.toml")[0] == 0
    assert refused("config", "init", "mine.toml")[0] == codes.CONFLICT
    assert aegis("config", "init", "--dry-run")[1] == text


def test_values_are_shown_as_they_would_stand_in_the_file() -> None:
    assert [settings.shown(value) for value in (True, 1.5, 600.0, "a", ("x", "y"), 3)] == ["true", "1.5", "600", '"a"', '["x", "y"]', "3"]


# --- contexts --------------------------------------------------------------------------------------------------------------------


def test_contexts_are_added_used_listed_and_kept_private(tmp_path: Path) -> None:
    (tmp_path / "me.creds").write_text("x")
    assert aegis("context", "add", "prod", "--server", "nats://127.0.0.1:9", "--creds", "me.creds", "-n", "ml")[0] == 0
    assert aegis("context", "add", "lab", "--server", "nats://127.0.0.1:10")[0] == 0
    items = json.loads(aegis("context", "ls", "--json")[1])["items"]
    assert [(item["name"], item["inUse"]) for item in items] == [("lab", False), ("prod", True)]
    assert aegis("context", "use", "lab")[0] == 0
    assert "nats://127.0.0.1:10" in refused("job", "ls", "--timeout", "1s")[1]
    assert refused("job", "ls", "-c", "nope")[0] == codes.NOT_FOUND
    assert 'no context "nope"' in refused("job", "ls", "-c", "nope")[1]
    path = tmp_path / "home" / ".config" / "aegis" / "contexts.yaml"
    assert path.stat().st_mode & 0o077 == 0


def test_a_context_needs_a_good_name_and_files_that_exist() -> None:
    assert refused("context", "add", "Prod", "--server", "x")[1].startswith('E110 context name "Prod"')
    assert "there is no file" in refused("context", "add", "prod", "--server", "x", "--creds", "absent")[1]


def test_creds_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "me.creds").write_text("not a creds file")
    aegis("context", "add", "prod", "--server", "nats://127.0.0.1:9", "--creds", "me.creds")
    status, err = refused("job", "ls")
    assert status == codes.NOT_ALLOWED
    assert "E102" in err
    assert "me.creds" in err


# --- small things ----------------------------------------------------------------------------------------------------------------


def test_every_code_in_the_table_is_whole() -> None:
    for code, row in codes.CODES.items():
        assert code == row.code
        assert row.title and row.why.endswith(".") and row.do.endswith(".")
        assert row.exit in (*range(8), codes.REQUEUE, codes.DO_NOT_REQUEUE)


def test_codes_of_the_services_are_in_the_table_with_the_same_exit() -> None:
    for table in (api.EXIT, api_nodes.EXIT):
        for code, status in table.items():
            assert codes.CODES[code].exit == status, code


def test_an_error_of_another_package_keeps_its_code_and_exit() -> None:
    error = from_text("E120 nats-server 2.10.7 at x: too old", "E123")
    assert (error.code, error.message, error.exit) == ("E120", "nats-server 2.10.7 at x: too old", codes.UNREACHABLE)
    assert from_text("plain words", "E123").code == "E123"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0s"), (59.9, "59s"), (60, "1m"), (3600, "1h"), (3 * 3600 + 720, "3h12m"), (2 * 86400 + 4 * 3600, "2d4h")]
)
def test_ages(value: float, text: str) -> None:
    assert units.age(value) == text


def test_a_wrong_error_is_still_an_error() -> None:
    assert CliError("E999", "x").exit == codes.NEGATIVE


def test_settings_reach_the_job_unless_file_or_option_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aegis.toml").write_text(
        '[job]\nstopGrace = "40s"\nmaxRetry = 8\nnprocPerNode = "3"\n[hang]\ntimeout = "2min"\n[checkpoint]\ndir = "/ckpt"\n'
    )
    job = json.loads(aegis("run", "--dry-run", "--json", "--", "true")[1])
    assert (job["stopGrace"], job["maxRetry"], job["nprocPerNode"], job["hangTimeout"], job["checkpointDir"]) == (40.0, 8, 3, 120.0, "/ckpt")
    (tmp_path / "job.yaml").write_text(JOB)  # names maxRetry 7
    job = json.loads(aegis("run", "--dry-run", "--json", "-f", "job.yaml", "--grace", "1s")[1])
    assert (job["maxRetry"], job["stopGrace"], job["hangTimeout"]) == (7, 1.0, 120.0)


def test_config_for_programs_has_values_of_their_types() -> None:
    _, out, _ = aegis("config", "show", "-o", "json")
    values = {row["key"]: row["value"] for row in json.loads(out)["items"]}
    assert values["job.maxRetry"] == 3
    assert values["job.stopGrace"] == 15.0
    assert isinstance(values["bus.servers"], list)
    _, out, _ = aegis("config", "show", "job.stopGrace")
    assert out.split() == ["KEY", "VALUE", "job.stopGrace", "15"]


def test_secrets_in_settings_are_shown_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEGIS_NOTIFY_URLS", "slack://T0/B0/s3cret,mailto://me:s3cret@mail.corp")
    monkeypatch.setenv("AEGIS_LOGNEXUS_SINKS", "loki+http://me:s3cret@loki:3100")
    monkeypatch.setenv("AEGIS_LEMON_WEBHOOK", "https://hooks.corp/T0/s3cret")
    for more in ((), ("-o", "json"), ("--origin",)):
        _, out, err = aegis("config", "show", *more)
        assert "s3cret" not in out + err and "slack://***" in out and "loki+http://***@loki:3100" in out


@pytest.mark.parametrize("words", [("up",), ("run",), ("job", "submit"), ("config", "init"), ("context", "use")], ids=" ".join)
def test_a_reason_that_nobody_would_keep_is_refused(words: tuple[str, ...]) -> None:
    status, _, err = aegis(*words, "--reason", "x", "true")
    assert status == 2
    assert "--reason" in err


def test_a_command_that_cannot_start_is_explained_once() -> None:
    long = 'the command of w0 cannot be started, not counted, not retried: E111 w0 on n1: "pyhton" not found in PATH (exit 127)'
    happened = event(1, long, pod="w0")
    assert screen.sentence(happened) == "the command of w0 cannot be started, not counted, not retried"
    assert why.said(happened) == 'E111 w0 on n1: "pyhton" not found in PATH (exit 127)'
