"""`aegis fr analyze DIR [--json] [--matrix] [--html FILE]`. Works without any service.

Exit code 0: nothing found, 1: a finding, 2: usage or no dumps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aegis_lognexus.flight.analyze import analyze_table
from aegis_lognexus.flight.matrix import lateness_text, matrix_html, matrix_text, summary, table_text
from aegis_lognexus.flight.reading import read_folder
from aegis_lognexus.flight.skew import lateness
from aegis_lognexus.flight.table import build


def main(argv: Sequence[str] | None = None) -> int:
    """Arguments after `aegis fr`. Prints to stdout; errors name the folder and what was expected, on stderr."""
    parser = argparse.ArgumentParser(prog="aegis fr", description="Reads flight-recorder dumps and says who hangs and why.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("analyze", help="analyze a folder of dumps, one file per rank (pickle or JSON)")
    verb.add_argument("folder", metavar="DIR", type=Path)
    verb.add_argument("--json", action="store_true", help="the report as JSON")
    verb.add_argument("--matrix", action="store_true", help="add the rank x (group, seq) matrix")
    verb.add_argument("--html", metavar="FILE", type=Path, help="write the matrix as an HTML page")
    try:
        args = parser.parse_args(argv)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 2
    try:
        dumps = read_folder(args.folder)
    except (OSError, ValueError) as e:
        print(f"{args.folder}: {e}", file=sys.stderr)
        return 2
    if not dumps:
        print(f"{args.folder}: no file that belongs to a rank; expected names that end in the rank, as in nccl_trace_rank_0", file=sys.stderr)
        return 2
    table = build(dumps)
    report = analyze_table(table)
    if args.html is not None:
        args.html.write_text(matrix_html(table, report, f"Flight records of {args.folder.name}"), encoding="utf-8", errors="backslashreplace")
    if args.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        print(summary(report) + "\n\n" + table_text(table, report))
        if args.matrix:
            print("\n" + matrix_text(table, report))
            for g in table.groups:
                if report.slow and (late := lateness(g)) is not None:
                    print("\n" + lateness_text(late.ranks, late.lateness))
    return 0 if report.verdict in ("healthy", "undecided", "no_evidence") else 1
