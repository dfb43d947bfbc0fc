"""Log-likelihoods of texts by a generator (teacher forcing)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.data.text.ragged import lengths_to_offsets, Pool, Ragged
from dualenc_jax.models import Seq2Seq
from dualenc_jax.models.seq2seq import token_losses
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding import towers
from dualenc_jax.retrieval.encoding.embedder import OnMesh

# The logits of all target tokens are much larger than an encoder's output, so a
# device has fewer rows at once.
_FEWER = 8


class Likelihood(OnMesh):
  """Log-likelihoods of targets given their sources."""

  model: Seq2Seq

  def __init__(
      self,
      model: Seq2Seq,
      partitioner: Partitioner,
      param_shardings: Any,
      batch_size: int,
      length: int,
  ):
    """As `OnMesh`; `length` is the most tokens of a target."""
    rows = max(batch_size // _FEWER, 1)
    super().__init__(model, partitioner, param_shardings, rows)
    self._length = length

    def measure(module: Seq2Seq, tokens: jax.Array) -> jax.Array:
      """Of rows of a target, padded, and its source: [R, L] -> [R, 2]."""
      targets, sources = tokens[:, :length], tokens[:, length:]
      logits = module(sources, targets)
      correct = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
      real = targets != 0
      both = jnp.stack([-token_losses(logits, targets), correct], axis=1)
      return jnp.sum(jnp.where(real[:, None], both, 0.0), axis=2)

    self._measure = measure

  def __call__(
      self,
      params: Any,
      targets: Ragged,
      sources: Ragged,
      pairs: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray]:
    """Sums over the tokens of targets.

    Args:
      params: the model's, on the mesh.
      targets: tokens of what is written.
      sources: tokens of what is read.
      pairs: int64 [n, 2], numbers of a target and of a source.

    Returns:
      float32 [n] each: natural log-probabilities, and the number of tokens that
      are the most probable.
    """
    written, read = (Pool([(rows, {})]) for rows in (targets, sources))
    offsets = lengths_to_offsets(self._length + read.lengths(pairs[:, 1]))
    values = np.zeros(offsets[-1], np.int32)
    written.copy(pairs[:, 0], values, offsets[:-1])
    read.copy(pairs[:, 1], values, offsets[:-1] + self._length)
    found = towers.put_back(
        np.empty((len(pairs), 2), np.float32),
        self.batches(self._measure, params, Ragged(values, offsets)),
    )
    return found[:, 0], found[:, 1]
