"""open_nq: questions over all of Wikipedia, from the files of DPR."""

from dualenc_jax.data.open_nq import OpenNQ as reader
from dualenc_jax.data.reader import registrar

__all__ = ['reader', 'register']

register = registrar(reader)
