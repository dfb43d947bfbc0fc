"""A folder that is there as a whole or not at all."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil
import uuid

from dualenc_jax.errors import UserError
from dualenc_jax.inference.artifact import manifest


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields an empty folder beside `path`, which takes its place at the end.

  A `~` at its start is the home directory. An artifact that is there is
  replaced then; after an error it is still there.

  Raises:
    UserError: something else than an artifact is there, or the folder cannot
      be written.
  """
  # A link is followed: what it points to is replaced.
  folder = pathlib.Path(os.path.realpath(os.path.expanduser(path)))
  is_other = folder.is_dir() and any(folder.iterdir())
  if is_other and not (folder / manifest.FILE).exists() or folder.is_file():
    raise UserError(
        f'{path} is there and is no saved retriever: it is left as it is. Give'
        ' the path of a new folder.'
    )
  # Unlike a process id it never comes again.
  unique = uuid.uuid4().hex[:12]
  partial = folder.with_name(f'.{folder.name}.{unique}.partial')
  try:
    partial.mkdir(parents=True)
    yield partial
    _put(partial, folder, folder.with_name(f'.{folder.name}.{unique}.replaced'))
  except OSError as e:
    raise UserError(
        f'{path} cannot be written: {e.strerror or e}. Make room, or give a'
        ' folder that can be written.'
    ) from e
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _put(new: pathlib.Path, folder: pathlib.Path, aside: pathlib.Path) -> None:
  """Renames `new` to `folder`; what is there goes when that has worked."""
  if not folder.exists():
    new.rename(folder)
    return
  folder.rename(aside)
  try:
    new.rename(folder)
  except OSError:
    aside.rename(folder)
    raise
  shutil.rmtree(aside)
