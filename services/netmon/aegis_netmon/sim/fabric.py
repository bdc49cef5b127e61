"""A rail-optimised fat-tree of two levels, as numbered links.

Every host has one NIC per rail. The NICs of one rail in one pod share a leaf; each leaf has `lanes` uplinks over `spines` spines (`parallel` links to
each). A link is directed: tx and rx of a NIC, up and down between leaf and spine. The uplink and the downlink of a lane meet at the same spine.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

Where = Literal["uplink", "downlink", "host"]


class Link(NamedTuple):
    """A link by its place; `number` is its place in every array of the model."""

    number: int
    where: Where
    name: str


class Shape(msgspec.Struct, frozen=True):
    """Numbers of the fabric. The defaults are the clusters of the experiments: 8 x HDR200 per host, 16 hosts per leaf, 1:1, 4 spines x 4 links."""

    hosts: int
    nics: int = 8
    gbps: float = 200.0
    hosts_per_leaf: int = 16
    spines: int = 4
    parallel: int = 4

    @property
    def lanes(self) -> int:
        """Uplinks of a leaf."""
        return self.spines * self.parallel

    @property
    def pods(self) -> int:
        """Groups of hosts under one leaf per rail."""
        return -(-self.hosts // self.hosts_per_leaf)

    @property
    def uplinks(self) -> int:
        """Uplinks of all leaves; as many downlinks."""
        return self.pods * self.nics * self.lanes

    @property
    def links(self) -> int:
        """All directed links."""
        return 2 * self.hosts * self.nics + 2 * self.uplinks

    @property
    def first_up(self) -> int:
        return 2 * self.hosts * self.nics

    @property
    def first_down(self) -> int:
        return self.first_up + self.uplinks

    def check(self) -> None:
        """ValueError with the number that cannot be."""
        for name in ("hosts", "nics", "hosts_per_leaf", "spines", "parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed")
        if self.gbps <= 0:
            raise ValueError(f"link rate {self.gbps:g} Gb/s: more than 0 is needed")
        if self.links > 20_000_000:
            raise ValueError(f"{self.links} links: at most 20 million")

    def link(self, index: int) -> Link:
        """The link of a number.

        >>> Shape(32).link(Shape(32).first_up + 5).name
        'pod 0, rail 0, uplink to spine 1 (link 1)'
        """
        ports = self.hosts * self.nics
        if index < 2 * ports:
            host, rail = divmod(index % ports, self.nics)
            return Link(index, "host", f"host {host}, rail {rail}, {'transmit' if index < ports else 'receive'}")
        up = index < self.first_down
        leaf, lane = divmod(index - (self.first_up if up else self.first_down), self.lanes)
        pod, rail = divmod(leaf, self.nics)
        spine, nth = divmod(lane, self.parallel)
        where: Where = "uplink" if up else "downlink"
        return Link(index, where, f"pod {pod}, rail {rail}, {where} {'to' if up else 'from'} spine {spine} (link {nth})")
