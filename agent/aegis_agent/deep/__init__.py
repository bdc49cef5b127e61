"""Deep tests of a node while nobody trains on it: memory, compute, copies, links. By hand, from a scheduler's prolog and epilog.

work       what a test does on one device; under the user's python where torch is there, else by the standard library alone
program    `main` of one deep test: a check program like the others
compare    pure: what an epilog says against the prolog of the same job
command    `aegis-agent check prolog|epilog`
"""
