"""The texts that become the rows of an index."""

from collections.abc import Iterable
import dataclasses

import numpy as np

from dualenc_jax.data import corpus as corpus_lib, Dataset, Mixture
from dualenc_jax.data.cache import Cache
from dualenc_jax.errors import UserError
from dualenc_jax.index import Passage
from dualenc_jax.inference.loaded import Loaded
from dualenc_jax.text.ragged import Ragged

_LINE_ENDS = np.frombuffer(b'\n\r', np.uint8)


@dataclasses.dataclass(frozen=True)
class Source:
  """Texts of one side of a token cache, in the order of an index's rows.

  Attributes:
    cache: where their tokens and texts are.
    rows: int64 [N], a row of the cache for each text.
    tower: 'passage' or 'query': which side, and which tower encodes it.
  """

  cache: Cache
  rows: np.ndarray
  tower: str

  def __post_init__(self):
    ids = self._ids
    empty = np.flatnonzero(ids.lengths[self.rows] == 0)
    if len(empty):
      raise UserError(
          f'{corpus_lib.describe(self.cache)} has an empty {self.tower}_id, the'
          f' one of row {empty[0]}. Expected an id each, or a text to make one'
          ' of.'
      )
    # An index keeps an id a line.
    ends = np.flatnonzero(np.isin(ids.values, _LINE_ENDS))
    broken = np.searchsorted(ids.offsets, ends, 'right') - 1
    if len(broken):
      broken = broken[np.isin(broken, self.rows)]
    if len(broken):
      raise UserError(
          f'{corpus_lib.describe(self.cache)} has a {self.tower}_id'
          f' {ids.text(broken[0])!r} of several lines. Expected one line an id.'
      )

  @classmethod
  def passages(cls, cache: Cache) -> 'Source':
    """The distinct passages of a split.

    Raises:
      UserError: no passages, or an id that stands for two of them.
    """
    return cls(cache, corpus_lib.Corpus.from_cache(cache).rows, 'passage')

  @classmethod
  def queries(cls, cache: Cache) -> 'Source':
    """The queries of a split, each once.

    Raises:
      UserError: no queries, or an id that stands for two of them.
    """
    rows = np.flatnonzero(cache.query_texts.lengths)
    if not len(rows):
      raise UserError(
          f'{corpus_lib.describe(cache)} has passages only; expected a split'
          ' with queries for the query tower.'
      )
    first, _ = corpus_lib.queries_by_id(cache, rows)
    return cls(cache, first, 'query')

  @property
  def tokens(self) -> Ragged:
    """Of the cache: text i has row rows[i]."""
    return getattr(self.cache, f'{self.tower}_tokens')

  def embedded(
      self, model: Loaded, rows: np.ndarray
  ) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """Encodes rows of the cache [n].

    Yields:
      (positions in `rows` [b], float32 [b, D]), every position once, in any
      order.
    """
    return model.embedder.batches(
        f'encode_{self.tower}',
        model.params,
        self.tokens,
        rows,
    )

  @property
  def _ids(self) -> Ragged:
    return getattr(self.cache, f'{self.tower}_ids')

  def __len__(self) -> int:
    return len(self.rows)

  def passage(self, index: int) -> Passage:
    """What the index tells of a text."""
    row = self.rows[index]
    # The name of a row is that of its passage.
    is_passage = self.tower == 'passage'
    return Passage(
        self._ids.text(row),
        self.cache.names.text(row) if is_passage else '',
        self.cache.locations.text(row),
        getattr(self.cache, f'{self.tower}_texts').text(row),
    )


def default_split(task: Dataset | Mixture) -> str:
  """The split whose passages are everything there is to search.

  Raises:
    UserError: the task has no splits.
  """
  splits = task.splits()
  if not splits:
    raise UserError(
        f'Task {task.label!r} has no splits: its files are not there. Say where'
        ' they are, as with --gin.DATA_ROOT, or give a --corpus.'
    )
  return next((s for s in ('all', 'corpus') if s in splits), splits[0])
