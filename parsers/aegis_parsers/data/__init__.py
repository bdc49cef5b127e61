"""Tables that the parsers read: rows with their sources. No code."""
