"""Files of data sets: where they are, what identifies them."""

import abc
from collections.abc import Sequence
import hashlib
import os
import pathlib

from dualenc_jax.data.dataset import Dataset
from dualenc_jax.data.readers import text_files
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import SourceUnavailable

# A file beyond this is fingerprinted by its size and blocks spread over it.
WHOLE = 2**28
_BLOCKS, _BLOCK = 64, 2**20


class FilesDataset(Dataset):
  """A dataset whose splits are known by the content of their files."""

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
    return fingerprint(self.paths(split))


def task_folder(
    task: str, root: str | None, data_root: str | None
) -> pathlib.Path | None:
  """The folder of a task's files: `root`, else its own in `data_root`."""
  if root is None and data_root is None:
    return None
  folder = pathlib.Path(data_root or '', task) if root is None else root
  return pathlib.Path(folder).expanduser()


def find(
    root: str | os.PathLike | None, names: Sequence[str], task: str, hint: str
) -> pathlib.Path:
  """The first of several names of a file that exists.

  `root` is None if the user has given no folder; `hint` says where to get the
  file and how large it is. Raises SourceUnavailable.
  """
  if root is None:
    raise SourceUnavailable(
        f'{task} needs {names[0]}, and no folder is given: set'
        f' --gin.DATA_ROOT, below which {task} has a folder of its own. {hint}'
    )
  paths = [pathlib.Path(root).expanduser() / name for name in names]
  for path in paths:
    if path.is_file():
      return path
  others = f' (or {", ".join(names[1:])})' if len(names) > 1 else ''
  raise SourceUnavailable(
      f'{task}: {untrusted.explain_path(paths[0])}{others}. {hint}'
  )


def fingerprint(paths: Sequence[pathlib.Path]) -> str:
  """Hashes the content of files, in this order.

  A file larger than `WHOLE` bytes counts by its size and 64 blocks of one MiB
  at equal distances, the first and the last block among them.
  """
  digest = hashlib.sha256()
  for path in paths:
    size = path.stat().st_size
    digest.update(f'{size}\0'.encode())
    with text_files.opened(path) as stream:
      if size <= WHOLE:
        digest.update(hashlib.file_digest(stream, 'sha256').digest())
        continue
      for block in range(_BLOCKS):
        stream.seek((size - _BLOCK) * block // (_BLOCKS - 1))
        digest.update(stream.read(_BLOCK))
  return digest.hexdigest()
