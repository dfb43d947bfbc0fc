"""A loaded split re-ranker: its states of passages, and scores of queries."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from dualenc_jax.data.text.ragged import (
  fingerprints,
  lengths_to_offsets,
  Pool,
  Ragged,
)
from dualenc_jax.models import SplitRanker
from dualenc_jax.retrieval.compression.quantisers import Hamming, Signs
from dualenc_jax.retrieval.encoding import towers
from dualenc_jax.retrieval.encoding.embedder import Embedder
from dualenc_jax.retrieval.encoding.teacher import Calibration, PairScorer
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.utils.errors import UserError

# Pairs whose texts, and states, are in memory at once.
_BLOCK = 2**14


class SplitScorer(Embedder):
  """The two halves of a `SplitRanker`, D = M E components a passage."""

  model: SplitRanker  # type: ignore[assignment]
  normalised = False

  @property
  def dim(self) -> int:
    return self.model.num_states * self.model.token_embedder.features

  def batches(
      self, method: Any, params: Any, tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    if method == 'encode_query':
      raise UserError(
          'This is a split re-ranker, which embeds passages alone: it scores a'
          ' query with what another model has found. Give it as --teacher= of'
          ' `dualenc rerank`, `mine` and `label`, or --rerank= of `evaluate`.'
      )
    return super().batches(method, params, tokens, rows)

  def scores(
      self, params: Any, queries: Ragged, states: Any, pairs: np.ndarray
  ) -> np.ndarray:
    """Logits of pairs.

    Args:
      params: of the model.
      queries: their tokens.
      states: of passages, float [N, D]; rows are read on demand.
      pairs: int64 [n, 2], rows of a query and of a passage.

    Returns:
      float32 [n].
    """
    pool = Pool([(queries, {})])
    # Before the tokens of its query a row has the number of the pair.
    offsets = lengths_to_offsets(1 + pool.lengths(pairs[:, 0]))
    values = np.empty(offsets[-1], np.int32)
    values[offsets[:-1]] = np.arange(len(pairs))
    pool.copy(pairs[:, 0], values, offsets[:-1] + 1)

    def program(host: np.ndarray) -> jax.Array:
      passages = pairs[host[:, :, 0].reshape(-1), 1]
      own = np.asarray(states[passages], np.float32)
      own = own.reshape(*host.shape[:2], 1, self.dim)
      return self.run('score', params, host[:, :, 1:], own)[:, :, 0]

    return towers.scatter(
        np.empty(len(pairs), np.float32),
        self.run_batches(program, Ragged(values, offsets)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class SplitTeacher(PairScorer):
  """A split re-ranker that scores texts.

  Attributes:
    model: its parameters, tokenizer and `SplitScorer`.
    calibration: from scores to probabilities, or None.
    stored: an index of the states of all passages, which are not encoded then;
      None encodes those that are scored.
  """

  model: LoadedModel
  calibration: Calibration | None = None
  stored: Any = None

  def __post_init__(self):
    codec = getattr(self.stored and self.stored.embeddings, 'codec', None)
    if codec is not None and (
        codec.transforms or isinstance(codec.quantiser, Signs | Hamming)
    ):
      raise UserError(
          f'{self.stored.folder} has codes by {codec.name}, which do not stand'
          ' for states. Encode it with --codec=fp16, int8 or pq.'
      )

  @property
  def provenance(self) -> Mapping[str, Any]:  # type: ignore[override]
    if self.stored is None:
      return self.model.provenance
    header = self.stored.header
    return {**self.model.provenance, 'states': header.codec or header.dtype}

  def blocks(
      self, queries: Sequence[str], passages: Sequence[str], pairs: np.ndarray,
      size: int = _BLOCK,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    tokenizer, scorer = self.model.tokenizer, self.model.embedder
    assert isinstance(scorer, SplitScorer)
    params = self.model.params
    for start in range(0, len(pairs), max(size, _BLOCK)):
      block = pairs[start : start + max(size, _BLOCK)]
      # Each text of the block is read once.
      (asked, query), (used, passage) = (
          np.unique(block[:, side], return_inverse=True) for side in (0, 1)
      )
      tokens = tokenizer.encode_queries([queries[i] for i in asked.tolist()])
      states = self.states([passages[i] for i in used.tolist()])
      rows = np.stack([query, passage], axis=1)
      for first in range(0, len(block), size):
        part = slice(first, first + size)
        yield block[part], scorer.scores(params, tokens, states, rows[part])

  def states(self, passages: Sequence[str]) -> np.ndarray:
    """The states of passages, float32 [n, D].

    Raises UserError if one is not stored.
    """
    if self.stored is None:
      tokens = self.model.tokenizer.encode_passages(passages)
      return self.model.embedder.passages(self.model.params, tokens)
    wanted = fingerprints(Ragged.from_texts(passages))
    rows = np.array([self._rows.get(key, -1) for key in wanted.tolist()])
    if len(missing := np.flatnonzero(rows < 0)):
      raise UserError(
          f'{self.stored.folder} lacks {len(missing):,} of the passages, such'
          f' as {passages[missing[0]]!r:.90}. Encode the corpus of this task,'
          ' or leave out --teacher_index.'
      )
    return np.asarray(self.stored.embeddings[rows], np.float32)

  @functools.cached_property
  def _rows(self) -> dict[int, int]:
    """Rows of the index by the fingerprints of their texts."""
    texts = (self.stored.passage(i).text for i in range(len(self.stored)))
    keys = fingerprints(Ragged.from_texts(texts))
    return {key: row for row, key in enumerate(keys.tolist())}
