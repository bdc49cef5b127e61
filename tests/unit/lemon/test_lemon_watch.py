"""From what the bus tells to history, cases and risks: pure."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from aegis_lemon.detect import Ranked, Ranking
from aegis_lemon.watch import cases, risk
from aegis_lemon.watch.cases import Book, Known, Policy, Room
from aegis_lemon.watch.collector import Collector
from aegis_proto.deeptest import DeepTest, DeepTestDone
from aegis_proto.lemon import Risk
from aegis_proto.messages import CheckResult, JobEvent, Taint, Verdict
from aegis_proto.runs import RunInfo
from aegis_proto.times import rfc3339

T = 1_796_000_000_000
DAY = 86_400_000


def event(phase: str, at: float, cause: str = "", *, node: str = "", counted: bool = False, run: RunInfo | None = None, inc: int = 0) -> JobEvent:
    kind = "counted" if counted else "phase"
    return JobEvent("e", "j-1", "default", kind, rfc3339(T + int(at * 1000)), inc, 1, phase, cause, node=node, counted=counted, run=run)


BEGIN = event("RunCommand", 0, run=RunInfo("n[1-3]", "ann", "llm", exclude=("n9",)))
TENANTS = Verdict("x", "lognexus", "gpu_hw", job="j-1", incarnation=0, nodes=("n2",))
CODE = Verdict("x", "lognexus", "user_code", job="j-1", incarnation=0)
SAID = Verdict("j-1-0", "lognexus", "gpu_hw", job="j-1", incarnation=0, nodes=("n2",), accused=("n2",))


@pytest.mark.parametrize(
    ("end", "verdict", "state", "failure", "blame"),
    [
        (event("Succeed", 60, "finish"), None, "completed", "", ""),
        (event("Failed", 60, "stop"), None, "cancelled", "", ""),
        (event("Restarting", 60, "nodeLost", node="n2", counted=True), None, "node_fail", "infra", "n2"),
        (event("Troubleshooting", 60, "error", node="n1", counted=True), None, "failed", "unknown", ""),
        (event("Troubleshooting", 60, "error", node="n1", counted=True), SAID, "node_fail", "infra", "n2"),
        # What only the job's own words say accuses nobody.
        (event("Troubleshooting", 60, "error", node="n1", counted=True), TENANTS, "failed", "unknown", ""),
        (event("Troubleshooting", 60, "error", node="n1", counted=True), CODE, "failed", "user", ""),
        (event("Restarting", 60, "preempted", node="n1", counted=True), None, "failed", "none", ""),
        (event("Troubleshooting", 60, "slow", node="n9", counted=True), None, "node_fail", "infra", ""),  # n9 was not among its nodes
    ],
)  # fmt: skip
def test_a_run_becomes_a_row_once_its_end_is_understood(end: JobEvent, verdict: Verdict | None, state: str, failure: str, blame: str) -> None:
    heard = Collector()
    heard.hear_event(BEGIN, T / 1000)
    assert [row["state"] for row in heard.running(T / 1000 + 9)] == ["running"]
    heard.hear_event(end, T / 1000 + 60)
    if verdict is not None:
        heard.hear_verdict(verdict)
    jobs, _ = heard.take(T / 1000 + 60 + heard.settle + 1)
    assert [(row["state"], row["failure"], row["blame"]) for row in jobs] == [(state, failure, blame)]
    assert (jobs[0]["nodes"], jobs[0]["user"], jobs[0]["family"], jobs[0]["excluded"]) == ("n1;n2;n3", "ann", "llm", "n9")
    assert jobs[0]["end"] - jobs[0]["start"] == 60
    assert not list(heard.running(T / 1000 + 9))


def test_a_failure_waits_for_its_verdict_and_an_injected_one_is_nobodys() -> None:
    heard = Collector()
    heard.hear_event(BEGIN, 0)
    heard.hear_event(event("Troubleshooting", 5, "error", counted=True), 0)
    assert heard.take(T / 1000 + 6) == ([], [])
    heard.hear_event(event("RunCommand", 8, run=RunInfo("n[1-3]"), inc=1), 0)
    heard.hear_event(msgspec.structs.replace(event("RunCommand", 9, inc=1), type="inject"), 0)
    heard.hear_event(event("Restarting", 10, "killed", node="n1", counted=True, inc=1), 0)
    jobs, _ = heard.take(T / 1000 + 11)
    assert [(row["job"], row["failure"]) for row in jobs] == [("j-1-1", "none")]
    heard.hear_verdict(SAID)
    assert [(row["job"], row["blame"]) for row in heard.take(T / 1000 + 12)[0]] == [("j-1-0", "n2")]


def test_a_run_without_a_place_is_asked_for_and_never_invented() -> None:
    heard = Collector()
    heard.hear_event(event("RunCommand", 0), 0)
    assert heard.unplaced == ["j-1"] and not list(heard.running(T / 1000 + 9))
    heard.place("j-1", "n7")
    heard.hear_event(event("Succeed", 9), 0)
    assert heard.take(0)[0][0]["nodes"] == "n7"


def test_taints_serials_and_own_verdicts_are_history_too() -> None:
    heard = Collector()
    heard.see_taint(Taint("n1", True, "x", "alice", at=T, until=T + 1000), T / 1000)
    heard.see_taint(Taint("n1", True, "x", "alice", at=T, until=T + 1000), T / 1000 + 2)  # over by itself
    heard.see_taint(Taint("n2", True, "x", "alice", at=T), T / 1000)
    heard.see_taint(Taint("n2", False, "", "alice", at=T + 5000), T / 1000 + 5)
    heard.see_serial("n3", "A", 1.0)
    heard.see_serial("n3", "B", 2.0)
    heard.hear_own(Verdict("n4-1", "lemon", "lemon", at=T, nodes=("n4",), state="failed"))
    heard.hear_own(Verdict("n4-1", "lemon", "lemon", at=T, nodes=("n4",), state="probation"))
    for second in (0, 10, 4000):
        heard.hear_anomaly("n5", "gpuSilent", second)
    heard.hear_anomaly("n5", "gpuIdle", 0)
    rows = [(row["node"], row["kind"], row["end"] and row["end"] - row["time"], row["value"]) for row in heard.take(0)[1]]
    assert rows == [
        ("n1", "out", 1.0, ""), ("n2", "out", 5.0, ""), ("n3", "repair", "", "A"), ("n4", "ticket", "", "n4-1"), ("n4", "repair", "", ""),
        ("n5", "failure", "", "gpuSilent"), ("n5", "failure", "", "gpuSilent"),
    ]  # fmt: skip


# --- cases ---------------------------------------------------------------------------------------------------------------------

BAD = Ranked("n1", 0.97, True, {"multi_node_node_fails": 4.0}, 4.0, 6.0, 90.0, "4 failures in 6 days in jobs, 90 times the fleet")
ACT = Policy("act")


class World:
    """One node whose case is played step by step, as rounds do it."""

    def __init__(self, policy: Policy = ACT, nodes: int = 100) -> None:
        self.known, self.policy, self.nodes, self.now = Known("n1"), policy, nodes, T

    def round(self, flagged: bool | None = None, others: tuple[Known, ...] = ()) -> str:
        self.now += 60_000
        if flagged is not None:
            self.known = replace(self.known, ranked=BAD if flagged else replace(BAD, flagged=False))
        book = Book({"n1": self.known, **{other.node: other for other in others}})
        for known, step in book.steps(self.policy, self.nodes, self.now):
            if known.node == "n1":
                self.known = replace(self.known, verdict=cases.told(known, step, self.policy, self.now))
        wish = cases.wanted(self.known, self.policy, self.now)
        self.known = replace(self.known, taint=wish.taint or self.known.taint, order=wish.order or self.known.order)
        self.ticket = wish.ticket
        return self.known.state

    def tested(self, passed: bool, refused: str = "") -> None:
        assert self.known.order is not None
        checks = (CheckResult("deep-memory", passed, "3 wrong words"),)
        state = "refused" if refused else "passed" if passed else "failed"
        self.known = replace(self.known, result=DeepTestDone(self.known.order.id, "n1", state, refused, results=checks, at=self.now))

    def ordered(self, by: str) -> None:
        self.known = replace(self.known, order=DeepTest(f"{by}-{self.now}", by, at=self.now))

    @property
    def out(self) -> bool:
        return self.known.excluded(self.now)


def test_a_lemon_is_taken_out_tested_ticketed_repaired_and_given_back() -> None:
    w = World()
    assert w.round(flagged=True) == "drained" and w.out
    assert w.known.taint is not None and w.known.verdict is not None and w.known.order is not None
    assert w.known.taint.verdict == w.known.verdict.id and "90 times the fleet" in w.known.taint.reason
    assert w.round() == "drained" and not w.ticket  # the same order stands
    w.tested(passed=False)
    assert w.round() == "failed" and w.ticket and w.out
    assert "deep-memory: 3 wrong words" in w.known.verdict.evidence
    w.ordered("alice")
    assert w.round() == "failed"
    w.tested(passed=True)
    assert w.round() == "probation" and not w.out
    assert w.round(flagged=False) == "probation"
    w.now += 29 * DAY
    assert w.round() == "clear"


def test_one_that_passes_is_on_probation_and_flagged_again_it_stays_out_whatever_tests_say() -> None:
    w = World()
    w.round(flagged=True)
    w.tested(passed=True)
    assert w.round(flagged=False) == "probation" and not w.out
    assert w.round(flagged=True) == "relapsed" and w.out and w.ticket
    assert w.round() == "relapsed"  # the passed test of before gives nothing back
    w.ordered("alice")
    w.tested(passed=True)
    assert w.round(flagged=False) == "probation" and not w.out


def test_a_refused_test_is_ordered_again_later_and_a_person_may_overrule() -> None:
    w = World()
    w.round(flagged=True)
    first = w.known.order
    w.tested(passed=False, refused="a worker came")
    assert w.round() == "drained" and w.known.order == first
    w.now += 700_000
    w.round()
    assert w.known.order is not None and first is not None and w.known.order.id != first.id
    w.known = replace(w.known, taint=Taint("n1", False, "needed now", "alice", at=w.now))
    assert w.round() == "probation" and not w.out


@pytest.mark.parametrize(("mode", "said"), [("observe", ""), ("advise", "do: aegis node taint n1")])
def test_without_the_right_to_act_it_is_only_told(mode: str, said: str) -> None:
    w = World(Policy(mode))
    assert w.round(flagged=True) == "suspect" and not w.out and w.known.order is None
    assert w.known.verdict is not None and any(line.startswith(said or "4 failures") for line in w.known.verdict.evidence)
    assert bool(said) is any("do:" in line for line in w.known.verdict.evidence)
    assert w.round(flagged=False) == "clear"


def test_the_cap_holds_and_says_so() -> None:
    out = tuple(Known(f"m{i}", taint=Taint(f"m{i}", True, "x", "alice", at=T)) for i in range(10))
    w = World()
    assert w.round(flagged=True, others=out) == "suspect" and not w.out
    assert w.known.verdict is not None and "10 of 100 nodes are out already" in w.known.verdict.sentence
    assert w.round(others=out[:9]) == "drained"
    day = {f"m{i}": Known(f"m{i}", order=DeepTest("o", "lemon", at=T)) for i in range(2)}
    assert Room.of(day, 1000, ACT, T + 1000).left == 0
    assert Room.of(day, 1000, ACT, T + DAY + 1).left == 2


@pytest.mark.parametrize(
    ("state", "order", "counts"),
    [
        ("drained", None, True),  # decided; a crash came before the taint and the order
        ("relapsed", None, True),
        ("failed", DeepTest("x", "alice", at=T), True),  # a person's test replaced ours
        ("probation", DeepTest("x", "alice", at=T), True),
        ("probation", DeepTest("o", "lemon", at=T - DAY), False),
        ("suspect", None, False),
    ],
)
def test_a_drain_that_is_decided_counts_before_it_is_done_and_whoever_tests_after(state: str, order: DeepTest | None, counts: bool) -> None:
    one = Known("m1", verdict=Verdict("c", "lemon", "lemon", at=T, nodes=("m1",), state=state), order=order)
    assert Room.of({"m1": one}, 1000, ACT, T + 1000).left == 2 - counts
    assert Room.of({"m1": one}, 10, replace(ACT, per_day=1), T + 1000).left == 1 - (state in cases.OUT)


def test_who_relapses_asks_for_room_too() -> None:
    w = World(nodes=1000)  # 2 a day, 100 at a time
    w.round(flagged=True)
    w.tested(passed=True)
    assert w.round(flagged=False) == "probation"
    out = tuple(Known(f"m{i}", taint=Taint(f"m{i}", True, "x", "alice", at=T)) for i in range(100))
    assert w.round(flagged=True, others=out) == "probation" and not w.out
    w.now += 2 * DAY
    today = tuple(Known(f"m{i}", order=DeepTest("o", "lemon", at=w.now)) for i in range(2))
    assert w.round(flagged=True, others=today) == "probation" and not w.out
    assert w.round(flagged=True) == "relapsed" and w.out


def test_who_was_taken_out_by_a_person_is_left_to_them() -> None:
    w = World()
    w.known = replace(w.known, taint=Taint("n1", True, "mine", "alice", at=T))
    assert w.round(flagged=True) == "suspect"
    assert w.known.taint is not None and w.known.taint.by == "alice"


# --- risk ----------------------------------------------------------------------------------------------------------------------


def test_risk_is_the_posterior_and_the_links_together() -> None:
    ranking = Ranking([BAD, replace(BAD, node="n2", score=0.2, flagged=False)], "blame", 6.5)
    links = risk.of_links(
        [Verdict("l", "netmon", "network", state="flapping", nodes=("n2",), sentence="link n2"), Verdict("k", "netmon", "network", state="down")]
    )
    found = risk.risks(ranking, links, ["n3"], T)
    assert [(name, one.risk) for name, one in found.items()] == [("n1", 0.97), ("n2", pytest.approx(1 - 0.8 * 0.3)), ("n3", risk.ON_PROBATION)]
    stored = {"n1": found["n1"], "n4": Risk("n4", 0.8, at=T)}
    assert {(one.node, one.risk) for one in risk.news(found, stored, T + 1)} == {("n2", 0.76), ("n3", 0.3), ("n4", 0.0)}
    assert not risk.news(found, {**found, "n2": msgspec.structs.replace(found["n2"], risk=0.74)}, T)


def test_a_detector_that_counts_gives_no_probability() -> None:
    counted = Ranking([replace(BAD, score=4.0), replace(BAD, node="n2", score=2.0, flagged=False)], "count", 6.5)
    assert [one.risk for one in risk.risks(counted, {}, [], T).values()] == [risk.FLAGGED, 0.0]
