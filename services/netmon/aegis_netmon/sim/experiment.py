"""One run of the model: groups on a fabric, some links bad, one routing; and the same without the bad links.

The bad links are drawn from those that the traffic uses while there are any (as experimenters do, who hurt links in use); for adaptive routing from
those that static routing would use, so that both are compared on the same links. The placement is part of every result: it decides as much as the
routing does.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec
import numpy as np

from aegis_netmon.sim import flows, lossy, routes
from aegis_netmon.sim.fabric import Shape, Where
from aegis_netmon.sim.lossy import Floats
from aegis_netmon.sim.routes import Adaptive, Routing

Placement = Literal["sorted", "random"]
GPUS_PER_HOST = 8


class Setup(msgspec.Struct, frozen=True):
    """What is run. `ber` is that of each bad link after correction; `slow_ports`: NICs whose receive side runs at half rate."""

    gpus: int = 512
    groups: int = 1
    bad_links: int = 0
    ber: float = 1e-6
    bad_where: Where = "uplink"
    slow_ports: int = 0
    routing: Routing = "static"
    switch: Adaptive = routes.IDEAL
    placement: Placement = "sorted"
    seed: int = 0
    mtu: int = 4096
    window: int = 64
    nics: int = 8
    gbps: float = 200.0
    hosts_per_leaf: int = 16
    spines: int = 4
    parallel: int = 4

    @property
    def shape(self) -> Shape:
        return Shape(self.gpus // GPUS_PER_HOST, self.nics, self.gbps, self.hosts_per_leaf, self.spines, self.parallel)


class Group(msgspec.Struct, frozen=True):
    """A collective: its hosts in ring order, and the bus bandwidth of each of them over all its NICs, in Gbit/s."""

    group: int
    hosts: list[int]
    bandwidth_gbps: float
    healthy_bandwidth_gbps: float


class Result(msgspec.Struct, frozen=True):
    """Bandwidths are bus bandwidths per host in Gbit/s, the mean over the groups; `ideal_gbps` is that of all NICs. `loss`: what the bad links cost,
    against the same placement and routing without them. `spread`: best over worst group."""

    routing: Routing
    switch: Adaptive
    bandwidth_gbps: float
    healthy_bandwidth_gbps: float
    ideal_gbps: float
    loss: float
    spread: float
    healthy_spread: float
    placement: Placement
    seed: int
    bad_links: list[str]
    bad_links_in_use: int
    ber: float
    link_goodput: float
    groups: list[Group]


def check(setup: Setup) -> None:
    """ValueError that names the setting, its value and what is possible."""
    for name, value, known in (
        ("routing", setup.routing, routes.ROUTINGS),
        ("where", setup.bad_where, get_args(Where)),
        ("placement", setup.placement, get_args(Placement)),
    ):
        if value not in known:
            raise ValueError(f'{name} "{value}": one of {", ".join(known)}')
    if setup.groups < 1 or setup.gpus < 1 or setup.gpus % (GPUS_PER_HOST * setup.groups):
        raise ValueError(f"{setup.gpus} GPUs in {setup.groups} groups: each needs whole hosts of {GPUS_PER_HOST} GPUs, at least 1 group")
    if setup.gpus // setup.groups < 2 * GPUS_PER_HOST:
        raise ValueError(f"{setup.gpus} GPUs in {setup.groups} groups: a group needs at least 2 hosts of {GPUS_PER_HOST} GPUs, or nothing is sent")
    for name, low, high in (("ber", 0.0, 0.5), ("switch.stale", 0.0, 1.0), ("switch.spreading", 0.0, 1.0)):
        value = getattr(setup.switch, name[7:]) if name.startswith("switch.") else getattr(setup, name)
        if not low <= value <= high:
            raise ValueError(f"{name.removeprefix('switch.')} is {value:g}: from {low:g} to {high:g}")
    if setup.mtu < 1 or setup.window < 1 or setup.bad_links < 0 or setup.slow_ports < 0 or setup.seed < 0:
        raise ValueError("mtu and window must be at least 1; bad links, slow ports and seed at least 0")
    setup.shape.check()
    ports = setup.shape.hosts * setup.shape.nics
    if setup.slow_ports > ports:
        raise ValueError(f"{setup.slow_ports} slow ports: the hosts have {ports} NICs")


def run(setup: Setup) -> Result:
    """The result of a setup; ValueError if it cannot be."""
    check(setup)
    shape = setup.shape
    groups = placed(setup)
    traffic = routes.rings(groups, shape.nics)
    bad, in_use = choose(setup, shape, traffic)
    loss = np.zeros(shape.links)
    loss[bad] = lossy.packet_loss(setup.ber, setup.mtu)
    rates = bandwidths(setup, shape, traffic, loss)
    healthy = bandwidths(setup, shape, traffic, np.zeros(shape.links))
    mean, clean = float(np.mean(rates)), float(np.mean(healthy))
    return Result(
        routing=setup.routing,
        switch=setup.switch if setup.routing == "adaptive" else routes.IDEAL,
        bandwidth_gbps=round(mean, 2),
        healthy_bandwidth_gbps=round(clean, 2),
        ideal_gbps=shape.gbps * shape.nics,
        loss=round(1 - mean / clean, 4),
        spread=round(float(rates.max() / rates.min()), 3),
        healthy_spread=round(float(healthy.max() / healthy.min()), 3),
        placement=setup.placement,
        seed=setup.seed,
        bad_links=[shape.link(int(index)).name for index in bad],
        bad_links_in_use=in_use,
        ber=setup.ber if len(bad) else 0.0,
        link_goodput=round(float(lossy.goodput(lossy.packet_loss(setup.ber, setup.mtu), setup.window)), 4) if len(bad) else 1.0,
        groups=[Group(n, hosts, round(float(rates[n]), 2), round(float(healthy[n]), 2)) for n, hosts in enumerate(groups)],
    )


def placed(setup: Setup) -> list[list[int]]:
    """Hosts of each group: pod by pod, or drawn without regard to the pods."""
    hosts = np.arange(setup.shape.hosts)
    if setup.placement == "random":
        np.random.default_rng([setup.seed, 1]).shuffle(hosts)
    return [list(map(int, part)) for part in np.split(hosts, setup.groups)]


def choose(setup: Setup, shape: Shape, traffic: routes.Flows) -> tuple[flows.Ints, int]:
    """The links that are made bad, and how many of them are in use: those in use come first, others of the kind only when there are no more."""
    if not setup.bad_links:
        return np.zeros(0, np.int64), 0
    routing: Routing = "static" if setup.routing == "adaptive" else setup.routing
    shares = routes.place(shape, traffic, routing, np.ones(shape.links), np.random.default_rng([setup.seed, 2]))
    first, last = {
        "host": (0, shape.first_up),
        "uplink": (shape.first_up, shape.first_down),
        "downlink": (shape.first_down, shape.links),
    }[setup.bad_where]
    if setup.bad_links > last - first:
        raise ValueError(f"{setup.bad_links} bad links: the fabric has {last - first} of kind {setup.bad_where}")
    kind = np.arange(first, last)
    used = np.isin(kind, shares.link)
    rng = np.random.default_rng([setup.seed, 3])
    order = np.concatenate([rng.permutation(kind[used]), rng.permutation(kind[~used])])
    return np.sort(order[: setup.bad_links]), min(setup.bad_links, int(used.sum()))


def bandwidths(setup: Setup, shape: Shape, traffic: routes.Flows, loss: Floats) -> Floats:
    """Bus bandwidth per host of each group, Gbit/s."""
    usable = lossy.goodput(loss, setup.window)
    shares = routes.place(shape, traffic, setup.routing, usable, np.random.default_rng([setup.seed, 2]), switch=setup.switch)
    lost = np.bincount(shares.flow, shares.share * loss[shares.link], shares.flows)
    useful = lossy.goodput(np.minimum(lost, 0.999999), setup.window)
    capacity = np.full(shape.links, shape.gbps)
    if setup.slow_ports:
        ports = shape.hosts * shape.nics
        slow = np.random.default_rng([setup.seed, 4]).choice(ports, setup.slow_ports, replace=False)
        capacity[ports + slow] /= 2
    if setup.routing == "adaptive" and setup.switch.spreading:
        capacity = congested(shape, shares, capacity, setup.switch.spreading)
    rates = flows.maxmin(flows.load(shares, useful, shape.links), setup.groups, capacity)
    return rates * shape.nics


def congested(shape: Shape, shares: flows.Shares, capacity: Floats, spreading: float) -> Floats:
    """Capacity that is left where queues back up: a receiver or downlink that cannot take what is offered blocks the uplinks that lead to it, and an
    adaptive switch has spread the blocked flow over all of them."""
    offered = np.bincount(shares.link, shares.share, shape.links) * shape.gbps
    over = np.where(offered > capacity, 1 - capacity / np.maximum(offered, 1e-12), 0.0)
    ports = shape.hosts * shape.nics
    late = ((shares.link >= ports) & (shares.link < shape.first_up)) | (shares.link >= shape.first_down)
    blocked = np.bincount(shares.flow[late], (shares.share * over[shares.link])[late], shares.flows)
    early = (shares.link >= shape.first_up) & (shares.link < shape.first_down)
    share = np.bincount(shares.link[early], shares.share[early], shape.links)
    stuck = np.bincount(shares.link[early], (shares.share * np.minimum(blocked[shares.flow], 1.0))[early], shape.links)
    part = np.divide(stuck, share, out=np.zeros(shape.links), where=share > 0)
    return np.asarray(capacity * (1 - spreading * part), dtype=np.float64)
