"""`aegis net` and `aegis-agent parse`: one code for both, machine-readable, with exit codes that can be relied on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from aegis_agent import parse_command
from aegis_cli.commands import netlinks
from aegis_cli.main import app
from aegis_proto.net import RoutingInfo
from typer.testing import CliRunner

DOWN = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n"
FINE = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ib0\n"


class Answer(NamedTuple):
    """How a command ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def agent(*words: str) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = parse_command.main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def cli(*words: str) -> Answer:
    result = CliRunner().invoke(app, ["net", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def test_both_commands_give_the_same_document(tmp_path: Path) -> None:
    file = tmp_path / "ibstat.txt"
    file.write_text(DOWN)
    one, other = agent("ibstat", str(file), "--json"), cli("parse", "ibstat", str(file), "--json")
    assert (one.returncode, other.returncode) == (0, 0)
    document = json.loads(one.stdout)
    assert document == json.loads(other.stdout)
    assert (document["tool"], document["health"]) == ("ibstat", "unhealthy")
    assert [finding["code"] for finding in document["findings"]] == ["ib_port_down"]


@pytest.mark.parametrize("run", [agent, lambda *words: cli("parse", *words)], ids=["agent", "cli"])
def test_exit_codes_are_0_read_1_not_healthy_if_asked_2_usage(run: Callable[..., Answer], tmp_path: Path) -> None:
    file = tmp_path / "output"
    for text, code in ((DOWN, 1), (FINE, 0), ("prose", 1)):
        file.write_text(text)
        assert run("auto", str(file)).returncode == 0
        assert run("auto", str(file), "--exit-code").returncode == code
    wrong = run("ibstatt", "/nowhere")
    assert wrong.returncode == 2
    assert "did you mean ibstat?" in wrong.stderr
    assert run("ibstat", "/nowhere").returncode == 2
    assert run().returncode == 2


def test_wide_shows_the_items_with_what_they_are(shared: Path) -> None:
    file = str(shared / "net/mlxlink/eth400_healthy.json")
    assert cli("parse", "auto", file).stdout.count("\n") == 1
    head, item = cli("parse", "auto", file, "-o", "wide").stdout.rstrip("\n").split("\n")
    assert head.startswith("mlxlink: healthy, 1 items")
    assert item.startswith("port      port0: ") and ", raw_ber 5e-10, " in item and "None" not in item


def test_the_tools_are_listed() -> None:
    listed = agent("--list").stdout
    for tool in ("ibnetdiscover", "iblinkinfo", "ibqueryerrors", "perfquery", "ibdiagnet", "ufm", "ibswinfo", "sysfs", "mlxlink"):
        assert tool in listed
    assert {row["tool"] for row in json.loads(cli("parse", "--list", "--json").stdout)["items"]} >= {"ufm", "auto"}


def test_the_model_speaks_json_with_its_placement() -> None:
    answer = cli("sim", "--gpus", "512", "--bad-links", "1", "--ber", "1e-6", "--routing", "static", "--json")
    assert answer.returncode == 0
    told = json.loads(answer.stdout)
    assert 0.5 <= 1 - told["bandwidth_gbps"] / told["healthy_bandwidth_gbps"] <= 0.75
    assert told["placement"] == "sorted"
    assert told["groups"][0]["hosts"] == list(range(64))


def test_a_wrong_setup_is_a_usage_error_in_one_line(tmp_path: Path) -> None:
    wrong = cli("sim", "--gpus", "12")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("E107 12 GPUs")
    assert cli("sim", "--svg", str(tmp_path / "no" / "x.svg"), "--gpus", "256").returncode == 2
    assert cli("sim", "--gpus", "256", "--slow-ports", "257").stderr.startswith("E107 257 slow ports: the hosts have 256 NICs")
    ignored = cli("sim", "--gpus", "256", "--stale", "0.5")
    assert (ignored.returncode, ignored.stdout) == (2, "") and "--routing adaptive" in ignored.stderr


def test_the_agent_reads_stdin_and_loads_neither_bus_nor_numpy() -> None:
    code = (
        "import sys; from aegis_agent.main import main; code = main(['parse', 'auto', '-', '--exit-code']);"
        "print(code, sorted({name.split('.')[0] for name in sys.modules} & {'nats', 'numpy', 'typer', 'aegis_bus'}), file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run([sys.executable, "-c", code], input=DOWN, capture_output=True, text=True, env=env, timeout=100, check=True)
    assert ended.stdout.startswith("ibstat: unhealthy")
    assert ended.stderr.strip() == "1 []"


def test_pairs_name_the_slow_node_or_the_way_and_say_what_to_measure(tmp_path: Path) -> None:
    file = tmp_path / "pairs"
    names = "abcdef"
    file.write_text("".join(f"{x} {y} {11 if 'c' in (x, y) else 23}\n" for n, x in enumerate(names) for y in names[n + 1 :]))
    told = cli("pairs", str(file))
    assert (told.returncode, told.stdout.split("\n")[1]) == (1, "c is slow in its pairs: 48% of the usual")
    file.write_text("1,2,12\n1,3,24\n2,4,24.5 # GB/s\n3,4,24\n")
    assert json.loads(cli("pairs", str(file), "--json").stdout)["routes"] == [["1", "2"]]
    file.write_text("1 2 24\n1 3 24\n2 3 23\n")
    assert cli("pairs", str(file)).returncode == 0
    assert cli("pairs", str(tmp_path / "none")).stderr == f"E107 {tmp_path / 'none'}: No such file or directory\n"
    for wrong in ("n1 n2\n", "n1 n2 fast\n", "n1 n1 3\n", "n1 n2 nan\n", ""):
        file.write_text(wrong)
        assert cli("pairs", str(file)).returncode == 2


@pytest.mark.parametrize(("state", "on", "told"), [("on", 6, "on for 6 of 6 switches by"), ("unknown", 4, "unknown by"), ("off", 0, "off by")])
def test_the_count_of_switches_stands_only_beside_on(state: Literal["on", "off", "unknown"], on: int, told: str) -> None:
    (line,) = netlinks.routing(RoutingInfo(state, on, 6, "ibdiagnet", f"on for {on} of 6 switches", 1000), 61.0)
    assert line.startswith(f"Adaptive routing: {told} ibdiagnet")
    assert line.count("of 6 switches") == 1


def test_a_rollout_begins_with_the_pod_on_which_least_depends(tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    file.write_text('[{"name": "core", "busy_gpus": 0, "core": true}, {"name": "p1", "busy_gpus": 64}, {"name": "p2", "busy_gpus": 8}]')
    assert json.loads(cli("rollout", "--pods", str(file), "--json").stdout)["pods"] == ["p2", "p1", "core"]
    assert cli("rollout").returncode == 2
    file.write_text('[{"name": "p1"}]')
    assert cli("rollout", "--pods", str(file)).returncode == 2


def test_a_rollout_tells_units_and_takes_no_sample_that_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "sample.json"
    sample: dict[str, object] = {"kind": "NetSample", "packets": 10**9, "bits": 10**15, "bandwidthGbps": 350, "latencyUs": 5}

    def compared(**other: object) -> Answer:
        file.write_text(json.dumps({**sample, **other}))
        return cli("rollout", str(file), str(file))

    rows = {" ".join(line.split()[:-4]): line.split()[-2] for line in compared().stdout.split("\n") if line.endswith("same")}
    assert (rows["bandwidth"], rows["latency of small messages"]) == ("Gbit/s", "us")
    for wrong in ({"packets": -5}, {"bandwidthGbps": float("nan")}, {"drops": True}, {"latencyUs": "5"}):
        answer = compared(**wrong)
        assert (answer.returncode, answer.stdout) == (2, ""), wrong
