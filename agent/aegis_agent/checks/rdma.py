"""Check `rdma`: the ports that should be here are, are active, run at their rate, and count no new errors while looked at.

No port and none expected: not applicable. What is expected is a set: one port too many is said, one too few fails. Without an expectation a port
that is down is a warning, since it may be unused. Reads sysfs, twice; writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from aegis_parsers.ib.live import PortReading, Reader
from aegis_parsers.ib.local import judge_port

from aegis_agent.checks.answer import Answer, run
from aegis_agent.checks.limits import limits
from aegis_agent.checks.settings import Settings

WINDOW = 1.0
"""Seconds between the two readings."""


def name(port: PortReading) -> str:
    return f"{port.device}/{port.port}"


def judge(answer: Answer, ports: Sequence[PortReading], settings: Settings) -> None:
    """State, rate and the expected set: pure."""
    active = {name(port): port.gbps or 0.0 for port in ports if (port.state or "").upper() == "ACTIVE"}
    for port in ports:
        if port.note:
            answer.note(f"{name(port)}: {port.note}")
        item = answer.draft.item(name(port), "port", state=port.state, phys_state=port.phys_state, lid=port.lid, link_layer=port.layer)
        if port.state is not None:
            judge_port(answer.draft, item, f"{port.state}, {port.phys_state}")
        elif not port.note and (not settings.ports or name(port) in settings.ports):
            answer.unread(f"{name(port)}: no state")
    if settings.ports:
        for wanted, gbps in settings.ports.items():
            if wanted not in active:
                seen = next((f"{port.state}, {port.phys_state}" for port in ports if name(port) == wanted), "not there")
                answer.finding("rdma_port_missing", "critical", wanted, f"expected active, is {seen}")
            elif active[wanted] < gbps:
                answer.finding("rdma_rate", "critical", wanted, f"{active[wanted]:g} of {gbps:g} Gb/s")
    elif settings.port_count is not None:
        good = [port for port, gbps in active.items() if gbps >= settings.port_rate]
        slow = sorted(set(active) - set(good))
        if len(good) < settings.port_count:
            lower = f"; slower: {', '.join(f'{port} {active[port]:g}' for port in slow)}" if slow else ""
            wanted = f"{settings.port_count} active ports of {settings.port_rate:g} Gb/s"
            answer.finding("rdma_port_missing", "critical", "node", f"{len(good)} of {wanted}{lower}")
        elif len(good) > settings.port_count:
            answer.finding("rdma_port_extra", "warning", "node", f"{len(good)} active ports, {settings.port_count} expected")
    elif len(rates := {port.gbps for port in ports if name(port) in active and port.layer == "InfiniBand" and port.gbps}) > 1:
        answer.note(f"InfiniBand ports of different rates: {', '.join(f'{rate:g}' for rate in sorted(rates))} Gb/s")


def judge_counters(answer: Answer, before: Sequence[PortReading], after: Sequence[PortReading], seconds: float) -> None:
    """What rose between two readings; a first count is a baseline. Pure."""
    old = {name(port): port.counters for port in before}
    for port in after:
        for counter, most in limits("rdma.counter").items():
            now, was = port.counters.get(counter), old.get(name(port), {}).get(counter)
            if now is not None and was is not None and now - was > most.value * seconds:
                answer.finding(f"rdma_{counter}", most.severity, name(port), f"{counter} rose by {now - was} in {seconds:.1f} s")


def examine(answer: Answer, settings: Settings, context: dict[str, Any]) -> str:
    reader = Reader(settings.under("sys/class/infiniband"), settings.exclude_ports)
    ports, began = reader.poll(), time.monotonic()
    answer.values["ports"] = float(len(ports))
    if not ports and not settings.ports and not settings.port_count:
        return "not applicable: no RDMA adapter here, none expected"
    judge(answer, ports, settings)
    if ports:
        time.sleep(WINDOW)
        # Only counters of the second reading: a port whose counters all fail is left alone in it.
        judge_counters(answer, ports, reader.poll(), time.monotonic() - began)
    return f"{len(ports)} ports: " + ", ".join(f"{name(port)} {port.state or 'unknown'} {port.gbps or 0:g} Gb/s" for port in ports[:16])


if __name__ == "__main__":
    run("rdma", examine)
