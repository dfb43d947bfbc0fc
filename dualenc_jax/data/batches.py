"""Batches by index: the batch of a step is a pure function of seed and step."""

from collections.abc import Callable
import dataclasses
import functools

import numpy as np

from dualenc_jax.data.cache import Cache
from dualenc_jax.data.fingerprint import as_uint32_pairs
from dualenc_jax.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
  """Global batches of a cache, shuffled anew every epoch.

  Step s is batch `s % steps_per_epoch` of epoch `s // steps_per_epoch`. The
  remainder of an epoch, fewer than `batch_size` examples, is left out of it;
  every epoch's permutation leaves out others.

  Attributes:
    cache: the prepared examples.
    batch_size: B, pairs of the global batch.
    seed: of the permutations, 0 or more.
    query_length: columns of the query tokens, not less than the cache's.
    passage_length: columns of the passage tokens, not less than the cache's.
    num_negatives: K, hard negatives a query. Of an example that has more, epoch
      e takes K consecutive ones from number e * K on, around the end to the
      first; of one that has fewer, all, and rows of zeros after them.
  """

  cache: Cache
  batch_size: int
  seed: int
  query_length: int
  passage_length: int
  num_negatives: int = 0

  def __post_init__(self):
    if not 1 <= self.batch_size <= len(self.cache):
      raise UserError(
          f'Batches.batch_size is {self.batch_size}, but the split has'
          f' {len(self.cache)} examples. Expected 1 to that many.'
      )
    for name in ('query_length', 'passage_length'):
      cached = self.cache.header[name]
      if getattr(self, name) < cached:
        raise UserError(
            f'Batches.{name} is {getattr(self, name)}, but rows of the cache'
            f' have up to {cached} tokens; a cut would lose their EOS. Use the'
            ' lengths of the Tokenizer.'
        )
    if self.num_negatives > 0 and not len(self.cache.negative_tokens):
      raise UserError(
          f'Batches.num_negatives is {self.num_negatives}, but no example of'
          f" task {self.cache.header['task']!r}, split"
          f" {self.cache.header['split']!r}, has hard negatives. Use 0."
      )

  @property
  def num_examples(self) -> int:
    return len(self.cache)

  @property
  def steps_per_epoch(self) -> int:
    return len(self.cache) // self.batch_size

  def __call__(
      self, step: int, rows: slice | np.ndarray = slice(None)
  ) -> dict[str, np.ndarray]:
    """The batch of a step.

    Args:
      step: 0 or more; any order.
      rows: the part [b] of the global batch [B] that this host feeds, a slice
        or row numbers.

    Returns:
      query_tokens int32 [b, Lq] and passage_tokens int32 [b, Lp], padded with
      0; query_ids and passage_ids uint32 [b, 2], fingerprints of the tokens;
      with K > 0 negative_tokens int32 [b, K, Lp] and negative_ids uint32
      [b, K, 2], all zero where an example has fewer than K negatives.
    """
    epoch, indices = self._examples(step, rows)
    cache = self.cache
    batch = {
        'query_tokens': cache.query_tokens.padded(indices, self.query_length),
        'passage_tokens': cache.passage_tokens.padded(
            indices, self.passage_length
        ),
        'query_ids': as_uint32_pairs(cache.query_fingerprints[indices]),
        'passage_ids': as_uint32_pairs(cache.passage_fingerprints[indices]),
    }
    if self.num_negatives > 0:
      batch |= self._negatives(indices, epoch)
    return batch

  def fingerprints(self, step: int) -> dict[str, np.ndarray]:
    """The texts of the global batch of a step, without their tokens.

    Returns:
      uint64 fingerprints query [B], passage [B] and negatives [B, K], and
      negative_valid, bool [B, K], False where an example has fewer than K.
    """
    epoch, indices = self._examples(step, slice(None))
    chosen, valid = np.zeros((2, len(indices), 0), np.int64)
    if self.num_negatives > 0:
      chosen, valid = self._chosen_negatives(indices, epoch)
    return {
        'query': self.cache.query_fingerprints[indices],
        'passage': self.cache.passage_fingerprints[indices],
        'negatives': self.cache.negative_fingerprints[chosen],
        'negative_valid': valid.astype(bool),
    }

  def _examples(self, step, rows) -> tuple[int, np.ndarray]:
    """The epoch of a step, and numbers of the examples of its rows."""
    epoch, position = divmod(step, self.steps_per_epoch)
    start = position * self.batch_size
    examples = self._permutation(epoch)[start : start + self.batch_size]
    return epoch, examples[rows]

  def _negatives(self, indices, epoch) -> dict[str, np.ndarray]:
    cache, k = self.cache, self.num_negatives
    chosen, real = self._chosen_negatives(indices, epoch)
    chosen = chosen.reshape(-1)
    tokens = cache.negative_tokens.padded(chosen, self.passage_length)
    ids = as_uint32_pairs(cache.negative_fingerprints[chosen])
    tokens = tokens.reshape(len(indices), k, self.passage_length)
    ids = ids.reshape(len(indices), k, 2)
    return {
        'negative_tokens': np.where(real[:, :, None], tokens, np.int32(0)),
        'negative_ids': np.where(real[:, :, None], ids, np.uint32(0)),
    }

  def _chosen_negatives(self, indices, epoch) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the hard negatives [b, K], and whether there are such."""
    k = self.num_negatives
    first = self.cache.negative_offsets[indices][:, None]
    count = self.cache.negative_offsets[indices + 1][:, None] - first
    number = np.arange(k)[None, :]
    real = number < count
    turn = (epoch * k + number) % np.maximum(count, 1)
    # Row 0 stands in where there is none.
    return np.where(real, first + turn, 0), real

  @functools.cached_property
  def _permutation(self) -> Callable[[int], np.ndarray]:
    # One epoch is kept: 8 million examples are 64 MB and 0.2 s a permutation.
    @functools.lru_cache(maxsize=1)
    def permutation(epoch: int) -> np.ndarray:
      rng = np.random.default_rng([self.seed, epoch])
      return rng.permutation(len(self.cache))

    return permutation
