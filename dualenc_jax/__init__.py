"""Dual-encoder retrievers in JAX: train, evaluate, search, ship."""

import os

from dualenc_jax.parallel import accelerators

__version__ = '0.1.0'

__all__ = ['Retriever']

accelerators.leave_out_absent_tpus(os.environ)


def __getattr__(name: str):
  # Importing the package is to cost nothing.
  if name == 'Retriever':
    from dualenc_jax.retriever import Retriever

    return Retriever
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
