"""The environment of the user's processes, as torchrun, Kubeflow and `PET_*` users expect it. Pure: environment in, environment out.

What describes the run (ranks, world, addresses) is ours, always: a stale value of an earlier launcher would split the world. What tunes it
(OMP_NUM_THREADS, NCCL and torch settings) is the user's wherever the user has set it. Secrets of the agent never pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from aegis_agent.nested import Nested

SECRET = re.compile(r"AEGIS_.*(TOKEN|SEED|CRED|SECRET|KEY|JWT|PASSWORD|TLS|TASK).*|AEGIS_BUS_.*|AEGIS_UID")
"""Names of the agent's own variables that the command does not get: join token, credentials' address, keys, bus settings. Only names of ours: what
else looks like a secret is the user's."""

USERS_OWN = (
    "OMP_NUM_THREADS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCHELASTIC_ERROR_FILE",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_MAX_RESTARTS",
)
"""Names whose value the user's environment or job specification may set; ours is only a default."""


FLIGHT_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FLIGHT_DUMP = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
FLIGHT_PIPE = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
FLIGHT_ON_TIMEOUT = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
"""Variables of torch's flight recorder, the present name first. Only that is set by us (torch warns of the other); either is the user's."""
FLIGHT_ENTRIES = "2000"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Where this worker stands in one run of the command. `index` of `workers` nodes, `nproc` local ranks; `address:port` is rank 0's store."""

    job: str
    pod: str
    attempt: int
    incarnation: int
    index: int
    workers: int
    nproc: int
    address: str
    port: int
    max_restarts: int
    scope: str
    socket: str = ""
    error_dir: str = ""
    flight_dir: str = ""
    namespace: str = ""
    node: str = ""
    user: Mapping[str, str] = field(default_factory=dict)  # env of the job specification

    @property
    def world(self) -> int:
        return self.workers * self.nproc

    @property
    def dump_prefix(self) -> str:
        """Flight records of this run are written into `<prefix><rank>`."""
        return f"{self.flight_dir}/rank_" if self.flight_dir else ""

    @property
    def pipe_prefix(self) -> str:
        """A rank listens at `<prefix><rank>.pipe`."""
        return f"{self.flight_dir}/ask_" if self.flight_dir else ""

    @property
    def run_id(self) -> str:
        """Contains the incarnation: no key of a store, no log folder of an earlier run is met again."""
        return f"{self.job or 'local'}-i{self.incarnation}"


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what belongs to the agent alone."""
    return {name: value for name, value in environ.items() if SECRET.fullmatch(name) is None}


def _own(plan: RunPlan) -> dict[str, str]:
    """What every process of a run gets, whatever starts the ranks."""
    named = {
        "AEGIS_SCOPE": plan.scope,
        "AEGIS_JOB": plan.job,
        "AEGIS_NAMESPACE": plan.namespace,
        "AEGIS_POD": plan.pod,
        "AEGIS_NODE": plan.node,
        "AEGIS_ATTEMPT": str(plan.attempt),
        "AEGIS_INCARNATION": str(plan.incarnation),
        "AEGIS_CONTROL_SOCKET": plan.socket,
    }
    return {name: value for name, value in named.items() if value}


def _pet(plan: RunPlan) -> dict[str, str]:
    """The node-level view: arguments of torchrun, given by environment."""
    return {
        "PET_NNODES": str(plan.workers),
        "PET_NODE_RANK": str(plan.index),
        "PET_NPROC_PER_NODE": str(plan.nproc),
        "PET_MASTER_ADDR": plan.address,
        "PET_MASTER_PORT": str(plan.port),
        "PET_RDZV_ID": plan.run_id,
        "PET_MAX_RESTARTS": "0",
    }


RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "GROUP_RANK", "GROUP_WORLD_SIZE")
TORCHELASTIC_NAMES = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")


def _flight(base: Mapping[str, str], plan: RunPlan) -> dict[str, str]:
    """Defaults of the flight recorder; none where the user has set one of its names."""
    if not plan.flight_dir:
        return {}
    wanted = ((FLIGHT_SIZE, FLIGHT_ENTRIES), (FLIGHT_DUMP, plan.dump_prefix), (FLIGHT_PIPE, plan.pipe_prefix), (FLIGHT_ON_TIMEOUT, "1"))
    return {names[0]: value for names, value in wanted if not any(name in base for name in names)}


def rank_environment(environ: Mapping[str, str], plan: RunPlan, local_rank: int) -> dict[str, str]:
    """Environment of one rank (0 <= local_rank < nproc)."""
    base = without_secrets(environ)
    base.update(plan.user)
    rank = plan.index * plan.nproc + local_rank
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **_flight(base, plan)}
    if plan.nproc > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    if plan.error_dir:
        defaults["TORCHELASTIC_ERROR_FILE"] = f"{plan.error_dir}/error{rank}.json"
    ours = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(plan.world),
        "LOCAL_WORLD_SIZE": str(plan.nproc),
        "GROUP_RANK": str(plan.index),
        "NODE_RANK": str(plan.index),
        "GROUP_WORLD_SIZE": str(plan.workers),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(plan.world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": plan.address,
        "MASTER_PORT": str(plan.port),
        "TORCHELASTIC_RESTART_COUNT": str(plan.incarnation),
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "TORCHELASTIC_RUN_ID": plan.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
    return _merge(base, defaults, {**ours, **_pet(plan), **_own(plan)})


def nested_environment(environ: Mapping[str, str], plan: RunPlan, nested: Nested) -> dict[str, str]:
    """Environment of a nested launcher, run once per worker: the node-level view; the launcher names the ranks itself."""
    base = without_secrets(environ)
    base.update(plan.user)
    for name in (*RANK_NAMES, *TORCHELASTIC_NAMES):
        base.pop(name, None)
    ours = {"NODE_RANK": str(plan.index), "MASTER_ADDR": plan.address, "MASTER_PORT": str(plan.port)}
    return _merge(base, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **_flight(base, plan)}, {**ours, **(_pet(plan) if nested.pet else {}), **_own(plan)})


def bare_environment(environ: Mapping[str, str], scope: str, user: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a command that nobody manages and for which no platform named ranks: as it is, without our secrets."""
    return {**without_secrets(environ), **(user or {}), "AEGIS_SCOPE": scope}


def _merge(base: dict[str, str], defaults: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    for name, value in defaults.items():
        base.setdefault(name, value)
    for name, value in ours.items():
        if name in USERS_OWN:
            base.setdefault(name, value)
        else:
            base[name] = value
    return base
