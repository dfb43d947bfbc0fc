"""Objectives of training: from a batch to a value and metrics.

Gradients and updates are in `training`; losses of embedded batches in `losses`.
"""

from dualenc_jax.objectives.alignment import Alignment
from dualenc_jax.objectives.contrastive import Contrastive
from dualenc_jax.objectives.distilled_pq import DistilledPQ
from dualenc_jax.objectives.generation import Generation
from dualenc_jax.objectives.joint_pq import JointPq
from dualenc_jax.objectives.matching import Matching
from dualenc_jax.objectives.negative_caching import CachedNegatives
from dualenc_jax.objectives.objective import Batches, Objective, Run
from dualenc_jax.objectives.pairs import PairObjective
from dualenc_jax.objectives.ranking import Ranking
from dualenc_jax.objectives.split_ranking import SplitRanking
from dualenc_jax.objectives.teacher_vectors import TeacherVectors

__all__ = [
    'Alignment', 'Batches', 'CachedNegatives', 'Contrastive', 'DistilledPQ',
    'Generation', 'JointPq', 'Matching', 'Objective', 'PairObjective',
    'Ranking', 'Run', 'SplitRanking', 'TeacherVectors',
]
