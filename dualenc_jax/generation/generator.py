"""A T5 with its parameters, ready to write queries of passages."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.generation.sampling import Sampling
from dualenc_jax.generation.writer import LENGTHS, Writer
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.tokenizer import EOS, Tokenizer


class Query(NamedTuple):
  """What was written of a passage.

  Attributes:
    passage: its number among those of the call.
    number: of the query among the passage's, from 0.
    text: as the vocabulary normalises it, without spaces around.
    log_probability: the mean of its tokens', EOS included, by the model.
    ended: whether EOS ends it; else it was cut.
  """

  passage: int
  number: int
  text: str
  log_probability: float
  ended: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
  """A query generator, docT5query (Nogueira and Lin 2019).

  Attributes:
    params: the parameters on the devices, as `writer` takes them.
    tokenizer: vocabulary and lengths; passages are read as `encode_passages`
      has them.
    writer: the model, compiled.
    provenance: what its queries depend on, as JSON.
  """

  params: Any
  tokenizer: Tokenizer
  writer: Writer
  provenance: Mapping[str, Any]

  @property
  def passage_length(self) -> int:
    """Most tokens of a passage that are read, EOS included."""
    return min(self.tokenizer.passage_length, LENGTHS[-1])

  def read(self, passages: Sequence[str]) -> tuple[Ragged, np.ndarray]:
    """Tokens of passages, and which of them, bool [n], are cut."""
    own = dataclasses.replace(
        self.tokenizer, passage_length=self.passage_length + 1
    )
    whole = own.encode_passages(passages)
    is_cut = whole.lengths > self.passage_length
    rows = [whole.row(i) for i in range(len(passages))]
    for i in np.flatnonzero(is_cut):
      rows[i] = np.append(rows[i][: self.passage_length - 1], EOS)
    return Ragged.from_rows(rows, whole.values.dtype), is_cut

  def write(
      self,
      sources: Ragged,
      ids: Sequence[str],
      count: int,
      sampling: Sampling,
      length: int,
      seed: int,
  ) -> Iterator[Query]:
    """Writes queries of passages, see `Writer.write`.

    Args:
      sources: of `read`.
      ids: of the passages; with `seed` they decide what is drawn, so that the
        queries of a passage do not depend on which others there are.
      count: queries of each.
      sampling: how tokens are drawn.
      length: most tokens of a query, EOS included.
      seed: 0 or more.

    Yields:
      All queries, as they are done.
    """
    numbers = np.array([_number(name) for name in ids], np.uint64)
    for text in self.writer.write(
        self.params, sources, numbers, count, sampling, length, seed
    ):
      size = max(len(text.tokens) + text.ended, 1)
      yield Query(
          text.source,
          text.number,
          self.tokenizer.vocabulary.decode(text.tokens).strip(),
          text.log_probability / size,
          text.ended,
      )


def _number(name: str) -> int:
  """Of an id, 64 bits."""
  digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')
