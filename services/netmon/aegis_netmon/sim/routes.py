"""How flows are put on links.

static    the up-link is the destination's number modulo the lanes (d-mod-k: what a subnet manager's tables do on a fat-tree)
ecmp      each flow hashes onto one lane
adaptive  each packet chooses: a flow is split over all lanes by what they can carry; a lane that lost more than half is not used

The ideal adaptive switch knows every lane, also behind the spine, at once. The delayed one decides on old knowledge: a share `stale` of the packets
is spread evenly whatever the lanes' state, and what they lose there is sent again by the whole flow.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
import numpy as np

from aegis_netmon.sim.fabric import Shape
from aegis_netmon.sim.flows import Ints, Shares
from aegis_netmon.sim.lossy import Floats

Routing = Literal["static", "ecmp", "adaptive"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
UNUSED_BELOW = 0.5


class Adaptive(msgspec.Struct, frozen=True):
    """`stale`: share of packets placed on old knowledge. `spreading`: share of a blocked flow's queue that blocks the lanes it came over.
    Both are 0 for the ideal switch; no measurement of real ones is at hand."""

    stale: float = 0.0
    spreading: float = 0.0


IDEAL = Adaptive()
DELAYED = Adaptive(0.1, 0.3)


class Flows(msgspec.Struct, frozen=True):
    """From host to host on a rail, for a collective."""

    source: Ints
    target: Ints
    rail: Ints
    group: Ints


def rings(groups: list[list[int]], nics: int) -> Flows:
    """One ring per rail through each group's hosts, in their order."""
    source = np.concatenate([np.asarray(hosts, np.int64) for hosts in groups])
    target = np.concatenate([np.roll(np.asarray(hosts, np.int64), -1) for hosts in groups])
    group = np.repeat(np.arange(len(groups)), [len(hosts) for hosts in groups])
    rail = np.tile(np.arange(nics), len(source))
    return Flows(np.repeat(source, nics), np.repeat(target, nics), rail, np.repeat(group, nics))


def place(shape: Shape, flows: Flows, routing: Routing, usable: Floats, rng: np.random.Generator, *, switch: Adaptive = IDEAL) -> Shares:
    """Every flow on its links. `usable`: of each link, the share of its rate that is useful to a flow that sends all its packets over it."""
    count = len(flows.source)
    number = np.arange(count)
    ports = shape.hosts * shape.nics
    from_pod, to_pod = flows.source // shape.hosts_per_leaf, flows.target // shape.hosts_per_leaf
    across = np.flatnonzero(from_pod != to_pod)
    up = shape.first_up + (from_pod[across] * shape.nics + flows.rail[across]) * shape.lanes
    down = shape.first_down + (to_pod[across] * shape.nics + flows.rail[across]) * shape.lanes
    if routing == "adaptive":
        every = np.arange(shape.lanes)
        share = adaptive_shares(usable[up[:, None] + every], usable[down[:, None] + every], switch)
        row, lane = np.nonzero(share)
        weight = share[row, lane]
    else:
        row = np.arange(len(across))
        lane = flows.target[across] % shape.hosts_per_leaf % shape.lanes if routing == "static" else rng.integers(0, shape.lanes, len(across))
        weight = np.ones(len(across))
    ends = np.concatenate([flows.source * shape.nics + flows.rail, ports + flows.target * shape.nics + flows.rail])
    return Shares(
        np.concatenate([number, number, across[row], across[row]]),
        np.concatenate([ends, up[row] + lane, down[row] + lane]),
        np.concatenate([np.ones(2 * count), weight, weight]),
        flows.group,
    )


def adaptive_shares(up: Floats, down: Floats, switch: Adaptive) -> Floats:
    """Share of each flow (row) on each lane (column)."""
    able = np.minimum(up, down)
    able = np.where(able < UNUSED_BELOW * able.max(axis=1, keepdims=True), 0.0, able)
    best = able / able.sum(axis=1, keepdims=True)
    return np.asarray((1 - switch.stale) * best + switch.stale / able.shape[1], dtype=np.float64)
