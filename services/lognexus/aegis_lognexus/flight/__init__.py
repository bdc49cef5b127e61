"""Flight records: from the ranks' dumps to who hangs and why.

`read_folder` reads untrusted files in limited children, `analyze` is pure, `main` is `aegis fr`.
"""

from aegis_lognexus.flight.analyze import analyze
from aegis_lognexus.flight.command import main
from aegis_lognexus.flight.dump import Dump, broken, from_mapping
from aegis_lognexus.flight.reading import read_folder
from aegis_lognexus.flight.report import BadOp, Report

__all__ = ["BadOp", "Dump", "Report", "analyze", "broken", "from_mapping", "main", "read_folder"]
