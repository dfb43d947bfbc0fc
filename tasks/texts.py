"""texts: a file of passages or of queries to encode, without judgements."""

from dualenc_jax.data.reader import registrar
from dualenc_jax.readers.texts import Texts as reader

__all__ = ['reader', 'register']

register = registrar(reader)
