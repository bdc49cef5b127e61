"""Who is a lemon: detectors by name, guards against common causes and chance, and how well they predict.

`rank` is the way in. Everything here is pure: arrays in, findings out; numpy only.
"""

from .guards import Guards
from .rank import DETECTORS, DetectError, Ranked, Ranking, Thresholds, rank
from .rules import Rules

__all__ = ["DETECTORS", "DetectError", "Guards", "Ranked", "Ranking", "Rules", "Thresholds", "rank"]
