"""What becomes of a node that was flagged: one case per node, one step at a time. Pure.

state       what it means                                              goes on when
suspect     flagged; nothing is done (mode, cap, withheld)             it may be drained; it is no longer flagged -> clear
drained     taken out (taint), the deep tests are ordered              they passed -> probation; failed -> failed
failed      the tests failed: stays out, a repair ticket is open       a later long test passed -> probation
relapsed    flagged again on probation: out whatever tests say, ticket a later long test passed -> probation
probation   given back; what was before does not count, less is needed flagged again -> relapsed; `probation` seconds -> clear
clear       nothing is held against it                                 flagged -> suspect

The last verdict on a node is its case (`aegis.verdict.lemon.node.<n>`, state in `Verdict.state`; KEPT has it longer than EVENTS): told before
anything is done, and what is to be done follows from it (`wanted`), so that a crash between the two costs nothing. Only a passed test of this
service's order, or of a person's, gives a node back; or a person who lifts the taint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from aegis_proto.deeptest import DeepTest, DeepTestDone
from aegis_proto.lemon import SERVICE
from aegis_proto.messages import Taint, Verdict

from aegis_lemon.detect import Ranked

OUT = frozenset({"drained", "failed", "relapsed"})
"""States in which the node is kept out."""
BACK = frozenset({"probation", "clear"})
"""States in which it was said that the node is given back."""
TICKETED = frozenset({"failed", "relapsed"})
AGAIN = 600.0
"""Seconds until a test that was refused is ordered anew."""
TRIES = 32
WAITS = 7 * 86400.0
"""Seconds for which a test waits for what still runs on the node."""
MOST_SIGNALS = 7


@dataclass(frozen=True)
class Policy:
    """`mode` of actions; seconds; shares of all nodes, each at least 1."""

    mode: str = "observe"
    probation: float = 28 * 86400.0
    test_seconds: float = 60.0
    per_day: float = 0.002
    most_out: float = 0.1


@dataclass(frozen=True)
class Known:
    """Of one node: the ranking's word (None: not ranked), the last verdict, and what is stored."""

    node: str
    ranked: Ranked | None = None
    verdict: Verdict | None = None
    taint: Taint | None = None
    order: DeepTest | None = None
    result: DeepTestDone | None = None

    @property
    def state(self) -> str:
        return self.verdict.state if self.verdict is not None else "clear"

    @property
    def taken(self) -> int:
        """When this service last took it out, ms; 0: never. A person's test replaces our order: then it is when the case last changed."""
        if self.verdict is not None and self.state in ("drained", "relapsed"):
            return self.verdict.at
        if self.order is not None and self.order.by == SERVICE:
            return self.order.at
        return self.verdict.at if self.verdict is not None and self.state in ("failed", "probation") else 0

    def excluded(self, now: int) -> bool:
        return self.taint is not None and self.taint.excluded and (self.taint.until == 0 or self.taint.until > now)


@dataclass(frozen=True)
class Step:
    """The next state of a case, why, and in whose words evidence is given."""

    state: str
    why: str
    why_zh: str
    evidence: tuple[str, ...] = ()


@dataclass
class Room:
    """How many more nodes may be taken out: today, and at a time."""

    today: int
    at_a_time: int
    why: str = ""

    @property
    def left(self) -> int:
        return max(0, min(self.today, self.at_a_time))

    @classmethod
    def of(cls, known: Mapping[str, Known], nodes: int, policy: Policy, now: int) -> Room:
        """`now` in ms. What is decided counts, done or not yet."""
        day = sum(one.taken > now - 86_400_000 for one in known.values())
        out = sum(one.state in OUT or one.excluded(now) for one in known.values())
        daily, most = max(1, int(policy.per_day * nodes)), max(1, int(policy.most_out * nodes))
        full = f"{out} of {nodes} nodes are out already, at most {most}"
        return cls(daily - day, most - out, full if out >= most else f"{day} drained in 24 h, at most {daily}")

    def take(self, known: Known, now: int) -> bool:
        """Whether this one may be. One that was drained today already, and came back, is no further one of today."""
        again = known.taken > now - 86_400_000
        if self.at_a_time <= 0 or (self.today <= 0 and not again):
            return False
        self.at_a_time -= 1
        self.today -= not again
        return True


def step(known: Known, policy: Policy, room: Room, now: int) -> Step | None:
    """What the case becomes now; None when it stays. Takes from `room`. `now` in ms."""
    state, verdict = known.state, known.verdict
    since = verdict.at if verdict is not None else 0
    flagged = known.ranked is not None and known.ranked.flagged
    if state in OUT and verdict is not None:
        return _while_out(known, verdict)
    if state == "probation":
        if flagged and known.ranked is not None:
            if policy.mode != "act" or not (known.excluded(now) or room.take(known, now)):
                return None  # it stays flagged and on probation until there is room
            return Step("relapsed", f"flagged again on probation: {known.ranked.reason}", f"观察期内再次异常:{known.ranked.reason}")
        if now - since > policy.probation * 1000:
            return Step("clear", "nothing on probation", "观察期内无异常")
        return None
    if not flagged or known.ranked is None:
        return Step("clear", "no longer flagged", "不再异常") if state == "suspect" else None
    if policy.mode == "act" and not known.excluded(now):
        if room.take(known, now):
            return Step("drained", known.ranked.reason, known.ranked.reason)
        waits = f"not drained: {room.why}"
        return None if state == "suspect" else Step("suspect", f"{known.ranked.reason}; {waits}", f"{known.ranked.reason};{waits}")
    if state == "suspect":
        return None
    return Step("suspect", known.ranked.reason, known.ranked.reason)


def _while_out(known: Known, verdict: Verdict) -> Step | None:
    taint, result = known.taint, known.result
    if taint is not None and not taint.excluded and taint.by != SERVICE and taint.at > verdict.at:
        return Step("probation", f"given back by {taint.by}" + (f": {taint.reason}" if taint.reason else ""), f"由 {taint.by} 恢复使用")
    if result is None or known.order is None or result.id != known.order.id or not _counts(known.order, verdict):
        return None
    evidence = findings(result)
    if result.state == "passed":
        return Step("probation", "the long test passed", "长测通过", evidence)
    return Step("failed", "the deep tests failed", "深度检测未通过", evidence) if result.state == "failed" and verdict.state == "drained" else None


def _counts(order: DeepTest, verdict: Verdict) -> bool:
    """Whether a test can change the case: while it is tested ours, or a person's of now; after a ticket only a person's: it is repaired."""
    if order.by == SERVICE:
        return verdict.state == "drained" and number_of(order, verdict) > 0
    return order.at >= verdict.at


def order_id(verdict: Verdict, number: int) -> str:
    """The same for the same case and try, whoever orders it."""
    return hashlib.sha256(f"{verdict.id}/{number}".encode()).hexdigest()[:16]


def number_of(order: DeepTest, verdict: Verdict) -> int:
    """Which try of this case an order is; 0: of another."""
    return next((number for number in range(1, TRIES + 1) if order.id == order_id(verdict, number)), 0)


def findings(result: DeepTestDone) -> tuple[str, ...]:
    """Failed tests in a line each; of a passed one a summary."""
    bad = tuple(f"{check.CheckType}: {check.Result}"[:300] for check in result.results if not check.Pass)
    return bad or ((result.message[:300],) if result.message else (f"{len(result.results)} tests in {result.seconds:.0f} s",))


# --- what a state asks for -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What must be so for the present state of a case: each is done when it is not yet so."""

    taint: Taint | None = None
    order: DeepTest | None = None
    ticket: bool = False


def wanted(known: Known, policy: Policy, now: int) -> Wanted:
    """Repeatable: what is so already is not asked for again. Without a verdict, or in another mode than act, nothing is."""
    verdict = known.verdict
    if verdict is None or policy.mode != "act":
        return Wanted()
    taint = _taint(known, verdict, now)
    if verdict.state not in OUT:
        return Wanted(taint)
    return Wanted(taint, _order(known, verdict, policy, now) if verdict.state == "drained" else None, verdict.state in TICKETED)


def _taint(known: Known, verdict: Verdict, now: int) -> Taint | None:
    have = known.taint
    ours = have is not None and have.by == SERVICE and have.verdict == verdict.id
    if verdict.state in OUT:
        if known.excluded(now) or (have is not None and have.at > verdict.at and not have.excluded):
            return None  # somebody's, or lifted by a person, which the next step sees
        return Taint(known.node, True, f"lemon: {reason(verdict)}"[:200], SERVICE, verdict.id, now)
    if ours and have is not None and have.excluded:
        return Taint(known.node, False, f"lemon: {reason(verdict)}"[:200], SERVICE, verdict.id, now)
    return None


def _order(known: Known, verdict: Verdict, policy: Policy, now: int) -> DeepTest | None:
    have, result = known.order, known.result
    number = 1
    if have is not None and _counts(have, verdict):
        if result is None or result.id != have.id or result.state != "refused" or now - result.at < AGAIN * 1000:
            return None
        number = min(number_of(have, verdict) + 1, TRIES) if have.by == SERVICE else 1
    until = now + int(WAITS * 1000)
    return DeepTest(order_id(verdict, number), SERVICE, f"lemon: {reason(verdict)}"[:200], policy.test_seconds, until, now)


def reason(verdict: Verdict) -> str:
    """The first line of evidence, which says why."""
    return verdict.evidence[0] if verdict.evidence else verdict.cause


# --- the verdict ---------------------------------------------------------------------------------------------------------------

STATES: dict[str, tuple[str, str]] = {
    "suspect": ("is suspected to be a lemon", "疑似故障节点"),
    "drained": ("is taken out and tested", "已隔离并开始深度检测"),
    "failed": ("failed its tests and waits for repair", "检测未通过,等待维修"),
    "relapsed": ("is bad again and waits for repair", "再次异常,等待维修"),
    "probation": ("is given back on probation", "恢复使用,进入观察期"),
    "clear": ("is clear", "恢复正常"),
}
"""For people: English, Chinese."""


def told(known: Known, next_: Step, policy: Policy, now: int) -> Verdict:
    """The verdict that says it. Its id stays the same from the first suspicion to the end of the case."""
    before, ranked = known.verdict, known.ranked
    fresh = before is None or before.state == "clear"
    ident = f"{known.node}-{now}" if fresh or before is None else before.id
    signals = tuple(f"{name}={value:.3g}" for name, value in (ranked.signals.items() if ranked else ()) if value)[:MOST_SIGNALS]
    advice = _advice(known, next_.state, policy)
    en, zh = STATES[next_.state]
    return Verdict(
        ident,
        SERVICE,
        "lemon",
        (known.node,) if next_.state in (*OUT, "suspect") else (),
        (next_.why, *next_.evidence, *((f"signals: {' '.join(signals)}",) if signals else ()), *advice),
        confidence=round(ranked.score, 3) if ranked is not None and 0 <= ranked.score <= 1 else 0.0,
        sentence=f"{known.node} {en}: {next_.why}"[:1000],
        sentenceZh=f"节点 {known.node} {zh}:{next_.why_zh}"[:1000],
        at=now,
        nodes=(known.node,),
        accused=(known.node,) if next_.state in OUT else (),
        state=next_.state,
        codes=tuple(name for name, value in (ranked.signals.items() if ranked else ()) if value),
    )


def kept(verdict: Verdict) -> Verdict:
    """What must outlive EVENTS: an open case whole, of a closed one that it is closed."""
    return verdict if verdict.state != "clear" else msgspec.structs.replace(verdict, evidence=(), sentence="", sentenceZh="", codes=())


def _advice(known: Known, state: str, policy: Policy) -> tuple[str, ...]:
    if state != "suspect" or policy.mode != "advise":
        return ()
    return (f"do: aegis node taint {known.node}; aegis node test {known.node}",)


@dataclass
class Book:
    """All cases of a fleet, for one round."""

    known: dict[str, Known] = field(default_factory=dict)

    def steps(self, policy: Policy, nodes: int, now: int) -> list[tuple[Known, Step]]:
        """Worst nodes first, so that the room goes to them."""
        room = Room.of(self.known, nodes, policy, now)
        order = sorted(self.known.values(), key=lambda one: (-(one.ranked.score if one.ranked else 0.0), one.node))
        return [(one, found) for one in order if (found := step(one, policy, room, now)) is not None]
