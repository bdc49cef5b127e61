"""Metrics of single links: those with an alarm, worst first, and never more than a few hundred. What is healthy has none.

Made when they are asked for, so that a link that is well again has no series any more. Only the replica that tells has them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from aegis_netmon import uplinks
from aegis_netmon.picture import Picture, order
from aegis_netmon.watch import ALARMS

MOST = 256
LABELS = ("node", "port")


class LinkMetrics(Collector):
    """`active`: whether this replica tells now."""

    def __init__(self, picture: Picture, active: Callable[[], bool]) -> None:
        self._picture, self._active = picture, active

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing is made at registration."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        health = GaugeMetricFamily("aegis_link_health", "1 in the state that the link is in; links with an alarm only", labels=(*LABELS, "state"))
        jobs = GaugeMetricFamily("aegis_link_jobs", "Jobs that use the link, or may use it", labels=LABELS)
        ber = GaugeMetricFamily("aegis_link_bit_error_ratio", "Bit errors after correction per bit carried", labels=LABELS)
        resent = GaugeMetricFamily("aegis_link_retransmits_per_second", "Retransmits within the window", labels=LABELS)
        dropped = GaugeMetricFamily("aegis_link_drops_per_second", "Packets dropped within the window", labels=LABELS)
        flaps = GaugeMetricFamily("aegis_link_flaps", "Dips within the window of flaps", labels=LABELS)
        spread = GaugeMetricFamily(
            "aegis_net_uplink_spread_ratio", "Most used uplink of a leaf over their mean; near 1 with adaptive routing", labels=("leaf",)
        )
        if self._active():
            now, seen = time.time(), set[tuple[str, str]]()
            bad = [line for line in order(self._picture.lines.values()) if line.state in ALARMS]
            for line in bad[:MOST]:
                info = self._picture.info(line, now)
                name = where(info.end or info.a)
                if name in seen:
                    continue
                seen.add(name)
                health.add_metric((*name, info.state), 1)
                jobs.add_metric(name, len(info.jobs))
                resent.add_metric(name, info.retransmits)
                dropped.add_metric(name, info.drops)
                flaps.add_metric(name, info.flaps)
                if info.ber is not None:
                    ber.add_metric(name, info.ber)
            picture = self._picture
            found = uplinks.spreads(picture.watch, picture.fabric, adaptive=picture.adaptive, limits=picture.hosts.limits)
            known = [(verdict.ratio, leaf) for leaf, verdict in found.items() if verdict.ratio is not None]
            for ratio, leaf in sorted(known, reverse=True)[:MOST]:
                spread.add_metric((leaf,), ratio)
        yield from (health, jobs, ber, resent, dropped, flaps, spread)


def where(end: str) -> tuple[str, str]:
    """Node and port of an end as people read it.

    >>> where("n1 mlx5_0 port 1"), where("leaf2 port 5")
    (('n1', 'mlx5_0/1'), ('leaf2', '5'))
    """
    device, _, port = end.rpartition(" port ")
    node, _, adapter = device.partition(" ")
    return node or device or end, f"{adapter}/{port}" if adapter else port
