"""Metrics of netmon. Labels have few values; links with an alarm have metrics in `linkmetrics`, the others are asked for by `aegis net`."""

from __future__ import annotations

from prometheus_client import REGISTRY, Counter, Gauge, Histogram

__all__ = ["REGISTRY"]

POLLS = Counter("aegis_net_polls_total", "Polls of nodes taken")
REFUSED = Counter("aegis_net_refused_total", "Messages of node daemons that did not decode")
LOST = Counter("aegis_net_lost_messages_total", "Messages of METRICS that were gone before they were read")
BEHIND = Gauge("aegis_net_behind_messages", "Polls not yet read")
NODES = Gauge("aegis_net_nodes", "Nodes by whether their daemon tells", ["state"])
LINKS = Gauge("aegis_net_links", "Links by state", ["state"])
JOBS_HIT = Gauge("aegis_net_jobs_on_bad_links", "Jobs that use, or may use, a bad link", ["certain"])
ROUND = Histogram("aegis_net_round_seconds", "Judging all links once", buckets=(0.01, 0.05, 0.2, 0.5, 1, 2, 5))
SWEEP = Histogram("aegis_net_sweep_seconds", "Reading the whole fabric once", buckets=(0.5, 1, 2, 5, 10, 30, 60))
SWEPT = Gauge("aegis_net_sweep_age_seconds", "Age of the last sweep of the fabric; -1 = none")
PARTIAL = Gauge("aegis_net_sweep_missing_parts", "Parts or ports that the last sweep did not read")
COLLECTOR = Gauge("aegis_net_collector_active", "1 while this replica is the one that sweeps and tells")
ADAPTIVE = Gauge("aegis_net_adaptive_routing", "Adaptive routing of the fabric: 1 in the state that it is in", ["state"])
