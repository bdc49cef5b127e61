"""What crosses between processes, and nothing else: messages, state, subjects, streams, rights."""

VERSION = "0.1.0"
"""Version of the distribution; on the wire only `WIRE_VERSION` counts."""

WIRE_VERSION = 1
"""The `v` of every message and of the job state. A reader refuses a higher one."""
