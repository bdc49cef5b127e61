"""Fixtures of this folder; what they are made of is in `conftest_credentials`."""

from conftest_credentials import launch

__all__ = ["launch"]
