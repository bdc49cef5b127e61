"""From lines of logs to a cause. `classify_lines` names lines, `judge` names one cause for a job's logs over all ranks."""

from .classify import Line, classify_lines
from .judge import Judgement, judge, report

__all__ = ["Judgement", "Line", "classify_lines", "judge", "report"]
