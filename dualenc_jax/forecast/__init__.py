"""Train steps on TPUs that are not there, by the TPU's compiler.

It has the slices, and a step's memory and collectives on them. Plans for
devices of this machine are in `training.memory`.
"""

from dualenc_jax.forecast.slices import find_slice, on_slice
from dualenc_jax.forecast.train_step import forecast

__all__ = ['find_slice', 'forecast', 'on_slice']
