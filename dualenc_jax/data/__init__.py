"""Examples, tokens and batches. Importing it imports no TensorFlow."""

from dualenc_jax.data.batches import Batches
from dualenc_jax.data.cache import Cache
from dualenc_jax.data.cache import prepare
from dualenc_jax.data.layouts.grouped import Grouped
from dualenc_jax.data.layouts.layout import Layout
from dualenc_jax.data.layouts.layout import Padded
from dualenc_jax.data.layouts.packed import Packed
from dualenc_jax.data.mixture import Mixture
from dualenc_jax.data.ragged import Ragged
from dualenc_jax.data.task import Task
from dualenc_jax.data.tokenizer import Tokenizer
from dualenc_jax.data.vocabulary import Vocabulary

__all__ = [
    'Batches',
    'Cache',
    'Grouped',
    'Layout',
    'Mixture',
    'Packed',
    'Padded',
    'Ragged',
    'Task',
    'Tokenizer',
    'Vocabulary',
    'prepare',
]
