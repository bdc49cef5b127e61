"""The node daemon: `aegis-agent node`. Keeps the processes of a machine equal to its slots, and tells what is."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Entry point of `aegis-agent node ARGV...`. Imports the rest only now, so that a worker does not pay for it."""
    from aegis_agent.daemon.cli import main as run

    return run(argv)
