"""From lines of logs to a cause. `classify_lines` names lines, `judge` names one cause for a job's logs over all ranks."""

from .classify import CAUSES, Cause, Line, classify_lines
from .judge import Judgement, Strong, decisive, judge, report, report_blocks

__all__ = ["CAUSES", "Cause", "Judgement", "Line", "Strong", "classify_lines", "decisive", "judge", "report", "report_blocks"]
