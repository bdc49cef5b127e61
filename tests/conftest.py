"""Fixtures for all tests: see `harness/`."""

pytest_plugins = ["harness.bus", "harness.site"]
