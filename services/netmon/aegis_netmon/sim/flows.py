"""Flows over links, and the max-min fair rates of the collectives they belong to.

A collective's flows rise together: a ring runs at its slowest hop, and NCCL splits bytes evenly over the rails, so that all of a job waits for its
slowest flow. Rates are found by progressive filling: all collectives rise until a link is full; those that use it stop; the others go on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aegis_netmon.sim.lossy import Floats

Ints = npt.NDArray[np.int64]
FULL = 1e-9
"""Share of a link's capacity below which what is left is rounding."""


class Shares(NamedTuple):
    """Entry by entry: this flow sends this share of its packets over this link. `group`: the collective of each flow."""

    flow: Ints
    link: Ints
    share: Floats
    group: Ints

    @property
    def flows(self) -> int:
        return len(self.group)


class Load(NamedTuple):
    """Entry by entry: a collective that runs at 1 Gb/s per flow puts so much on this link."""

    group: Ints
    link: Ints
    load: Floats


def load(shares: Shares, useful: Floats, links: int) -> Load:
    """What collectives put on links; `useful`: of each flow, the share of its wire rate that is not sent again."""
    key = shares.group[shares.flow] * links + shares.link
    weight = shares.share / useful[shares.flow]
    keys, place = np.unique(key, return_inverse=True)
    return Load(keys // links, keys % links, np.bincount(place, weight, len(keys)).astype(np.float64))


def maxmin(loads: Load, groups: int, capacity: Floats) -> Floats:
    """Rate per flow of each collective, Gb/s. A collective that uses no link gets infinity."""
    rate = np.full(groups, np.inf)
    rate[np.unique(loads.group)] = 0.0
    live = np.isfinite(rate)
    left = capacity.astype(np.float64).copy()
    group, link, weight = loads
    while live.any():
        total = np.bincount(link, weight, len(left))
        used = total > 0
        rise = float(np.min(left[used] / total[used]))
        rate[live] += rise
        left[used] -= rise * total[used]
        full = used & (left <= FULL * capacity)
        stopped = np.unique(group[full[link]])
        live[stopped] = False
        keep = live[group]
        group, link, weight = group[keep], link[keep], weight[keep]
    return rate
