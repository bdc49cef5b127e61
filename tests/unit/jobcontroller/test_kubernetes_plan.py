"""Which pods are created and deleted, and what masters are told: platform `kubernetes`, decided on plain values."""

from __future__ import annotations

import pytest
from aegis_jobcontroller.kubernetes.facts import facts, missing
from aegis_jobcontroller.kubernetes.plan import Create, Delete, expired, pending, plan, record, risk_labels
from aegis_jobcontroller.kubernetes.seen import LABEL_RISK, ms
from aegis_jobcontroller.kubernetes.seen import node as seen_node
from aegis_proto.lemon import Risk
from aegis_proto.messages import Taint
from aegis_proto.phases import FactKind, FailedReason, Mode, Phase
from aegis_proto.state import ErrorNode
from clusters import NOW, UID, aegisjob, cluster, job, kube_pod, node, pod, world

LATER = NOW + 10_000_000


def creates(*args: object) -> list[tuple[int, int]]:
    return [(action.index, action.attempt) for action in plan(*args) if isinstance(action, Create)]  # type: ignore[arg-type]


def told(the_job: object, the_cluster: object) -> list[tuple[FactKind, int]]:
    return [(news.fact.kind, news.fact.attempt) for news in facts(world(the_job), the_cluster)]  # type: ignore[arg-type]


def test_every_worker_gets_its_first_pod_and_only_once() -> None:
    fresh = world(job(pod(), pod(), phase=Phase.PENDING))
    assert creates(fresh, cluster()) == [(0, 1), (1, 1)]
    assert creates(fresh, cluster(kube_pod("w0", node=""))) == [(1, 1)]


def test_a_job_of_another_cluster_or_without_its_object_is_left_alone() -> None:
    fresh = world(job(pod(), phase=Phase.PENDING))
    assert creates(fresh, cluster(jobs={})) == []
    other = job(pod(), phase=Phase.PENDING)
    assert creates(world(other), cluster(jobs={"other": aegisjob()})) == []
    assert plan(world(job(pod(), spec={"priority": 1}, phase=Phase.PENDING)), cluster().__class__("cluster-2", NOW, jobs={UID: aegisjob()})) == []


def test_the_next_attempt_waits_until_the_one_before_is_verified_gone() -> None:
    lost = world(job(pod(2), pod(1, "b"), phase=Phase.RESTARTING))
    running, other = kube_pod("w0", 1, running=True), kube_pod("w1", 1, "n2", running=True)
    assert creates(lost, cluster(running, other)) == []
    assert creates(lost, cluster(kube_pod("w0", 1, code=137), other)) == [(0, 2)]
    assert creates(lost, cluster(other)) == [], "it is no more, and nobody knows how it ended"
    assert creates(world(job(pod(2, gone=True), pod(1, "b"), phase=Phase.RESTARTING)), cluster(other)) == [(0, 2)]


def test_a_pod_that_was_removed_by_force_is_not_gone() -> None:
    last_seen = kube_pod("w0", 1, running=True, deleting="2026-11-30T02:00:00Z")
    lost = world(job(pod(2), phase=Phase.RESTARTING))
    assert creates(lost, cluster(removed={last_seen.key: last_seen})) == []
    ended = kube_pod("w0", 1, code=0, deleting="2026-11-30T02:00:00Z")
    assert creates(lost, cluster(removed={ended.key: ended})) == [(0, 2)]


def test_a_nodes_risk_is_its_label_until_it_has_none_again() -> None:
    def labelled(name: str, risk: str) -> object:
        return seen_node({"metadata": {"name": name, "labels": {LABEL_RISK: risk}}})

    doubted = world(risks={"n1": Risk("n1", 0.62), "n2": Risk("n2", 0.01), "n3": Risk("n3", 0.61), "far": Risk("far", 1.0)})
    seen = cluster(nodes=(node("n1"), node("n2"), labelled("n3", "60"), labelled("n4", "95")))  # type: ignore[arg-type]
    assert risk_labels(doubted, seen) == {"n1": "60", "n4": ""}


def test_an_aegisjob_goes_when_its_time_after_the_end_is_over() -> None:
    def left(now: int, phase: str = "Succeeded", **spec: object) -> list[str]:
        seen = aegisjob(**spec)
        seen.body["status"] = {"phase": phase, "completionTime": "2026-11-30T02:00:00Z"}  # type: ignore[index]
        return [gone.name for gone in expired(cluster(now=now, jobs={UID: seen}))]

    ended = ms("2026-11-30T02:00:00Z")
    assert (
        left(ended + 59_000, ttlSecondsAfterFinished=60) == left(ended + 10**9) == left(ended + 60_000, "Running", ttlSecondsAfterFinished=60) == []
    )
    assert left(ended + 60_000, ttlSecondsAfterFinished=60) == left(ended, "Failed", ttlSecondsAfterFinished=0) == ["ddp"]


def test_the_pod_of_an_older_attempt_is_deleted_and_by_force_only_where_no_kubelet_answers() -> None:
    replaced = world(job(pod(2), phase=Phase.RESTARTING))
    (delete,) = plan(replaced, cluster(kube_pod("w0", 1, running=True)))
    assert isinstance(delete, Delete) and delete.grace > 0
    stuck = kube_pod("w0", 1, running=True, deleting="2026-11-30T02:00:00Z")
    assert plan(replaced, cluster(stuck, now=stuck.deleting + 1000, nodes=(node("n1", ready=False),))) == []
    assert plan(replaced, cluster(stuck, now=LATER)) == [], "a kubelet that answers ends it by itself"
    (forced,) = plan(replaced, cluster(stuck, now=stuck.deleting + 61_000, nodes=(node("n1", ready=False),)))
    assert isinstance(forced, Delete) and forced.grace == 0


def test_nodes_that_are_known_to_be_bad_are_kept_off_and_the_last_node_is_preferred() -> None:
    bad = job(pod(2, gone=True), phase=Phase.RESTARTING, errorNodes=(ErrorNode("n2", "gpu", 1, "w0"),), spec={"exclude": ("n3",)}, errorNodesTotal=1)
    taints = {"n4": Taint("n4", True, "xid 79", "alice"), "n5": Taint("n5", False, "", "alice")}
    nodes = tuple(node(f"n{i}") for i in range(1, 6))
    ended = kube_pod("w0", 1, "n1", code=1)
    (create,) = [a for a in plan(world(bad, taints=taints), cluster(ended, nodes=nodes)) if isinstance(a, Create)]
    assert create.avoid == ("host-n2", "host-n3", "host-n4") and create.prefer == "host-n1"
    (create,) = [a for a in plan(world(bad), cluster(kube_pod("w0", 1, "n2", code=1), nodes=nodes)) if isinstance(a, Create)]
    assert create.prefer == "", "a bad node is not wished for"


@pytest.mark.parametrize(("tolerance", "minds"), [("normal", True), ("low", True), ("high", False)])
def test_doubtful_nodes_are_named_with_how_much_the_job_minds(tolerance: str, minds: bool) -> None:
    one = job(pod(), phase=Phase.PENDING, spec={"riskTolerance": tolerance})
    risks = {"n1": Risk("n1", 0.9), "n2": Risk("n2", 0.1)}
    (create,) = [a for a in plan(world(one, risks=risks), cluster(nodes=(node("n1"), node("n2")))) if isinstance(a, Create)]
    assert (create.doubtful, create.minds, create.avoid) == (("host-n1",), minds, ())


def test_when_the_budget_is_spent_what_runs_is_stopped_and_what_failed_is_kept() -> None:
    failed = job(pod(2, "b"), pod(1, "c"), phase=Phase.FAILED, failedReason=FailedReason.BUDGET, ended_for=60.0)
    pods = (kube_pod("w0", 1, code=1), kube_pod("w0", 2, running=True), kube_pod("w1", 1, "n2", running=True))
    assert {a.pod.name for a in plan(world(failed), cluster(*pods)) if isinstance(a, Delete)} == {pods[1].name, pods[2].name}
    early = job(pod(2, "b"), pod(1, "c"), phase=Phase.FAILED, failedReason=FailedReason.BUDGET, ended_for=1.0)
    assert plan(world(early), cluster(*pods)) == [], "agents are left the time to go by themselves"
    everything = cluster(*pods, jobs={UID: aegisjob(cleanPodPolicy="All")})
    assert {a.pod.name for a in plan(world(failed), everything) if isinstance(a, Delete)} == {p.name for p in pods}


def test_a_suspended_job_has_no_pods() -> None:
    waits = world(job(pod(1, "b"), pod(2), phase=Phase.PENDING, suspended=True))
    actions = plan(waits, cluster(kube_pod("w0", 1, running=True), kube_pod("w1", 1, "n2", code=75)))
    assert [type(action) for action in actions] == [Delete]


def test_an_older_state_creates_nothing_beside_a_later_attempt_that_lives() -> None:
    restored = world(job(pod(1), phase=Phase.RESTARTING))
    assert creates(restored, cluster(kube_pod("w0", 3, running=True))) == []
    assert creates(world(job(pod(1), phase=Phase.PENDING), settled=False), cluster()) == []


def test_a_kubelets_word_is_a_fact_with_exit_code_and_last_word() -> None:
    (news,) = facts(world(job(pod(1, "b"))), cluster(kube_pod("w0", 1, code=137, word='{"code":137}')))
    assert (news.fact.kind, news.fact.signal, news.fact.exitCode, news.fact.lastWord) == (FactKind.GONE, 9, None, '{"code":137}')
    assert news.fact.at and news.fact.verified and news.until_seen
    (news,) = facts(world(job(pod(1, "b"))), cluster(kube_pod("w0", 1, code=3, word="panic: not an agent")))
    assert (news.fact.exitCode, news.fact.lastWord) == (3, "")


def test_a_pod_that_is_refused_by_its_node_never_ran() -> None:
    (news,) = facts(world(job(pod(1), phase=Phase.PENDING)), cluster(kube_pod("w0", 1, phase="Failed")))
    assert news.fact.kind is FactKind.GONE


def test_a_pod_called_failed_beside_a_running_container_is_not_gone() -> None:
    assert told(job(pod(1, "b")), cluster(kube_pod("w0", 1, running=True, phase="Failed"))) == [(FactKind.RUNNING, 1)]


def test_a_worker_that_runs_and_was_never_heard_has_all_run_plain_and_its_end_is_told_after_that() -> None:
    silent, heard = kube_pod("w0", running=True), kube_pod("w1", node="n2", running=True)
    fresh = job(pod(placed=True), pod(boot="b"), phase=Phase.PENDING)
    since = silent.since
    assert FactKind.PLAIN not in dict(told(fresh, cluster(silent, heard, now=since + 119_000)))
    assert told(fresh, cluster(silent, heard, now=since + 120_000))[0] == (FactKind.PLAIN, 1)
    ran = kube_pod("w0", code=0, word='{"code":0,"plain":true}')
    assert told(fresh, cluster(ran, heard))[0] == (FactKind.PLAIN, 1)
    plain = job(pod(placed=True), pod(boot="b"), mode=Mode.PLAIN)
    assert told(plain, cluster(ran, heard))[0] == (FactKind.GONE, 1), "then this is how a plain worker ended"
    for managed in (job(pod(), pod(boot="b"), started=True), job(pod(2), pod(boot="b"), phase=Phase.PENDING)):
        late = kube_pod("w0", managed.pods[0].attempt, running=True)
        assert FactKind.PLAIN not in dict(told(managed, cluster(late, heard, now=since + 900_000))), "never again plain"


def test_silence_is_told_as_silence_and_a_node_that_is_off_as_lost() -> None:
    running = kube_pod("w0", 1, running=True)
    assert told(job(pod(1, "b")), cluster(running)) == [(FactKind.RUNNING, 1)]
    assert told(job(pod(1, "b")), cluster(running, nodes=(node("n1", ready=False),))) == [(FactKind.NODE_SILENT, 1)]
    assert told(job(pod(1, "b")), cluster(running, nodes=(node("n2"),))) == [(FactKind.NODE_LOST, 1)]
    off = node("n1", taints=[{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}])
    assert told(job(pod(1, "b")), cluster(running, nodes=(off,))) == [(FactKind.NODE_LOST, 1)]
    assert told(job(pod(1), phase=Phase.PENDING), cluster(kube_pod("w0", 1))) == [(FactKind.PLACED, 1)]
    assert told(job(pod(1), phase=Phase.PENDING), cluster(kube_pod("w0", 1, node=""))) == []


def test_a_worker_without_a_pod_is_told_lost_but_not_gone_and_only_after_the_server_was_asked() -> None:
    runs = job(pod(1, "b"))
    assert told(runs, cluster()) == []
    (found,) = missing(world(runs), cluster())
    assert found[2] == (UID, 0, 1)
    (news,) = facts(world(runs), cluster(vanished=frozenset({(UID, 0, 1)})))
    assert news.fact.kind is FactKind.GONE and not news.fact.verified
    ended = kube_pod("w0", 1, code=0)
    assert list(missing(world(runs), cluster(removed={ended.key: ended}))) == []
    (news,) = facts(world(runs), cluster(removed={ended.key: ended}))
    assert news.fact.verified and news.fact.exitCode == 0


def test_that_the_attempt_before_is_gone_is_told_until_the_state_knows() -> None:
    ended = kube_pod("w0", 1, code=1)
    assert told(job(pod(2), phase=Phase.RESTARTING), cluster(ended)) == [(FactKind.GONE, 1)]
    assert told(job(pod(2, gone=True), phase=Phase.RESTARTING), cluster(ended)) == []


def test_why_a_worker_waits_is_said_in_the_clusters_own_words() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 2 Insufficient nvidia.com/gpu."}
    waits = kube_pod("w1", node="", conditions=[condition])
    found = pending(job(pod(1, "b"), pod(1), phase=Phase.PENDING), cluster(kube_pod("w0", running=True), waits))
    assert found is not None and found.waiting == ("w1",) and condition["message"] in found.message
    assert pending(job(pod(1, "b"), pod(1, "c")), cluster()) is None


def test_the_record_of_a_job_is_the_pods_in_the_clusters_own_words() -> None:
    ended, waits = kube_pod("w0", 1, code=137), kube_pod("w1", 2, node="", conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3"}])
    (first, second) = record(job(pod(1, "b"), pod(2)), cluster(waits, removed={ended.key: ended}))
    assert (first.pod, first.attempt, first.node, first.place) == ("w0", 1, ended.node, f"{ended.namespace}/{ended.name}")
    assert "exit code 137" in first.message and "removed" in first.message
    assert (second.pod, second.attempt, second.node, second.message) == ("w1", 2, "", "0/3")
