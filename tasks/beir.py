"""beir: a data set of the BEIR benchmark, or a folder in its layout."""

from dualenc_jax.data.reader import registrar
from dualenc_jax.readers.beir import Beir as reader

__all__ = ['reader', 'register']

register = registrar(reader)
