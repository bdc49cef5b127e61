"""The chart as what it creates: linted and rendered by Helm's own library, without a helm program, a cluster or a network."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "deploy" / "kubernetes"
NAMESPACE = "aegis-system"
VERSIONS = ("1.31", "1.37")
"""Of Kubernetes, whose schemas the objects are held against."""


def render(**values: Any) -> list[dict[str, Any]]:
    """Every object for these values, in a release `aegis` of NAMESPACE. Raises what Helm says of a template."""
    return [dict(document) for document in _rendered(json.dumps(values, sort_keys=True))]


@functools.cache
def _rendered(values: str) -> tuple[dict[str, Any], ...]:
    from helm_python import chart

    loaded = chart.Chart.load(str(CHART))
    texts = loaded.render(json.loads(values), name="aegis", namespace=NAMESPACE)
    found = [document for name, text in sorted(texts.items()) if not name.endswith(".txt") for document in yaml.safe_load_all(text)]
    return tuple(document for document in found if document)


def problems(objects: Iterable[dict[str, Any]]) -> list[str]:
    """What Kubernetes' own schemas say against them; of a definition of ours only what every object has."""
    import kubernetes_validate

    found = []
    for document in objects:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                found.append(f"{document['kind']} {document['metadata']['name']} in {version}: {error.message}")
    return found
