"""Texts through models, in batches: embeddings, scores, likelihoods, latency.

`Embedder` runs a Flax module on the mesh, `Artifact` exported programs. Modules
are in `models`, tokens in `data.text`; `index` keeps embeddings on disk.
"""

import importlib
from typing import Any

_MODULES = {
    'Artifact': 'artifact',
    'Embedder': 'embedder',
    'LoadedModel': 'towers',
    'PairScorer': 'teacher',
    'Scorer': 'embedder',
    'Teacher': 'teacher',
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
  # Serving needs no Flax, which an embedder imports.
  if name in _MODULES:
    module = importlib.import_module(f'{__name__}.{_MODULES[name]}')
    return getattr(module, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
