"""Search: exact on the mesh, by BM25, and hybrid; the order of hits.

The passages are arrays or stores of rows; `index` has them on disk, and
`compression` as codes. Rankings are measured in `evaluation`.
"""

import importlib
from typing import Any

_MODULES = {
    'BM25': 'bm25',
    'ExactSearch': 'exact_search',
    'Hybrid': 'hybrid',
    'make_search': 'exact_search',
    'Ranking': 'ranking',
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
  # BM25 needs a stemmer, which a saved retriever does without.
  if name in _MODULES:
    module = importlib.import_module(f'{__name__}.{_MODULES[name]}')
    return getattr(module, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
