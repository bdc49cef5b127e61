"""Flight records: from the ranks' dumps to who hangs and why.

`read_folder` reads untrusted files in limited children, `analyze` is pure, `explain` is what `aegis fr` prints.
"""

from aegis_lognexus.flight.analyze import analyze
from aegis_lognexus.flight.dump import Dump, broken, from_mapping
from aegis_lognexus.flight.explained import Explained, explain
from aegis_lognexus.flight.reading import read_folder
from aegis_lognexus.flight.report import BadOp, Report

__all__ = ["BadOp", "Dump", "Explained", "Report", "analyze", "broken", "explain", "from_mapping", "read_folder"]
