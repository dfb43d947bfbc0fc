"""msmarco: MS MARCO passage ranking, with optional hard negatives."""

from dualenc_jax.data.msmarco import MsMarco as reader
from dualenc_jax.data.reader import registrar

__all__ = ['reader', 'register']

register = registrar(reader)
