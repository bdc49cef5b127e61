"""How evenly each leaf uses its uplinks, from the watch; and what a stalled port lost. Pure."""

from __future__ import annotations

from aegis_parsers.ib.ber import line_rate_gbps

from aegis_netmon import routing
from aegis_netmon.limits import Limits, default
from aegis_netmon.topology import Fabric
from aegis_netmon.watch import Watch

EVERY_8_OCTETS, EVERY_32_OCTETS = 0x07, 0x1F
"""The tick of PortXmitWait as `perfquery -c` prints it: Quantum and later; older switches, per lane."""


def spreads(watch: Watch, fabric: Fabric, *, adaptive: bool | None = None, limits: Limits | None = None) -> dict[str, routing.SpreadVerdict]:
    """Leaf name -> how even its uplinks are, over the window. `fabric` is the last reading's: an uplink that should be there and is not is down."""
    limits = limits or default()
    bits: dict[str, dict[str, float]] = {}
    down: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    rate: dict[str, float] = {}
    for key, link in watch.links.items():
        leaf = next((end for end in (link.a, link.b) if fabric.tiers.get(end[0]) == 1), None)
        if link.tier != 1 or leaf is None:
            continue
        name = f"port {leaf[1]}"
        if key not in fabric.links:
            down.setdefault(leaf[0], []).append(name)
        port = watch.ports.get(leaf)
        if port is not None and port.steps:
            bits.setdefault(leaf[0], {})[name] = float(sum(step.xmit_bits or 0 for step in port.steps))
            seconds[leaf[0]] = sum(step.seconds for step in port.steps)
            rate[leaf[0]] = max(rate.get(leaf[0], 0.0), line_rate_gbps(link.speed, link.width) or 0.0)
    return {
        watch.names.get(leaf, leaf): routing.spread(sent, seconds[leaf], rate[leaf], down.get(leaf, ()), adaptive=adaptive, limits=limits.spread)
        for leaf, sent in bits.items()
    }


def stalled(ticks: int, seconds: float, gbps: float, tick: int = EVERY_8_OCTETS, lanes: int = 4, *, capped: bool = False) -> tuple[float, str]:
    """Share of the time in which a port had data and could not send, from the rise of PortXmitWait; and the sentence for it, with "at least" where
    the counter stands at its cap (32 bits fill in 0.7 s of a full stall at NDR400). Never a finding by itself: waiting is what a busy port does.

    >>> stalled(2**32 - 1, 10.0, 400.0, capped=True)[1]
    'at least 7 % of the time without credit (34 GB not sent)'
    """
    octets = ticks * (tick + 1) * (lanes if tick == EVERY_32_OCTETS else 1)
    share = min(1.0, octets * 8 / (seconds * gbps * 1e9)) if seconds > 0 and gbps > 0 else 0.0
    return share, f"{'at least ' if capped else ''}{share:.0%} of the time without credit ({octets / 1e9:.0f} GB not sent)".replace("%", " %")
