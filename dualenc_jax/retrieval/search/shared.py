"""The merge of hits that several hosts have found, each in a part of a corpus.

All hosts must call a function here in the same order, and get the same. Lists
of hits go over the network, and embeddings of queries, never of passages.

Shapes: Q queries, D embedding dim, k hits a query, C of them in one part.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import pickle
from typing import Any

import jax
import numpy as np

from dualenc_jax.parallel import host_arrays, hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.search.ranking import (
  concatenate,
  rank_candidates,
  Ranking,
)

# Numbers that are gathered at once, of all hosts together, 64 MB.
_AT_ONCE = 2**24


@dataclasses.dataclass(frozen=True)
class OwnRows:
  """A corpus [N, W] of which this host has a part: [n, W] from row `first`."""

  first: int
  rows: np.ndarray
  total: int

  @property
  def shape(self) -> tuple[int, int]:
    return self.total, self.rows.shape[1]

  @property
  def dtype(self) -> np.dtype:
    return self.rows.dtype

  def __len__(self) -> int:
    return self.total

  def own_part(self) -> tuple[int, np.ndarray]:
    """As of `RowStore`."""
    return self.first, self.rows


def from_first(host: Host, make: Callable[[], Any]) -> Any:
  """Returns what the first host makes, bit for bit; the others wait for it."""
  sent = b'' if host.index else pickle.dumps(make())
  size = int(host_arrays.from_first(np.array([len(sent)], np.int32))[0])
  words = np.zeros(-(-size // 4), np.int32)
  words.view(np.uint8)[: len(sent)] = np.frombuffer(sent, np.uint8)
  return pickle.loads(host_arrays.from_first(words).tobytes()[:size])


def common(queries: np.ndarray) -> np.ndarray:
  """The first host's queries, float32 [Q, D]; CPUs may round differently."""
  hosts.agree('queries', f'embeddings {queries.shape}')
  return np.concatenate([*map(host_arrays.from_first, _blocks(queries))])


def kth_best(values: np.ndarray, k: int) -> np.ndarray:
  """The k-th best of all values, float32 [Q], of float32 [Q, C]; C <= k."""
  return np.concatenate([
      np.partition(every, -k, axis=1)[:, -k]
      for every in _gather(values, k, -np.inf)
  ])


def merge(own: Ranking, ids: Sequence[str], k: int) -> Ranking:
  """The k best hits [Q, k] of all hosts' [Q, C], C <= k.

  Rows are numbers in the whole corpus, as are `ids`.
  """
  rows = own.indices.astype(np.int32)
  return concatenate([
      rank_candidates(scores, candidates.astype(np.int64), ids, k)
      for scores, candidates in zip(
          _gather(own.scores, k, -np.inf), _gather(rows, k, -1), strict=True
      )
  ])


def greatest(values: Any) -> Any:
  """The greatest of all hosts, float32 of any shape."""
  values = np.asarray(values, np.float32)
  flat = values.reshape(-1, 1)
  found = [host_arrays.gather(block).max(axis=0) for block in _blocks(flat)]
  return np.concatenate(found).reshape(values.shape)[()]


def total(counts: np.ndarray) -> np.ndarray:
  """The sums of the hosts' counts of rows: int64 [Q]."""
  return host_arrays.gather(counts.astype(np.int32)).sum(axis=0, dtype=np.int64)


def _gather(x: np.ndarray, k: int, none: Any) -> Iterator[np.ndarray]:
  """Yields what all hosts have of some queries, [q, hosts k], of [Q, C]."""
  missing = k - x.shape[1]
  x = np.pad(x, ((0, 0), (0, missing)), constant_values=none)
  for block in _blocks(x):
    yield host_arrays.gather(block).swapaxes(0, 1).reshape(len(block), -1)


def _blocks(x: np.ndarray) -> Iterator[np.ndarray]:
  """Yields rows of [n, W], so many as are gathered at once."""
  step = max(_AT_ONCE // (x.shape[1] * jax.process_count()), 1)
  for start in range(0, len(x), step):
    yield np.ascontiguousarray(x[start : start + step])
