"""Which nodes are bad, and what unreliability costs: pure cores over history files.

`ettr`: expected, simulated and measured effective training time ratio. `history`: files of jobs and node events, read by an analytical engine.
`detect`: who is a lemon. Nothing here knows the bus, a clock or a scheduler; numpy is needed by all but the closed forms, DuckDB by `history`.
"""
