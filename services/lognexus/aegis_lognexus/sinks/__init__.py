"""Lines sent on to a log backend: OpenObserve, Loki, or anything that takes OTLP over HTTP.

A sink is one URL of the setting `lognexus.sinks`:

    openobserve+https://logs.corp:5080/api/ORG/STREAM?auth_file=/etc/aegis/openobserve
    loki+http://loki:3100?tenant=ml
    otlp+https://collector:4318?auth_file=/etc/aegis/otlp&ca=/etc/aegis/ca.pem

`auth_file` holds the value of the header Authorization and is read anew for each request; `ca` a certificate authority; `tenant` is X-Scope-OrgID.
Each sink reads the store's files at its own pace and remembers how far it has come, so that nothing is lost while it is away, or across a restart:
a line is sent at least once, and (job, worker, boot, rank, kind, n) tells a double.
"""

from aegis_lognexus.sinks.formats import FORMATS, Answer, read_answer
from aegis_lognexus.sinks.sender import Sender
from aegis_lognexus.sinks.target import Target, target

__all__ = ["FORMATS", "Answer", "Sender", "Target", "read_answer", "target"]
