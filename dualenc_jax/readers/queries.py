"""Queries alone to train on, for what needs no passages."""

from collections.abc import Iterator
import dataclasses
from typing import Any

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.errors import UserError
from dualenc_jax.readers.pairs import Pairs
from dualenc_jax.readers.texts import Texts

_TRAIN = 'train'


@dataclasses.dataclass(frozen=True)
class Queries(Dataset):
  """A file of queries to train on, and pairs to evaluate on.

  Attributes:
    queries: JSONL, TSV or a folder in BEIR's layout, as of `Texts`.
    pairs: whose validation and test splits there are.
    strict: as of `Texts`.
  """

  task_name = 'queries'
  FILES = ('queries',)

  queries: str | None
  pairs: Pairs
  strict: bool = True

  def splits(self) -> tuple[str, ...]:
    return _TRAIN, *(s for s in self.pairs.splits() if s != _TRAIN)

  def _texts(self) -> Texts:
    if not isinstance(self.queries, str):
      raise UserError(
          f'QUERIES is {self.queries!r}; expected a file of queries.'
      )
    return Texts(self.queries, self.strict)

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields queries, or pairs; raises UserError as their readers do."""
    if split == _TRAIN:
      return self._texts().examples('queries')
    return self.pairs.examples(split)

  def fingerprint(self, split: str) -> str:
    """Hash of the content of the file."""
    if split == _TRAIN:
      return self._texts().fingerprint('queries')
    return self.pairs.fingerprint(split)
