"""The tables of one history in DuckDB, checked: jobs, their nodes, events, nodes. Owns the connection; rebuilt from files at any time.

jobs(id, job, s, e, count, failure, blame, user, family, cause)     s, e in seconds since 1970; blame is a node's index, -1 unknown
job_nodes(id, node)    excluded(job, node, t)    events(id, t, node, kind, until, value, job, critical)    nodes(node, name, role, rack, ...)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
from aegis_parsers.kernel import rules

from .schema import AFTER_END, BEFORE_END, EARLIEST, FAILURES, KINDS, LATEST, STATES, TABLES, HistoryError, Problem

FILE = 10**12
"""More lines than a file has."""
KEPT = 1000
"""Problems that are kept with their text; all are counted."""

_CHECK_JOBS = f"""
CREATE TABLE checked AS
WITH read AS (
  SELECT line, trim(job) job, seconds(start) s, CASE WHEN coalesce(trim("end"), '') IN ('', 'Unknown') THEN NULL ELSE seconds("end") END e,
         coalesce(trim("end"), '') IN ('', 'Unknown') AS open, start AS start_text, "end" AS end_text, nodes AS nodes_text,
         list_distinct(list_filter(string_split(replace(coalesce(nodes, ''), ' ', ''), ';'), lambda x: x <> '')) AS members,
         lower(trim(coalesce(state, ''))) state, lower(trim(coalesce(failure, ''))) failure, trim(coalesce(blame, '')) blame,
         trim(coalesce("user", '')) AS "user", trim(coalesce(family, '')) family, trim(coalesce(cause, '')) cause,
         list_distinct(list_filter(string_split(replace(coalesce(excluded, ''), ' ', ''), ';'), lambda x: x <> '')) AS excluded
  FROM raw_jobs)
SELECT *, CASE
  WHEN coalesce(job, '') = '' THEN 'no job id'
  WHEN s IS NULL THEN 'start "' || coalesce(start_text, '') || '": expected seconds since 1970 or ISO 8601'
  WHEN NOT open AND e IS NULL THEN 'end "' || end_text || '": expected seconds since 1970 or ISO 8601, or empty while it runs'
  WHEN e < s THEN 'the clock went backwards: ends ' || round(s - e, 1) || ' s before it starts'
  WHEN len(members) = 0 THEN 'no nodes'
  WHEN state NOT IN ({", ".join(f"'{s}'" for s in STATES)}) THEN 'state "' || state || '" is not known'
  WHEN failure NOT IN ('', {", ".join(f"'{s}'" for s in FAILURES)}) THEN 'failure "' || failure || '": expected {", ".join(FAILURES)}, or empty'
  WHEN blame <> '' AND NOT list_contains(members, blame) THEN 'blames ' || blame || ', which is not among its nodes'
  WHEN row_number() OVER (PARTITION BY job, start_text, nodes_text ORDER BY line) > 1 THEN 'repeats an earlier row'
END reason FROM read
"""

_CHECK_EVENTS = f"""
CREATE TABLE checked AS
WITH read AS (
  SELECT line, seconds("time") t, "time" AS time_text, trim(coalesce(node, '')) node, lower(trim(coalesce(kind, ''))) kind,
         CASE WHEN coalesce(trim("end"), '') IN ('', 'Unknown') THEN NULL ELSE seconds("end") END until,
         coalesce(trim("end"), '') IN ('', 'Unknown') AS open, "end" AS end_text, trim(coalesce("value", '')) AS "value", trim(coalesce(job, '')) job
  FROM raw_events)
SELECT *, CASE
  WHEN t IS NULL THEN 'time "' || coalesce(time_text, '') || '": expected seconds since 1970 or ISO 8601'
  WHEN node = '' THEN 'no node'
  WHEN kind NOT IN ({", ".join(f"'{k}'" for k in KINDS)}) THEN 'kind "' || kind || '": expected one of {", ".join(KINDS)}'
  WHEN NOT open AND until IS NULL THEN 'end "' || end_text || '": expected seconds since 1970 or ISO 8601, or empty while it lasts'
  WHEN until < t THEN 'the clock went backwards: ends ' || round(t - until, 1) || ' s before it starts'
  WHEN kind = 'xid' AND TRY_CAST("value" AS INTEGER) IS NULL THEN 'value "' || "value" || '": expected the number of an XID'
  WHEN kind = 'exclude' AND job = '' THEN 'no job that excludes it'
END reason FROM read
"""

_CHECK_NODES = """
CREATE TABLE checked AS
WITH read AS (SELECT line, trim(coalesce(node, '')) node, trim(coalesce(role, '')) role, trim(coalesce(rack, '')) rack,
         trim(coalesce(switch, '')) switch, trim(coalesce(serial, '')) serial, seconds(since) since, seconds(until) until,
         since AS since_text, until AS until_text FROM raw_nodes)
SELECT *, CASE
  WHEN node = '' THEN 'no node'
  WHEN since IS NULL AND coalesce(trim(since_text), '') <> '' THEN 'since "' || since_text || '": expected seconds since 1970 or ISO 8601'
  WHEN until IS NULL AND coalesce(trim(until_text), '') <> '' THEN 'until "' || until_text || '": expected seconds since 1970 or ISO 8601'
  WHEN until < since THEN 'the clock went backwards: leaves before it comes'
  WHEN row_number() OVER (PARTITION BY node ORDER BY line) > 1 THEN 'is listed twice'
END reason FROM read
"""

_ATTRIBUTE = f"""
UPDATE jobs SET failure = 'infra', blame = found.node FROM (
  SELECT j.id, arg_min(e.node, e.t) node FROM jobs j JOIN job_nodes n USING (id) JOIN events e ON e.node = n.node AND e.critical
  WHERE j.blame < 0 AND j.failure IN ('unknown', 'infra') AND e.t BETWEEN j.e - {BEFORE_END} AND j.e + {AFTER_END} GROUP BY j.id) found
WHERE jobs.id = found.id
"""
_EXPLAIN = f"""
UPDATE jobs SET cause = found.told FROM (
  SELECT j.id, arg_min(CASE WHEN e.kind = 'xid' THEN 'xid ' || e."value" ELSE e."value" END, e.t) told
  FROM jobs j JOIN events e ON e.node = j.blame AND e.critical
  WHERE j.failure = 'infra' AND j.cause = '' AND e."value" <> '' AND e.t BETWEEN j.e - {BEFORE_END} AND j.e + {AFTER_END} GROUP BY j.id) found
WHERE jobs.id = found.id
"""


@dataclass
class History:
    """One history. `problems` holds the first rows that were left out, `left_out` counts all of them; `rows` the ones kept, by table."""

    db: duckdb.DuckDBPyConnection
    names: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    left_out: int = 0
    notes: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    """Earliest and latest moment at which anything began, seconds since 1970."""

    @classmethod
    def empty(cls) -> History:
        """With raw tables that nothing was put into yet."""
        db = duckdb.connect(config={"threads": 2, "memory_limit": "1GB", "autoinstall_known_extensions": False})
        db.execute(f"""CREATE MACRO seconds(x) AS CASE
            WHEN coalesce(TRY_CAST(x AS DOUBLE), epoch(TRY_CAST(x AS TIMESTAMPTZ))) BETWEEN {EARLIEST} AND {LATEST}
            THEN coalesce(TRY_CAST(x AS DOUBLE), epoch(TRY_CAST(x AS TIMESTAMPTZ))) END""")
        for name, table in TABLES.items():
            columns = ", ".join(f'"{column}" VARCHAR' for column in table.columns)
            db.execute(f"CREATE TABLE raw_{name} (line BIGINT, {columns})")
        return cls(db)

    def add(self, table: str, lines: Sequence[int], columns: dict[str, Sequence[str | None]]) -> None:
        """Rows as columns of text; a column that is absent is empty."""
        chunk: dict[str, Any] = {"line": np.asarray(lines, np.int64) + self.base}
        chunk |= {name: np.asarray(values, object) for name, values in columns.items()}
        listed = ", ".join(f'"{name}"' for name in chunk)
        self.db.execute(f"INSERT INTO raw_{table} ({listed}) SELECT {listed} FROM chunk")

    def source(self, name: str) -> None:
        """What is added from now on comes from this file."""
        self.sources.append(name)

    @property
    def base(self) -> int:
        """Added to the lines of the present file, so that a row is known by its number among all files."""
        return max(0, len(self.sources) - 1) * FILE

    def problem(self, file: str, line: int, text: str) -> None:
        """Count a row that is left out."""
        self.left_out += 1
        if len(self.problems) < KEPT:
            self.problems.append(Problem(file, line, text))

    def rows_of(self, sql: str, parameters: Iterable[object] = ()) -> list[tuple[Any, ...]]:
        """Result of a query."""
        return self.db.execute(sql, list(parameters)).fetchall()

    def columns_of(self, sql: str, parameters: Iterable[object] = ()) -> dict[str, np.ndarray[Any, Any]]:
        """Result of a query as arrays; no value is masked."""
        found: dict[str, np.ndarray[Any, Any]] = self.db.execute(sql, list(parameters)).fetchnumpy()
        return found

    def build(self, files: dict[str, str]) -> None:
        """Check every row, number the nodes, attribute failures. `files` names the file of each table, for messages."""
        checked = {"jobs": _CHECK_JOBS, "events": _CHECK_EVENTS, "nodes": _CHECK_NODES}
        for table, sql in checked.items():
            self.db.execute(sql)
            self.db.execute(f"DROP TABLE raw_{table}")
            for line, reason in self.rows_of("SELECT line, reason FROM checked WHERE reason IS NOT NULL ORDER BY line"):
                at, number = divmod(int(line), FILE)
                self.problem(self.sources[at] if at < len(self.sources) else files.get(table, table), number, reason)
            self.db.execute(f"CREATE TABLE good_{table} AS SELECT * EXCLUDE (reason) FROM checked WHERE reason IS NULL ORDER BY line")
            self.db.execute("DROP TABLE checked")
            self.rows[table] = int(self.rows_of(f"SELECT count(*) FROM good_{table}")[0][0])
        if not self.rows["jobs"] and not self.rows["events"]:
            shown = "; ".join(str(problem) for problem in self.problems[:3])
            raise HistoryError(
                "the history holds no job and no event" + (f" that can be used ({self.left_out} rows left out: {shown})" if shown else "")
            )
        self._number_nodes(files)
        self._tables()
        self.problems.sort(key=lambda problem: (problem.file, problem.line))
        first, last = self.rows_of("SELECT min(t), max(t) FROM (SELECT s t FROM jobs UNION ALL SELECT t FROM events)")[0]
        self.first, self.last = float(first), float(last)

    def _number_nodes(self, files: dict[str, str]) -> None:
        self.db.execute("""CREATE TABLE nodes AS SELECT CAST(row_number() OVER (ORDER BY name) - 1 AS INTEGER) node, name,
            coalesce(role, '') role, coalesce(rack, '') rack, coalesce(switch, '') switch, coalesce(serial, '') serial, since, until
            FROM (SELECT DISTINCT unnest(members) AS name FROM good_jobs UNION SELECT node FROM good_events UNION SELECT node FROM good_nodes)
            LEFT JOIN (SELECT node AS name, role, rack, switch, serial, since, until FROM good_nodes) USING (name)""")
        self.names = [row[0] for row in self.rows_of("SELECT name FROM nodes ORDER BY node")]
        if self.rows["nodes"]:
            strangers = self.rows_of("SELECT name FROM nodes WHERE name NOT IN (SELECT node FROM good_nodes) ORDER BY name")
            if strangers:
                some = ", ".join(row[0] for row in strangers[:5]) + (", ..." if len(strangers) > 5 else "")
                self.notes.append(f"{len(strangers)} nodes are not in {files.get('nodes', 'nodes')}: {some}; they are ranked without role and rack")

    def _tables(self) -> None:
        states = ", ".join(f"('{state}', '{failure}')" for state, failure in STATES.items())
        hardware = ", ".join(str(code) for code, row in rules().items() if row.hardware)
        self.db.execute(f"""CREATE TABLE jobs AS SELECT CAST(row_number() OVER (ORDER BY line) AS INTEGER) id, job, s, e,
            open OR state = 'running' AS running, state = 'preempted' AS preempted,
            members, excluded,
            len(members) AS count, CASE WHEN g.failure <> '' THEN g.failure WHEN g.blame <> '' THEN 'infra' ELSE rule.failure END failure,
            coalesce(n.node, -1) blame, g."user", g.family, g.cause
            FROM good_jobs g JOIN (VALUES {states}) rule(state, failure) USING (state) LEFT JOIN nodes n ON n.name = nullif(g.blame, '')""")
        self.db.execute("CREATE TABLE job_nodes AS SELECT id, n.node FROM (SELECT id, unnest(members) AS name FROM jobs) JOIN nodes n USING (name)")
        self.db.execute(
            """CREATE TABLE excluded AS SELECT job, n.node, s t FROM (SELECT job, s, unnest(excluded) AS name FROM jobs) JOIN nodes n USING (name)"""
        )
        self.db.execute("ALTER TABLE jobs DROP COLUMN members")
        self.db.execute("ALTER TABLE jobs DROP COLUMN excluded")
        self.db.execute(f"""CREATE TABLE events AS SELECT CAST(row_number() OVER (ORDER BY t, line) AS INTEGER) id, t, n.node, kind,
            coalesce(g.until, CASE WHEN kind IN ('out', 'outage') THEN 'infinity'::DOUBLE ELSE t END) AS until, "value", job,
            kind IN ('failure', 'outage') OR (kind = 'xid' AND TRY_CAST("value" AS INTEGER) IN ({hardware})) AS critical,
            kind = 'xid' AND TRY_CAST("value" AS INTEGER) IN ({hardware}) AS hardware
            FROM good_events g JOIN nodes n ON n.name = g.node""")
        self.db.execute("INSERT INTO excluded SELECT job, node, t FROM events WHERE kind = 'exclude'")
        for table in TABLES:
            self.db.execute(f"DROP TABLE good_{table}")
        self.db.execute(_ATTRIBUTE)
        self.db.execute("""UPDATE jobs SET blame = n.node FROM job_nodes n WHERE n.id = jobs.id AND jobs.count = 1 AND jobs.failure = 'infra'""")
        self.db.execute(_EXPLAIN)
        last = "(SELECT max(greatest(s, coalesce(e, s))) FROM jobs)"
        self.db.execute(f"UPDATE jobs SET e = greatest(s, {last}) WHERE e IS NULL")
        overlaps = self.rows_of("""SELECT count(*) FROM (SELECT t, max(until) OVER (PARTITION BY node ORDER BY t, id ROWS BETWEEN UNBOUNDED PRECEDING
            AND 1 PRECEDING) AS busy FROM events WHERE kind IN ('out', 'outage')) WHERE t < busy""")[0][0]
        if overlaps:
            self.notes.append(f"{overlaps} outages begin while their node is out already: they count as one with the outage that they lie in")
