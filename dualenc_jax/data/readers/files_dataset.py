"""`FilesDataset`, the base class of readers of files."""

import abc
from collections.abc import Sequence
import pathlib

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.readers import rows
from dualenc_jax.utils.errors import expect


class FilesDataset(Dataset):
  """A dataset whose splits are known by the content of their files."""

  strict: bool

  def __post_init__(self):
    is_bool = isinstance(self.strict, bool)
    expect(is_bool, 'STRICT (strict)', self.strict, 'True or False')

  @abc.abstractmethod
  def paths(self, split: str) -> Sequence[pathlib.Path]:
    """All files that a split is read from.

    Raises:
      UserError: a split or file is missing; SourceUnavailable if the token
        cache of another machine may serve.
    """

  def check_split(self, split: str) -> None:
    self.paths(split)

  def fingerprint(self, split: str) -> str:
    return rows.fingerprint(self.paths(split))
