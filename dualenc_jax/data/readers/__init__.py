"""Datasets from files, each a class that `TASK` is bound to.

`Pairs`, `Texts`, `Queries` and `Documents` read the user's own files, the rest
benchmarks. Tokens and their caches are not here but in `data.text` and
`data.cache`; mixtures and tasks of seqio are in `data`.
"""

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.readers.beir import Beir
from dualenc_jax.data.readers.documents import Documents
from dualenc_jax.data.readers.msmarco import MsMarco
from dualenc_jax.data.readers.multireqa import MultiReQA
from dualenc_jax.data.readers.open_nq import OpenNQ
from dualenc_jax.data.readers.pairs import Pairs
from dualenc_jax.data.readers.python_code import PythonCode
from dualenc_jax.data.readers.texts import Queries, Texts
from dualenc_jax.utils.errors import did_you_mean, UserError

__all__ = [
    'Beir', 'Documents', 'MsMarco', 'MultiReQA', 'OpenNQ', 'Pairs',
    'PythonCode', 'Queries', 'Texts',
]

# The benchmarks by their names on command lines, each with a file gin/tasks/.
_READERS = (Beir, Documents, MsMarco, MultiReQA, OpenNQ, Pairs, PythonCode)
BY_NAME: dict[str, type[Dataset]] = {r.task_name: r for r in _READERS}


def find_reader(name: str) -> type[Dataset]:
  """The reader of a benchmark by its name; raises UserError."""
  if name not in BY_NAME:
    raise UserError(
        f'There is no task {name!r}.{did_you_mean(name, BY_NAME)} Tasks:'
        f' {", ".join(sorted(BY_NAME))}.'
    )
  return BY_NAME[name]
