"""The fleet as it runs: what is heard becomes history, a ranking becomes verdicts, and verdicts become deeds.

collector  pure: events of jobs and nodes to rows of the documented format (docs/history.md)
cases      pure: what becomes of a node that was flagged
risk       pure: one number per node, for whoever places jobs
kept       the rows as files, and how far the stream was read
fleet      what is stored about nodes: registrations, taints, tests, links
reading    the stream EVENTS into the collector
rounds     round after round: rank, decide, tell, do
tickets    repair tickets: files and a webhook
"""
