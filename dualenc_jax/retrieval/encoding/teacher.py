"""`Teacher`, a loaded cross-encoder that scores pairs of texts."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.data.text.joined import Around, Joined
from dualenc_jax.data.text.ragged import lengths_to_offsets, Pool, Ragged
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.retrieval.encoding.calibration import Calibration
from dualenc_jax.retrieval.encoding.embedder import Scorer
from dualenc_jax.utils.errors import UserError

# Pairs whose tokens are in memory at once.
_BLOCK = 2**16


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
  """A cross-encoder with its parameters and tokenizer.

  Attributes:
    params: parameters of `scorer` on the devices.
    tokenizer: vocabulary and lengths.
    around: tokens that join a query and a passage.
    scorer: the compiled model.
    provenance: JSON that determines its scores.
    calibration: from scores to probabilities, or None.
  """

  params: Any
  tokenizer: Tokenizer
  around: Around
  scorer: Scorer
  provenance: Mapping[str, Any]
  calibration: Calibration | None = None

  def scores(
      self,
      queries: Sequence[str],
      passages: Sequence[str],
      pairs: np.ndarray,
  ) -> np.ndarray:
    """Logits float32 [n] of pairs int64 [n, 2] of query and passage."""
    blocks = [found for _, found in self.blocks(queries, passages, pairs)]
    return np.concatenate([np.zeros(0, np.float32), *blocks])

  def blocks(
      self,
      queries: Sequence[str],
      passages: Sequence[str],
      pairs: np.ndarray,
      size: int = _BLOCK,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields blocks of pairs [b, 2] with their scores [b], in order."""
    # Each text that takes part is tokenised once.
    rows = np.empty_like(pairs)
    pools = []
    for column, (texts, encode) in enumerate((
        (queries, self.tokenizer.encode_queries),
        (passages, self.tokenizer.encode_passages),
    )):
      used, rows[:, column] = np.unique(pairs[:, column], return_inverse=True)
      pools.append(Pool([(encode([texts[i] for i in used.tolist()]), {})]))
    joined = Joined(self.around, *pools)
    for start in range(0, len(pairs), size):
      scores = self.of_tokens(joined, rows[start : start + size])
      yield pairs[start : start + size], scores

  def of_tokens(self, joined: Joined, rows: np.ndarray) -> np.ndarray:
    """Logits of rows [n, 2] of texts that are tokens: float32 [n]."""
    offsets = lengths_to_offsets(joined.lengths(rows))
    values = np.empty(offsets[-1], np.int32)
    joined.copy(rows, values, offsets[:-1])
    return self.scorer.scores(self.params, Ragged(values, offsets))


def check_spread(
    margins: np.ndarray, scores: np.ndarray, spread: float
) -> None:
  """Raises UserError for margins [n] with a lower deviation than `spread`."""
  if len(margins) < 2 or margins.std() >= spread:
    return
  why = 'It tells passages apart too little.'
  if 0 <= min(scores) <= max(scores) <= 1:
    why = (
        'All its scores are from 0 to 1: they have passed a sigmoid, which'
        ' takes from margins what they are to teach. Give raw logits.'
    )
  raise UserError(
      f"The teacher's {len(margins):,} margins have a standard deviation of"
      f' {margins.std():.3g}; expected {spread:g} or more (LEAST_SPREAD in gin,'
      f' --min_spread of `dualenc mine`). {why}'
  )
