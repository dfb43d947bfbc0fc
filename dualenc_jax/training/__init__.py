"""Train step, optimizer, checkpoints, initial parameters, progress."""

from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.training.initial import InitialCheckpoint
from dualenc_jax.training.step import Optimizer

__all__ = ['InitialCheckpoint', 'Optimizer', 'Partitioner']
