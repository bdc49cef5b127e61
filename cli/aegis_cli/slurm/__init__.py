"""Aegis inside an allocation of Slurm: one process per node (`srun --ntasks-per-node=1 aegis-agent run --workers 4 --spares 1 ... -- CMD`).

The process of the first node (`owner`) keeps a stack for this allocation alone and hands the job in; every node (`member`) keeps a node daemon. They
find each other by a folder beside the job script (`folder`), which also carries the budget over a requeue (`ledger`).
"""
