"""A training run: its parts and plan, its memory, its loop and hooks."""

from dualenc_jax.run.experiment import Experiment
from dualenc_jax.run.until import UntilAligned

__all__ = ['Experiment', 'UntilAligned']
