"""What of the API Aegis uses: the paths of its resources. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
"""An object of the API, as JSON."""


@dataclass(frozen=True, slots=True)
class Resource:
    """`api`: "v1" or "group/version"."""

    api: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        root = f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return root + where + "".join(f"/{part}" for part in (self.plural, name, sub) if part)


GROUP = "aegis.train"
PODS, SECRETS, SERVICES, EVENTS = (Resource("v1", plural) for plural in ("pods", "secrets", "services", "events"))
NODES, NAMESPACES = Resource("v1", "nodes", False), Resource("v1", "namespaces", False)
AEGISJOBS, RECORDS = Resource(f"{GROUP}/v1", "aegisjobs"), Resource(f"{GROUP}/v1", "aegises")
