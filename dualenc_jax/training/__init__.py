"""From gradient to checkpoint: mesh, optimizer, step, loop."""

from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.training.initial import InitialCheckpoint
from dualenc_jax.training.step import Optimizer

__all__ = ['InitialCheckpoint', 'Optimizer', 'Partitioner']
