"""msmarco: MS MARCO passage ranking, with optional hard negatives."""

from dualenc_jax.data.reader import registrar
from dualenc_jax.readers.msmarco import MsMarco as reader

__all__ = ['reader', 'register']

register = registrar(reader)
