"""multireqa: question -> sentence that answers it, MRQA's and MultiReQA's."""

from dualenc_jax.data.multireqa import MultiReQA as reader
from dualenc_jax.data.reader import registrar

__all__ = ['reader', 'register']

register = registrar(reader)
