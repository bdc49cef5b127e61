"""The collective checks: all workers of a round meet, compare their software, and run real collectives with values that are verified.

Runs under the user's own python (3.8 or newer), where nothing of Aegis is installed: standard library, torch where it is, and each other, by
relative imports only. `checks/meeting.py` loads it from its files, so that nothing else of ours is on the path of that interpreter.

    pairing      pure: who is tested with whom, and what the outcomes say
    environment  what a worker would train with, from files; and who differs
    hub          rank 0's conductor: gathers all, gives the tests, gathers the outcomes
    member       one worker: meets, imports torch once, forks a child for each test
    ranks        what a child does: connect, all_reduce, all_gather, bandwidth
"""
