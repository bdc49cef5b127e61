"""`python -m aegis_agent`."""

import sys

from aegis_agent.main import main

sys.exit(main())
