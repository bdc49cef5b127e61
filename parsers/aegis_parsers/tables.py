"""Tables that lie beside the code, by their path: what `importlib.resources` needs takes longer to load than most checks take."""

from __future__ import annotations

import os


def text(name: str) -> str:
    """The table `name`, a path below this package ("data/xid.csv")."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()
