"""What is shipped under deploy/: each file can be read by the program it is for, names only what exists, and says no secret."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aegis_bus.config import VARIABLES
from aegis_bus.natsserver import find_server
from aegis_credentials.setup import create_site

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_each_service_of_compose_is_watched_stopped_with_grace_and_told_known_settings_only() -> None:
    document = read(COMPOSE / "compose.yaml")
    made = {"ca.pem": "site/tls", "server.pem": "site/tls", "server.key": "site/tls", "auth.conf": "site"}
    for name, service in document["services"].items():
        once = name in ("setup", "streams")
        assert once or service["stop_grace_period"] == "60s", name
        assert once or "healthcheck" in service, name
        assert "container_name" not in service, f"{name} could not be scaled"
        unknown = [key for key in service.get("environment", {}) if key not in VARIABLES and not key.startswith("AEGIS_NATS_")]
        assert not unknown, f"{name}: {unknown}"
        assert set(service.get("secrets", ())) <= set(document["secrets"]), name
        assert set(service.get("depends_on", {})) <= set(document["services"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            path = (COMPOSE / source).resolve()
            known = path.exists() or source.startswith("./data/") or source in ("./site", *document["volumes"])
            assert known or Path(source).name in made, f"{name}: {source} is made by nobody"
    assert not [name for name in ("master", "jobcontroller", "lognexus") if document["services"][name].get("ports")], "a fixed port cannot be scaled"
    assert document["services"]["nats"].get("secrets") is None and not any("root.secret" in str(v) for v in document["services"].values())


@pytest.mark.parametrize("files", [("compose.yaml",), ("compose.yaml", "compose.cluster.yaml")], ids=["one", "three"])
def test_a_compose_of_somebody_else_reads_the_files(files: tuple[str, ...]) -> None:
    words = [sys.executable, "-m", "podman_compose", "--dry-run", *(word for file in files for word in ("-f", file)), "config"]
    done = subprocess.run(words, cwd=COMPOSE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = yaml.safe_load(done.stdout)["services"]
    assert found["master"]["environment"]["AEGIS_BUS_CREDS"] == "/run/secrets/master" and found["master"]["stop_grace_period"] == "60s"
    assert ("nats3" in found) == (len(files) == 2)


def test_the_variant_of_three_servers_changes_services_that_exist() -> None:
    base, more = read(COMPOSE / "compose.yaml"), read(COMPOSE / "compose.cluster.yaml")
    assert set(more["services"]) - set(base["services"]) == {"nats1", "nats2", "nats3"}
    needed = {name for service in base["services"].values() for name in service.get("depends_on", {})}
    assert "nats" not in needed, "the variant takes it out"


@pytest.mark.parametrize("name", ["nats.conf", "nats-cluster.conf"])
def test_the_configuration_of_the_bus_is_taken_by_the_server(tmp_path: Path, name: str) -> None:
    site = create_site(tmp_path / "site", ("nats1", "nats2", "nats3"))
    for file in ("nats.conf", "nats-cluster.conf"):
        text = (COMPOSE / file).read_text().replace("/tls/", f"{site.folder}/tls/").replace("/data/", f"{tmp_path}/data/")
        (tmp_path / file).write_text(text)
    (tmp_path / "auth.conf").write_text(site.auth_conf.read_text())
    env = {"AEGIS_NATS_NAME": "nats1", "AEGIS_NATS_JWT": str(tmp_path / "jwt")}
    done = subprocess.run([find_server().path, "-t", "-c", str(tmp_path / name)], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr


def metrics() -> dict[str, str]:
    """Every metric that the sources define, as it is scraped -> kind."""
    found = {}
    for path in [*ROOT.glob("services/*/aegis_*/**/*.py"), *(ROOT / "bus").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            kind = getattr(getattr(node, "func", None), "id", "")
            if isinstance(node, ast.Call) and kind in ("Counter", "Gauge", "Histogram") and node.args and isinstance(node.args[0], ast.Constant):
                name = str(node.args[0].value)
                endings = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("_bucket", "_count", "_sum")}[kind]
                found |= {name.removesuffix("_total") + ending if kind == "Counter" else name + ending: kind for ending in endings}
    return found


def queries() -> dict[str, str]:
    rules = yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())["groups"]
    found = {rule["alert"]: rule["expr"] for group in rules for rule in group["rules"]}
    for path in (DEPLOY / "monitoring" / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            found |= {f"{path.stem}: {panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    return found


def test_alerts_and_panels_ask_for_metrics_that_exist() -> None:
    known = metrics()
    assert len(known) > 60
    labels = {"aegis_job"}
    wrong = {
        where: missing
        for where, query in queries().items()
        if (missing := [name for name in set(re.findall(r"\baegis_[a-z_]+", query)) - labels if name not in known])
    }
    assert not wrong, wrong


def test_each_alert_says_how_bad_it_is_and_what_to_do() -> None:
    rules = [rule for group in yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 15
    for rule in rules:
        assert rule["labels"]["level"] in ("page", "warn") and {"summary", "do"} <= set(rule["annotations"]), rule["alert"]


def test_the_dashboards_are_as_their_table_says() -> None:
    spec = importlib.util.spec_from_file_location("dashboards", DEPLOY / "monitoring" / "dashboards.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = DEPLOY / "monitoring" / "dashboards"
    assert {path.name: path.read_text() for path in folder.glob("*.json")} == module.files()


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("slurm/*.sh")), ids=lambda path: path.name)
def test_hooks_are_shell(path: Path) -> None:
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    assert path.name == "hooks.sh" or path.stat().st_mode & 0o111
