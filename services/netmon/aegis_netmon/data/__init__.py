"""Tables of the network monitor: limits, settings, firmware. Rows with their sources. No code."""
