"""What a detector gets: exposure and failures per node over a window, as arrays. Reads a `History`; time is an argument."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .coalesce import GAP, Failure, episodes, share_common
from .schema import SIGNALS, HistoryError
from .store import History

DAY = 86_400.0
WINDOW, RECENT, REPEAT = 28 * DAY, 7 * DAY, 5.0
"""Rolling window and its recent part (the specification's 28 and 7 days); identical XIDs closer than five seconds are one (Delta, SC'25)."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Blame:
    """Failures that no node is named for: the nodes of job k are `node[start[k]:start[k+1]]`."""

    start: Ints
    node: Ints
    causes: tuple[str, ...] = ()
    """Of each job, as `Failure.cause`."""

    @classmethod
    def none(cls) -> Blame:
        return cls(np.zeros(1, np.int64), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.start) - 1


@dataclass(frozen=True)
class Observed:
    """N nodes. Exposure is node-days in jobs (calendar days in service when the history has no jobs); failures are episodes."""

    names: list[str]
    exposure: Floats
    hard: Floats
    recent: Floats
    """Failures that name the node, and those of the recent part of the window."""
    blame: Blame
    signals: dict[str, Floats]
    recent_signals: dict[str, Floats]
    """The same seven over the recent part."""
    role: list[str]
    rack: list[str]
    switch: list[str]
    users: list[set[str]]
    families: list[set[str]]
    """Who was hit by the failures that name the node; empty where the history does not say."""
    episodes: list[Failure] = field(default_factory=list)
    probation: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    user_share: dict[str, float] = field(default_factory=dict)
    family_share: dict[str, float] = field(default_factory=dict)
    """Share of the window's node-days in jobs, by user and by family."""
    now: float = 0.0
    window: float = WINDOW
    by_calendar: bool = False

    @classmethod
    def of_counts(cls, hard: Any, exposure: Any, **more: Any) -> Observed:
        """From counts alone."""
        count = np.asarray(hard, float)
        n = len(count)
        zero: dict[str, Floats] = {name: np.zeros(n) for name in SIGNALS}
        filled = {
            "names": [f"n{i}" for i in range(n)], "recent": np.zeros(n), "blame": Blame.none(), "signals": zero, "recent_signals": zero,
            "role": [""] * n, "rack": [""] * n, "switch": [""] * n, "users": [set() for _ in range(n)], "families": [set() for _ in range(n)],
            "probation": np.zeros(n, np.bool_),
        }  # fmt: skip
        return cls(hard=count, exposure=np.asarray(exposure, float), **{**filled, **more})


def observe(history: History, window: float = WINDOW, now: float | None = None, recent: float = RECENT, gap: float = GAP) -> Observed:
    """The window that ends `now`, seconds since 1970; without it, with the last thing that began in the history (jobs are then seen to their end)."""
    if not window > 0 or not recent > 0:
        raise HistoryError(f"window {window:g} s, recent {recent:g} s: expected more than 0")
    end, see = (history.last, float("inf")) if now is None else (now, now)
    low = end - window
    n = len(history.names)
    fixed = history.rows_of("SELECT role, rack, switch, serial, since, until FROM nodes ORDER BY node")
    repaired, probation = _repairs(history, n, [row[3] for row in fixed], end, window)
    exposure, by_calendar = _exposure(history, fixed, repaired, (low, end, see))
    outages: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for node, t, until in history.rows_of("SELECT node, t, until FROM events WHERE kind IN ('out', 'outage') AND t <= ?", [see]):
        outages[node].append((t, until))
    found = share_common(episodes(_failures(history, repaired, see), outages, gap), [row[1] or row[2] for row in fixed])
    found = [failure for failure in found if failure.time >= low]
    hard, new = np.zeros(n), np.zeros(n)
    users: list[set[str]] = [set() for _ in range(n)]
    families: list[set[str]] = [set() for _ in range(n)]
    for failure in found:
        hard[failure.node] += failure.weight
        new[failure.node] += failure.weight * (failure.time >= end - recent)
        users[failure.node] |= {failure.user} - {""}
        families[failure.node] |= {failure.family} - {""}
    latest = [failure for failure in found if failure.time >= end - recent]
    return Observed(
        history.names,
        exposure,
        hard,
        new,
        _blame(history, repaired, (low, see)),
        _signals(history, found, repaired, (low, see)),
        _signals(history, latest, repaired, (end - recent, see)),
        role=[row[0] for row in fixed],
        rack=[row[1] for row in fixed],
        switch=[row[2] for row in fixed],
        users=users,
        families=families,
        episodes=found,
        probation=probation,
        user_share=_shares(history, "user", low, see),
        family_share=_shares(history, "family", low, see),
        now=end,
        window=window,
        by_calendar=by_calendar,
    )


def _repairs(history: History, n: int, serials: list[str], now: float, window: float) -> tuple[Floats, NDArray[np.bool_]]:
    """When each node was last repaired (-inf: never), and who is on probation for a window: the slot, and wherever the serial that left is now."""
    repaired, probation = np.full(n, -np.inf), np.zeros(n, np.bool_)
    for node, t, serial in history.rows_of("SELECT node, t, value FROM events WHERE kind = 'repair' AND t <= ? ORDER BY t", [now]):
        repaired[node] = t
        if t >= now - window:
            probation[node] = True
            for other in (index for index, present in enumerate(serials) if serial and present == serial):
                probation[other] = True
    return repaired, probation


def _exposure(history: History, fixed: list[Any], repaired: Floats, span: tuple[float, float, float]) -> tuple[Floats, bool]:
    low, end, see = span
    n = len(history.names)
    exposure = np.zeros(n)
    _put_repaired(history, repaired)
    rows = history.columns_of(
        """SELECT n.node, sum(least(j.e, ?) - greatest(j.s, ?, r.t)) / 86400 AS days
           FROM jobs j JOIN job_nodes n USING (id) JOIN repaired r USING (node)
           WHERE j.e > greatest(?, r.t) AND j.s < ? GROUP BY n.node""",
        [see, low, low, see],
    )
    if history.rows["jobs"]:
        exposure[rows["node"]] = rows["days"]
        return exposure, False
    for node, (*_, since, until) in enumerate(fixed):
        begin = max(low, since if since is not None else history.first, repaired[node])
        exposure[node] = max(0.0, min(end, until if until is not None else end) - begin) / DAY
    return exposure, True


def _shares(history: History, column: str, low: float, see: float) -> dict[str, float]:
    rows = history.rows_of(
        f'SELECT "{column}", sum((least(e, ?) - greatest(s, ?)) * count) FROM jobs WHERE e > ? AND s < ? GROUP BY "{column}"', [see, low, low, see]
    )  # fmt: skip
    total = sum(value for _, value in rows)
    return {name: value / total for name, value in rows if name and total > 0}


def _put_repaired(history: History, repaired: Floats) -> None:
    chunk = {"node": np.arange(len(repaired), dtype=np.int32), "t": repaired}  # noqa: F841 - read by the engine under its name
    history.db.execute("CREATE OR REPLACE TEMP TABLE repaired AS SELECT * FROM chunk")


def _failures(history: History, repaired: Floats, see: float) -> list[Failure]:
    jobs = history.rows_of(
        'SELECT blame, e, count, "user", family, cause, s FROM jobs WHERE failure = \'infra\' AND blame >= 0 AND e <= ? ORDER BY e, id', [see]
    )  # fmt: skip
    found = [
        Failure(node, t, "single" if count == 1 else "multi", user, family, cause=cause, began=began)
        for node, t, count, user, family, cause, began in jobs
        if t > repaired[node]
    ]
    nodes = history.rows_of("SELECT node, t, \"value\" FROM events WHERE kind IN ('failure', 'outage') AND t <= ? ORDER BY t, id", [see])
    return found + [Failure(node, t, cause=cause) for node, t, cause in nodes if t > repaired[node]]


def _blame(history: History, repaired: Floats, span: tuple[float, float]) -> Blame:
    low, see = span
    rows = history.columns_of(
        """SELECT j.id, n.node, j.e FROM jobs j JOIN job_nodes n USING (id) WHERE j.failure = 'infra' AND j.blame < 0 AND j.e >= ? AND j.e <= ?
           ORDER BY j.id, n.node""",
        [low, see],
    )
    if not len(rows["id"]):
        return Blame.none()
    keep = rows["e"] > repaired[rows["node"]]
    ids, nodes = rows["id"][keep].astype(np.int64), rows["node"][keep].astype(np.int64)
    start = np.flatnonzero(np.diff(ids, prepend=-1))
    told = dict(history.rows_of("SELECT id, cause FROM jobs WHERE failure = 'infra' AND blame < 0"))
    return Blame(np.append(start, len(ids)).astype(np.int64), nodes, tuple(told[int(ids[index])] for index in start))


def _signals(history: History, found: list[Failure], repaired: Floats, span: tuple[float, float]) -> dict[str, Floats]:
    low, see = span
    n = len(history.names)
    made = {name: np.zeros(n) for name in SIGNALS}

    def count(name: str, sql: str) -> None:
        for node, value in history.rows_of(sql, [low, see]):
            made[name][node] = value

    live = "JOIN repaired r USING (node) WHERE x.t > r.t AND x.t >= ? AND x.t <= ?"
    count("excl_jobid_count", f"SELECT node, count(DISTINCT job) FROM excluded x {live} GROUP BY node")
    count("tickets", f"SELECT node, count(*) FROM events x {live} AND kind = 'ticket' GROUP BY node")
    before = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    outs = f"SELECT node, t, max(until) OVER (PARTITION BY node ORDER BY t, id {before}) AS busy FROM events"
    count(
        "out_count", f"SELECT node, count(*) FROM ({outs} WHERE kind IN ('out', 'outage')) x {live} AND (busy IS NULL OR x.t >= busy) GROUP BY node"
    )
    xids = 'SELECT node, t, t - lag(t, 1, -1e18) OVER (PARTITION BY node, "value" ORDER BY t, id) AS since FROM events WHERE hardware'
    count("xid_cnt", f"SELECT node, count(*) FROM ({xids}) x {live} AND since >= {REPEAT} GROUP BY node")
    for failure in found:
        if failure.kind != "node":
            made[f"{failure.kind}_node_node_fails"][failure.node] += 1
    ended = np.zeros(n)
    single = "SELECT node, j.e AS t FROM jobs j JOIN job_nodes USING (id) WHERE j.count = 1 AND NOT j.running"
    for node, value in history.rows_of(f"SELECT node, count(*) FROM ({single}) x {live} GROUP BY node", [low, see]):
        ended[node] = value
    made["single_node_node_failure_rate"] = np.divide(made["single_node_node_fails"], ended, out=np.zeros(n), where=ended > 0)
    return made
