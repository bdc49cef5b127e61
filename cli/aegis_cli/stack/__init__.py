"""The embedded stack: everything Aegis needs, on one machine, for one user.

One per user, in one folder. A keeper process owns the parts (nats-server, credentials, masters, job controller, node daemons) as its children.
Every command that needs the stack holds a lock in `users/`; when no such lock is held and nobody pinned it, the keeper ends the parts and itself.
A guard, the parent of the keeper, ends whatever is left when the keeper ends or is killed. No process of a stack outlives it.
"""
