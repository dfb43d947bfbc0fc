"""Flax Linen modules: T5, Gemma, and the dual and cross-encoders of them."""

from dualenc_jax.models.cross_encoder import (
    CrossEncoder,
    ScoreHead,
    Seq2SeqRanker,
)
from dualenc_jax.models.description import (
    class_name,
    current_names,
    describe,
    rebuild,
)
from dualenc_jax.models.dual_encoder import (
    abstract_params,
    DualEncoder,
    model_params,
    Projection,
)
from dualenc_jax.models.gemma_encoder import GemmaEncoder
from dualenc_jax.models.layers import TokenEmbedder
from dualenc_jax.models.seq2seq import encoder_decoder, Seq2Seq
from dualenc_jax.models.split_ranker import split_ranker, SplitRanker
from dualenc_jax.models.t5_decoder import T5Decoder
from dualenc_jax.models.t5_encoder import (
    dot_product_attention,
    einsum_attention,
    T5Encoder,
)

__all__ = [
    'CrossEncoder', 'DualEncoder', 'GemmaEncoder', 'Projection', 'ScoreHead',
    'Seq2Seq', 'Seq2SeqRanker', 'SplitRanker', 'T5Decoder', 'T5Encoder',
    'TokenEmbedder', 'abstract_params', 'class_name', 'current_names',
    'describe', 'dot_product_attention', 'einsum_attention', 'encoder_decoder',
    'model_params', 'rebuild', 'split_ranker',
]
