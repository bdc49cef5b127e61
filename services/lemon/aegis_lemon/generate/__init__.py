"""Histories with a known truth, for benchmarks: a fleet with lemons, written in the documented format."""

from .world import World, WorldSpec, generate
from .write import write_world

__all__ = ["World", "WorldSpec", "generate", "write_world"]
