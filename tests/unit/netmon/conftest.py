"""Where the collected network samples lie: AEGIS_SHARED_DATA, or the folder shared/data beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("AEGIS_SHARED_DATA") or Path(__file__).resolve().parents[4] / "shared/data")


@pytest.fixture(scope="session")
def shared() -> Path:
    if not (SHARED / "net").is_dir():
        pytest.skip(f"NO SAMPLES: {SHARED}/net is missing; set AEGIS_SHARED_DATA to the folder with net/")
    return SHARED
