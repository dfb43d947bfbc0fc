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
from dualenc_jax.data.order import Order, Positives
from dualenc_jax.data.text.ragged import as_uint32_pairs, Pool
from dualenc_jax.data.text.template import PairPool, TokenTemplate
from dualenc_jax.utils.errors import expect

# Texts of the batches that a layout's shapes are chosen from, at most.
SAMPLE_TEXTS = 2**22
SAMPLE_BATCHES = 256


@dataclasses.dataclass(frozen=True)
class BatchIndices:
  """The pairs of a global batch, before their tokens are read.

  Attributes:
    queries: int64 [B], rows of `Batches.queries`.
    passages: int64 [B, 1 + K], rows of `Batches.passages`, the positive and
      then the hard negatives, -1 where an example has fewer than K.
    numbers: uint32 [B], places in the order of the step, for dropout.
  """

  queries: np.ndarray
  passages: np.ndarray
  numbers: np.ndarray

  def __getitem__(self, rows: np.ndarray) -> 'BatchIndices':
    """Some pairs, in this order."""
    return BatchIndices(
        self.queries[rows], self.passages[rows], self.numbers[rows]
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """Global batches of one cache, or of a mixture of several.

  The pairs of a step are a pure function of the caches, rates, batch size and
  seed, see `Order`: neither layout nor cells nor hosts change them.

  Attributes:
    batch_size: B, pairs of the global batch.
    seed: seed of the order, 0 or more.
    query_length, passage_length: most tokens, not less than the caches'.
    num_negatives: K, hard negatives a query. Where an example has more, epoch e
      takes K consecutive ones from number e * K on, around the end to the
      first; of fewer, all.
    rates: share of each cache; None for one cache.
    cells: C, a multiple of the devices that feed on a batch and a divisor of B;
      see `dualenc_jax.data.layouts`.
    columns: columns per query or candidate; a cache without one has its
      default.
    template: joins the query and each of its passages to one text, for a
      cross-encoder; None leaves them separate.
    num_others: how many passages of other pairs of the batch serve as hard
      negatives of a query, after its own.
    sides: the texts that a batch has, unless `template` joins them.
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
  template: TokenTemplate | None = None
  num_others: int = 0
  sides: Sequence[str] = ('queries', 'passages')
  joint_rows: bool = False

  def __post_init__(self):
    tasks = ' + '.join(cache.header['task'] for cache in self.caches)
    expect(
        1 <= self.batch_size <= self.num_examples,
        'Batches.batch_size (BATCH_SIZE)', self.batch_size,
        f'1 to {self.num_examples:,}, the examples of {tasks}',
    )
    expect(
        0 <= self.num_others < self.batch_size,
        'Batches.num_others (NUM_OTHERS)', self.num_others,
        f'0 or more, and less than the batch size {self.batch_size}',
    )
    if self.joint_rows:
      expect(
          not self.num_negatives and len(self.names) == 2,
          'Batches.joint_rows', True,
          f'False for {", ".join(self.names)} with {self.num_negatives} hard'
          ' negatives',
      )
    if not any(len(cache.negative_tokens) for cache in self.caches):
      expect(
          self.num_negatives == 0,
          'Batches.num_negatives (NUM_NEGATIVES)', self.num_negatives,
          f'0, as no example of {tasks} has hard negatives',
      )

  @property
  def num_examples(self) -> int:
    return sum(len(cache) for cache in self.caches)

  @functools.cached_property
  def order(self) -> Order:
    sizes = tuple(len(cache) for cache in self.caches)
    rates = (1.0,) if self.rates is None else tuple(self.rates)
    return Order(sizes, rates, self.batch_size, self.seed)

  @functools.cached_property
  def queries(self) -> Pool:
    """Rows of the queries of all caches."""
    return Pool([self._part(cache, 'query', 'query') for cache in self.caches])

  @functools.cached_property
  def passages(self) -> Pool:
    """Rows of the passages of all caches, then of their hard negatives."""
    return Pool([
        self._part(cache, 'candidate', text)
        for text in ('passage', 'negative')
        for cache in self.caches
    ])

  def _part(self, cache: Cache, per: str, text: str) -> Any:
    """The tokens of a text of all examples, and its columns."""
    tokens = getattr(cache, f'{text}_tokens')
    columns = {'ids': getattr(cache, f'{text}_fingerprints')}
    prefix = 'negative_' if text == 'negative' else ''
    for column in self.columns:
      if column.per == per:
        # Where another source of a mixture has the column.
        default = np.array(column.default, column.dtype)
        columns[column.name] = getattr(
            cache, prefix + column.key, np.broadcast_to(default, len(tokens))
        )
    return tokens, columns

  @functools.cached_property
  def positives(self) -> Positives:
    """The passages of each query, over all caches."""
    pairs: tuple[list[Any], list[Any]] = [], []
    for cache in self.caches:
      # A row without a query is a passage of a corpus.
      rows = np.flatnonzero(cache.query_tokens.lengths)
      pairs[0].append(cache.query_fingerprints[rows])
      pairs[1].append(cache.passage_fingerprints[rows])
    return Positives(*map(np.concatenate, pairs))

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the texts of a batch."""
    return tuple(self.sides) if self.template is None else ('pairs',)

  @property
  def limits(self) -> tuple[int, ...]:
    """Most tokens of each of `names`."""
    if self.template is None:
      return self._select_sides(self.query_length, self.passage_length)
    return (self.template.most(self.query_length, self.passage_length),)

  @functools.cached_property
  def _pools(self) -> tuple[Pool | PairPool, ...]:
    """The texts of each of `names`."""
    if self.template is None:
      return self._select_sides(self.queries, self.passages)
    return (PairPool(self.template, self.queries, self.passages),)

  def _select_sides(self, queries: Any, passages: Any) -> tuple[Any, ...]:
    both = {'queries': queries, 'passages': passages}
    return tuple(both[side] for side in self.sides)

  @functools.cached_property
  def shapes(self) -> list[tuple[Shape, ...]]:
    """Shapes of `names`, rising.

    A step takes the first that holds its texts, so that there are no more
    programs to compile than these.
    """
    return list(dict.fromkeys(self._tried_shapes))

  @property
  def usual_shapes(self) -> list[tuple[Shape, ...]]:
    """The first of `shapes`, which hold the batches of a sample."""
    return list(dict.fromkeys(self._tried_shapes[: self.layout.num_shapes]))

  @functools.cached_property
  def _tried_shapes(self) -> list[tuple[Shape, ...]]:
    """The shapes that the layout tries in turn; some may be equal."""
    if self.joint_rows:
      return self._joint_rows.shapes
    together = self.cells * len(self.names)
    by_name = [
        self.layout.shapes(lengths, limit, together)
        for lengths, limit in zip(self._sample_lengths(), self.limits)
    ]
    return [
        tuple(shapes[min(i, len(shapes) - 1)] for shapes in by_name)
        for i in range(max(map(len, by_name)))
    ]

  @functools.cached_property
  def _joint_rows(self) -> JointRows:
    """Queries are targets, passages sources."""
    targets, sources = self._sample_lengths()
    return JointRows(self.layout, self.limits, targets, sources, self.cells)

  def _sample_lengths(self) -> list[np.ndarray]:
    """Lengths of the texts of some cells, int64 [cells, T], by `names`."""
    texts = self.batch_size * (1 + self.num_negatives + self.num_others)
    count = min(max(SAMPLE_TEXTS // texts, 8), SAMPLE_BATCHES)
    # Other batches than those to train on, or each of these would fit.
    rng = np.random.default_rng([self.seed, 2**31])
    sizes = np.array(self.order.sizes)
    samples = []
    for _ in range(count):
      source = rng.choice(len(sizes), self.batch_size, p=self.order.rates)
      examples = self.queries.first[source] + rng.integers(0, sizes[source])
      epochs = np.zeros(self.batch_size, np.int64)
      indices = self._deal(self._add_negatives(examples, epochs))
      samples.append(self._lengths(indices))
    return [np.concatenate(lengths) for lengths in zip(*samples)]

  def __call__(
      self, step: int, cells: slice | np.ndarray = slice(None)
  ) -> dict[str, Any]:
    """The batch of a step; steps may be asked for in any order.

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
    indices = self._deal(self.indices(step))
    lengths = self._lengths(indices)
    # All hosts take the same shape, so they look at all cells.
    shapes, placements = self._place(lengths)
    texts = [
        layouts.lay_out(
            shape, placement.select(cells), row[cells], length[cells], pool.copy
        )
        for shape, placement, row, length, pool in zip(
            shapes, placements, self._rows(indices), lengths, self._pools
        )
    ]
    fed = np.arange(self.batch_size).reshape(self.cells, -1)[cells].ravel()
    return {**dict(zip(self.names, texts)), **self.arrays(indices[fed])}

  def indices(self, step: int) -> BatchIndices:
    """The pairs of a step."""
    return self._add_negatives(*self.order(step))

  def arrays(self, indices: BatchIndices) -> dict[str, np.ndarray]:
    """The arrays of a batch of some pairs, except its texts."""
    passages = self.passages.gather('ids', indices.passages)
    queries = self.queries.gather('ids', indices.queries)
    ids = as_uint32_pairs(passages)
    arrays = {
        'numbers': indices.numbers,
        'query_ids': as_uint32_pairs(queries),
        'passage_ids': ids[:, 0],
    }
    if self.positives.count:
      others = self.positives.others(queries, passages)
      arrays['positive_ids'] = as_uint32_pairs(others)
    if ids.shape[1] > 1:
      arrays['negative_ids'] = ids[:, 1:]
      arrays['negative_valid'] = indices.passages[:, 1:] >= 0
    for column in self.columns:
      per_query = column.per == 'query'
      pool = self.queries if per_query else self.passages
      rows = indices.queries if per_query else indices.passages
      arrays[column.name] = pool.gather(column.name, rows, column.default)
    return arrays

  def _add_negatives(
      self, examples: np.ndarray, epochs: np.ndarray
  ) -> BatchIndices:
    """Pairs of examples [B] in epochs [B], with their hard negatives."""
    passages = examples[:, None]
    if self.num_negatives > 0:
      negatives = self._choose_negatives(examples, epochs)
      passages = np.concatenate([passages, negatives], axis=1)
    if self.num_others:
      others = self._following_passages(examples)
      passages = np.concatenate([passages, others], axis=1)
    numbers = np.arange(len(examples), dtype=np.uint32)
    return BatchIndices(examples, passages, numbers)

  def _choose_negatives(
      self, examples: np.ndarray, epochs: np.ndarray
  ) -> np.ndarray:
    """Rows of the hard negatives [B, K], -1 where there are fewer."""
    k, n = self.num_negatives, len(self.caches)
    chosen = np.full((len(examples), k), -1, np.int64)
    number = np.arange(k)[None, :]
    firsts = self.queries.first
    for source, cache in enumerate(self.caches):
      rows = np.flatnonzero(
          (examples >= firsts[source]) & (examples < firsts[source + 1])
      )
      own = examples[rows] - firsts[source]
      first = cache.negative_offsets[own][:, None]
      count = cache.negative_offsets[own + 1][:, None] - first
      turn = (epochs[rows][:, None] * k + number) % np.maximum(count, 1)
      base = self.passages.first[n + source]
      chosen[rows] = np.where(number < count, base + first + turn, -1)
    return chosen

  def _following_passages(self, examples: np.ndarray) -> np.ndarray:
    """Passages of the next pairs, round the batch; -1 for the pair's own."""
    count = len(examples)
    following = np.arange(count)[:, None] + np.arange(1, 1 + self.num_others)
    following %= count
    same = np.zeros(following.shape, bool)
    for pool in (self.queries, self.passages):
      ids = pool.gather('ids', examples)
      same |= ids[following] == ids[:, None]
    return np.where(same, -1, examples[following])

  def _deal(self, indices: BatchIndices) -> BatchIndices:
    """Deals the pairs to the cells, so that each has texts of all lengths.

    The order of the pairs in a batch is free: a loss is a mean over them.
    """
    if self.cells == 1 or isinstance(self.layout, Padded):
      return indices
    lengths = sum(
        own.reshape(self.batch_size, -1).sum(axis=1)
        for own in self._lengths(indices)
    )
    longest_first = np.argsort(-lengths, kind='stable')
    # To and fro, or the first cell would get the longer of all.
    rounds = longest_first.reshape(-1, self.cells)
    rounds[1::2] = rounds[1::2, ::-1]
    return indices[rounds.T.ravel()]

  def _rows(self, indices: BatchIndices) -> tuple[np.ndarray, ...]:
    """Rows of the queries [C, P] and of the passages [C, P (1 + K)].

    With a template: pairs of both, [C, P (1 + K), 2].
    """
    queries, passages = indices.queries, indices.passages
    if self.template is None:
      return self._select_sides(
          queries.reshape(self.cells, -1), passages.reshape(self.cells, -1)
      )
    queries = np.where(passages < 0, -1, queries[:, None])
    pairs = np.stack([queries, passages], axis=-1)
    return (pairs.reshape(self.cells, -1, 2),)

  def _lengths(self, indices: BatchIndices) -> tuple[np.ndarray, ...]:
    return tuple(
        pool.lengths(rows)
        for pool, rows in zip(self._pools, self._rows(indices))
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
  own = columns_lib.batch_arrays(batch_size, k or None, columns, num_positives)
  return {
      **{
          name: layouts.abstract_rows(shape, cells, count, array)
          for shape, (name, count) in zip(shapes, counts.items(), strict=True)
      },
      **{name: array(*of) for name, of in own.items()},
  }
