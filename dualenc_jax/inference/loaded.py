"""A model that is ready to encode: towers, parameters, tokenizer."""

import abc
from collections.abc import Iterator, Mapping
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.inference import batched
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.tokenizer import Tokenizer


class Towers(abc.ABC):
  """Two towers, compiled; whoever wrote their programs.

  Attributes:
    dim: D, of the embeddings.
  """

  dim: int

  @abc.abstractmethod
  def batches(
      self,
      method: str,
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encodes step by step, the longest rows first.

    Args:
      method: 'encode_query' or 'encode_passage'.
      params: the model's parameters.
      tokens: token ids.
      rows: which of them; None for all.

    Yields:
      (int64 [n] positions in `rows`, float32 [n, D] their embeddings).
    """

  def queries(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeds tokenised queries.

    Args:
      params: the model's parameters.
      tokens: token ids.
      rows: which of them, in the order wanted; None for all.

    Returns:
      float32 [len(rows), D].
    """
    return self._collect('encode_query', params, tokens, rows)

  def passages(
      self, params: Any, tokens: Ragged, rows: np.ndarray | None = None
  ) -> np.ndarray:
    """Embeds tokenised passages; see `queries`."""
    return self._collect('encode_passage', params, tokens, rows)

  def _collect(self, method, params, tokens, rows) -> np.ndarray:
    count = len(tokens) if rows is None else len(rows)
    return batched.put_back(
        np.empty((count, self.dim), np.float32),
        self.batches(method, params, tokens, rows),
    )


@dataclasses.dataclass(frozen=True)
class Loaded:
  """Two towers with their parameters, and how texts become their tokens.

  Attributes:
    params: the parameters on the devices, as `embedder` takes them.
    tokenizer: vocabulary, lengths and prefixes.
    embedder: the towers, compiled.
    provenance: what numbers and vectors of this model depend on, as JSON.
  """

  params: Any
  tokenizer: Tokenizer
  embedder: Towers
  provenance: Mapping[str, Any]

  @property
  def dim(self) -> int:
    """D, of the embeddings."""
    return self.embedder.dim

  def queries(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised queries: float32 [len(tokens), D]."""
    return self.embedder.queries(self.params, tokens)

  def passages(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised passages: float32 [len(tokens), D]."""
    return self.embedder.passages(self.params, tokens)
