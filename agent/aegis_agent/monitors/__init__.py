"""What a worker and a machine use, sampled beside the training, and the shapes in it that matter.

`readings` reads /proc and /sys, `gpus` asks NVML in a process of its own (`nvml`); `shapes` (pure) finds what matters in the samples, with the
thresholds of `shapes.toml`; `companion` is the worker's side, `node` the daemon's. A finding accuses nobody by itself: it is a report, and history.
"""
