"""History: what happened to nodes and jobs, from files. `read` is the way in, `observe` what a detector gets; the format is docs/history.md."""

from .files import read
from .observe import Observed, observe
from .schema import HistoryError, Problem
from .store import History

__all__ = ["History", "HistoryError", "Observed", "Problem", "observe", "read"]
