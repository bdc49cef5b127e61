"""`aegis-agent check list [--json]` and `aegis-agent check run NAME...|all [--json]`: the checks by hand, run as a round runs them.
`prolog`, `epilog` and `deep`: see `aegis_agent.deep`.

Exit codes: 0 all passed (warnings are shown), 1 a check failed, 2 usage: an unknown name. JSON: one CheckResult a line.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import sys
from collections.abc import Sequence

import msgspec
from aegis_proto.messages import CheckResult

from aegis_agent.checks import meeting
from aegis_agent.checks.registry import CHECKS, ROUNDS, Check, Context, named, run_checks
from aegis_agent.reaper import Reaper


def main(argv: Sequence[str]) -> int:
    """Arguments after `aegis-agent check`."""
    if argv and argv[0] in ("prolog", "epilog", "deep"):
        from aegis_agent.deep.command import main as around

        return around(argv[0], argv[1:])
    as_json = "--json" in argv
    words = [word for word in argv if word != "--json"]
    if words == ["list"] or not words:
        print(listing(as_json))
        return 0
    together = [name for name, _, _ in meeting.RESULTS]
    known = [*(row.name for row in CHECKS), *together]
    names = known if words == ["run", "all"] else [part for word in words[1:] for part in word.split(",") if part]
    chosen = [check for name in names if (check := named(name)) is not None]
    if words[0] != "run" or not names:
        sys.stderr.write(f"usage: aegis-agent check list | run NAME...|all [--json] | prolog | epilog | deep   (known: {', '.join(known)})\n")
        return 2
    if unknown := [name for name in names if name not in known]:
        near = difflib.get_close_matches(unknown[0].lower(), known, 1)
        sys.stderr.write(f"no check {unknown[0]!r}{f'; did you mean {near[0]}?' if near else ''}   (known: {', '.join(known)})\n")
        return 2
    results = asyncio.run(run_all(chosen, [name for name in together if name in names]))
    for result in results:
        print(msgspec.json.encode(result).decode() if as_json else text(result))
    return 0 if all(result.Pass for result in results) else 1


def listing(as_json: bool) -> str:
    here = Context("", os.getcwd(), os.getpid())
    rows = [
        {"name": check.name, "deadline": check.deadline, "rounds": check.rounds, "applies": check.applies(here), "about": check.about}
        for check in CHECKS
    ]
    rows += [
        {"name": name, "deadline": seconds, "rounds": ROUNDS, "applies": "where the command uses torch", "about": about}
        for name, seconds, about in meeting.RESULTS
    ]
    if as_json:
        return json.dumps(rows)
    return "\n".join(f"{row['name']:<12} {row['deadline']:>5.0f} s  {row['about']}" for row in rows)


def text(result: CheckResult) -> str:
    word = "fail" if not result.Pass else "warn" if result.code else "ok"
    return f"{word:<4}  {result.CheckType}: {result.Result} ({result.duration:.2f} s)"


async def run_all(checks: Sequence[Check], together: Sequence[str] = ()) -> list[CheckResult]:
    """Side by side, as in a round. `together`: results of a meeting that are wanted."""
    reaper = Reaper()
    reaper.open()
    context = Context(scope="", cwd=os.getcwd(), agent=os.getpid())
    scope = f"check.{os.getpid()}.0"
    local = run_checks(reaper, checks, context, os.environ, scope=scope)
    if not together:
        return await local
    both = await asyncio.gather(local, meeting.by_hand(reaper, os.environ, scope))
    return [*both[0], *(result for result in both[1] if result.CheckType in together)]
