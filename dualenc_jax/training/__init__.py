"""From gradient to checkpoint: mesh, optimizer, step, loop."""

from dualenc_jax.training.initial import InitialCheckpoint
from dualenc_jax.training.optimizer import Optimizer
from dualenc_jax.training.partitioning import Partitioner

__all__ = ['InitialCheckpoint', 'Optimizer', 'Partitioner']
