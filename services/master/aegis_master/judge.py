"""Who is silent, and who is dead. Pure: time is an argument (seconds of any monotonic clock), nothing is read or written.

Silence alone never kills. A worker that is silent for `silent` seconds is *suspect*: a flag, no count, no stop. It is *dead* when it is silent and
  - another worker reports Error or hang (it too felt that somebody is missing), or
  - the platform does not confirm "running" for `unconfirmed` seconds: it says so (nodeSilent), or never said "running" of this attempt.
Facts of the platform (gone, nodeLost) do not come here: they are events of the phase machine by themselves.

Nothing is judged for `quiet` seconds after a takeover, a reconnect, a lag of the event loop, or a new era: then it was we who did not hear.
If more than `common_share` of the workers (and more than one) are silent together, the cause is common (a switch, the bus): wait for facts.
A heartbeat counts when it names the present attempt and boot of its pod and a number above the last: judged by arrival, never by two clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aegis_proto.phases import LostReason, Mode
from aegis_proto.state import JobState


@dataclass(frozen=True, slots=True)
class JudgeTimes:
    """Seconds, and a share of the workers."""

    silent: float = 15.0
    unconfirmed: float = 120.0
    quiet: float = 25.0
    loop_lag: float = 1.0
    common_share: float = 0.2
    peer_memory: float = 60.0
    """How long another worker's Error speaks about who was silent when it came."""
    heartbeat: float = 5.0
    fence: float = 130.0
    """How long after its loss a worker that nobody has verified gone may still live. Its agent notices a dead connection after up to 60 s (two pings
    without an answer), and stops a child without progress 60 s later; the loss was noticed `silent` s after the cut at the earliest. The grace of a
    stop comes on top."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """`suspect` changed for this place."""

    index: int
    attempt: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class Dead:
    """Silent, and somebody else confirms it. `silent`: seconds since it was last heard; it died then, not when we came to know."""

    index: int
    attempt: int
    reason: LostReason
    why: str
    silent: float = 0.0


@dataclass(frozen=True, slots=True)
class AskPlatform:
    """The platform's last word about this place is not known here (after a takeover): read it, then call `platform`."""

    index: int
    attempt: int


Finding = Suspect | Dead | AskPlatform


@dataclass(slots=True)
class _Watch:
    attempt: int
    boot: str
    heard: float
    n: int = -1
    step: int = -1
    suspect: bool = False
    lives: bool = False
    """Heard since it was found silent, or since we began to listen."""
    running: bool = False
    """The platform's last word was "running"."""
    word: bool = False
    """The platform said anything about this attempt."""
    asked: bool = False
    unconfirmed_since: float = field(default=-1.0)


def fenced(state: JobState, now_ms: int, fence: float) -> list[tuple[int, int]]:
    """(index, attempt) of lost workers that nobody has verified gone, and that cannot live any more: alone they make no progress, and an agent that
    hears nobody stops what makes none. `now_ms` by the server's clock, `fence` in seconds. A single worker needs nobody: of it only the platform's
    word counts."""
    head = state.head
    if head.workerNum in (1, head.tally.filled) or head.adopting or head.phase.terminal or head.mode is not Mode.MANAGED:
        return []
    since = now_ms - round((fence + state.spec.stopGrace) * 1000)
    return [(i, pod.attempt - 1) for i, pod in enumerate(state.pods()) if not pod.present and not pod.gone and not pod.finished and pod.ts <= since]


class Judge:
    """Watches the workers of one job that are there: `follow` on every change of who is, `heartbeat` on each arrival, `tick` each second."""

    def __init__(self, times: JudgeTimes, now: float) -> None:
        self.times = times
        self._watch: dict[int, _Watch] = {}
        self._quiet_until = now + times.quiet
        self._peer_errors: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._watch)

    def quiet(self, now: float) -> None:
        """We may not have heard for a while: judge nothing for some time, every clock starts again."""
        self._quiet_until = now + self.times.quiet
        self._peer_errors.clear()
        for watch in self._watch.values():
            watch.heard = now
            watch.unconfirmed_since = now if watch.unconfirmed_since >= 0 else -1.0

    def listening(self, now: float) -> bool:
        """What is silent now is silent: we would have heard it."""
        return now >= self._quiet_until

    def follow(self, present: Iterable[tuple[int, int, str, bool]], now: float) -> None:
        """`present`: (index, attempt, boot, suspect in the state) of every worker that is there. New ones start their clock now, others go.
        Who is suspect in the state is so for us, until it is heard, whoever found it; what was found and not stored is found again."""
        wanted = {index: (attempt, boot, suspect) for index, attempt, boot, suspect in present}
        for index in [index for index in self._watch if index not in wanted]:
            del self._watch[index]
        for index, (attempt, boot, suspect) in wanted.items():
            watch = self._watch.get(index)
            if watch is None or watch.attempt != attempt:
                self._watch[index] = _Watch(attempt, boot, now, suspect=suspect)
            elif watch.boot != boot:  # the same placement, its agent started anew: what the platform said still holds
                self._watch[index] = _Watch(attempt, boot, now, running=watch.running, word=watch.word, suspect=suspect)
            else:
                watch.suspect = suspect

    def heartbeat(self, index: int, attempt: int, boot: str, n: int, *, now: float, step: int = -1) -> bool:
        """A heartbeat arrived; False when it is of another attempt or boot, or not above the last."""
        watch = self._watch.get(index)
        if watch is None or watch.attempt != attempt or watch.boot != boot or n <= watch.n:
            return False
        watch.n = n
        watch.heard = now
        watch.lives = True
        if step >= 0:
            watch.step = step
        return True

    def heard(self, index: int, now: float) -> None:
        """Any valid report of the present attempt and boot: as good as a heartbeat."""
        watch = self._watch.get(index)
        if watch is not None:
            watch.heard = now
            watch.lives = True

    def peer_error(self, index: int, now: float) -> None:
        """This worker reports Error or hang: somebody who is silent now is missed by others, too."""
        self._peer_errors[index] = now

    def platform(self, index: int, attempt: int, running: bool, now: float) -> None:
        """The platform says "running", or that it cannot confirm it (nodeSilent)."""
        watch = self._watch.get(index)
        if watch is None or watch.attempt != attempt:
            return
        watch.word = True
        watch.running = running
        if running:
            watch.unconfirmed_since = -1.0
        elif watch.unconfirmed_since < 0:  # said again while it lasts: it lasts since it was said first
            watch.unconfirmed_since = now

    def platform_unknown(self, index: int, attempt: int, now: float) -> None:
        """Answer to AskPlatform: it never said anything about this attempt."""
        watch = self._watch.get(index)
        if watch is not None and watch.attempt == attempt and not watch.word:
            watch.word = True
            watch.unconfirmed_since = now

    def tick(self, now: float) -> list[Finding]:
        """Findings since the last call. `Dead` is said once per call while it holds: the machine's answer is that the pod is no longer there."""
        findings: list[Finding] = []
        if now < self._quiet_until:
            return findings
        times = self.times
        silent = [(index, watch) for index, watch in self._watch.items() if now - watch.heard >= times.silent]
        for index, watch in self._watch.items():
            if watch.suspect and watch.lives and now - watch.heard < times.silent:
                watch.suspect = False
                findings.append(Suspect(index, watch.attempt, False))
        common = len(silent) > 1 and len(silent) > times.common_share * len(self._watch)
        self._peer_errors = {index: at for index, at in self._peer_errors.items() if now - at <= times.peer_memory}
        for index, watch in silent:
            if not watch.suspect:
                watch.suspect = True
                findings.append(Suspect(index, watch.attempt, True))
            watch.lives = False
            if not watch.word and not watch.asked:
                watch.asked = True
                findings.append(AskPlatform(index, watch.attempt))
            if common:
                continue
            # An error a little before the last heartbeat's successor was due may be the first sign of the same loss.
            peer = any(other != index and at >= watch.heard - times.heartbeat for other, at in self._peer_errors.items())
            unconfirmed = watch.unconfirmed_since >= 0 and now - watch.unconfirmed_since >= times.unconfirmed
            if peer:
                why = f"silent for {now - watch.heard:.0f} s and missed by another worker"
                findings.append(Dead(index, watch.attempt, LostReason.KILLED, why, now - watch.heard))
            elif unconfirmed:
                findings.append(
                    Dead(
                        index,
                        watch.attempt,
                        LostReason.NODE_LOST,
                        f"silent for {now - watch.heard:.0f} s and not confirmed by the platform for {now - watch.unconfirmed_since:.0f} s",
                        now - watch.heard,
                    )
                )
        return findings

    def steps(self, now: float) -> tuple[int, int, int]:
        """(lowest step, highest step, workers heard in the last `silent` seconds); -1 where nobody said a step."""
        known = [watch.step for watch in self._watch.values() if watch.step >= 0]
        live = sum(1 for watch in self._watch.values() if now - watch.heard < self.times.silent)
        return (min(known), max(known), live) if known else (-1, -1, live)

    def forget_steps(self) -> None:
        """A new incarnation counts its own steps."""
        for watch in self._watch.values():
            watch.step = -1
