"""Losses of embedded batches: small frozen dataclasses over one primitive.

A loss is a mean over anchors i of terms

  lse(positive of i, negative blocks of i) - s(positive of i),
  s(a, b) = cos(a, b) / temperature,

and losses differ only in their anchors and blocks (`blocks.partitions`). A
`Similarity`, which `evaluate` gives to any `Loss`, says how the cosines are
computed. Models, batches and what is trained are in `objectives`.
"""

from dualenc_jax.losses.compose import AtTemperature, Sum
from dualenc_jax.losses.distill import Distill, MarginMSE
from dualenc_jax.losses.embed_distill import EmbedDistill
from dualenc_jax.losses.hashed import Hashed
from dualenc_jax.losses.in_batch_distill import InBatchDistill
from dualenc_jax.losses.in_batch_softmax import InBatchSoftmax
from dualenc_jax.losses.lists import (
    ListLoss,
    Lists,
    Listwise,
    Pairwise,
    Pointwise,
)
from dualenc_jax.losses.loss import (
    check,
    Dims,
    Embeddings,
    evaluate,
    init,
    Loss,
    LossWrapper,
    Similarity,
    validate_columns,
)
from dualenc_jax.losses.matryoshka import Matryoshka
from dualenc_jax.losses.pair import PAIR
from dualenc_jax.losses.samtone import SamToNe
from dualenc_jax.losses.spread_out import SpreadOut
from dualenc_jax.losses.temperature import LearnableTemperature

__all__ = [
    'AtTemperature', 'check', 'Dims', 'Distill', 'EmbedDistill', 'Embeddings',
    'evaluate', 'Hashed', 'InBatchDistill', 'InBatchSoftmax', 'init',
    'LearnableTemperature', 'ListLoss', 'Lists', 'Listwise', 'Loss',
    'LossWrapper', 'MarginMSE', 'Matryoshka', 'PAIR', 'Pairwise', 'Pointwise',
    'SamToNe', 'Similarity', 'SpreadOut', 'Sum', 'validate_columns',
]
