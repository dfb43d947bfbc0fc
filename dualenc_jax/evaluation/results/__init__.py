"""Results of evaluations: written, read, set out as tables, and compared.

`evaluate` writes the result folder of a model, `training_evals` measures a run;
`read_model` reads results, `paper_tables` sets them out, and `compare` tests
their differences. The metrics are computed in `evaluation`.
"""

from dualenc_jax.evaluation.results.comparison import compare, Comparison
from dualenc_jax.evaluation.results.result_files import (
  Key,
  Model,
  read_model,
  read_result,
  Result,
)
from dualenc_jax.evaluation.results.tables import paper_tables

__all__ = [
    'compare', 'Comparison', 'Key', 'Model', 'paper_tables', 'read_model',
    'read_result', 'Result',
]
