"""Every subject of the road, as functions of their tokens. `docs/subjects.md` is generated from here and `roles.py`."""

from __future__ import annotations

# --- CTL ---------------------------------------------------------------------------------------------------------------------


def job_state(job: str) -> str:
    """Head of the job state; a commit of it is the fence. Republished as `view_job_state`."""
    return f"aegis.job.{job}.state"


def job_pods(job: str, shard: int) -> str:
    return f"aegis.job.{job}.pods.{shard}"


def job_spec(job: str) -> str:
    """Job specification, written with the first head; never republished (its environment may hold a user's secrets)."""
    return f"aegis.job.{job}.spec"


def cred(job: str, shard: int = 0) -> str:
    """Who holds which place of a job: bindings of pods 256k.. and what is revoked. An account JWT is a rendering of these records."""
    return f"aegis.cred.{job}.{shard}"


def cred_node(node: str) -> str:
    """Binding of a node daemon. `_node` can be no job: ids have no underscore."""
    return f"aegis.cred._node.{node}"


def cred_issued(nkey: str) -> str:
    """Credentials issued to a person, a tool or a node daemon."""
    return f"aegis.cred._issued.{nkey}"


def cred_account(account: str) -> str:
    """Revocations of an account that is no job's: fleet, people."""
    return f"aegis.cred._account.{account}"


ERA = "aegis.era"
"""CTL: id of this state store (`messages.Era`), written by `aegis setup` when it is absent, and anew by `aegis setup --restored`."""


def lease(replica: str) -> str:
    """LEASES: this replica lives."""
    return f"aegis.lease.{replica}"


# --- NODES (services only; place and slot in one atomic batch) and FLEET (node daemons) ----------------------------------------


def place(job: str, pod: str) -> str:
    """Where (uid, pod, attempt) is placed; written by the job controller in ONE atomic batch with the node's slot (which is why it lies in NODES)."""
    return f"aegis.place.{job}.{pod}"


def node_taint(node: str) -> str:
    return f"aegis.node.{node}.taint"


def node_test(node: str) -> str:
    """Deep tests that this node owes; written by services, read by its daemon."""
    return f"aegis.node.{node}.test"


def node_risk(node: str) -> str:
    """What lemon thinks of a node: published when it changed enough."""
    return f"aegis.node.{node}.risk"


def node_spec(node: str) -> str:
    """Registration of a node daemon: addresses, slots, labels."""
    return f"aegis.node.{node}.spec"


def node_status(node: str) -> str:
    """What a daemon really runs, whole, on every change (level, not edge)."""
    return f"aegis.node.{node}.status"


def node_slot(node: str, slot: int | str) -> str:
    """Desired content of a slot. Five tokens: not covered by the republish of NODES, since it carries a join token."""
    return f"aegis.node.{node}.slot.{slot}"


def node_held(node: str, slot: int | str) -> str:
    """What runs in a slot whose record the store has lost. Five tokens and a stream of its own, not republished: it carries a specification."""
    return f"aegis.node.{node}.held.{slot}"


def node_hb(node: str) -> str:
    return f"aegis.node.{node}.hb"


# --- REPORTS -----------------------------------------------------------------------------------------------------------------


def report(job: str, pod: str, kind: str) -> str:
    return f"aegis.job.{job}.worker.{pod}.{kind}"


def fact(job: str, pod: str) -> str:
    """`pod` is a pod name, or `job` for facts about the whole job (stop, suspend, set)."""
    return f"aegis.job.{job}.fact.{pod}"


# --- EVENTS, LOGS, METRICS, BLOBS, DLQ ---------------------------------------------------------------------------------------


def node_event(node: str, kind: str) -> str:
    return f"aegis.node.{node}.event.{kind}"


def verdict(service: str, what: str, ident: str) -> str:
    """`what` is job, node or link."""
    return f"aegis.verdict.{service}.{what}.{ident}"


def job_event(job: str) -> str:
    return f"aegis.job.{job}.event"


def job_progress(job: str) -> str:
    return f"aegis.job.{job}.progress"


def job_log(job: str, pod: str) -> str:
    return f"aegis.job.{job}.log.{pod}"


def job_metric(job: str, pod: str) -> str:
    return f"aegis.job.{job}.metric.{pod}"


def node_metric(node: str) -> str:
    """What a machine uses, one message per poll of its daemon."""
    return f"aegis.node.{node}.metric"


def net_counter(node: str) -> str:
    return f"aegis.net.{node}.counter"


def kept(service: str, part: str) -> str:
    """KEPT: what a service remembers over restarts and for its successors; `part` is `head`, or a piece."""
    return f"aegis.kept.{service}.{part}"


def blob(job: str, pod: str, ident: str) -> str:
    return f"aegis.job.{job}.blob.{pod}.{ident}"


def dlq(service: str, stream: str, source: str = "other") -> str:
    """`source` = the job or node the message came from (a token of its subject, never of its body): each source evicts only its own dead letters."""
    return f"aegis.dlq.{service}.{stream}.{source}"


# --- core NATS ---------------------------------------------------------------------------------------------------------------


def heartbeat(job: str, pod: str) -> str:
    return f"aegis.job.{job}.hb.{pod}"


def rpc_query(service: str, verb: str, namespace: str = "") -> str:
    """Read-only request. Without a namespace: over all of them (an unscoped reader's right)."""
    return f"aegis.rpc.{service}.query.{verb}" + (f".{namespace}" if namespace else "")


def rpc_do(service: str, verb: str, scope: str) -> str:
    """Acting request. `scope` is the caller's namespace (or node, for a node daemon): the server proves it by the caller's rights."""
    return f"aegis.rpc.{service}.do.{verb}.{scope}"


ADOPT = "aegis.rpc.master.adopt"
"""Request of the job controller alone: bring back a job that runs and that the store has lost. Outside `do.*`, which people may ask."""


# --- views (republished by the server: only what was accepted) ---------------------------------------------------------------


def view(subject: str) -> str:
    """`aegis.job.x.state` -> `aegis.view.job.x.state`."""
    head, rest = subject.split(".", 1)
    return f"{head}.view.{rest}"


def view_job_state(job: str) -> str:
    return view(job_state(job))


def token(subject: str, index: int) -> str:
    """Token `index` of a subject, "" when it has fewer."""
    parts = subject.split(".")
    return parts[index] if index < len(parts) else ""
