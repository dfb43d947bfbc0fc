"""Contrastive losses: small frozen dataclasses over one primitive.

A loss is a mean over anchors i of terms

  lse(positive of i, negative blocks of i) - s(positive of i),
  s(a, b) = cos(a, b) / temperature,

and losses differ only in their anchors and blocks. A `Similarity`, which
`evaluate` gives to any `Loss`, says how the cosines are computed.
"""

from dualenc_jax.losses.blocks import query_blocks
from dualenc_jax.losses.compose import AtTemperature, Sum
from dualenc_jax.losses.distill import Distill, MarginMSE
from dualenc_jax.losses.hashed import Hashed
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
    check_columns,
    Embeddings,
    evaluate,
    init,
    Loss,
    trained_dims,
)
from dualenc_jax.losses.matryoshka import Matryoshka
from dualenc_jax.losses.pair import PAIR
from dualenc_jax.losses.samtone import SamToNe
from dualenc_jax.losses.similarity import LearnableTemperature, Similarity

__all__ = [
    'AtTemperature', 'check', 'check_columns', 'Distill', 'Embeddings',
    'evaluate', 'Hashed', 'InBatchSoftmax', 'init', 'LearnableTemperature',
    'ListLoss', 'Lists', 'Listwise', 'Loss', 'MarginMSE', 'Matryoshka', 'PAIR',
    'Pairwise', 'Pointwise', 'query_blocks', 'SamToNe', 'Similarity', 'Sum',
    'trained_dims',
]
