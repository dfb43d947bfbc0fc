"""multireqa: question -> sentence that answers it, MRQA's and MultiReQA's."""

from dualenc_jax.data.reader import registrar
from dualenc_jax.readers.multireqa import MultiReQA as reader

__all__ = ['reader', 'register']

register = registrar(reader)
