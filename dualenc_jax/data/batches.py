"""Batches by index: the batch of a step is a pure function of seed and step."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from dualenc_jax.data import columns as columns_lib, layouts
from dualenc_jax.data.cache import Cache
from dualenc_jax.data.columns import Column
from dualenc_jax.data.layouts import JointRows, Layout, Padded, Shape
from dualenc_jax.data.picks import Picker, Picks
from dualenc_jax.data.text.joined import Around, Joined
from dualenc_jax.data.text.ragged import Pool
from dualenc_jax.utils.errors import expect, UserError

# Texts of the batches that a layout's shapes are chosen from, at most.
SAMPLE_TEXTS = 2**22
SAMPLE_BATCHES = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """Global batches of one cache, or of a mixture of several.

  The pairs of a step are a pure function of the caches, rates, batch size and
  seed, see `Order`: neither layout nor cells nor hosts change them.

  Attributes:
    batch_size: B, pairs of the global batch.
    seed: seed of the order, 0 or more.
    query_length, passage_length: most tokens, not less than the caches'.
    num_negatives: K, hard negatives a query. Of more in an example, epoch e
      takes K consecutive ones from number e * K on, around the end to the
      first; of fewer, all.
    rates: share of each cache; None for one cache.
    cells: C, a multiple of the devices that feed on a batch and a divisor of B;
      see `dualenc_jax.data.layouts`.
    columns: columns per query or candidate; a cache without one has its
    default.
    around: joins the query and each of its passages to one text, for a
      cross-encoder; None keeps them apart.
    num_others: how many passages of other pairs of the batch serve as hard
      negatives of a query, after its own.
    sides: the texts that a batch has, unless `around` joins them.
    joint_rows: puts a query into the row and the segment, by number, of its
      passage, for a model that reads one and writes the other; such a batch has
      no hard negatives.
  """

  caches: Sequence[Cache]
  batch_size: int
  seed: int
  query_length: int
  passage_length: int
  num_negatives: int = 0
  rates: Sequence[float] | None = None
  layout: Layout = Padded()
  cells: int = 1
  columns: Sequence[Column] = ()
  around: Around | None = None
  num_others: int = 0
  sides: Sequence[str] = ('queries', 'passages')
  joint_rows: bool = False

  def __post_init__(self):
    if not 1 <= self.batch_size <= self.num_examples:
      raise UserError(
          f'Batches.batch_size (BATCH_SIZE) is {self.batch_size}, but'
          f' {" + ".join(cache.header["task"] for cache in self.caches)} has'
          f' {self.num_examples} examples. Expected 1 to that many.'
      )
    expect(
        0 <= self.num_others < self.batch_size,
        'Batches.num_others (NUM_OTHERS)', self.num_others,
        f'0 or more, and less than the batch size {self.batch_size}',
    )
    if self.joint_rows and (self.num_negatives or len(self.names) != 2):
      raise UserError(
          'Batches.joint_rows puts a query beside its passage; expected both'
          f' sides and no hard negatives, not {", ".join(self.names)} and'
          f' num_negatives {self.num_negatives}.'
      )
    if self.num_negatives > 0 and not any(
        len(cache.negative_tokens) for cache in self.caches
    ):
      header = self.caches[0].header
      raise UserError(
          f'Batches.num_negatives (NUM_NEGATIVES) is {self.num_negatives}, but'
          f" no example of task {header['task']!r}, split {header['split']!r},"
          ' has hard negatives. Use 0.'
      )

  @functools.cached_property
  def picker(self) -> Picker:
    return Picker(
        self.caches, (1.0,) if self.rates is None else tuple(self.rates),
        self.batch_size, self.seed, self.num_negatives, self.columns,
        self.num_others,
    )

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the texts of a batch."""
    return tuple(self.sides) if self.around is None else ('pairs',)

  @property
  def limits(self) -> tuple[int, ...]:
    """Most tokens of each of `names`."""
    if self.around is None:
      return self._of_sides(self.query_length, self.passage_length)
    return (self.around.most(self.query_length, self.passage_length),)

  @functools.cached_property
  def _pools(self) -> tuple[Pool | Joined, ...]:
    """Where each of `names` is found."""
    queries, passages = self.picker.queries, self.picker.passages
    if self.around is None:
      return self._of_sides(queries, passages)
    return (Joined(self.around, queries, passages),)

  def _of_sides(self, queries: Any, passages: Any) -> tuple[Any, ...]:
    both = {'queries': queries, 'passages': passages}
    return tuple(both[side] for side in self.sides)

  @property
  def num_examples(self) -> int:
    return sum(len(cache) for cache in self.caches)

  @functools.cached_property
  def shapes(self) -> list[tuple[Shape, ...]]:
    """Shapes of `names`, the usual one first, the largest last.

    A step takes the first that holds its texts, so that there are no more
    programs to compile than these.
    """
    if self.joint_rows:
      return self._joint_rows.shapes
    by_name = [
        self.layout.shapes(lengths, limit)
        for lengths, limit in zip(self._sample(), self.limits)
    ]
    return [
        tuple(shapes[min(i, len(shapes) - 1)] for shapes in by_name)
        for i in range(max(map(len, by_name)))
    ]

  def _sample(self) -> list[np.ndarray]:
    """Lengths of the texts of some cells, int64 [cells, T], by `names`."""
    texts = self.batch_size * (1 + self.num_negatives + self.num_others)
    count = min(max(SAMPLE_TEXTS // texts, 8), SAMPLE_BATCHES)
    # Other batches than those to train on, or each of these would fit.
    rng = np.random.default_rng([self.seed, 2**31])
    samples = [
        self._lengths(self._in_cells(self.picker.sample(rng)))
        for _ in range(count)
    ]
    return [np.concatenate(lengths) for lengths in zip(*samples)]

  @functools.cached_property
  def _joint_rows(self) -> JointRows:
    """Queries are targets, passages sources."""
    return JointRows(self.layout, self.limits, *self._sample())

  def __call__(
      self, step: int, cells: slice | np.ndarray = slice(None)
  ) -> dict[str, Any]:
    """The batch of a step, which are asked for in any order.

    `cells` is the part [c] of the cells that this host feeds.

    Returns:
      queries and passages, `TextRows` of the cells, the latter with the hard
      negatives, or `pairs` of both; for their b = c B / C pairs numbers uint32
      [b], query_ids and passage_ids uint32 [b, 2], fingerprints of the tokens;
      where a query has several passages positive_ids uint32 [b, P, 2], all but
      its own; with K > 0 negative_ids uint32 [b, K, 2], zero where an example
      has fewer than K, and negative_valid bool [b, K], False there; and each
      column by its name, [b] per query, [b, 1 + K] per candidate.
    """
    picks = self._in_cells(self.picker(step))
    lengths = self._lengths(picks)
    # All hosts take the same shape, so they look at all cells.
    shapes, placements = self._place(lengths)
    texts = [
        layouts.lay_out(
            shape, placement.select(cells), row[cells], length[cells], pool.copy
        )
        for shape, placement, row, length, pool in zip(
            shapes, placements, self._rows(picks), lengths, self._pools
        )
    ]
    fed = np.arange(self.batch_size).reshape(self.cells, -1)[cells].ravel()
    return {**dict(zip(self.names, texts)), **self.picker.arrays(picks[fed])}

  def _in_cells(self, picks: Picks) -> Picks:
    """Deals the pairs to the cells, so that each has texts of all lengths.

    The order of the pairs in a batch is free: a loss is a mean over them.
    """
    if self.cells == 1 or isinstance(self.layout, Padded):
      return picks
    lengths = sum(
        own.reshape(len(picks.queries), -1).sum(axis=1)
        for own in self._lengths(picks)
    )
    longest_first = np.argsort(-lengths, kind='stable')
    # To and fro, or the first cell would get the longer of all.
    rounds = longest_first.reshape(-1, self.cells)
    rounds[1::2] = rounds[1::2, ::-1]
    return picks[rounds.T.ravel()]

  def _rows(self, picks: Picks) -> tuple[np.ndarray, ...]:
    """Rows of the queries [C, P] and the passages [C, P (1 + K)], or of both.

    Those of a query and a passage are [C, P (1 + K), 2].
    """
    passages = picks.passages
    if self.around is None:
      return self._of_sides(
          picks.queries.reshape(self.cells, -1),
          passages.reshape(self.cells, -1),
      )
    queries = np.broadcast_to(picks.queries[:, None], passages.shape)
    pairs = np.stack([np.where(passages < 0, -1, queries), passages], axis=-1)
    return (pairs.reshape(self.cells, -1, 2),)

  def _lengths(self, picks: Picks) -> tuple[np.ndarray, ...]:
    return tuple(
        pool.lengths(rows) for pool, rows in zip(self._pools, self._rows(picks))
    )

  def _place(self, lengths):
    """The first shapes that hold the texts, and where these lie."""
    for shapes in self.shapes:
      if self.joint_rows:
        placements = self._joint_rows.place(shapes, *lengths)
      else:
        placements = [*map(self.layout.place, shapes, lengths)]
      if placements is not None and None not in placements:
        return shapes, placements
    raise AssertionError('The last shape of a layout holds any texts.')


def abstract_batch(
    shapes: tuple[Shape, ...], batch_size: int, cells: int, num_negatives: int,
    array: Callable[[tuple[int, ...], Any], Any],
    columns: Sequence[Column] = (), num_positives: int = 0,
    names: Sequence[str] = ('queries', 'passages'),
) -> dict[str, Any]:
  """A batch of `Batches`, with array(shape, dtype) in place of each array.

  Arguments are those of `Batches`, and the P of `positive_ids`; `shapes` are
  those of the rows of `names`.
  """
  pairs, k = batch_size // cells, num_negatives
  texts = {'queries': pairs, 'passages': pairs * (1 + k)}
  counts = {name: texts.get(name, pairs * (1 + k)) for name in names}
  own = columns_lib.arrays(batch_size, k or None, columns, num_positives)
  return {
      **{
          name: layouts.abstract_rows(shape, cells, count, array)
          for shape, (name, count) in zip(shapes, counts.items(), strict=True)
      },
      **{name: array(*of) for name, of in own.items()},
  }
