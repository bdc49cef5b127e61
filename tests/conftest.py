"""Fixtures for all tests: see `harness/`."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before gRPC is imported: its handlers can hang a child between fork and exec
pytest_plugins = ["harness.bus", "harness.site"]

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")  # a machine may be slow: no test is about speed

DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard() -> None:
    """Tests that are started in the background (`&`, nohup) inherit ignored signals, and so would every process that they start."""
    for number, default in DEFAULTS.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, default)
