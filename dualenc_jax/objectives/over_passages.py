"""What objectives have in common that rank all passages, once encoded."""

import dataclasses
from typing import Any

import jax
import numpy as np

from dualenc_jax.data import Batches
from dualenc_jax.errors import UserError
from dualenc_jax.models import DualEncoder
from dualenc_jax.objectives.objective import Run
from dualenc_jax.objectives.of_towers import OfTowers
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
    assert self.all_passages is not None
    numbers = self.all_passages.numbers(from_uint32_pairs(ids))
    return {**batch, 'targets': numbers.astype(np.int32)}


class OverPassages(OfTowers):
  """Trains the query tower alone, for what a frozen one makes of all passages.

  Attributes:
    whole_corpus: the corpus of the task is searched, too, where it has one
      beside the passages of its pairs.
    states_dir: a folder in which what was encoded is kept, so that this run
      when it goes on, and others of the same passage tower, map it; None
      encodes at every start.
  """

  whole_corpus: bool
  states_dir: str | None
  num_negatives = 0
  sides = ('queries',)
  needs_start = True

  def __post_init__(self) -> None:
    self.check_feeding()
    check_apart(type(self).__name__, self.model)

  def batches(self, run: Run) -> Targeted:
    batches = super().batches(run)
    fields = dataclasses.fields(batches)
    return Targeted(
        **{field.name: getattr(batches, field.name) for field in fields},
        all_passages=Passages(
            run.caches, run.corpora if self.whole_corpus else ()
        ),
    )

  def abstract_batch(self, run: Run) -> Any:
    batch, others = super().abstract_batch(run), 0
    if 'positive_ids' in batch:
      others = batch['positive_ids'].shape[1]
    shape = batch['passage_ids'].shape[0], 1 + others
    targets = jax.ShapeDtypeStruct(shape, np.int32)
    return {**batch, 'targets': targets, **self.shapes(run)}

  def shapes(self, run: Run) -> dict[str, Any]:
    """The constants, abstract; as few rows as the batch size divides."""
    raise NotImplementedError


def check_apart(what: str, model: DualEncoder) -> None:
  """Raises UserError unless queries have an encoder of their own."""
  if model.passage_encoder is None:
    raise UserError(
        f'{what} trains the query tower alone, and the towers share their'
        ' encoder. Give --gin_file=architectures/light_query.gin.'
    )


def passage_tower(model: DualEncoder) -> tuple[str, ...]:
  """Rules over all parameters of passages, those that are shared among them."""
  shared = [
      f'{part}/.*'
      for part in ('token_embedder', 'projection')
      if getattr(model, f'passage_{part}') is None
  ]
  return 'passage_.*', *shared
