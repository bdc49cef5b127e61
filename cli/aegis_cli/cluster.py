"""What `aegis doctor --platform kubernetes` looks at, by kubectl and so with the caller's own rights. Changes nothing.

`findings` is given a function that runs kubectl and decodes its JSON; everything else is plain.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aegis_cli.finding import Finding

Kubectl = Callable[..., Any]
OLDEST = (1, 20)
"""API server that the tests run on."""
CRDS = ("aegisjobs.aegis.train", "aegises.aegis.train")
RIGHTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "aegis-jobcontroller": (
        *(("aegis.train", "aegisjobs", verb) for verb in ("get", "list", "watch", "delete")),
        ("aegis.train", "aegisjobs/status", "patch"),
        ("aegis.train", "aegises", "create"),
        *(("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete")),
        *(("", "secrets", verb) for verb in ("create", "patch")),
        *(("", kind, "create") for kind in ("services", "events")),
        *(("", "nodes", verb) for verb in ("list", "watch", "patch")),
    ),
    "aegis-mirror": (("aegis.train", "aegises/status", "patch"),),
}
"""Service account -> (API group, resource, verb): as the chart's roles give them."""
RESTRICTED = "restricted"
ENFORCE = "pod-security.kubernetes.io/enforce"
DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")


class Refused(Exception):
    """kubectl did not do it; its words."""


def kubectl(*words: str) -> Any:
    """JSON of what kubectl says; a text where it is no JSON. Refused, also where there is no kubectl."""
    program = shutil.which("kubectl")
    if program is None:
        raise Refused("there is no kubectl in PATH")
    try:
        done = subprocess.run([program, *words, "--request-timeout=10s"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(str(error)) from None
    out = done.stdout.strip()
    if done.returncode != 0 and out not in ("no", "yes"):
        raise Refused((done.stderr.strip() or out).splitlines()[-1][:300] if done.stderr.strip() or out else f"exit {done.returncode}")
    try:
        return json.loads(out)
    except ValueError:
        return out


def findings(ask: Kubectl, namespace: str = "aegis-system") -> Iterator[Finding]:
    """Reachability first: nothing more is said of a cluster that does not answer."""
    try:
        version = ask("version", "-o", "json")["serverVersion"]
    except (Refused, KeyError, TypeError) as error:
        yield Finding("fail", "cluster", str(error), "kubectl config current-context; kubectl cluster-info")
        return
    number = tuple(int("".join(filter(str.isdigit, str(version.get(key, "0")))) or 0) for key in ("major", "minor"))
    level = "ok" if number >= OLDEST else "fail"
    yield Finding(level, "cluster", f"API {version.get('gitVersion', '?')}", "" if level == "ok" else f"at least {OLDEST[0]}.{OLDEST[1]} is needed")
    yield from _definitions(ask)
    for account, rights in RIGHTS.items():
        yield from _rights(ask, namespace, account, rights)
    yield from _storage(ask)
    yield from _namespaces(ask)
    yield from _nodes(ask)


def _items(ask: Kubectl, *words: str) -> list[Mapping[str, Any]]:
    found = ask("get", *words, "-o", "json")
    return list(found.get("items", ())) if isinstance(found, Mapping) else []


def _definitions(ask: Kubectl) -> Iterator[Finding]:
    try:
        known = {str(item["metadata"]["name"]) for item in _items(ask, "crd")}
    except Refused as error:
        yield Finding("warn", "crds", f"cannot be read: {error}", "ask somebody who may: kubectl get crd aegisjobs.aegis.train")
        return
    missing = [name for name in CRDS if name not in known]
    if missing:
        yield Finding("fail", "crds", f"not there: {', '.join(missing)}", "helm install aegis deploy/kubernetes -n aegis-system --create-namespace")
    else:
        yield Finding("ok", "crds", ", ".join(CRDS))


def _rights(ask: Kubectl, namespace: str, account: str, rights: tuple[tuple[str, str, str], ...]) -> Iterator[Finding]:
    who = f"system:serviceaccount:{namespace}:{account}"
    missing = []
    for group, resource, verb in rights:
        name, _, sub = resource.partition("/")
        words = ("auth", "can-i", verb, f"{name}.{group}" if group else name, *([f"--subresource={sub}"] if sub else ()), "-A", f"--as={who}")
        try:
            if ask(*words) != "yes":
                missing.append(f"{verb} {resource}")
        except Refused as error:
            yield Finding("warn", f"rights of {account}", f"cannot be asked: {error}", "a cluster administrator can (impersonation)")
            return
    have = f"{len(rights) - len(missing)} of {len(rights)}"
    if missing:
        yield Finding(
            "fail", f"rights of {account}", f"{have}; not {', '.join(missing)}", "helm upgrade aegis deploy/kubernetes: the roles are the chart's"
        )
    else:
        yield Finding("ok", f"rights of {account}", have)


def _storage(ask: Kubectl) -> Iterator[Finding]:
    try:
        classes = _items(ask, "storageclass")
    except Refused as error:
        yield Finding("warn", "storage", f"cannot be read: {error}", "kubectl get storageclass")
        return
    default = [
        str(item["metadata"]["name"])
        for item in classes
        if any((item["metadata"].get("annotations") or {}).get(key) == "true" for key in DEFAULT_CLASS)
    ]
    if default:
        yield Finding("ok", "storage", f"default StorageClass {default[0]}")
    else:
        names = ", ".join(str(item["metadata"]["name"]) for item in classes) or "none at all"
        do = "helm upgrade ... --set nats.storageClass=NAME"
        yield Finding("fail", "storage", f"no default StorageClass (there is {names}): NATS needs one volume of 20 GiB a server", do)


def _namespaces(ask: Kubectl) -> Iterator[Finding]:
    try:
        found = _items(ask, "namespaces")
    except Refused as error:
        yield Finding("warn", "PodSecurity", f"namespaces cannot be read: {error}", "kubectl get namespace --show-labels")
        return
    strict = [str(item["metadata"]["name"]) for item in found if (item["metadata"].get("labels") or {}).get(ENFORCE) == RESTRICTED]
    if strict:
        text = f'{", ".join(strict[:5])}: "restricted"; stacks need SYS_PTRACE, so hangs there are named without them'
        yield Finding(
            "warn", "PodSecurity", text, f"kubectl label namespace {strict[0]} --overwrite {ENFORCE}=baseline, and SYS_PTRACE in the template"
        )
    else:
        yield Finding("ok", "PodSecurity", "no namespace is restricted")


def _nodes(ask: Kubectl) -> Iterator[Finding]:
    try:
        nodes = _items(ask, "nodes")
    except Refused as error:
        yield Finding("warn", "nodes", f"cannot be read: {error}", "kubectl get nodes")
        return
    ready = [
        item for item in nodes if any(c.get("type") == "Ready" and c.get("status") == "True" for c in item.get("status", {}).get("conditions", ()))
    ]
    gpus = sum(int(item.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", 0)) for item in ready)
    level = "ok" if ready else "fail"
    yield Finding(level, "nodes", f"{len(ready)} of {len(nodes)} ready, {gpus} GPUs", "" if ready else "kubectl describe nodes")
