"""beir: a data set of the BEIR benchmark, or a folder in its layout."""

from dualenc_jax.data.beir import Beir as reader
from dualenc_jax.data.reader import registrar

__all__ = ['reader', 'register']

register = registrar(reader)
