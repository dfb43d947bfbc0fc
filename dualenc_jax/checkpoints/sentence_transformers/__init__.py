"""Folders of the sentence-transformers library, without that library."""

from dualenc_jax.checkpoints.sentence_transformers.read import is_one, read
from dualenc_jax.checkpoints.sentence_transformers.write import write

__all__ = ['is_one', 'read', 'write']
