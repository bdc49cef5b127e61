"""Metrics of the bus, one set per process (prometheus_client). `service` is the first word of the connection's name."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

CONNECTED = Gauge("aegis_bus_connected", "1 while this process has a connection to the bus", ["service"])
CONNECTS = Counter("aegis_bus_connects", "Connections made (the first one included)", ["service"])
DISCONNECTS = Counter("aegis_bus_disconnects", "Connections lost, by reason", ["service", "reason"])
DIAL_FAILURES = Counter("aegis_bus_dial_failures", "Attempts to connect that failed", ["service"])
RENEWALS = Counter("aegis_bus_renewals", "Planned reconnects with a new JWT", ["service"])
REJECTED = Counter("aegis_bus_rejected", "Publishes the server refused, by JetStream error code", ["service", "err_code"])
UNKNOWN = Counter("aegis_bus_unknown_results", "Publishes without an answer", ["service"])
VIOLATIONS = Counter("aegis_bus_permission_violations", "Publishes or subscriptions refused for a missing right", ["service"])
SLOW = Counter("aegis_bus_slow_consumer_drops", "Messages dropped because a handler was too slow", ["service"])
DROPPED = Counter("aegis_bus_core_dropped", "Core messages not sent (no connection, too large, or too many waiting)", ["service"])
HANDLER_ERRORS = Counter("aegis_bus_handler_errors", "Exceptions in message handlers", ["service"])
DEAD_LETTERS = Counter("aegis_bus_dead_letters", "Messages given up into the dead-letter stream", ["service"])
COMMITS = Histogram(
    "aegis_bus_commit_duration_seconds",
    "Commits of job state, publish to answer",
    ["kind"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
)
VERDICTS = Counter("aegis_verdicts", "Verdicts told", ["service", "cause"])
