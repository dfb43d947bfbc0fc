"""TPUs and GPUs that are not there, for their compilers.

It has the slices, and the collectives of a program on them. The memory that a
train step needs is in `training.memory`.
"""

from dualenc_jax.forecast.collectives import describe_collectives
from dualenc_jax.forecast.slices import find_slice, on_slice

__all__ = ['describe_collectives', 'find_slice', 'on_slice']
