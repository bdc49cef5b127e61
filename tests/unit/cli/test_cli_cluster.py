"""`aegis doctor --platform kubernetes`: each finding from what kubectl says, with what to do; a right that is missing is named."""

from __future__ import annotations

from typing import Any

from aegis_cli.cluster import CRDS, ENFORCE, RIGHTS, Refused, findings
from aegis_cli.finding import Finding

NODE = {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "8"}}}
GOOD: dict[str, Any] = {
    "version": {"serverVersion": {"major": "1", "minor": "31+", "gitVersion": "v1.31.2"}},
    "crd": {"items": [{"metadata": {"name": name}} for name in CRDS]},
    "storageclass": {"items": [{"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}]},
    "namespaces": {"items": [{"metadata": {"name": "default"}}]},
    "nodes": {"items": [NODE, {"metadata": {"name": "m"}, "status": {}}]},
    "auth": "yes",
}


def found(**changed: Any) -> dict[str, Finding]:
    said = {**GOOD, **changed}

    def ask(*words: str) -> Any:
        answer = said[words[1] if words[0] == "get" else words[0]]
        answer = answer(*words) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    return {row.check: row for row in findings(ask)}


def test_a_cluster_that_is_ready_is_said_to_be() -> None:
    rows = found()
    assert {row.level for row in rows.values()} == {"ok"} and not [row for row in rows.values() if row.do]
    assert rows["nodes"].finding == "1 of 2 ready, 8 GPUs"
    assert rows["rights of aegis-jobcontroller"].finding == f"{len(RIGHTS['aegis-jobcontroller'])} of {len(RIGHTS['aegis-jobcontroller'])}"


def test_what_is_missing_is_named_with_what_to_do() -> None:
    strict = {"items": [{"metadata": {"name": "ml", "labels": {ENFORCE: "restricted"}}}]}
    rows = found(crd={"items": []}, storageclass={"items": []}, namespaces=strict, auth=lambda *words: "no" if "secrets" in words else "yes")
    for check, level, text in (
        ("crds", "fail", CRDS[0]),
        ("storage", "fail", "no default StorageClass"),
        ("PodSecurity", "warn", "SYS_PTRACE"),
        ("rights of aegis-jobcontroller", "fail", "not create secrets, patch secrets"),
    ):
        assert rows[check].level == level and text in rows[check].finding and rows[check].do, rows[check]


def test_a_cluster_that_does_not_answer_or_hides_things_is_one_finding_each() -> None:
    assert set(found(version=Refused("connection refused"))) == {"cluster"}
    hidden = found(**dict.fromkeys(("crd", "storageclass", "namespaces", "nodes", "auth"), Refused("forbidden")))
    assert {row.level for check, row in hidden.items() if check != "cluster"} == {"warn"}
    assert found(version={"serverVersion": {"major": "1", "minor": "19"}})["cluster"].level == "fail"
