"""Rank 0's conductor, a process of its own: waits for all, says who differs, gives the tests, says to each what came out. One thread, one selector.

Reads and writes the sockets of the members; decides who is tested with whom (`pairing`). Judges no node: that is the master's.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import time
from typing import TYPE_CHECKING, Any

from . import environment, pairing
from .wire import Lines, keep_alive, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from .pairing import Pair

WORLD_SECONDS = 30.0
PAIR_SECONDS = 10.0
SPEED_SECONDS = 60.0
MARGIN = 4.0
"""Seconds a member has beyond the limit of its test, to say that it was reached."""
SLOW = 0.8
"""Share of the peers' median below which a pairing is slow (docs/agent.md, "Checks")."""
FEWEST_PEERS = 3
"""Other pairings that a median needs to mean anything."""
MOST_TEXT = 400


class Peer:
    """One member that has said hello."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lines = Lines()
        self.index = -1
        self.hello: dict[str, Any] = {}
        self.ready: dict[str, Any] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.gone = False

    def send(self, message: dict[str, Any]) -> None:
        if self.gone:
            return
        try:
            self.sock.settimeout(5.0)
            self.sock.sendall(pack(message))
            self.sock.setblocking(False)
        except OSError:
            self.gone = True


class Hub:
    """`told`: the context of the check (see `program`)."""

    def __init__(self, listener: socket.socket, told: dict[str, Any]) -> None:
        self.told = told
        self.began = time.monotonic()
        self.listener = listener
        self.selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, None)
        self.peers: dict[int, Peer] = {}
        self.tests = 0
        self.by_route = 0.0
        """Gloo reaches the others only by the interface of the way to w0."""
        self.broken: set[Pair] = set()  # whose bandwidth could not be measured: the test failed, or did not end

    # --- sockets --------------------------------------------------------------------------------------------------------------

    def pump(self, until: float, done: Callable[[], bool]) -> bool:
        """Read until `done` or the time is over."""
        while not done():
            left = until - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self.selector.select(left):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
        return True

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        keep_alive(sock)
        self.selector.register(sock, selectors.EVENT_READ, Peer(sock))

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.sock.recv(65536)
            messages = peer.lines.feed(data) if data else None
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError):
            messages = None
        if messages is None:
            self._drop(peer)
            return
        for message in messages:
            self._take(peer, message)

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        if peer.index < 0:
            index = message.get("hello")
            if not isinstance(index, int) or message.get("key") != self.told["key"] or not isinstance(message.get("env"), dict):
                self._drop(peer)
                return
            if not 0 <= index < self.told["world"]:
                self._drop(peer)
                return
            before = self.peers.get(index)
            if before is not None:  # its connection broke and it came again
                self._drop(before)
            peer.index, peer.hello = index, message
            self.peers[index] = peer
        elif "ready" in message:
            peer.ready = message
        elif isinstance(message.get("done"), str):
            peer.answers[message["done"]] = message

    def _drop(self, peer: Peer) -> None:
        if not peer.gone:
            peer.gone = True
        try:
            self.selector.unregister(peer.sock)
        except (KeyError, ValueError):
            pass
        peer.sock.close()

    @property
    def there(self) -> list[int]:
        return sorted(index for index, peer in self.peers.items() if not peer.gone)

    # --- the check ------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        until = self.began + self.told["seconds"]
        self.pump(self.began + self.told["meet"], lambda: len(self.there) == self.told["world"])
        absent = [index for index in range(self.told["world"]) if index not in self.there]
        self._tell_environment(absent)
        able = self._able(until - WORLD_SECONDS)
        if len(able) < 2 and not self._alone(able):
            self._tell_all("allreduce", True, self._why_not(able, absent))
            self._tell_all("performance", True, "not applicable: as above")
        else:
            outcomes, words = self._connect(able, until)
            well = self._tell_connection(able, absent, outcomes, words)
            if well:
                self._speed(able)
            else:
                self._tell_all("performance", True, "not measured: the connection comes first")
        for index in sorted(self.peers, reverse=True):  # w0 last: with it this process ends
            self.peers[index].send({"bye": 1})
        # Whoever has not read it yet reads it from the socket's buffer.

    def _alone(self, able: list[int]) -> bool:
        """A job of one worker whose devices talk to each other."""
        return self.told["world"] == 1 and len(able) == 1 and self._locals(able[0]) > 1

    def _locals(self, index: int) -> int:
        return int(self.peers[index].ready.get("locals", 1))

    def _tell_environment(self, absent: list[int]) -> None:
        told = {index: {str(k): str(v) for k, v in self.peers[index].hello["env"].items()} for index in self.there}
        differs = environment.versions(told)
        odd = environment.odd_ones(differs)
        text = environment.sentence(differs)
        hard = any(key not in environment.MAY_DIFFER for key in differs)
        for index in self.there:
            own = "differs here: " + ", ".join(odd[index]) if index in odd else ""
            said = (text or f"the same on {len(told)} workers: {environment.summary(told[index])}") if index == 0 else own or "as the others"
            code = "multipleVersions" if index in odd or (index == 0 and hard) else ""
            self._line(index, "environment", True, said + (f"; not there: {environment.names(absent)}" if absent and index == 0 else ""), code)
        self.differs = differs

    def _able(self, until: float) -> list[int]:
        """Who has torch, and has it imported."""
        expected = [index for index in self.there if self.peers[index].hello.get("torch")]
        self.pump(until, lambda: all(self.peers[index].ready or self.peers[index].gone for index in expected))
        return [index for index in expected if self.peers[index].ready.get("ok") and not self.peers[index].gone]

    def _why_not(self, able: list[int], absent: list[int]) -> str:
        errors = [f"w{i}: {peer.ready['error']}" for i, peer in sorted(self.peers.items()) if peer.ready.get("error")]
        if not any(peer.hello.get("torch") for peer in self.peers.values()):
            return "not applicable: no torch in the python of the command"
        return f"not applicable: {len(able)} of {self.told['world']} workers can take part; " + "; ".join(
            [*errors[:3], *([f"not there: {environment.names(absent)}"] if absent else [])]
        )

    # --- tests ----------------------------------------------------------------------------------------------------------------

    def _give(self, groups: list[list[int]], what: str, seconds: float, link: str = "net", **more: float) -> list[dict[str, Any]]:
        """Run one test in each of the disjoint `groups` at once. For each: ok, text, speed (of its first member)."""
        offers = {(self.peers[i].ready["device"], self.peers[i].ready["backend"]) for group in groups for i in group}
        device, backend = offers.pop() if len(offers) == 1 else ("cpu", "gloo")
        store = self.peers[0].ready.get("store")
        names = []
        for group in groups:
            self.tests += 1
            name = str(self.tests)
            names.append(name)
            counts = [self._locals(i) if device != "cpu" else 1 for i in group]
            for at, index in enumerate(group):
                test = {
                    "test": name,
                    "first": sum(counts[:at]),
                    "locals": counts[at],
                    "world": sum(counts),
                    "backend": backend,
                    "device": device,
                    "store": store,
                    "key": f"{self.told['key'][:16]}/{name}",
                    "seconds": seconds,
                    "what": what,
                    "link": link,
                    "by_route": self.by_route,
                    **more,
                }
                self.peers[index].send(test)
        waiting = [(name, index) for name, group in zip(names, groups) for index in group]  # noqa: B905
        self.pump(
            time.monotonic() + seconds + MARGIN,
            lambda: all(self.peers[i].gone or name in self.peers[i].answers for name, i in waiting),
        )
        return [self._outcome(name, group) for name, group in zip(names, groups)]  # noqa: B905

    def _outcome(self, name: str, group: list[int]) -> dict[str, Any]:
        words: list[str] = []
        speed: dict[str, float] = {}
        ok = True
        for index in group:
            answer = self.peers[index].answers.get(name)
            if answer is None:
                ok = False
                words.append(f"w{index} gave no answer")
            elif not answer.get("ok"):
                ok = False
                words.append(f"w{index}: {answer.get('text', '')}")
            elif not speed:
                speed = {str(key): float(value) for key, value in answer.get("speed", {}).items()}
        words.sort(key=lambda text: "Wrong: " not in text)  # the rest is what became of the others then
        return {"ok": ok, "text": "; ".join(words)[:MOST_TEXT], "speed": speed}

    def _connect(self, able: list[int], until: float) -> tuple[dict[Pair, bool], str]:
        """All together; when that fails, pairs until it is clear who it is. Outcomes are empty when all together passed."""
        first = self._give([able], "values", min(WORLD_SECONDS, max(5.0, until - time.monotonic() - MARGIN)))[0]
        if first["ok"]:
            return {}, ""
        if self._backend(able) == "gloo" and not any("GLOO_SOCKET_IFNAME" in self.peers[i].hello["env"] for i in able):
            # A host name that does not lead to this machine is gloo's default way. A training that knows better is not failed for it.
            seconds = min(PAIR_SECONDS, max(5.0, until - time.monotonic() - MARGIN))
            if self._give([able], "values", seconds, by_route=1.0)[0]["ok"]:
                self.by_route = 1.0
                return {}, ""
        outcomes: dict[Pair, bool] = {}
        for _ in range(pairing.ROUNDS):
            if time.monotonic() + PAIR_SECONDS + 2 * MARGIN > until:
                break
            dead = [index for index in able if self.peers[index].gone]
            pairs = pairing.next_pairs(able, outcomes, dead)
            if not pairs:
                break
            for pair, outcome in zip(pairs, self._give([list(pair) for pair in pairs], "values", PAIR_SECONDS)):  # noqa: B905
                outcomes[pair] = outcome["ok"]
        return outcomes, first["text"]

    def _tell_connection(self, able: list[int], absent: list[int], outcomes: dict[Pair, bool], words: str) -> bool:
        """The line "allreduce" of each. True when all together passed."""
        if not words:
            missing = f"; not there: {environment.names(absent)}" if absent else ""
            text = f"all_reduce and all_gather over {len(able)} workers, every value right ({self._backend(able)}){missing}"
            text += "; only with GLOO_SOCKET_IFNAME: the host name leads elsewhere" if self.by_route else ""
            for index in self.there:
                self._line(index, "allreduce", True, text if index in able else "not applicable: takes no part")
            return True
        good = pairing.cleared(outcomes)
        for index in self.there:
            own = {pair: passed for pair, passed in outcomes.items() if index in pair}
            values = {f"pair.{sum(pair) - index}": float(passed) for pair, passed in own.items()}
            failed = [f"w{sum(pair) - index}" for pair, passed in own.items() if not passed]
            if index not in able:
                self._line(index, "allreduce", True, "not applicable: takes no part")
            elif index in good and len(good) < len(able):
                self._line(index, "allreduce", True, f"well with {len(own) - len(failed)} others; all together failed: {words}", values=values)
            else:
                alone = f"failed with {', '.join(failed)}" if failed else "every pair passed, all together did not"
                self._line(index, "allreduce", False, f"{alone}: {words}", "allreduce", values=values)
        return False

    def _backend(self, able: list[int]) -> str:
        return str(self.peers[able[0]].ready.get("backend", "gloo"))

    # --- speed ----------------------------------------------------------------------------------------------------------------

    def _speed(self, able: list[int]) -> None:
        """Bandwidth inside each worker, then of pairs: two pairings of everybody, and more for those that were slow in both."""
        measured: dict[Pair, dict[str, float]] = {}
        words: list[str] = []
        inner = [index for index in able if self._locals(index) > 1]
        if inner:
            self._measure([[index] for index in inner], "local", measured, words)
        turns = pairing.turns(able)
        for turn in range(turns):
            self._measure([list(pair) for pair in pairing.pairing(able, turn)], "net", measured, words)
        shares = relative(measured)
        for _ in range(2):
            outcomes = {pair: shares.get(pair, 1.0) >= SLOW for pair in measured if pair[0] != pair[1]}
            outcomes.update((pair, False) for pair in self.broken if pair[0] != pair[1])
            if all(outcomes.values()):
                break
            pairs = pairing.next_pairs(able, outcomes)
            if not pairs:
                break
            self._measure([list(pair) for pair in pairs], "net", measured, words)
            shares = relative(measured)
        seconds = float(self.told.get("long", 0.0))
        load = self._give([able], "long", seconds + WORLD_SECONDS, "load", during=seconds)[0] if seconds else {"ok": True}
        if not load["ok"]:
            self._tell_all("performance", False, f"one collective after the other for {seconds:g} s: {load['text']}", "collectiveLoad")
            return
        for index in self.there:
            self._tell_speed(index, measured, shares, words)

    def _measure(self, groups: list[list[int]], link: str, measured: dict[Pair, dict[str, float]], words: list[str]) -> None:
        for group, outcome in zip(groups, self._give(groups, "speed", SPEED_SECONDS, link)):  # noqa: B905
            if outcome["ok"]:
                measured[(group[0], group[-1])] = outcome["speed"]
            else:
                words.append(outcome["text"])
                self.broken.add((group[0], group[-1]))

    def _tell_speed(self, index: int, measured: dict[Pair, dict[str, float]], shares: dict[Pair, float], words: list[str]) -> None:
        own = {pair: speed for pair, speed in measured.items() if index in pair}
        counts = bool(self.told.get("speedCounts"))
        values: dict[str, float] = {"counts": 1.0} if counts else {}
        said = []
        for pair, speed in own.items():
            other = sum(pair) - index
            for key, value in speed.items():
                values[f"{key}.{other}"] = round(value, 4)
            said.append(f"with w{other} " if other != index else "inside ")
            said[-1] += ", ".join(f"{size(key)} {value:.3g} GB/s" for key, value in speed.items())
            if pair in shares:
                said[-1] += f" ({100 * shares[pair]:.0f} % of the peers' median)"
            if other == index:
                continue  # that a worker is quick inside says nothing about its way to others
            if counts and pair in shares:
                values[f"pair.{other}"] = round(shares[pair], 3)
            elif self.broken:
                values[f"pair.{other}"] = 1.0  # whoever passed with somebody is cleared by it
        failed = [sum(pair) - index for pair in sorted(self.broken) if index in pair]
        values.update((f"pair.{other}", 0.0) for other in failed)
        said += [f"failed with w{other}" if other != index else "failed inside" for other in failed]
        outward = [shares[pair] for pair in own if pair in shares and pair[0] != pair[1]]
        slow = len(outward) >= 2 and max(outward) < SLOW
        code, passed = ("slow", not counts) if slow else ("", True)
        if failed and not own:  # in a round the master judges all pairings; by hand nobody else does
            code, passed = "bandwidthFailed", not self.told.get("byHand")
        text = "; ".join(said) or "nothing measured"
        self._line(index, "performance", passed, text + ("; failed: " + words[0] if words and index == 0 else ""), code, values=values)

    # --- words ----------------------------------------------------------------------------------------------------------------

    def _tell_all(self, check: str, passed: bool, text: str, code: str = "") -> None:
        for index in self.there:
            self._line(index, check, passed, text, code)

    def _line(self, index: int, check: str, passed: bool, text: str, code: str = "", **more: Any) -> None:
        self.peers[index].send({"line": {"check": check, "pass": passed, "result": text, "code": code, "values": {}, **more}})


def size(key: str) -> str:
    """ "net.4194304" -> "net 4 MiB" """
    link, _, count = key.partition(".")
    value = int(count)
    return f"{link} {value >> 20} MiB" if value >> 20 else f"{link} {value >> 10} KiB"


def relative(measured: dict[Pair, dict[str, float]]) -> dict[Pair, float]:
    """Each pairing's worst share of the median of the other pairings, over sizes and links; those without enough peers are left out."""
    out: dict[Pair, float] = {}
    for pair, speed in measured.items():
        worst = None
        for key, value in speed.items():
            others = [theirs[key] for other, theirs in measured.items() if other != pair and key in theirs]
            if len(others) < FEWEST_PEERS:
                continue
            share = value / max(statistics.median(others), 1e-12)
            worst = share if worst is None else min(worst, share)
        if worst is not None:
            out[pair] = worst
    return out
