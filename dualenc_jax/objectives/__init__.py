"""What is trained: from a batch to a value and metrics."""

from dualenc_jax.objectives.contrastive import Contrastive
from dualenc_jax.objectives.objective import Batches, Objective, Run

__all__ = ['Batches', 'Contrastive', 'Objective', 'Run']
