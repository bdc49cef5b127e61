"""A set of dumps with its report, as text and as a page: what `aegis fr` prints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aegis_lognexus.flight.analyze import analyze_table
from aegis_lognexus.flight.dump import Dump
from aegis_lognexus.flight.matrix import lateness_text, matrix_html, matrix_text, summary, table_text
from aegis_lognexus.flight.report import Report
from aegis_lognexus.flight.skew import lateness
from aegis_lognexus.flight.table import Table, build


@dataclass(frozen=True, slots=True)
class Explained:
    """The report, and the table it was read from."""

    table: Table
    report: Report

    def text(self, matrix: bool = False) -> str:
        """The verdict in lines, RANK OP SEQ STATE ROLE, and with `matrix` the rank x (group, seq) matrix and who entered late."""
        parts = [summary(self.report), table_text(self.table, self.report)]
        if matrix:
            parts.append(matrix_text(self.table, self.report))
            parts += [lateness_text(late.ranks, late.lateness) for g in self.table.groups if self.report.slow and (late := lateness(g)) is not None]
        return "\n\n".join(parts)

    def html(self, title: str) -> str:
        return matrix_html(self.table, self.report, title)


def explain(dumps: Mapping[int, Dump]) -> Explained:
    """{rank: Dump}, as of `read_folder`, to the report and its renderings."""
    table = build(dumps)
    return Explained(table, analyze_table(table))
