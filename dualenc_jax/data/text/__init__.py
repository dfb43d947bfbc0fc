"""Texts as tokens: vocabularies, templates, ragged arrays; words of texts.

Nothing here knows examples, caches or batches.
"""

from dualenc_jax.data.text.ragged import fingerprints, Pool, Ragged
from dualenc_jax.data.text.template import Template, TokenTemplate
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary

__all__ = [
    'Pool', 'Ragged', 'Template', 'TokenTemplate', 'Tokenizer', 'Vocabulary',
    'fingerprints',
]
