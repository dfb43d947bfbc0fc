"""A run: what it is made of, its plan, its memory, its loop."""

from dualenc_jax.run.experiment import Experiment
from dualenc_jax.run.until import UntilAligned

__all__ = ['Experiment', 'UntilAligned']
