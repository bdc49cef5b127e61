"""`aegis-agent parse TOOL FILE [--json] [--exit-code]`, and `parse --list`: the parsers on a node without the rest of Aegis.

Exit codes: 0 read (whatever was found), 1 with --exit-code unless healthy, 2 usage: an unknown tool, a file that is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from aegis_parsers import UnknownTool, command


def main(argv: Sequence[str]) -> int:
    """Arguments after `aegis-agent parse`."""
    parser = argparse.ArgumentParser(prog="aegis-agent parse", description="Reads what a tool printed: items, findings, what could not be read.")
    parser.add_argument("tool", nargs="?", default="", metavar="TOOL", help="the tool that printed it, or auto (--list names them)")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="its output; - is stdin")
    parser.add_argument("--json", action="store_true", help="the whole document")
    parser.add_argument("--exit-code", action="store_true", help="end with 1 unless healthy")
    parser.add_argument("--list", action="store_true", help="list the tools")
    given = parser.parse_args(argv)
    if given.list:
        print(json.dumps(command.tools()) if given.json else command.tools_text())
        return 0
    if not given.tool:
        parser.error("a tool is needed, or --list")
    try:
        parsed = command.read(given.tool, given.file)
    except UnknownTool as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{given.file}: {error.strerror or error}")
    try:
        print(json.dumps(command.document(parsed), ensure_ascii=False, indent=2) if given.json else command.text(parsed), flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        return 141
    return command.exit_code(parsed) if given.exit_code else 0
