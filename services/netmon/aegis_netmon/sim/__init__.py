"""A model of the fabric: what static and adaptive routing make of a bad link and of jobs that compete. Pure.

Read `experiment.py` first. It reproduces shapes, not a vendor's numbers: what the model leaves out is said in docs/netmon.md.
"""
