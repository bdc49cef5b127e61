"""Saved or live output of tools -> one schema. `parse(tool, text)` is the way in; `causes` reads logs for the cause of a failure."""

from .registry import PARSERS, UnknownTool, detect, parse, resolve
from .schema import Finding, Item, Parsed, Severity

__all__ = ["PARSERS", "Finding", "Item", "Parsed", "Severity", "UnknownTool", "detect", "parse", "resolve"]
