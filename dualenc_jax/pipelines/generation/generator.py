"""A T5 with its parameters, ready to write queries of passages."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import EOS, Tokenizer
from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.pipelines.generation.writer import LENGTHS, Writer


class Query(NamedTuple):
  """A query that was written for a passage.

  Attributes:
    passage: number of the passage in the call.
    number: number of the query among the passage's, from 0.
    text: normalised by the vocabulary, without space around.
    log_probability: mean over its tokens, EOS included, by the model.
    ended: whether it ends with EOS; else it was cut.
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
    params: parameters of `writer` on the devices.
    tokenizer: vocabulary and lengths.
    writer: the compiled model.
    provenance: JSON that determines its queries.
  """

  params: Any
  tokenizer: Tokenizer
  writer: Writer
  provenance: Mapping[str, Any]

  @property
  def passage_length(self) -> int:
    """Most tokens read of a passage, EOS included."""
    return min(self.tokenizer.passage_length, LENGTHS[-1])

  def read(self, passages: Sequence[str]) -> tuple[Ragged, np.ndarray]:
    """Tokens of passages, and bool [n], which of them are cut."""
    length = self.passage_length
    longer = dataclasses.replace(self.tokenizer, passage_length=length + 1)
    whole = longer.encode_passages(passages)
    is_cut = whole.lengths > length
    rows = [
        np.append(whole.row(i)[: length - 1], EOS) if cut else whole.row(i)
        for i, cut in enumerate(is_cut)
    ]
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
    """Yields queries of passages as they are done; see `Writer.write`.

    The ids of the passages and the seed determine the random numbers, so that
    the queries of a passage do not depend on the other passages.
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
  digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')
