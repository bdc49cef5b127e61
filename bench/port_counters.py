"""The counters of a fleet in one process: seconds of one core per poll, and memory. Prints JSON lines.

python bench/port_counters.py [--nodes 3072] [--ports 8] [--polls 40]

Every port is busy (what rises in each poll on one: traffic, requests, waiting) and one in a hundred also counts errors.
25 counters per port, a poll of 10 s.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

from aegis_netmon import flaps, health
from aegis_netmon.series import TRAFFIC, Poll, Port, observe

NAMES = (
    *TRAFFIC,
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors"),
    *("port_xmit_discards", "port_xmit_wait", "VL15_dropped", "local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    *("packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err", "roce_adp_retrans", "rx_icrc_encapsulated"),
    *("unicast_xmit_packets", "unicast_rcv_packets", "rx_read_requests", "rx_write_requests"),
)
BUSY = frozenset((*TRAFFIC, "unicast_xmit_packets", "unicast_rcv_packets", "rx_read_requests", "rx_write_requests"))
"""Rise in every poll of a port that carries traffic; as does `port_xmit_wait`, which clamps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3072)
    parser.add_argument("--ports", type=int, default=8)
    parser.add_argument("--polls", type=int, default=40)
    given = parser.parse_args()
    guids = [f"0x{node:08x}{port:02x}" for node in range(given.nodes) for port in range(given.ports)]
    ports: dict[str, Port | None] = dict.fromkeys(guids)
    up = flaps.FlapVerdict("up")
    for number in range(given.polls):
        polls = [Poll(guid, 1, 10.0 * number, values(number, n % 100 == 0)) for n, guid in enumerate(guids)]
        begun = time.process_time()
        for poll in polls:
            ports[poll.guid] = observe(ports[poll.guid], poll)
        observed = time.process_time()
        alarms = sum(health.judge(port, up, gbps=425).state in ("watch", "degraded") for port in ports.values() if port is not None)
        judged = time.process_time()
        if number % 10 == 9:
            row = {
                "ports": len(guids),
                "counters": len(NAMES),
                "poll": number + 1,
                "observe_s": round(observed - begun, 2),
                "judge_s": round(judged - observed, 2),
                "alarms": alarms,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
            print(json.dumps(row), flush=True)


def values(number: int, sick: bool) -> dict[str, int | None]:
    """Counters of a port after so many polls, each dictionary its own as from a message."""
    return {name: count(name, number, sick) for name in NAMES}


def count(name: str, number: int, sick: bool) -> int:
    """One counter of a port after so many polls."""
    if name in BUSY:
        return number * 1_000_000_007
    if name == "port_xmit_wait":
        return number * 10_000_019
    return number * 100 if sick and name == "symbol_error" else 0


if __name__ == "__main__":
    main()
