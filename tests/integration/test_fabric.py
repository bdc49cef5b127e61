"""A simulated fabric of 16 hosts, read by the real tools: what goes wrong is found on the right port and side within two polls, nothing else is.

Fifty quiet polls: `test_fabric_service`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aegis_netmon.fabricpoll import Reading
from aegis_netmon.health import Finding
from aegis_netmon.watch import ALARMS, LinkVerdict, Watch, step
from harness.waiting import until_sync
from support import ibsim

POLL = 30.0
"""Seconds between polls, in the fabric's own time: the tests do not wait."""
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(ibsim.missing()), reason=f"NO FABRIC: {', '.join(ibsim.missing())} missing (ibsim-utils, opensm, infiniband-diags)"),
]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ibsim.SimFabric]:
    with ibsim.fabric(tmp_path_factory.mktemp("fabric")) as made:
        yield made


class Eyes:
    """A watch that polls when it is told to."""

    def __init__(self, fabric: ibsim.SimFabric) -> None:
        self.fabric, self.watch, self.polls = fabric, Watch(), 0

    def poll(self) -> dict[str, LinkVerdict]:
        """One poll: the links that alarm, by the port that is named. While the subnet manager brings a link back, a tool can die of what it reads
        (ibqueryerrors does, with SIGSEGV): such a sweep says so, and is made again."""

        def swept() -> Reading | None:
            made = self.fabric.reader.read(self.polls * POLL)
            return None if any("ended with -" in why for why in made.partial) else made

        reading = until_sync(swept, 30.0, "a sweep in which no tool dies")
        assert not reading.partial
        self.polls += 1
        self.watch, verdicts = step(self.watch, reading)
        return {verdict.end: verdict for verdict in verdicts if verdict.state in ALARMS}

    def within_two_polls(self) -> dict[str, LinkVerdict]:
        return self.poll() or self.poll()

    def until_up(self) -> dict[str, LinkVerdict]:
        """Polls until no link is down any more."""
        for _ in range(5):
            found = self.poll()
            if not any(each.code == "link_down" for verdict in found.values() for each in verdict.findings):
                return found
        raise AssertionError("a link stays down")


@pytest.fixture
def eyes(fabric: ibsim.SimFabric) -> Eyes:
    """A fresh watch with its baseline and one quiet poll."""
    made = Eyes(fabric)
    made.poll()
    assert not made.poll()
    return made


def finding(verdict: LinkVerdict, code: str) -> Finding:
    return next(each for each in verdict.findings if each.code == code)


def test_symbol_errors_are_found_on_their_port_and_blamed_on_the_other_side(eyes: Eyes) -> None:
    eyes.fabric.set("leaf2", 5, "SymbolErrorCounter", 900)
    found = eyes.within_two_polls()
    assert list(found) == ["leaf2 port 5"]
    verdict = found["leaf2 port 5"]
    assert verdict.state == "degraded"
    assert verdict.at_fault == "spine1 port 3"
    assert "rose by 900" in finding(verdict, "symbol_errors").story


def test_errors_at_a_host_are_its_leaf_s_transmitter(eyes: Eyes) -> None:
    eyes.fabric.set("node06 mlx5_0", 1, "PortRcvErrors", 17)
    found = eyes.within_two_polls()
    assert list(found) == ["node06 mlx5_0 port 1"]
    assert found["node06 mlx5_0 port 1"].at_fault == "leaf2 port 2"


def test_errors_at_both_ends_are_the_cable(eyes: Eyes) -> None:
    eyes.fabric.set("leaf1", 6, "SymbolErrorCounter", 500)
    eyes.fabric.set("spine1", 2, "SymbolErrorCounter", 400)
    eyes.poll()
    found = eyes.poll()
    assert list(found) == ["leaf1 port 6"]
    assert found["leaf1 port 6"].side.suspect == "cable"


def test_a_counter_that_reaches_its_cap_says_at_least(eyes: Eyes) -> None:
    eyes.fabric.set("leaf3", 7, "SymbolErrorCounter", 70_000)
    found = eyes.within_two_polls()
    assert list(found) == ["leaf3 port 7"]
    assert "rose by at least 65535" in finding(found["leaf3 port 7"], "symbol_errors").story
    assert finding(found["leaf3 port 7"], "counter_saturated").severity == "info"


def test_a_burst_of_drops_is_found(eyes: Eyes) -> None:
    eyes.fabric.set("leaf3", 5, "PortXmitDiscards", 5000)
    found = eyes.within_two_polls()
    assert list(found) == ["leaf3 port 5"]
    assert finding(found["leaf3 port 5"], "drops_burst").value == 5000


def test_a_link_that_went_down_between_two_polls_is_told(eyes: Eyes) -> None:
    eyes.fabric.set("leaf4", 8, "LinkDownedCounter", 1)
    found = eyes.within_two_polls()
    assert list(found) == ["leaf4 port 8"]
    assert {"link_went_down", "link_was_down"} <= {each.code for each in found["leaf4 port 8"].findings}


def test_a_dead_link_is_down_and_a_link_that_comes_and_goes_flaps(eyes: Eyes) -> None:
    states = []
    for _ in range(3):
        eyes.fabric.unlink("leaf1", 8)
        dead = eyes.within_two_polls()
        states += [verdict.state for verdict in dead.values()]
        assert {(verdict.a, verdict.b) for verdict in dead.values()} == {("spine2 port 2", "leaf1 port 8")}
        eyes.fabric.relink("leaf1", 8)
        states += [verdict.state for verdict in eyes.until_up().values()]
    assert states == ["down", "watch", "down", "watch", "flapping", "flapping"]
