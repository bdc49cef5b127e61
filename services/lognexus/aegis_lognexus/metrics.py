"""Metrics of lognexus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

LINES = Counter("aegis_log_lines_total", "Lines of workers kept by this replica")
BYTES = Counter("aegis_log_bytes_total", "Bytes of messages of the stream LOGS kept by this replica")
LOST = Counter("aegis_log_lost_messages_total", "Messages of LOGS that were gone before this replica read them")
REFUSED = Counter("aegis_log_refused_total", "Messages of LOGS that did not decode")
BEHIND = Gauge("aegis_log_behind_messages", "Messages of LOGS not yet read by this replica")
COMMITS = Histogram("aegis_log_commit_seconds", "Making lines durable", buckets=(0.005, 0.02, 0.1, 0.5, 2, 10))
DISK_ERRORS = Counter("aegis_log_disk_errors_total", "Writes that the disk refused; the stream keeps the lines meanwhile")
NOTIFIED = Counter("aegis_notifications_total", "Incidents that were told to people", ["result"])
QUERIES = Histogram("aegis_log_query_seconds", "Answering a question for lines", buckets=(0.005, 0.02, 0.1, 0.5, 2, 10))
SENT = Counter("aegis_log_sink_lines_total", "Lines taken by a sink", ["sink"])
SINK_REFUSED = Counter("aegis_log_sink_refused_total", "Lines that a sink refused for good", ["sink", "reason"])
SINK_RETRIES = Counter("aegis_log_sink_retries_total", "Attempts that are made again", ["sink"])
SINK_BEHIND = Gauge("aegis_log_sink_behind_bytes", "Bytes not yet sent to a sink", ["sink"])
