"""Examples, their tokens, and the batches of a training step.

A `Dataset` gives examples; `readers` are those of files and benchmarks. `text`
turns texts into tokens, `cache` keeps them on disk, `order`, `layouts` and
`batches` make the batch of a step from them, `corpus` the passages to rank, and
`check` inspects a task. There are no models, losses or metrics here, and no
TensorFlow outside `seqio_adapter`.
"""

from dualenc_jax.data.batches import Batches
from dualenc_jax.data.cache import Cache, prepare
from dualenc_jax.data.columns import Column
from dualenc_jax.data.dataset import Dataset, example, Mixture
from dualenc_jax.data.layouts import Layout, Packed, Padded
from dualenc_jax.data.seqio_task import SeqioTask
from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.template import Template
from dualenc_jax.data.text.tokenizer import Tokenizer, vocab_size, Vocabulary

__all__ = [
    'Batches', 'Cache', 'Column', 'Dataset', 'Layout', 'Mixture', 'Packed',
    'Padded', 'Ragged', 'SeqioTask', 'Template', 'Tokenizer',
    'Vocabulary', 'example', 'prepare', 'vocab_size',
]
