"""`aegis net pairs`: who is to blame when pairs of nodes are slow. Reads a file of measured pairs; needs no service."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from aegis_cli.errors import CliError
from aegis_cli.offline import core
from aegis_cli.options import Env, command

MOST = 200_000


def register(group: typer.Typer) -> None:
    """Add the command."""

    @command(group, "pairs")
    def pairs(
        env: Env,
        *,
        file: Annotated[str, typer.Argument(metavar="FILE|-", help="Lines of NODE NODE BANDWIDTH, in any unit; blanks or commas between.")] = "-",
    ) -> int:
        """Slow nodes, or slow ways between fast nodes, from the bandwidth of pairs. Ends with 1 when something is slow."""
        model = core("aegis_netmon.pairs", "aegis net pairs")
        measured = read(file)
        verdict = model.judge(measured)
        lines = [f"{len(measured)} pairs, {verdict.usual:g} is usual"]
        lines += [f"{node} is slow in its pairs: {factor:.0%} of the usual" for node, factor in sorted(verdict.nodes.items())]
        for one, other in verdict.routes:
            lines.append(f"{one} - {other} is slow, and both are fast with others: the way between them, two routes that collide or a link")
        for (one, other), wanted in sorted(verdict.unclear.items()):
            more = ", ".join(f"{x} - {y}" for x, y in wanted)
            lines.append(f"{one} - {other} is slow, and whose fault it is cannot be told" + (f": measure {more}" if more else ""))
        slow = bool(verdict.nodes or verdict.routes or verdict.unclear)
        body = {
            "pairs": len(measured),
            "usual": verdict.usual,
            "nodes": dict(verdict.nodes),
            "routes": [list(pair) for pair in verdict.routes],
            "unclear": [{"pair": list(pair), "measure": [list(one) for one in wanted]} for pair, wanted in sorted(verdict.unclear.items())],
        }
        env.out.document("NetPairs", body, "\n".join(lines if slow else [*lines, "no pair is slow"]), "slow" if slow else "even")
        return int(slow)


def read(file: str) -> dict[tuple[str, str], float]:
    """Each pair once, in the order of its names; measured more than once, the best counts: noise makes only slower."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or error
        raise CliError("E107", f"{file}: {what}", exit=2) from None
    found: dict[tuple[str, str], float] = {}
    for n, line in enumerate(text.split("\n")[:MOST], 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            one, other, value = words[0], words[1], float(words[2])
        except (IndexError, ValueError):
            value = math.nan
        if len(words) != 3 or not math.isfinite(value) or value < 0 or one == other:
            raise CliError("E107", f"{file}:{n}: {line.strip()[:60]!r}: expected NODE NODE BANDWIDTH, as n1 n2 23.5", exit=2)
        pair = (one, other) if one < other else (other, one)
        found[pair] = max(value, found.get(pair, 0.0))
    if not found:
        raise CliError("E107", f"{file}: no pair in it", hint="lines as: n1 n2 23.5", exit=2)
    return found
