"""Retrieval sets, the rankings of systems over them, and metrics.

`evaluate` ranks a corpus by a model and measures it; metrics are trec_eval's.
`results/` has the files of evaluations, tables and significance tests,
`analysis/` the embedding space, and `report/` a page of all results. Search
itself is in `retrieval/search/`.
"""

import importlib
from typing import Any

_HOMES = {
    'evaluate': 'evaluation',
    'Evaluation': 'evaluation',
    'evaluate_run': 'metrics',
    'rank': 'evaluation',
    'read_qrels': 'trec',
    'read_run': 'trec',
    'RetrievalSet': 'retrieval_set',
    'Scores': 'metrics',
    'write_run': 'trec',
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
  # Commands that read result files do without JAX.
  if name in _HOMES:
    module = importlib.import_module(f'{__name__}.{_HOMES[name]}')
    return getattr(module, name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
