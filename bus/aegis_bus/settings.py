"""Every setting that has an effect, as data: one frozen dataclass per section of `aegis.toml` (`aegis config show`). How they are read: `config.py`.

Field `max_retry` of section `job` is `[job] maxRetry` in the file and `AEGIS_JOB_MAX_RETRY` in the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


def duration(default: float) -> Any:
    """A duration, float seconds; in file and environment a number of seconds or "10min", "500ms", "2h", "7d"."""
    return field(default=default, metadata={"kind": "duration"})


def share(default: float) -> Any:
    """A share of 1; in file and environment 0.1 or "10%"."""
    return field(default=default, metadata={"kind": "share"})


def number(default: float) -> Any:
    """A number of at least 0."""
    return field(default=default, metadata={"kind": "number"})


def choice(default: str, *options: str) -> Any:
    """One of `options`."""
    return field(default=default, metadata={"kind": "choice", "options": options})


def secret(default: Any) -> Any:
    """A value that is a secret, whole or in part: nobody is shown it."""
    return field(default=default, metadata={"secret": True})


HIDDEN = "***"
_USER = re.compile(r"(?<=://)[^/@\s]*@")


def masked(value: Any, whole: bool = False) -> Any:
    """A value as it may be shown: of an address without what stands before its host, and with `whole` nothing behind its scheme."""
    if isinstance(value, tuple):
        return tuple(masked(part, whole) for part in value)
    if not isinstance(value, str):
        return value
    if whole:
        scheme, found, _ = value.partition("://")
        return f"{scheme}://{HIDDEN}" if found else HIDDEN if value else ""
    return _USER.sub(f"{HIDDEN}@", value)


@dataclass(frozen=True)
class BusSettings:
    servers: tuple[str, ...] = ()
    creds: str = ""
    tls_ca: str = ""
    state: str = ""
    connect_timeout: float = duration(10.0)
    lease_ttl: float = duration(6.0)


@dataclass(frozen=True)
class ServiceSettings:
    """What every service process has."""

    replica: str = ""
    listen: str = "127.0.0.1"
    port: int = 0
    drain_grace: float = duration(10.0)


@dataclass(frozen=True)
class MasterSettings:
    """Of the master alone. What the times mean: `aegis_master.judge`, `aegis_master.settings`."""

    silent: float = duration(15.0)
    unconfirmed: float = duration(120.0)
    quiet: float = duration(25.0)
    common_share: float = share(0.2)
    takeover_delay: float = duration(0.5)
    scan: float = duration(0.5)
    ack_after: float = duration(2.0)
    progress: float = duration(5.0)
    tick: float = duration(1.0)
    trace: str = ""


@dataclass(frozen=True)
class CredentialsSettings:
    listen: str = "127.0.0.1:0"
    server: str = ""
    state: str = ""
    tls_ca: str = ""
    ttl: float = duration(86400.0)
    root_secret: str = ""
    """Path of a mounted root secret; empty = the one in `state`."""
    bus_servers: tuple[str, ...] = ()
    """What agents are told to dial; empty = `bus.servers`."""
    interval: float = duration(60.0)
    """Time between two rounds of the level loop."""
    account_grace: float = duration(900.0)
    """How long the account of an ended job stays, so that its agents hear of the end."""


@dataclass(frozen=True)
class JobControllerSettings:
    platform: str = choice("nodes", "nodes", "kubernetes")
    kubeconfig: str = ""
    """Path; empty = the service account of the pod that this runs in."""
    agent_image: str = ""
    """Image whose folder /opt/aegis holds the agent: copied into each worker by an init container. Empty = the job's own image has `aegis-agent`."""
    connect_deadline: float = duration(120.0)
    """Kubernetes: a container that runs so long without its agent being heard has its job run plain, all of it. As long as the agent itself tries."""


@dataclass(frozen=True)
class SlurmSettings:
    """Inside an allocation of Slurm, and of the hooks."""

    exclude: str = choice("auto", "auto", "drain", "list")
    """Bad nodes: drain them where that is allowed, always try to, or only leave them out of the next start of the same job."""
    requeue: bool = True
    """Have the job requeued when another start helps; else it ends with 75 alone."""
    requeue_delay: float = duration(20.0)
    """Until a requeued job may start again: longer than it takes to end, or Slurm waits two minutes."""
    owner_silent: float = duration(60.0)
    """Without the bus, and with nothing left that runs: the first node of the allocation is lost."""


@dataclass(frozen=True)
class JobSettings:
    max_retry: int = 3
    retry_reset_after: float = duration(0.0)
    spares: int = 0
    nproc_per_node: str = "1"
    stop_grace: float = duration(15.0)
    preempt_grace: float = duration(300.0)
    placing_timeout: float = duration(1800.0)
    pending_timeout: float = duration(600.0)
    round_timeout: float = duration(600.0)
    no_progress_runs: int = 3
    """Failed runs in a row without a new checkpoint after which a job stops; 0 = never."""


@dataclass(frozen=True)
class HangSettings:
    timeout: float = duration(600.0)
    first_step: float = duration(3600.0)
    silence: float = duration(0.0)
    """Without progress until a run is marked as hung; 0 = learned from its steps, at most `timeout`."""


@dataclass(frozen=True)
class CheckpointSettings:
    dir: str = "auto"
    wait_for_slow_node: float = duration(7200.0)
    """How long a slow worker is waited for to save; then the run keeps going with it."""


@dataclass(frozen=True)
class ActionsSettings:
    """What is done to nodes. The fleet's: a job may only be stricter."""

    mode: str = choice("act", "observe", "advise", "act")


@dataclass(frozen=True)
class LogsSettings:
    level: str = choice("info", "debug", "info", "warning", "error")


@dataclass(frozen=True)
class LognexusSettings:
    """The store of the workers' lines, and what becomes of them."""

    store: str = ""
    """Folder of the store; each replica its own."""
    max_bytes: int = 20 << 30
    max_age: float = duration(14 * 86400.0)
    settle: float = duration(5.0)
    """How long lines may still come after a failure before it is judged."""
    hang_settle: float = duration(25.0)
    """How long flight records and the two looks at stacks may take after a mark before it is judged."""
    sinks: tuple[str, ...] = ()
    """Where lines are sent on: loki+http://..., openobserve+https://..., otlp+http://... (`aegis_lognexus.sinks`)."""


@dataclass(frozen=True)
class NetmonSettings:
    """The network monitor. `fabric`: this machine is on the fabric and has infiniband-diags, so that it may sweep it."""

    round: float = duration(5.0)
    """Time between two judgements."""
    keep: float = duration(60.0)
    """Time between two writings of what a successor must know."""
    fabric: bool = False
    prefix: tuple[str, ...] = ()
    """Words before each of the fabric's tools, as sudo."""
    sweep: float = duration(60.0)
    budget: float = duration(30.0)
    """Time between two sweeps of the fabric, and what one may take."""
    expected: tuple[str, ...] = ()
    """Ports that every node should have up, as mlx5_0/1 or mlx5_0/1@400 (Gb/s); empty = what its peers have."""
    limits: str = ""
    """A file of limits over those that come with Aegis."""
    reports: str = ""
    """A folder with what tools printed that need other rights: ibdiagnet, ibswinfo, UFM's log."""
    ufm_zone: str = "UTC"
    """Time zone of UFM's machine, as Europe/Berlin: the times in its log have none."""
    forget: float = duration(7 * 86400.0)
    """A node of which nothing was heard for so long is forgotten."""


@dataclass(frozen=True)
class LemonSettings:
    """Which nodes are bad, and how carefully they are taken out. What is done at all rules `actions.mode`."""

    state: str = ""
    """Folder of its history and tickets; each replica its own."""
    round: float = duration(60.0)
    """Time between two rankings; news makes one sooner."""
    detector: str = "blame"
    window: float = duration(28 * 86400.0)
    recent: float = duration(7 * 86400.0)
    posterior: float = share(0.5)
    """Probability of being a lemon from which a node is flagged."""
    least: float = number(1.8)
    """Failures below which no probability flags."""
    count: float = number(3.0)
    """Detector `count`: failures from which it flags."""
    certain: float = share(0.9)
    times: float = number(5.0)
    """Detector `shrinkage`: how sure it must be that a node fails so many times as often as the fleet."""
    rule_multi: float = number(2.0)
    rule_xid: float = number(5.0)
    """Detector `rules`, rule A: failures of jobs of several nodes, and XIDs of the hardware class, that must be exceeded both."""
    rule_rate: float = share(0.2)
    """Rule B: share of the node's own jobs that failed, which must be exceeded, with a failure within `recent`."""
    rule_weight: float = number(2.0)
    """How often what happened within `recent` counts in rule A."""
    gap: float = duration(3600.0)
    """Failures of a node so close to an episode's first are one."""
    settle: float = duration(120.0)
    """How long a failed run may still be explained."""
    keep: float = duration(400 * 86400.0)
    """What was over for so long is forgotten."""
    history: tuple[str, ...] = ()
    """Folders of the documented format that count beside what is heard (docs/history.md), as `aegis lemon import` writes them."""
    slurm: bool = False
    """This machine reaches a Slurm cluster and may drain its nodes: its accounting counts, and who is taken out is drained there."""
    probation: float = duration(28 * 86400.0)
    test_seconds: float = duration(60.0)
    """Of each deep test that is ordered."""
    drains_per_day: float = share(0.002)
    max_excluded: float = share(0.1)
    """Shares of all nodes, each at least 1 node."""
    tickets: str = ""
    """Folder of repair tickets; empty = `tickets` in `state`."""
    webhook: str = secret("")
    """Each ticket is posted there too, as JSON. The address may hold a secret."""


@dataclass(frozen=True)
class NotifySettings:
    """Who is told of failures."""

    urls: tuple[str, ...] = secret(())
    """Addresses as `apprise` reads them (slack://, feishu://, dingtalk://, wecombot://, mailto://, json://, ...). They hold secrets."""


SECTIONS: dict[str, type[Any]] = {
    "bus": BusSettings,
    "service": ServiceSettings,
    "master": MasterSettings,
    "credentials": CredentialsSettings,
    "jobcontroller": JobControllerSettings,
    "slurm": SlurmSettings,
    "lognexus": LognexusSettings,
    "notify": NotifySettings,
    "netmon": NetmonSettings,
    "lemon": LemonSettings,
    "job": JobSettings,
    "hang": HangSettings,
    "checkpoint": CheckpointSettings,
    "actions": ActionsSettings,
    "logs": LogsSettings,
}
UNTRUSTED_MAY_NOT_SET = ("actions", "bus", "credentials", "jobcontroller", "lemon", "lognexus", "netmon", "notify")
"""Sections that the file of the working folder may not set: a cloned folder is not trusted."""
