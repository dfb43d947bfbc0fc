"""The base class of objectives that rank all passages, encoded once."""

from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

import jax
import numpy as np

from dualenc_jax.data import Batches
from dualenc_jax.data.text.ragged import from_uint32_pairs
from dualenc_jax.models import DualEncoder, model_params
from dualenc_jax.objectives import passage_states
from dualenc_jax.objectives.objective import Run
from dualenc_jax.objectives.of_towers import OfTowers
from dualenc_jax.objectives.passage_states import Passages
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.utils.errors import UserError

# Passages whose embeddings are in memory until they are what is kept.
_BLOCK = 2**17


@dataclasses.dataclass(frozen=True, eq=False)
class Targeted(Batches):
  """Batches with one more array, `targets` int32 [b, 1 + P].

  They are the numbers, among all passages, of those of a query, its own first,
  which is repeated where there are fewer.
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
  """Trains the query tower alone, over passages that a frozen tower encodes.

  Attributes:
    unit: name of the array kept of a passage.
    dtype: its dtype.
    whole_corpus: whether the corpus of the task, if it has one beside the
      passages of its pairs, is searched, too.
    states_dir: a folder that keeps the encoded passages for this run when it
      resumes, and for others of the same passage tower; None encodes at every
      start.
  """

  unit: str
  dtype: Any = np.float32
  whole_corpus: bool
  states_dir: str | None
  num_negatives = 0
  sides = ('queries',)
  needs_start = True

  def __post_init__(self) -> None:
    self.check_feeding()
    check_apart(type(self).__name__, self.model)

  @property
  def method(self) -> str:
    """The method of the passage tower."""
    return 'encode_passage'

  @property
  def width(self) -> int:
    """How many numbers are kept of a passage."""
    return self.model.projection.features

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
    """The constants, abstract; rows are a multiple of the batch size."""
    size = run.batch_size
    rows = -(-len(run.batches.all_passages) // size) * size
    return {
        f'{self.unit}s': jax.ShapeDtypeStruct((rows, self.width), self.dtype),
        f'{self.unit}_valid': jax.ShapeDtypeStruct((rows,), bool),
    }

  def constants(self, run: Run, params: Any) -> Mapping[str, Any]:
    passages, shapes = run.batches.all_passages, self.shapes(run)
    embedder = self.embedder(params, run.partitioner)
    own, facts = model_params(params), self.header(params)

    def header():
      found = passage_states.header(
          passages, embedder, own, self.method, self.width
      )
      return {**found, **facts}

    def make():
      found = np.empty((len(passages), self.width), self.dtype)
      for first in range(0, len(found), _BLOCK):
        block = found[first : first + _BLOCK]
        some = passages.some(np.arange(first, first + len(block)))
        block[:] = self.kept_of(some, embedder, params)
      return found

    return passage_states.put(
        {
            f'{self.unit}s': passage_states.kept(self.states_dir, header, make),
            f'{self.unit}_valid': np.ones(len(passages), bool),
        },
        len(shapes[f'{self.unit}_valid']), run.partitioner,
    )

  def header(self, params: Any) -> dict[str, Any]:
    """Facts, beside the passage tower, that `kept_of` depends on, JSON."""
    return {}

  def kept_of(
      self, passages: Passages, embedder: Embedder, params: Any
  ) -> np.ndarray:
    """The numbers that are kept of some passages, [n, width]."""
    own = model_params(params)
    return passages.encode(embedder, own, self.method, self.width)

  def describe_batches(self, run: Run, step: int) -> Iterator[str]:
    yield from super().describe_batches(run, step)
    said = passage_states.check_fits(
        f'The {self.unit}s of {len(run.batches.all_passages):,} passages',
        self.shapes(run), run.partitioner,
        'WHOLE_CORPUS=False for the passages of the training pairs alone',
    )
    yield f'{said}.'


def check_apart(what: str, model: DualEncoder) -> None:
  """Raises UserError unless queries have their own encoder."""
  if model.passage_encoder is None:
    raise UserError(
        f'{what} trains the query tower alone, but the towers share their'
        ' encoder. Give --gin_file=architectures/light_query.gin.'
    )


def passage_tower(model: DualEncoder) -> tuple[str, ...]:
  """Expressions of all parameters of passages, the shared ones, too."""
  shared = [
      f'{part}/.*' for part in ('token_embedder', 'projection')
      if getattr(model, f'passage_{part}') is None
  ]
  return 'passage_.*', *shared
