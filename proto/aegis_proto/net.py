"""What node daemons tell of their ports (`aegis.net.<n>.counter`, stream METRICS), and questions about links (`aegis.rpc.netmon.query.>`).

Reads and writes nothing. Which node tells is said by the subject, never by the body: it is proved by the daemon's rights.

| subject | who | request | reply |
|---|---|---|---|
| aegis.rpc.netmon.query.links[.<ns>] | reader | LinksQuery | LinksAnswer |
| aegis.rpc.netmon.query.link[.<ns>] | reader | LinkQuery | LinkAnswer |
| aegis.rpc.netmon.query.job[.<ns>] | reader | JobLinksQuery | JobLinksAnswer |
| aegis.rpc.netmon.query.sample[.<ns>] | reader | SampleQuery | SampleAnswer |
"""

from __future__ import annotations

import re

import msgspec

from aegis_proto import WIRE_VERSION
from aegis_proto.messages import Number

SERVICE = "netmon"
ABSENT = -1
"""In `PortCounts.values`: this port has no such counter."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Of a device or a counter, whole. Others are not told: they would cost the message."""
MOST_PORTS, MOST_NAMES = 256, 256
"""Of a message."""


class Optics(msgspec.Struct, frozen=True, omit_defaults=True):
    """What mlxlink says of one port, in the words of `aegis_parsers.ib.mlxlink`; None where it does not. `at`: when it was read, ms."""

    at: Number = 0
    minutes: float | None = None  # since its counters were cleared
    gbps: float | None = None  # on the wire
    rawBer: float | None = None
    effectiveBer: float | None = None
    symbolBer: float | None = None
    effectiveErrors: float | None = None
    symbolErrors: float | None = None
    lanes: tuple[int | None, ...] = ()  # raw errors per lane
    fec: dict[str, int] = {}  # corrected symbols -> code words
    temperature: float | None = None
    findings: tuple[str, ...] = ()  # of the module and the tool's own advice, a sentence each
    lastBin: int | None = None  # how many symbols of a code word its FEC corrects


class PortCounts(msgspec.Struct, frozen=True, array_like=True):
    """One port of a node. Array-encoded: the order of the fields is the wire format; only append. None: could not be read."""

    device: str
    port: int
    guid: str = ""  # 16 hex digits; "" where the driver has none (RoCE, software)
    state: str | None = None  # ACTIVE, DOWN, ...
    gbps: float | None = None
    layer: str = ""  # InfiniBand, Ethernet, OmniPath
    load: int = 0  # of the driver: another number is another load, whose counters start anew
    values: tuple[int | None, ...] = ()  # in the order of `NodePorts.names`; ABSENT: has none
    note: str = ""  # why it was not read
    optics: Optics | None = None  # only when it is new
    firmware: str = ""


class NodePorts(msgspec.Struct, frozen=True, omit_defaults=True):
    """All ports of a node at one poll, whole. `names`: counters in the names of sysfs. `booted`: when the machine started, ms. `settings`: NCCL's of
    the jobs that run here, by job: nothing else of their environment. `excluded`: devices that are there and are not opened."""

    boot: str
    at: Number
    names: tuple[str, ...] = ()
    ports: tuple[PortCounts, ...] = ()
    booted: Number = 0
    every: float = 10.0  # seconds between polls
    settings: dict[str, dict[str, str]] = {}
    excluded: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class KeptHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """KEPT `aegis.kept.netmon.head`: which generation of what is remembered is whole. Its pieces are `aegis.kept.netmon.<a|b><n>`, in turn."""

    era: str
    replica: str
    generation: int
    pieces: int
    size: int
    sha256: str
    at: Number = 0  # ms
    v: int = WIRE_VERSION


# --- questions -----------------------------------------------------------------------------------------------------------------


class LinksQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.links`: alarms first, then by name. `bad`: alarms only; `job`: those it may use; `by` traffic | errors: the busiest, or worst, first."""

    bad: bool = False
    job: str = ""
    by: str = ""
    after: str = ""  # id of the last link of the page before
    limit: int = 200
    v: int = WIRE_VERSION


class FindingInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a link is not called healthy: `story` is what its counter did, `source` whose limit it reached."""

    code: str
    severity: str
    story: str
    end: str = ""
    source: str = ""


class TouchedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job on a link. Not `certain`: it may use it (adaptive routing, or routes that are not known)."""

    job: str
    certain: bool = True


class LinkInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A link as `aegis net ls` shows it, or a host's port whose other end is not known (`b` empty). Rates are over the last minutes.

    `state`: healthy | unproven | watch | degraded | flapping | down | unknown. `suspect`: what to look at first, by name.
    """

    link: str
    state: str
    a: str
    b: str = ""
    guidA: str = ""
    guidB: str = ""
    tier: int = -1  # 0 host to leaf, 1 leaf to spine ...; -1 not known
    gbps: float = 0.0
    end: str = ""  # the end whose counters say so
    suspect: str = ""
    reason: str = ""  # why that one
    ber: float | None = None
    berHigh: float | None = None  # what the bits seen still allow (95 %)
    retransmits: float = 0.0  # per second
    drops: float = 0.0  # per second
    errors: int = 0  # receive errors of both ends in the window
    flaps: int = 0
    sendGbps: float = 0.0  # a to b
    receiveGbps: float = 0.0
    jobs: tuple[TouchedJob, ...] = ()
    findings: tuple[FindingInfo, ...] = ()
    nodes: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()  # host, fabric: who reads its counters
    since: Number = 0  # ms, of the state


class RoutingInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Adaptive routing: on | off | unknown, never without its source and reason. `uplinks`: per leaf how evenly its uplinks are used."""

    state: str = "unknown"
    switches: int | None = None
    of: int | None = None
    source: str = ""
    reason: str = ""
    timeStamp: Number = 0  # ms
    levels: dict[str, str] = {}  # service level -> on | off, where hosts' masks are known
    uplinks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    off: tuple[str, ...] = ()  # switches on which it is off, where they can be told apart


class InventoryInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Firmware: device family -> version -> how many; devices that differ from most of their family, and those not known to support AR."""

    versions: dict[str, dict[str, int]] = {}
    odd: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    missing: str = ""


class FabricInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is read and what is not. `swept`: the last sweep of the fabric, ms (0: none); `partial`: what was missing in it."""

    collector: str = ""
    swept: Number = 0
    sweepSeconds: float = 0.0
    partial: tuple[str, ...] = ()
    why: str = ""  # why there is no fabric side
    nodes: int = 0
    ports: int = 0
    silent: tuple[str, ...] = ()  # nodes whose daemon told nothing lately
    unread: tuple[str, ...] = ()  # ports that are not read, with the reason
    links: int = 0
    alarms: int = 0
    common: str = ""  # what the failures of the last weeks have in common
    cards: tuple[str, ...] = ()  # line cards (or switches) that dropped packets in the window, with how many, most first
    sensors: tuple[str, ...] = ()  # fans and temperatures of switches and line cards that are far from their usual


class LinksAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    links: tuple[LinkInfo, ...] = ()
    total: int = 0
    more: bool = False
    fabric: FabricInfo = FabricInfo()
    routing: RoutingInfo = RoutingInfo()
    inventory: InventoryInfo = InventoryInfo()
    timeStamp: Number = 0  # ms
    v: int = WIRE_VERSION


class LinkQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.link`: by id, or by an end as people write it ("leaf2 port 5", "n1 mlx5_0", a GUID)."""

    link: str
    v: int = WIRE_VERSION


class CounterRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One series. `state`: baseline | counting | reset | saturated | unknown; `rose` within the window, of `seconds`."""

    end: str
    name: str
    bits: int
    state: str
    value: int | None = None
    rose: int = 0
    seconds: float = 0.0
    unit: str = ""
    meaning: str = ""


class LinkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`others`: more links that the name fits; the first is shown."""

    link: LinkInfo
    counters: tuple[CounterRow, ...] = ()
    dips: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class JobLinksQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.job`: what a job uses of the network."""

    job: str
    v: int = WIRE_VERSION


class JobLinksAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`exact`: no more links than these; else every shortest path counts. `settings`: NCCL's settings of the job against the fabric."""

    job: str
    nodes: tuple[str, ...] = ()
    links: tuple[LinkInfo, ...] = ()
    total: int = 0
    exact: bool = False
    absent: tuple[str, ...] = ()  # nodes of the job that are not in the fabric's graph
    settings: tuple[str, ...] = ()
    routing: RoutingInfo = RoutingInfo()
    timeStamp: Number = 0  # ms
    failures: tuple[str, ...] = ()  # what its ports say of its last failures, a sentence each
    v: int = WIRE_VERSION


class SampleQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """`query.sample`: what the ports of these nodes counted within the window; without nodes, of all."""

    nodes: tuple[str, ...] = ()
    v: int = WIRE_VERSION


class SampleAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sums over `ports` ports and `seconds` of window: before and after a change of routing these are compared."""

    ports: int = 0
    seconds: float = 0.0
    packets: int = 0
    retransmits: int = 0
    drops: int = 0
    bits: int = 0
    bitErrors: int = 0
    silent: tuple[str, ...] = ()  # asked for, and not heard of
    timeStamp: Number = 0  # ms
    v: int = WIRE_VERSION
