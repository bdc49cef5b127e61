"""Saved or live output of tools -> one schema. `parse(tool, text)` is the way in; `causes` reads logs for the cause of a failure."""

from typing import TYPE_CHECKING, Any

from .schema import Finding, Item, Parsed, Severity

if TYPE_CHECKING:
    from .registry import PARSERS, UnknownTool, detect, parse, resolve

__all__ = ["PARSERS", "Finding", "Item", "Parsed", "Severity", "UnknownTool", "detect", "parse", "resolve"]


def __getattr__(name: str) -> Any:
    """Thirty parsers and their patterns take longer to load than a check takes: who needs the schema alone does not wait for them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import registry

    return getattr(registry, name)
