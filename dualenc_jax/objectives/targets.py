"""Batches that say where a query's passages are among all passages of a run."""

import dataclasses
from typing import Any

import jax
import numpy as np

from dualenc_jax.data import Batches
from dualenc_jax.objectives.objective import Run
from dualenc_jax.objectives.passage_states import Passages
from dualenc_jax.text.ragged import from_uint32_pairs


@dataclasses.dataclass(frozen=True, eq=False)
class Targeted(Batches):
  """Batches with one array more, `targets`.

  Beside what all have: targets int32 [b, 1 + P], which of all passages are the
  query's, its own first, which stands in where there are fewer.
  """

  all_passages: Passages | None = None

  def __call__(self, step: int, cells: Any = slice(None)) -> dict[str, Any]:
    batch = super().__call__(step, cells)
    ids = batch['passage_ids'][:, None]
    if 'positive_ids' in batch:
      ids = np.concatenate([ids, batch['positive_ids']], axis=1)
    numbers = self.all_passages.numbers(from_uint32_pairs(ids))
    return {**batch, 'targets': numbers.astype(np.int32)}


def targeted(batches: Batches, run: Run, whole_corpus: bool) -> Targeted:
  """The batches of a run, with targets.

  Args:
    batches: without.
    run: whose.
    whole_corpus: whether the corpus of the task counts, too.
  """
  names = [field.name for field in dataclasses.fields(batches)]
  passages = Passages(run.caches, run.corpora if whole_corpus else ())
  return Targeted(
      **{name: getattr(batches, name) for name in names},
      all_passages=passages,
  )


def abstract(batch: Any) -> dict[str, Any]:
  """A batch of `Batches`, abstract, with targets."""
  others = 0
  if 'positive_ids' in batch:
    others = batch['positive_ids'].shape[1]
  shape = batch['passage_ids'].shape[0], 1 + others
  return {**batch, 'targets': jax.ShapeDtypeStruct(shape, np.int32)}
