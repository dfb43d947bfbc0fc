"""Objectives of training: from a batch to a value and metrics."""

from dualenc_jax.objectives.alignment import Alignment
from dualenc_jax.objectives.contrastive import Contrastive
from dualenc_jax.objectives.from_pairs import FromPairs
from dualenc_jax.objectives.generation import Generation
from dualenc_jax.objectives.joint_pq import JointPq
from dualenc_jax.objectives.matching import Matching
from dualenc_jax.objectives.negative_caching import CachedNegatives
from dualenc_jax.objectives.objective import Batches, Objective, Run
from dualenc_jax.objectives.ranking import Ranking
from dualenc_jax.objectives.taught_pq import TaughtPq

__all__ = [
    'Alignment', 'Batches', 'CachedNegatives', 'Contrastive', 'FromPairs',
    'Generation', 'JointPq', 'Matching', 'Objective', 'Ranking', 'Run',
    'TaughtPq',
]
