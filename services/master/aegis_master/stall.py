"""Does a run still advance, and if not, who holds it up. Pure: time is an argument (seconds of any monotonic clock).

Judged for the job as a whole: a worker that prints nothing is not hung while another tells steps. Evidence of progress, the best that any worker has:
steps (told, or read in what it prints), else lines, else the processes' use of CPU. Nothing is judged while a phase that is expected to be long has
its own deadline: the first step (`firstStepTimeout`), and what the workers said about saving, evaluating and loading.

Who is named, first rule that names somebody: processes that are stopped or blocked in the kernel; workers that are silent; those outside of a
collective while others wait in one (stacks); those behind in steps; the odd ones out in use of GPU or CPU. Nobody: all are marked, and none is
accused by it. What a GPU does is no progress: a collective that waits keeps it as busy as work does.
Everything known here is of one incarnation and forgotten with it. A mark stops nothing; when progress returns it is withdrawn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from aegis_proto.messages import Heartbeat
from aegis_proto.state import JobSpec

FLOOR = 60.0
"""Shortest silence that is judged without being asked for one: what a save, an evaluation or a slow file system usually takes."""
FRESH = 15.0
"""A heartbeat older than this says nothing about now."""
SETTLE = 6.0
"""Seconds after the limit in which all have said how they look (one heartbeat and a bit), unless somebody is named at once."""
IDLE_CPU = 0.02
"""Cores: below it a run that never printed anything does nothing."""
SPINS, RESTS = 90.0, 10.0
"""Percent of a GPU: one that waits in a collective is at 96 and more, one that does nothing near 0."""
WAITING, ELSEWHERE = "waiting", "elsewhere"


@dataclass(frozen=True, slots=True)
class Hung:
    """Who is to be marked, and why; all of them when nobody can be named."""

    indexes: tuple[int, ...]
    why: str
    silence: float


@dataclass(slots=True)
class _Seen:
    beat: Heartbeat
    at: float
    stack: str = ""
    where: str = ""
    busy_at: float = 0.0


class Stall:
    """Of one job, by its owner: `follow` on a new incarnation, `beat` on each heartbeat of a present worker, `tick` each second."""

    def __init__(self, now: float) -> None:
        self._incarnation = -1
        self._began = now
        self._seen: dict[int, _Seen] = {}
        self._named: Hung | None = None

    def follow(self, incarnation: int, now: float, ran_for: float = 0.0) -> None:
        """The run that is judged. `ran_for`: seconds since it was ordered (a new owner takes it over in the middle)."""
        if incarnation != self._incarnation:
            self._incarnation, self._began, self._seen, self._named = incarnation, now - ran_for, {}, None

    def beat(self, index: int, beat: Heartbeat, now: float) -> None:
        if beat.incarnation != self._incarnation or not beat.running:
            self._seen.pop(index, None)
            return
        seen = self._seen.get(index)
        if seen is None:
            seen = self._seen[index] = _Seen(beat, now, busy_at=now)
        seen.beat, seen.at = beat, now
        if beat.cpu >= IDLE_CPU or beat.cpu < 0:
            seen.busy_at = now

    def looked(self, index: int, sign: str, where: str) -> None:
        """What its stacks say while the run is marked."""
        seen = self._seen.get(index)
        if seen is not None:
            seen.stack, seen.where = sign, where

    def last_progress(self) -> tuple[float, str]:
        """(when, by which evidence); evidence "" = none yet, then it is the start of the run."""
        seen = self._seen.values()
        if steps := [one.at - one.beat.silence for one in seen if one.beat.silence >= 0]:
            return max(steps), "step"
        if lines := [one.at - one.beat.quiet for one in seen if one.beat.quiet >= 0]:
            return max(lines), "line"
        return self._began, ""

    def limit(self, spec: JobSpec, evidence: str) -> float:
        """Seconds of silence after which the run is hung."""
        if evidence != "step":
            return max(spec.firstStepTimeout, spec.hangSilence or spec.hangTimeout) if not evidence else spec.hangSilence or spec.firstStepTimeout
        if spec.hangSilence:
            return spec.hangSilence
        learned = max((one.beat.gap for one in self._seen.values()), default=0.0)
        return min(spec.hangTimeout, max(FLOOR, learned)) if learned else spec.hangTimeout

    def tick(self, spec: JobSpec, present: Collection[int], now: float) -> Hung | None:
        """Who holds the run up now, None while it advances. `present`: places whose workers are there and have not finished."""
        if not self._seen:
            return None
        at, evidence = self.last_progress()
        patience = max((one.at + one.beat.patience for one in self._seen.values()), default=0.0)
        limit = self.limit(spec, evidence)
        if not evidence and any(now - one.busy_at < limit for one in self._seen.values()):
            at = max(at, *(one.busy_at for one in self._seen.values()))
        silence = now - at
        if silence < limit or now < patience:
            self._named = None
            for one in self._seen.values():
                one.stack = one.where = ""
            return None
        named, why = self._name(present, now, at + limit)
        if not named and self._named is None and silence < limit + SETTLE:
            return None
        if not named and self._named is not None:  # nothing better: who was named stays so
            return self._named
        what = {"step": "no step", "line": "no line", "": "no sign of life"}[evidence]
        self._named = Hung(tuple(sorted(named or present)), f"{what} for {silence:.0f} s; {why}", silence)
        return self._named

    def _name(self, present: Collection[int], now: float, hung_since: float) -> tuple[list[int], str]:
        """Workers are compared only by what all said since the run is hung: earlier one may still have been a step behind, by right."""
        seen = {index: one for index, one in self._seen.items() if index in present}
        fresh = {index: one for index, one in seen.items() if now - one.at < FRESH}
        few: Callable[[Collection[int]], bool] = lambda named: 0 < 2 * len(named) <= len(present)  # noqa: E731
        for sign, words in (("stopped", "its processes are stopped"), ("blocked", "a process waits in the kernel and hears no signal")):
            if found := [index for index, one in fresh.items() if one.beat.sign == sign]:
                return found, words
        if few(silent := [index for index in present if index not in fresh]):
            return silent, "it is not heard"
        away = [index for index, one in fresh.items() if one.stack == ELSEWHERE]
        if few(away) and any(one.stack == WAITING for one in fresh.values()):
            return away, f"the others wait for it in a collective, it is in {fresh[away[0]].where}"[:200]
        if len(fresh) == len(present) and all(one.at >= hung_since for one in fresh.values()):
            steps = {index: one.beat.step for index, one in fresh.items()}
            slowest, fastest = min(steps.values()), max(steps.values())
            if slowest >= 0 and few(behind := [index for index, step in steps.items() if step == slowest]):
                return behind, f"it is at step {slowest}, the others at {fastest}"
            spins = [index for index, one in fresh.items() if one.beat.gpu >= SPINS]
            rests = [index for index, one in fresh.items() if 0 <= one.beat.gpu <= RESTS]
            for odd, words in ((rests, "its GPU rests, the others' do not"), (spins, "its GPU works, the others' rest")):
                if odd and 4 * len(odd) <= len(present) == len(spins) + len(rests):
                    return odd, words
            for sign in ("busy", "idle"):
                odd = [index for index, one in fresh.items() if one.beat.sign == sign]
                if odd and 4 * len(odd) <= len(present):
                    return odd, f"it is {sign}, the others are not"
        return [], "nobody stands out"
