"""Checks of a worker. The table and how a check is run: `registry`; one module per check, run as its own process (so this one imports nothing)."""
