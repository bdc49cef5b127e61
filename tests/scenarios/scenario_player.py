"""Plays a scenario: commands in, the machine's transitions, notes and state out. Checks every invariant after every event.

Commands (words, then `key=value`); `W` is a place number, a list `0,2` or `all`:
  job workers=3 max-retry=2 [uncounted=3] [reset-after=SECONDS]     start a job (first command)
  here W [boot=B] [attempt=N] [running=INC]      PENDING: a new boot of the present attempt, unless said otherwise
  lost W [reason=killed] [at=MS|before] [gone] [exit=N] [accuse] [unclean] [attempt=N]
  gone W [attempt=N] · running W · ack W · stopped W [inc=N] [unclean]
  finish W [fail=CHECK] [port=N] [unclean] [code=N] [attempt= boot= inc= seq=]
  error W [reason=error] [exit=N] [at=MS|before] [ran=SECONDS] [attempt= boot= inc= seq=]
  mark W [slow] [cleared] [inc=N] · checkpoint step=N [inc=N] · progress step=N [inc=N] · suspect W [off] · plain W · exit W code=N
  deadline [kind=K]      the one that stands in the head passes
  stop · suspend · resume · restart · healthy · gap · era NAME · set max-retry=N
  rule      what the owner asks for by itself when runs bring nothing
  wait SECONDS · again (the last event once more) · takeover (all that is kept is what is stored)
  pods · order · ledger · story      print
`at=before` is just before the stop order. Time starts at 0 and every event takes 1 s.
"""

from __future__ import annotations

import msgspec
from aegis_master import asked, ledger, machine, story
from aegis_master import events as ev
from aegis_master.invariants import broken, broken_step
from aegis_proto.messages import CheckResult
from aegis_proto.phases import LostReason
from aegis_proto.state import Head, JobSpec, JobState, Pod


def play(text: str) -> str:
    """The scenario with what the machine does now in place of what is written under each `----`."""
    player = Player()
    out: list[str] = []
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        if lines[i].startswith("#") or not lines[i].strip():
            out.append(lines[i])
            i += 1
            continue
        commands = []
        while i < len(lines) and lines[i].strip() and lines[i] != "----":
            commands.append(lines[i])
            i += 1
        out += [*commands, "----", *player.block(commands)]
        while i < len(lines) and lines[i].strip():
            i += 1
    return "\n".join(out) + "\n"


class Player:
    def __init__(self) -> None:
        self.state: JobState
        self.now = 0
        self.boots: dict[int, int] = {}
        self.last: ev.Event | None = None
        self.out: list[str] = []

    def block(self, commands: list[str]) -> list[str]:
        self.out = []
        shown = False
        for command in commands:
            words = command.split()
            flags = dict(word.split("=", 1) if "=" in word else (word, "yes") for word in words[1:])
            shown = self._run(words[0], words[1:], flags)
        if not shown:
            self.out.append(self._line())
        return self.out

    def _run(self, verb: str, words: list[str], flags: dict[str, str]) -> bool:
        """True when the command printed what it is about itself."""
        match verb:
            case "job":
                spec = JobSpec(
                    "demo",
                    workers=int(flags["workers"]),
                    maxRetry=int(flags["max-retry"]),
                    maxUncounted=int(flags.get("uncounted", 3)),
                    retryResetAfter=float(flags.get("reset-after", 0)),
                )
                self.state = machine.create("demo-1", spec, "uid", "era1", self.now)
                assert not broken(self.state)
            case "wait":
                self.now += int(words[0]) * 1000
            case "takeover":
                self.state = stored(self.state)
            case "again":
                assert self.last is not None
                self._step(self.last)
            case "pods":
                self.out += [self._pod(i, pod) for i, pod in enumerate(self.state.pods())]
                return True
            case "order":
                self.out.append(msgspec.json.encode(self.state.head.order).decode())
                return True
            case "ledger":
                book = self.state.head.ledger
                self.out.append("seconds " + " ".join(f"{name}={ms // 1000}" for name, ms in book.totals.items()) + f" now {book.state}")
                self.out.append("charged " + " ".join(f"{name}={ms // 1000}" for name, ms in book.charged.items()))
                self.out.append(f"sum {ledger.total(book, self.now) // 1000} age {(self.now - self.state.head.createdAt) // 1000}")
                return True
            case "story":
                self.out += list(story.budget(self.state.head))
                return True
            case _:
                for event in self._events(verb, words, flags):
                    self._step(event)
        return False

    def _events(self, verb: str, words: list[str], flags: dict[str, str]) -> list[ev.Event]:
        head, reason = self.state.head, flags.get("reason", "")
        whole: dict[str, ev.Event] = {
            "stop": ev.StopAsked("ann", reason),
            "suspend": ev.SuspendAsked("ann", reason),
            "resume": ev.ResumeAsked("ann", reason),
            "restart": ev.RestartAsked("ann", reason),
            "healthy": ev.Healthy(),
            "gap": ev.GapFound(),
            "era": ev.EraChanged(words[0] if words else ""),
            "set": ev.SettingChanged(int(flags.get("max-retry", 0)), "ann" if reason else "", reason),
            "progress": ev.Progressed(int(flags.get("inc", head.incarnation)), int(flags.get("step", -1))),
            "checkpoint": ev.Checkpointed(int(flags.get("inc", head.incarnation)), int(flags.get("step", -1))),
        }
        if verb in whole:
            return [whole[verb]]
        if verb == "rule":
            asked_for = asked.fruitless(self.state)
            return [asked_for] if asked_for else []
        if verb == "deadline":
            deadline = head.deadline
            kind = flags.get("kind", deadline.kind if deadline else "none")
            return [ev.DeadlinePassed(kind, deadline.seqNum if deadline else 0, deadline.incarnation if deadline else 0)]
        indices = range(head.workerNum) if words[0] == "all" else [int(w) for w in words[0].split(",")]
        return [(verb, i, flags) for i in indices]  # type: ignore[misc]

    def _step(self, event: ev.Event | tuple[str, int, dict[str, str]]) -> None:
        self.now += 1000
        if isinstance(event, tuple):
            event = self._of_pod(*event)
        self.last = event
        before = self.state
        self.state, effects = machine.step(before, event, self.now)
        known = set(before.head.recent)
        for t in self.state.head.recent:
            if t not in known:
                self.out.append(f"{t.phaseFrom} -> {t.phaseTo}  ({t.retries})  {t.message}")
        for effect in effects:
            if isinstance(effect, ev.Dropped):
                self.out.append(f"dropped: {effect.why}")
            elif effect.kind != "podReady":
                self.out.append(f"note: {effect.message}")
        assert broken_step(before, event, self.state, self.now) == []

    def _of_pod(self, verb: str, index: int, flags: dict[str, str]) -> ev.Event:
        head, pod = self.state.head, self.state.pod(index)
        attempt, boot = int(flags.get("attempt", pod.attempt)), flags.get("boot", pod.boot)
        incarnation, seq = int(flags.get("inc", head.incarnation)), int(flags.get("seq", head.seqNum))
        at = flags.get("at", str(self.now))
        when = head.stopOrderAt - 1 if at == "before" else int(at)
        clean = "unclean" not in flags
        match verb:
            case "here":
                self.boots[index] = self.boots.get(index, 0) + 1
                running = int(flags.get("running", -1))
                return ev.PodReady(
                    index,
                    attempt,
                    flags.get("boot", f"b{index}.{self.boots[index]}"),
                    node=flags.get("node", f"n{index}{'abcdefgh'[attempt - 1]}"),
                    running=running >= 0,
                    incarnation=running,
                )
            case "lost":
                code = int(flags["exit"]) if "exit" in flags else None
                reason = LostReason(flags.get("reason", "killed"))
                blame = "unclean" if not clean else reason.value if "accuse" in flags else ""
                return ev.PodLost(index, attempt, reason, when, code, gone="gone" in flags, blame=blame)
            case "gone":
                return ev.PodGone(index, int(flags.get("attempt", pod.attempt - (not pod.present))))
            case "running":
                return ev.PodRunning(index, attempt)
            case "ack":
                return ev.Acked(index, attempt, boot, seq)
            case "stopped":
                return ev.Stopped(index, attempt, boot, incarnation, clean)
            case "finish":
                failed = tuple(CheckResult(name, False, "bad") for name in flags.get("fail", "").split(",") if name)
                port = int(flags.get("port", 0))
                addr = pod.node if port else ""
                code = int(flags.get("code", 0))
                return ev.Finished(index, attempt, boot, incarnation, seq, failed, addr, port, code, clean)
            case "error":
                code = int(flags.get("exit", 1))
                reason = LostReason(flags.get("reason", "error"))
                ran = float(flags.get("ran", 100))
                return ev.Errored(index, attempt, boot, incarnation, seq, reason, code, 0, when, ran)
            case "mark":
                return ev.Marked(index, attempt, boot, incarnation, "slow" if "slow" in flags else "hang", "cleared" in flags)
            case "suspect":
                return ev.SuspectChanged(index, attempt, "off" not in flags)
            case "plain":
                return ev.PlainFact(index, attempt)
            case "exit":
                return ev.PlainExit(index, attempt, int(flags["code"]))
        raise AssertionError(f"unknown command {verb}")

    def _line(self) -> str:
        head = self.state.head
        parts = [f"= {head.phase} seq {head.seqNum} inc {head.incarnation} ({story.retries(self.state.shards)}) recover {head.recoverCount}"]
        parts.append(f"order {head.order.phase}")
        parts += [f"{pod}:{phase}" for pod, phase in head.order.exceptions.items()]
        if head.deadline:
            parts.append(f"deadline {head.deadline.kind}")
        if head.errorNodes:
            parts.append("avoid " + ",".join(f"{node.name}({node.reason})" for node in head.errorNodes))
        if head.failedReason:
            parts.append(f"failed {head.failedReason} exit {head.exitCode}")
        parts += [word for word, on in (("suspended", head.suspended), ("plain", head.mode == "plain"), ("adopting", head.adopting)) if on]
        return "  ".join(parts)

    def _pod(self, index: int, pod: Pod) -> str:
        words = [f"w{index} a{pod.attempt} {pod.boot or '-'} {pod.node or '-'} {pod.innerPhase} retries {pod.retries} uncounted {pod.uncounted}"]
        words += [name for name in ("finished", "errored", "toQuit", "gone", "suspect") if getattr(pod, name)]
        words += [f"{name}={getattr(pod, name)}" for name in ("mark", "failed", "pin", "reason") if getattr(pod, name)]
        return " ".join(words)


def stored(state: JobState) -> JobState:
    """The state as another owner reads it: head and shards by way of the wire."""
    head = msgspec.json.decode(msgspec.json.encode(state.head), type=Head)
    shards = tuple(msgspec.json.decode(msgspec.json.encode(shard), type=tuple[Pod, ...]) for shard in state.shards)
    return JobState(head, shards, state.spec)
