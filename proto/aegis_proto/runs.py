"""Where a run of a job is and whose it is: what a history of nodes is made of. Reads and writes nothing."""

from __future__ import annotations

import msgspec


class RunInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a run of a job is and whose it is. `nodes`: names, folded as Slurm does (`n[1-4,7]`, `aegis_proto.hostlist`)."""

    nodes: str
    user: str = ""
    family: str = ""
    priority: int = 0
    gpus: int = 0  # processes per node
    cluster: str = ""
    exclude: tuple[str, ...] = ()
