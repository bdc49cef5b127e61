"""The Grafana dashboards, as a table: `python deploy/monitoring/dashboards.py` writes them beside itself, a test holds that they are as written here.

Each panel answers a question that people ask. No data source is fixed: `${datasource}` is chosen in Grafana.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

P99 = "histogram_quantile(0.99, sum by (le, {by}) (rate({name}_bucket[{over}])))"
CHECK = "aegis_check_duration_seconds"
BY_KIND = "check, gpu_type, worker_num, round"

Panel = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""Title (the question), kind, unit, (query, legend)s."""

DASHBOARDS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        ("How many jobs are in which phase?", "timeseries", "short", (("sum by (phase) (aegis_jobs)", "{{phase}}"),)),
        ("Which share of the jobs runs?", "stat", "percentunit", (('sum(aegis_jobs{phase="RunCommand"}) / sum(aegis_jobs)', ""),)),
        ("What do jobs fail by, per day?", "timeseries", "short", (("sum by (cause) (increase(aegis_failures_total[1d]))", "{{cause}}"),)),
        (
            "How do jobs end, by kind and size?",
            "timeseries",
            "short",
            (
                ("sum by (gpu_type, worker_num) (increase(aegis_jobs_success_total[1d]))", "ended well {{gpu_type}} x{{worker_num}}"),
                ("sum by (gpu_type, worker_num, reason) (increase(aegis_jobs_failed_total[1d]))", "{{reason}} {{gpu_type}} x{{worker_num}}"),
            ),
        ),
        ("How many nodes are there, and excluded?", "timeseries", "short", (("aegis_nodes", "{{health}}"), ("aegis_nodes_excluded", "excluded"))),
        (
            "How long does a recovery take?",
            "timeseries",
            "s",
            (
                ("histogram_quantile(0.5, sum by (le, level) (rate(aegis_recovery_duration_seconds_bucket[1d])))", "p50 {{level}}"),
                ("histogram_quantile(0.95, sum by (le, level) (rate(aegis_recovery_duration_seconds_bucket[1d])))", "p95 {{level}}"),
            ),
        ),
    ),
    "Job": (
        ("In which phase is it?", "state-timeline", "short", (('aegis_job_phase{aegis_job=~"$job"} == 1', "{{aegis_job}} {{phase}}"),)),
        ("How fast does it step?", "timeseries", "short", (('rate(aegis_job_step{aegis_job=~"$job"}[5m])', "{{aegis_job}}"),)),
        (
            "How long ago was its last step?",
            "timeseries",
            "s",
            (('time() - aegis_job_last_step_timestamp_seconds{aegis_job=~"$job"}', "{{aegis_job}}"),),
        ),
        (
            "How much of its budget is used?",
            "timeseries",
            "short",
            (
                ('aegis_job_retries_used{aegis_job=~"$job"}', "{{aegis_job}} used"),
                ('aegis_job_retries_limit{aegis_job=~"$job"}', "{{aegis_job}} allowed"),
            ),
        ),
    ),
    "Checks": (
        (
            "How long do checks take (P99) by GPU type, workers and round?",
            "timeseries",
            "s",
            ((P99.format(by=BY_KIND, name=CHECK, over="1d"), "{{check}} {{gpu_type}} x{{worker_num}} {{round}}"),),
        ),
        (
            "What is the P99 of io for one GPU type and one size?",
            "timeseries",
            "s",
            (
                (
                    "histogram_quantile(0.99, sum by (le) (rate("
                    f'{CHECK}_bucket{{check="io", gpu_type=~"$gpu_type", worker_num=~"$worker_num"}}[1d])))',
                    "io",
                ),
            ),
        ),
        ("Which checks fail, per day?", "timeseries", "short", ((f'sum by (check) (increase({CHECK}_count{{result="fail"}}[1d]))', "{{check}}"),)),
        (
            "Which share of each check fails?",
            "timeseries",
            "percentunit",
            ((f'sum by (check) (rate({CHECK}_count{{result="fail"}}[1d])) / sum by (check) (rate({CHECK}_count[1d]))', "{{check}}"),),
        ),
        ("How do rounds end?", "timeseries", "short", (("sum by (round, outcome) (increase(aegis_rounds_total[1d]))", "{{round}} {{outcome}}"),)),
    ),
    "Fabric": (
        ("How many links are in which state?", "timeseries", "short", (("aegis_net_links", "{{state}}"),)),
        ("How many jobs use bad links?", "timeseries", "short", (("aegis_net_jobs_on_bad_links", "certain: {{certain}}"),)),
        ("Whose ports are heard of?", "timeseries", "short", (("aegis_net_nodes", "{{state}}"),)),
        ("How old is the last sweep of the fabric?", "timeseries", "s", (("aegis_net_sweep_age_seconds", ""),)),
    ),
    "Aegis itself": (
        ("Which services have the bus?", "timeseries", "short", (("min by (service) (aegis_bus_connected)", "{{service}}"),)),
        (
            "How often do jobs change their master?",
            "timeseries",
            "short",
            (("sum by (why) (increase(aegis_master_owner_changes_total[1h]))", "{{why}}"),),
        ),
        (
            "How long does a commit take (P99)?",
            "timeseries",
            "s",
            ((P99.format(by="kind", name="aegis_bus_commit_duration_seconds", over="5m"), "{{kind}}"),),
        ),
        ("How full is the store?", "timeseries", "percentunit", (("aegis_store_used_ratio", ""),)),
        ("What was put aside unread?", "timeseries", "short", (("sum by (service) (increase(aegis_bus_dead_letters_total[1h]))", "{{service}}"),)),
        ("How far behind are the lines?", "timeseries", "short", (("aegis_log_behind_messages", "{{instance}}"),)),
        (
            "How often are connections lost?",
            "timeseries",
            "short",
            (("sum by (service) (increase(aegis_bus_disconnects_total[1h]))", "{{service}}"),),
        ),
    ),
}
VARIABLES = {
    "Job": (("job", "label_values(aegis_job_phase, aegis_job)"),),
    "Checks": (("gpu_type", f"label_values({CHECK}_count, gpu_type)"), ("worker_num", f"label_values({CHECK}_count, worker_num)")),
}


def dashboard(name: str) -> dict[str, Any]:
    """The JSON that Grafana imports."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = []
    for number, (title, kind, unit, queries) in enumerate(DASHBOARDS[name]):
        targets = [
            {"refId": chr(65 + i), "datasource": source, "expr": query, "legendFormat": legend or "__auto"}
            for i, (query, legend) in enumerate(queries)
        ]
        place = {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8}
        defaults = {"defaults": {"unit": unit}, "overrides": []}
        panels.append(
            {"id": number + 1, "type": kind, "title": title, "datasource": source, "gridPos": place, "fieldConfig": defaults, "targets": targets}
        )
    chosen = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    chosen += [
        {"name": key, "type": "query", "datasource": source, "query": query, "includeAll": True, "allValue": ".*", "multi": True, "refresh": 2}  # type: ignore[dict-item]
        for key, query in VARIABLES.get(name, ())
    ]
    return {
        "title": f"Aegis: {name}",
        "tags": ["aegis"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": chosen},
        "panels": panels,
    }


def files() -> dict[str, str]:
    """File name -> text."""
    return {f"{name.lower().replace(' ', '-')}.json": json.dumps(dashboard(name), indent=1) + "\n" for name in DASHBOARDS}


if __name__ == "__main__":
    for file, text in files().items():
        (Path(__file__).parent / "dashboards" / file).write_text(text)
