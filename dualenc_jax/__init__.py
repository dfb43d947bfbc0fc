"""Dual-encoder retrievers in JAX: train, evaluate, search, ship.

  import dualenc_jax as dj
  dj.Retriever.from_dir('my_model').search(['a query'])

A run is made of `dj.data`, `dj.models`, `dj.losses`, `dj.objectives` and
`dj.training`, as in examples/train_in_python.py.
"""

import importlib
import os

from dualenc_jax.parallel import accelerators

__version__ = '0.1.0'

_PACKAGES = ('data', 'losses', 'models', 'objectives', 'training')
__all__ = ['Retriever', *_PACKAGES]

accelerators.disable_absent_tpus(os.environ)


def __getattr__(name: str):
  # Importing the package is to cost nothing.
  if name == 'Retriever':
    from dualenc_jax.retriever import Retriever

    return Retriever
  if name in _PACKAGES:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
