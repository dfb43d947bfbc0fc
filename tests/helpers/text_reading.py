"""Reads texts back out of rows, segment by segment; and caches in memory."""

import types

import numpy as np

from dualenc_jax.data.text.ragged import fingerprints, Ragged


def texts_of(rows):
  """The tokens of every text of a TextRows: a list [C][T] of lists."""
  num_cells = rows.num_cells
  cells = []
  for cell in range(num_cells):
    segments = []
    assert rows.lengths.shape == rows.texts.shape
    for row, row_lengths in zip(rows.tokens[cell], rows.lengths[cell]):
      start = 0
      for length in row_lengths:
        segments.append(row[start : start + length].tolist())
        start += length
      # Nothing but padding after the texts, and the texts fit.
      assert start <= len(row) and not row[start:].any()
    places = range(len(segments)) if rows.places is None else rows.places[cell]
    cells.append([[] if p < 0 else segments[p] for p in places])
    seen = [p for p in places if p >= 0]
    assert len(seen) == len(set(seen)), 'two texts in one segment'
    own = rows.texts[cell].ravel()
    for text, (place, segment) in enumerate(zip(places, cells[-1])):
      assert not segment or own[place] == text
    assert sum(map(len, segments)) == sum(map(len, cells[-1]))
  return cells


def pairs_of(batch, num_negatives=0):
  """(query, passage, negatives, number) of every pair; of absent ones []."""
  queries = sum(texts_of(batch['queries']), [])
  passages = sum(texts_of(batch['passages']), [])
  k = 1 + num_negatives
  assert len(passages) == k * len(queries) == k * len(batch['numbers'])
  return [
      (
          query, passages[k * i], passages[k * i + 1 : k * i + k],
          int(batch['numbers'][i]),
      )
      for i, query in enumerate(queries)
  ]


class MemoryCache(types.SimpleNamespace):
  """The part of a Cache that batches read."""

  def __len__(self):
    return len(self.query_tokens)


def make_cache(
    queries, passages, negatives=None, query_length=4, passage_length=6
):
  """Of lists of token lists; negatives: a list of them for each query."""
  negatives = [[] for _ in queries] if negatives is None else negatives
  flat = [row for rows in negatives for row in rows]
  ragged = {
      'query': Ragged.from_rows(queries, np.uint16),
      'passage': Ragged.from_rows(passages, np.uint16),
      'negative': Ragged.from_rows(flat, np.uint16),
  }
  return MemoryCache(
      header={
          'task': 'toy', 'split': 'train', 'query_length': query_length,
          'passage_length': passage_length,
      },
      negative_offsets=np.cumsum([0] + [len(rows) for rows in negatives]),
      **{f'{name}_tokens': rows for name, rows in ragged.items()},
      **{f'{name}_fingerprints': fingerprints(r) for name, r in ragged.items()},
  )


def random_cache(
    size, seed=0, query_length=16, passage_length=64, most=4, vocab=900
):
  """Log-normal lengths, 0 to `most` hard negatives a query."""
  rng = np.random.default_rng(seed)

  def rows(count, limit):
    lengths = np.clip(rng.lognormal(np.log(limit / 4), 0.5, count), 1, limit)
    return [rng.integers(2, vocab, int(n)).tolist() for n in lengths]

  return make_cache(
      rows(size, query_length),
      rows(size, passage_length),
      [rows(n, passage_length) for n in rng.integers(0, most + 1, size)],
      query_length,
      passage_length,
  )
