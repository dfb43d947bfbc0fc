"""Where queries, passages and their judgements come from."""

from collections.abc import Iterator, Mapping, Sequence
import pathlib
from typing import Protocol

from dualenc_jax.errors import UserError
from dualenc_jax.readers.qrels import Qrels
from dualenc_jax.readers.qrels_ids import Row
from dualenc_jax.suggest import did_you_mean

SPLITS = ('train', 'validation', 'test')
CORPUS = 'corpus'


class Source(Protocol):
  """The files of a data set, of whatever layout.

  All but `splits` raise SourceUnavailable where a file is missing.
  """

  def splits(self) -> tuple[str, ...]:
    """Those of SPLITS that have judgements, and CORPUS, as far as there."""

  def paths(self, split: str) -> list[pathlib.Path]:
    """All files that a split is read from."""

  def passages(self) -> Iterator[Row]:
    """Yields all of the corpus."""

  def queries(self, split: str) -> Iterator[Row]:
    """Yields the queries of a split, perhaps those of other splits, too."""

  def qrels(self, split: str) -> Qrels:
    """The judgements of a split."""

  def comparable(
      self, split: str, published: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Those of the published counts of a split that it should have."""


def check_file_names(names: Mapping[str, str], known: Sequence[str]) -> None:
  """Raises UserError where `names` gives the name of an unknown file."""
  for name in names:
    if name not in known:
      raise UserError(
          f'files names {name!r}.{did_you_mean(name, known)} Expected some of:'
          f' {", ".join(known)}.'
      )
