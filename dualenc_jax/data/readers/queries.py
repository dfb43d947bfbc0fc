"""Queries alone to train on, without passages."""

from collections.abc import Iterator
import dataclasses
from typing import Any

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.readers.pairs import Pairs
from dualenc_jax.data.readers.texts import Texts
from dualenc_jax.utils.errors import UserError


@dataclasses.dataclass(frozen=True)
class Queries(Dataset):
  """A file of queries to train on, and pairs to evaluate on.

  Attributes:
    queries: JSONL, TSV or a folder in BEIR's layout, as of `Texts`.
    pairs: the reader of the splits validation and test.
    strict: as of `Texts`.
  """

  task_name = 'queries'
  FILES = ('queries',)

  queries: str | None
  pairs: Pairs
  strict: bool = True

  def splits(self) -> tuple[str, ...]:
    return 'train', *(s for s in self.pairs.splits() if s != 'train')

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    reader, split = self._reader(split)
    return reader.examples(split)

  def fingerprint(self, split: str) -> str:
    reader, split = self._reader(split)
    return reader.fingerprint(split)

  def _reader(self, split: str) -> tuple[Texts | Pairs, str]:
    """The reader of a split, and what it calls the split."""
    if split != 'train':
      return self.pairs, split
    if not isinstance(self.queries, str):
      raise UserError(
          f'QUERIES is {self.queries!r}; expected a file of queries.'
      )
    texts = Texts(self.queries, self.strict, given='--gin.QUERIES')
    return texts, 'queries'
