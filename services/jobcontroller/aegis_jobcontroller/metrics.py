"""Metrics of the job controller."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

PLACEMENTS = Counter("aegis_placements_total", "Workers placed by this replica", ["again"])
REFUSED = Counter("aegis_placement_conflicts_total", "Writes refused because another replica wrote first")
FACTS = Counter("aegis_facts_total", "Facts told to the masters", ["kind"])
NODES = Gauge("aegis_nodes", "Registered nodes, as this replica sees them", ["health"])
NODES_EXCLUDED = Gauge("aegis_nodes_excluded", "Nodes with a taint in force")
WAITING = Gauge("aegis_workers_waiting", "Workers without a place")
PASS = Histogram("aegis_jobcontroller_pass_seconds", "One look at the world and its plan", buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2))
TOKENS_MISSING = Counter("aegis_placements_without_token_total", "Workers placed while the credentials service was away")
UNREADABLE = Counter("aegis_jobcontroller_unreadable_total", "Stored messages that this version cannot read", ["what"])
FAILED = Counter("aegis_jobcontroller_failed_total", "Passes that did not finish and are done again", ["work", "cause"])
KUBE_WATCH = Counter("aegis_jobcontroller_kube_watch_total", "What became of lists and watches of the API server", ["resource", "what"])
