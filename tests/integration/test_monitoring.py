"""The shipped alerts and dashboards on a real Prometheus that scrapes a real site on which a job has failed and recovered."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from aegis_bus.natsserver import free_port
from harness.waiting import until
from support.house import House, house

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"SKIPPED: no {program} (tests/integration/support/packages.sh)")
    return path


def test_the_alerts_are_taken_by_prometheus_and_fire_when_they_should() -> None:
    for words in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml"), ("check", "config", "prometheus.yml")):
        done = subprocess.run([need("promtool"), *words], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def pages(h: House) -> list[str]:
    """host:port of each service's metrics, as its log says."""
    found = []
    for name in ("credentials", "m1", "jc1"):
        match = re.search(r"http://([\d.]+:\d+)/metrics", h.children[name].log.read_text())
        if match:
            found.append(match[1])
    return found


def queries() -> dict[str, str]:
    """Of all panels and alerts, with every variable as "any"."""
    found = {}
    for path in sorted((MONITORING / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = re.sub(r"\$\w+", ".*", target["expr"])
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]:
        found |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    return found


def ask(address: str, path: str, **query: str) -> Any:
    with urllib.request.urlopen(f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.loads(answer.read())["data"]


def begin(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "prometheus.log").open("wb") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, cwd=folder)


MUST_ANSWER = ("overview: How many jobs are in which phase? A", "overview: What do jobs fail by, per day? A", "job: In which phase is it? A")


def example() -> str:
    """The program of docs/bus.md."""
    return (MONITORING.parents[1] / "docs" / "bus.md").read_text().split("```python\n")[1].split("```")[0]


async def test_every_panel_and_alert_is_answered_by_a_prometheus_that_scrapes_a_site(tmp_path: Path) -> None:
    program = need("prometheus")
    async with house(tmp_path, nodes=1) as h:
        targets = await until(lambda: found if len(found := pages(h)) == 3 else None, 30, "the services' pages")
        (tmp_path / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(MONITORING / "alerts.yml")],
                    "scrape_configs": [{"job_name": "aegis", "static_configs": [{"targets": targets}]}],
                }
            )
        )
        address = f"127.0.0.1:{free_port()}"
        words = [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb", f"--web.listen-address={address}"]
        process = begin(words, tmp_path)
        try:

            async def well() -> bool:
                try:
                    found = await asyncio.to_thread(ask, address, "targets")
                except OSError:
                    return False
                return len([target for target in found["activeTargets"] if target["health"] == "up"]) == len(targets)

            await until(well, 60, "Prometheus scrapes all services")
            (tmp_path / "watch.py").write_text(example())
            with (tmp_path / "watched").open("wb") as out:
                words = [sys.executable, "-u", str(tmp_path / "watch.py"), h.nats.url, h.creds("tool", "reader")]
                watcher = await asyncio.create_subprocess_exec(*words, stdout=out, stderr=out)
            script = "import os, sys, time; time.sleep(3); sys.exit(os.environ['AEGIS_INCARNATION'] == '0')"
            job = await h.submit([sys.executable, "-c", script], name="metered", maxRetry=2)
            await h.when(job, lambda s: s.head.failures == 1, 60, "a counted failure")

            async def told() -> dict[str, int]:
                answers = {}
                for where, query in queries().items():
                    answers[where] = len((await asyncio.to_thread(ask, address, "query", query=query))["result"])
                return answers if all(answers[name] for name in MUST_ANSWER) else {}

            answers = await until(told, 60, f"answers of {MUST_ANSWER}")
            assert len(answers) > 35
            # and what the example of the documents hears is what happened
            heard = tmp_path / "watched"
            await until(lambda: f"{job} " in heard.read_text(), 30, lambda: f"the example hears {job}, and not only {heard.read_text()!r}")
            rules = [rule for group in (await asyncio.to_thread(ask, address, "rules"))["groups"] for rule in group["rules"]]
            assert len(rules) == 15 and {rule["health"] for rule in rules} == {"ok"}, rules
            watcher.kill()
            await watcher.wait()
        finally:
            process.terminate()
            process.wait(20)
