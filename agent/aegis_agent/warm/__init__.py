"""The warm standby: an interpreter of the user's own python that waits with the packages of the previous run imported (opt-in, `warm` of a job).

`command` (pure) says which commands can be started that way; `standby` is the agent's side; `interpreter` is the program that the user's python runs.
The cold path, an ordinary exec of the command, always works, and is taken whenever anything here does not fit.
"""

from aegis_agent.warm.command import python_command
from aegis_agent.warm.standby import Standby, run

__all__ = ["Standby", "python_command", "run"]
