"""What is shipped under deploy/: each file can be read by the program it is for, names only what exists, and says no secret."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aegis_bus.config import VARIABLES
from aegis_bus.natsserver import find_server
from aegis_cli.cluster import RIGHTS
from aegis_credentials.setup import create_site
from harness.chart import NAMESPACE, problems, render

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_each_service_of_compose_is_watched_stopped_with_grace_and_told_known_settings_only() -> None:
    document = read(COMPOSE / "compose.yaml")
    made = {"tls": "site", "auth.conf": "site"}
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


def test_a_compose_of_somebody_else_reads_the_files() -> None:
    words = [sys.executable, "-m", "podman_compose", "--dry-run", "-f", "compose.yaml", "-f", "compose.cluster.yaml", "config"]
    done = subprocess.run(words, cwd=COMPOSE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = yaml.safe_load(done.stdout)["services"]
    assert found["master"]["environment"]["AEGIS_BUS_CREDS"] == "/run/secrets/master" and found["master"]["stop_grace_period"] == "60s"
    assert "nats3" in found and found["master"]["environment"]["AEGIS_BUS_LEASE_TTL"] == "12s"


def test_the_variant_of_three_servers_changes_services_that_exist() -> None:
    base, more = read(COMPOSE / "compose.yaml"), read(COMPOSE / "compose.cluster.yaml")
    assert set(more["services"]) - set(base["services"]) == {"nats1", "nats2", "nats3"}
    needed = {name for service in base["services"].values() for name in service.get("depends_on", {})}
    assert "nats" not in needed, "the variant takes it out"


def test_the_configuration_of_the_bus_is_taken_by_the_server(tmp_path: Path) -> None:
    site = create_site(tmp_path / "site", ("nats1", "nats2", "nats3"))
    unit = "/run/credentials/aegis-nats.service/"
    chart = [document for document in render(nats={"replicas": 3}) if document["kind"] == "ConfigMap"]
    texts = {
        "nats.conf": (COMPOSE / "nats.conf").read_text(),
        "nats-cluster.conf": (COMPOSE / "nats-cluster.conf").read_text(),
        "unit.conf": (DEPLOY / "systemd" / "nats.conf").read_text().replace(f"../..{unit}", "").replace(unit, "/tls/"),
        "chart.conf": chart[0]["data"]["nats.conf"].replace("../auth/", ""),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace("/tls/", f"{site.folder}/tls/").replace("/data/", f"{tmp_path}/data/"))
    (tmp_path / "auth.conf").write_text(site.auth_conf.read_text())
    env = {"AEGIS_NATS_NAME": "nats1", "AEGIS_NATS_JWT": str(tmp_path / "jwt"), "POD_NAME": "aegis-nats-0"}
    program = find_server().path
    for name in texts:
        done = subprocess.run([program, "-t", "-c", str(tmp_path / name)], env=env, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"


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


UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_start_what_exists_with_known_settings_and_stop_with_grace(path: Path) -> None:
    lines = [line.partition("=")[::2] for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    values: dict[str, list[str]] = {}
    for key, value in lines:
        values.setdefault(key, []).append(value)
    assert values["TimeoutStopSec"] == ["60"] and values["Restart"] == ["always"] and "WantedBy" in values
    told = [pair.partition("=")[0] for text in values.get("Environment", ()) for pair in text.split()]
    assert not [key for key in told if key not in VARIABLES and not key.startswith("AEGIS_NATS_")], told
    words = values["ExecStart"][0].split()
    if "-m" in words:
        names = ("credentials", "master", "jobcontroller", "lognexus", "lemon", "netmon")
        modules = [words[-1].replace("%i", name) for name in (names[1:] if "%i" in words[-1] else names[:1])]
        assert not [module for module in modules if importlib.util.find_spec(f"{module}.__main__") is None]
    if shutil.which("systemd-analyze"):
        copy = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=60, check=False)
        wrong = [line for line in copy.stderr.splitlines() if path.name in line and "not executable" not in line and "Failed to" not in line]
        assert not wrong, wrong


# --- the chart ------------------------------------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "three servers, an agent of its own": {"nats": {"replicas": 3, "storageClass": "fast"}, "agentImage": "x/aegis-agent:1", "mode": "act"},
    "a bus that is there": {"nats": {"enabled": False}, "busServers": "tls://bus.example.org:4222", "replicas": {"lemon": 0}},
}


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_what_the_chart_creates_is_valid_hardened_and_told_known_settings_only(values: dict[str, Any]) -> None:
    found = render(**values)
    assert not problems(found)
    assert {document["metadata"].get("namespace", NAMESPACE) for document in found} == {NAMESPACE}
    names = {document["metadata"]["name"] for document in found if document["kind"] == "Deployment"}
    assert names == {f"aegis-{name}" for name in ("credentials", "master", "jobcontroller", "mirror", "lognexus", "lemon", "netmon")} - (
        {"aegis-lemon"} if "replicas" in values else set()
    )
    assert ("StatefulSet" in {document["kind"] for document in found}) == values.get("nats", {}).get("enabled", True)
    for document in found:
        if document["kind"] not in ("Deployment", "StatefulSet", "Job"):
            continue
        spec = document["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec.get("automountServiceAccountToken") is not True, document["metadata"]["name"]
        assert ("serviceAccountName" in spec) == (document["metadata"]["name"] in ("aegis-jobcontroller", "aegis-mirror"))
        mounted = {volume["name"] for volume in spec["volumes"]} | {
            claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", ())
        }
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            unknown = [entry["name"] for entry in container.get("env", ()) if entry["name"] not in {*VARIABLES, "POD_NAME", "AEGIS_NATS_JWT"}]
            assert not unknown and {mount["name"] for mount in container["volumeMounts"]} <= mounted, (document["metadata"]["name"], unknown)
        if document["kind"] != "Job":
            assert document["spec"]["selector"]["matchLabels"].items() <= document["spec"]["template"]["metadata"]["labels"].items()
            assert spec["terminationGracePeriodSeconds"] == 60
            assert all({"readinessProbe", "livenessProbe", "resources"} <= set(container) for container in spec["containers"])


def test_a_mistake_in_a_value_or_a_template_is_told() -> None:
    with pytest.raises(Exception, match="busServers: the address of the bus"):
        render(nats={"enabled": False})
    assert problems([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": {"replicas": "three"}}])


def test_the_rights_that_doctor_asks_for_are_those_of_the_chart() -> None:
    roles = {document["metadata"]["name"]: document["rules"] for document in render() if document["kind"] == "ClusterRole"}
    for account, wanted in RIGHTS.items():
        given = {
            (group, resource, verb)
            for rule in roles[account]
            if "resourceNames" not in rule
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        assert given == set(wanted), account
    secrets = {verb for rule in roles["aegis-jobcontroller"] if "secrets" in rule["resources"] for verb in rule["verbs"]}
    assert secrets == {"create", "patch"}, "join tokens are written, never read"
