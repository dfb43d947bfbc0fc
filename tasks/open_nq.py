"""open_nq: questions over all of Wikipedia, from the files of DPR."""

from dualenc_jax.data.reader import registrar
from dualenc_jax.readers.open_nq import OpenNQ as reader

__all__ = ['reader', 'register']

register = registrar(reader)
