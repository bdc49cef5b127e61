"""Metrics of lemon. Nodes are labels only where they are few: the worst ones."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

HEARD = Counter("aegis_lemon_heard_total", "Messages of EVENTS taken into the history")
REFUSED = Counter("aegis_lemon_refused_total", "Messages that did not decode")
LOST = Counter("aegis_lemon_lost_messages_total", "Messages of EVENTS that were gone before they were read")
ROWS = Gauge("aegis_lemon_history_rows", "Rows of the history", ["table"])
LEFT_OUT = Gauge("aegis_lemon_history_left_out", "Rows of the history that cannot be used")
FLAGGED = Gauge("aegis_lemon_flagged_nodes", "Nodes that the detector flags now")
CASES = Gauge("aegis_lemon_cases", "Nodes by what is held against them", ["state"])
RISK = Gauge("aegis_node_risk_score", "Risk of the worst nodes, 0 to 1", ["node"])
FLEET = Gauge("aegis_lemon_fleet_failures_per_1000_node_days", "Failure rate of the fleet in the window")
ROUND = Histogram("aegis_lemon_round_seconds", "Ranking all nodes once", buckets=(0.05, 0.2, 0.5, 1, 2, 5, 10, 30))
TICKETS = Counter("aegis_lemon_tickets_total", "Repair tickets, by where they went and how", ["to", "result"])
ACTIVE = Gauge("aegis_lemon_active", "1 while this replica is the one that decides and answers")
