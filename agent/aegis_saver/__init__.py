"""Asynchronous, incremental checkpoints from the training script, in two lines (torch.distributed.checkpoint underneath):

    from aegis_saver import Saver
    start = Saver("ckpt", every=100, model=model, optimizer=optimizer).start()     # the step to go on from

Needs torch and nothing else of Aegis. `folder` says what lies on disk, `saver` is the side of the training, `watch` the service that the agent keeps
beside it.
"""

from aegis_saver.saver import Saver

__all__ = ["Saver"]
