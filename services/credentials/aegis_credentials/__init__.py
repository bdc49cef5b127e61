"""The root of trust of a site. Begin at `setup` (what a site is), `record` (who holds which place), `authority` (what is done about it)."""
