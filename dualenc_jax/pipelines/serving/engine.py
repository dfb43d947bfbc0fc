"""The work of a server's thread: models over batches of texts."""

from collections.abc import Mapping, Sequence
import functools
import logging
import time
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import UNK
from dualenc_jax.retrieval.encoding.embedder import CompiledModel
from dualenc_jax.retrieval.encoding.exported_programs import (
  ExportedTowers,
  lengths_up_to,
)
from dualenc_jax.retrieval.encoding.towers import Shapes
from dualenc_jax.retrieval.search.search_programs import power_of_two
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

# Jobs: texts to embeddings, by tower; a query, or a passage, to its hits.
QUERY, PASSAGE = 'query', 'passage'
SEARCH, NEIGHBOURS = 'search', 'neighbours'
# Most texts of a batch. Passages are long, and others wait meanwhile.
_MOST = {QUERY: 32, PASSAGE: 8, SEARCH: 32, NEIGHBOURS: 8}
# Hits that most ask for. Others get the best of the most that may be asked for,
# as an accelerator has a program for each number.
_USUAL_K = 10
_LOG = logging.getLogger(__name__)


class Job(NamedTuple):
  """Work on texts; texts of equal jobs share a batch.

  Attributes:
    kind: `QUERY`, `PASSAGE`, `SEARCH` or `NEIGHBOURS`.
    model: its name.
    k: hits of a text, for the last two.
    hybrid: as of `Retriever.find`, for `SEARCH`.
  """

  kind: str
  model: str
  k: int = 0
  hybrid: float | str | None = None

  @property
  def most(self) -> int:
    """Most texts of a batch."""
    return _MOST[self.kind]


class Embedding(NamedTuple):
  """The embedding of a text, float32 [D], and how many tokens were read."""

  vector: np.ndarray
  tokens: int


class Engine:
  """Models by name, for batches of few shapes.

  Attributes:
    retrievers: models, some with an index, by name.
    max_k: most hits of a query.
    with_words: names of the models whose index has words for hybrid search.
  """

  def __init__(
      self, retrievers: Mapping[str, Retriever], max_k: int = 100,
      with_words: Sequence[str] = (),
  ):
    """Takes models; towers of ours then use programs of few lengths."""
    self.retrievers, self.max_k = retrievers, max_k
    self.with_words = with_words
    for retriever in retrievers.values():
      embedder, own = retriever.towers.embedder, retriever.tokenizer
      if isinstance(embedder, CompiledModel):
        longest = max(own.query_length, own.passage_length)
        embedder.shapes = Shapes(
            embedder.shapes.max_tokens, lengths_up_to(longest)
        )

  @functools.cached_property
  def encoders(self) -> list[str]:
    """Names of the models that encode passages."""
    return [n for n, r in self.retrievers.items() if _encodes_passages(r)]

  def job(self, kind: str, model: str, k: int, hybrid: Any = None) -> Job:
    """The job that has k hits, or more."""
    usual = min(_USUAL_K, self.max_k)
    return Job(kind, model, usual if k <= usual else self.max_k, hybrid)

  def run(self, job: Job, texts: Sequence[str]) -> Sequence[Any]:
    """An `Embedding` of each text, or a list of its `Hit`s.

    Raises:
      RuntimeError: an embedding is not finite.
    """
    try:
      return self._run(self.retrievers[job.model], job, texts)
    except UserError as e:
      # Requests are checked before; this one is not the user's.
      raise RuntimeError(f'{job.model}: {e}') from e

  def _run(
      self, retriever: Retriever, job: Job, texts: Sequence[str]
  ) -> Sequence[Any]:
    if job.kind in (SEARCH, NEIGHBOURS):
      return self._find(retriever, job, texts)
    if job.kind == QUERY:
      tokens = retriever.tokenizer.encode_queries(texts)
      vectors = retriever.encode_queries(texts)
    else:
      tokens = retriever.tokenizer.encode_passages(texts)
      vectors = retriever.encode_passages(texts)
    return list(map(Embedding, vectors, tokens.lengths.tolist()))

  def _find(
      self, retriever: Retriever, job: Job, texts: Sequence[str]
  ) -> list[Any]:
    if job.hybrid is not None:
      return retriever.find(texts, job.k, job.hybrid)
    encode = retriever.encode_queries
    if job.kind == NEIGHBOURS:
      encode = retriever.encode_passages
    # Programs exist for powers of two.
    padding = [''] * (power_of_two(len(texts)) - len(texts))
    found = retriever.find(encode([*texts, *padding]), job.k)
    return found[: len(texts)]

  def warm_up(self) -> None:
    """Compiles all that requests may need, so that none waits for it.

    Raises:
      UserError: an index cannot give `max_k` hits, or has other vectors.
    """
    start = time.perf_counter()
    for name, retriever in self.retrievers.items():
      towers, own = retriever.towers, retriever.tokenizer
      encoders: list[Any] = [(QUERY, towers.queries, own.query_length)]
      if name in self.encoders:
        encoders.append((PASSAGE, towers.passages, own.passage_length))
      is_ours = isinstance(towers.embedder, (CompiledModel, ExportedTowers))
      for kind, encode, limit in encoders if is_ours else ():
        for length in lengths_up_to(limit):
          for rows in _powers(_MOST[kind]):
            encode(_some_tokens(rows, length, own.vocabulary.token_dtype))
      if len(retriever):
        vectors = np.full((_MOST[SEARCH], retriever.dim), 1, np.float32)
        vectors /= retriever.dim**0.5
        for rows in _powers(len(vectors)):
          for k in {self.job(SEARCH, name, k).k for k in (1, self.max_k)}:
            retriever.find(vectors[:rows], k)
    _LOG.info('Compiled in %.1f s.', time.perf_counter() - start)


def _powers(most: int) -> list[int]:
  """Powers of two up to one of them."""
  return [1 << i for i in range(most.bit_length())]


def _some_tokens(rows: int, length: int, dtype: np.dtype) -> Ragged:
  values = np.full(rows * length, UNK, dtype)
  return Ragged(values, np.arange(0, len(values) + 1, length))


def _encodes_passages(retriever: Retriever) -> bool:
  try:
    retriever.encode_passages([''])
  except UserError:
    return False
  return True
