"""Training: an experiment and its plan, the step, checkpoints, the loop.

What a batch is trained on is an objective's; the mesh is `parallel`'s.
"""

from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.training.initial_checkpoint import InitialCheckpoint
from dualenc_jax.training.loop import train
from dualenc_jax.training.step import Optimizer
from dualenc_jax.training.stopping import UntilAligned

__all__ = [
    'Experiment', 'InitialCheckpoint', 'Optimizer', 'Partitioner', 'train',
    'UntilAligned',
]
