"""Training: an experiment, its plan and start, the step, the loop, its hooks.

Checkpoints of a run are saved and restored here, and the best one is chosen by
the metrics of `evaluation.results.training_evals`; those of other libraries are
read in `checkpoints`. The value of a batch is in `objectives`, the mesh in
`parallel`.
"""

from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.training.initial_checkpoint import InitialCheckpoint
from dualenc_jax.training.loop import train
from dualenc_jax.training.lora import Lora
from dualenc_jax.training.step import Optimizer
from dualenc_jax.training.stopping import UntilAligned

__all__ = [
    'Experiment', 'InitialCheckpoint', 'Lora', 'Optimizer', 'Partitioner',
    'train', 'UntilAligned',
]
