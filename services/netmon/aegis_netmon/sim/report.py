"""What a run says to a person, and the comparison of routings behind the pictures."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from aegis_netmon.sim import plot, routes
from aegis_netmon.sim.experiment import Result, Setup, run

BERS = (1e-8, 1e-7, 4e-7, 1e-6, 1e-5)
GROUPS_SHOWN = 16


def variants(setup: Setup) -> Iterator[tuple[str, Setup]]:
    """The same experiment under every routing."""
    for name, routing, switch in (
        ("static", "static", routes.IDEAL),
        ("ecmp", "ecmp", routes.IDEAL),
        ("adaptive", "adaptive", routes.IDEAL),
        ("adaptive, delayed", "adaptive", routes.DELAYED),
    ):
        yield name, msgspec.structs.replace(setup, routing=routing, switch=switch)


def picture(setup: Setup) -> str:
    """SVG: one group against the bit error rate, several groups sorted."""
    if setup.groups > 1:
        results = {name: run(each) for name, each in variants(setup)}
        series = {name: [group.bandwidth_gbps for group in result.groups] for name, result in results.items()}
        title = f"{setup.groups} groups of {setup.gpus // setup.groups} GPUs at once, {setup.placement} placement (seed {setup.seed})"
        return plot.curves(title, series, setup.gbps * setup.nics)
    links = max(setup.bad_links, 1)
    rows = {name: [run(msgspec.structs.replace(each, bad_links=links, ber=ber)).bandwidth_gbps for ber in BERS] for name, each in variants(setup)}
    title = f"{setup.gpus} GPUs, {links} bad link{'s' if links > 1 else ''} ({setup.bad_where}), {setup.placement} placement (seed {setup.seed})"
    return plot.bars(title, [f"BER {ber:g}" for ber in BERS], rows, setup.gbps * setup.nics)


def words(result: Result) -> str:
    """For a person, with the placement beside the numbers."""
    how: str = result.routing
    if result.routing == "adaptive":
        how += " (ideal)" if result.switch == routes.IDEAL else f" (stale {result.switch.stale:g}, spreading {result.switch.spreading:g})"
    hosts = sum(len(group.hosts) for group in result.groups)
    lines = [
        f"{how}: {result.bandwidth_gbps:.0f} Gbit/s per host of {result.ideal_gbps:.0f}, without bad links {result.healthy_bandwidth_gbps:.0f} "
        f"(loss {result.loss:.0%})",
        f"placement {result.placement}, seed {result.seed}: {hosts} hosts in {len(result.groups)} group{'s' if len(result.groups) > 1 else ''}",
    ]
    lines += [f"bad: {name}, BER {result.ber:g}: {result.link_goodput:.0%} of its rate is useful" for name in result.bad_links]
    if result.bad_links_in_use < len(result.bad_links):
        lines.append(f"of these {result.bad_links_in_use} are used by this placement: the others cost nothing")
    if len(result.groups) > 1:
        lines.append(f"best group over worst: {result.spread:g} (without bad links {result.healthy_spread:g})")
    for group in sorted(result.groups, key=lambda group: group.bandwidth_gbps)[:GROUPS_SHOWN]:
        shown = " ".join(map(str, group.hosts[:16])) + (" ..." if len(group.hosts) > 16 else "")
        lines.append(f"  group {group.group:<4} {group.bandwidth_gbps:7.0f} Gbit/s   hosts {shown}")
    if len(result.groups) > GROUPS_SHOWN:
        lines.append(f"  ... {len(result.groups) - GROUPS_SHOWN} more, none worse")
    return "\n".join(lines)
