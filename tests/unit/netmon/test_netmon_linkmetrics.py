"""Metrics of links: those with an alarm, by node and port, and gone when they are well."""

from __future__ import annotations

from aegis_netmon.expected import Seen
from aegis_netmon.hostpoll import NodePoll, PortPoll
from aegis_netmon.hosts import Hosts
from aegis_netmon.linkmetrics import LinkMetrics
from aegis_netmon.picture import JobUse, Picture
from aegis_netmon.series import Poll
from prometheus_client import CollectorRegistry, generate_latest


def poll(node: str, at: float, errors: int) -> NodePoll:
    guid = f"00000000000000{node[1:]:0>2}"
    seen = Seen(node, "mlx5_0", 1, True, "InfiniBand", 400.0)
    return NodePoll(node, at, 10.0, None, (PortPoll(seen, Poll(guid, 1, at, {"symbol_error": errors}), guid, "", None, ""),))


def test_a_bad_link_has_its_state_its_jobs_and_its_rate_by_node_and_port_and_a_healthy_one_nothing() -> None:
    picture = Picture(Hosts())
    picture.placed([JobUse("a-1", "default", ("n1", "n2"))])
    registry, active = CollectorRegistry(), True
    registry.register(LinkMetrics(picture, lambda: active))

    def shown() -> list[str]:
        return [line for line in generate_latest(registry).decode().split("\n") if line and not line.startswith("#")]

    now = 1_796_000_000.0
    for n in range(2):
        for node in ("n1", "n2", "n3"):
            picture.hosts.take(poll(node, now + 10 * n, 0))
    picture.round(now + 10)
    assert shown() == []
    picture.hosts.take(poll("n1", now + 20, 900))
    picture.round(now + 20)
    found = dict(line.rsplit(" ", 1) for line in shown())
    assert found['aegis_link_health{node="n1",port="mlx5_0/1",state="degraded"}'] == "1.0"
    assert found['aegis_link_jobs{node="n1",port="mlx5_0/1"}'] == "1.0"
    assert float(found['aegis_link_bit_error_ratio{node="n1",port="mlx5_0/1"}']) > 1e-12
    assert all('node="n1"' in name for name in found)
    active = False
    assert shown() == [], "one replica tells, and no other"
