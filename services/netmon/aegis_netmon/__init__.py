"""Network monitor: links, bit errors, routing; which jobs a bad link touches; and a model of the fabric.

Everything here is pure: what was read comes as an argument, time too. Reading hosts and the fabric is the work of others.
"""
