"""The JSON of a checkpoint, with the SHA-256 of each file of its tensors.

`sha256` in it is that of the object without it, as JSON with sorted keys and
without spaces. A checkpoint of an older version has no `files`.
"""

from collections.abc import Mapping
from concurrent import futures
import hashlib
import json
import pathlib
from typing import Any

from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import zarr_files
from dualenc_jax.utils.tensor_files.tensors import DamageError

# The file within a checkpoint, as Orbax names it.
FILE = 'meta/metadata'
# Fields that every run goes on with.
TYPES = {'run_id': str, 'step': int, 'data': dict, 'notes?': dict}
_FILES, _SHA256 = 'files', 'sha256'
_AGAIN = 'Copy the whole folder again.'

# SHA-256 of files by item ('params') and by path in it.
Digests = Mapping[str, Mapping[str, str]]


def seal(meta: Mapping[str, Any], digests: Digests) -> dict[str, Any]:
  """Meta, JSON, with digests and its own checksum, as it is read again."""
  value = json.loads(json.dumps({**meta, _FILES: digests}))
  return {**value, _SHA256: _checksum(value)}


def read(
    checkpoint: pathlib.Path, **types: Any
) -> tuple[dict[str, Any], Digests | None]:
  """The meta of a checkpoint and the digests of its files, if it has them.

  Args:
    checkpoint: its folder.
    **types: of fields that it must have, as `json_file.check` takes them.

  Raises:
    DamageError: it cannot be read, or is not what was saved.
  """
  path = checkpoint / FILE
  types = {**types, f'{_FILES}?': {str: {str: str}}}
  try:
    meta = json_file.read(path, _AGAIN)
    checksum = meta.pop(_SHA256, None)
    if checksum != _checksum(meta) and (checksum or _FILES in meta):
      raise UserError(
          f'{path} is not what was saved: its checksum differs. {_AGAIN}'
      )
    json_file.check(meta, types, path, _AGAIN)
  except UserError as e:
    raise DamageError(str(e)) from e
  return meta, meta.pop(_FILES, None)


def digest_items(checkpoint: pathlib.Path) -> Digests:
  """The digests of all files of the items of a checkpoint that hold tensors."""
  items = [p for p in checkpoint.iterdir() if zarr_files.is_tree(p)]
  return {
      item.name: {
          path.relative_to(item).as_posix(): _digest(path)
          for path in sorted(item.rglob('*'))
          if path.is_file()
      }
      for item in items
  }


def check_item(item: pathlib.Path, digests: Digests | None) -> None:
  """Raises DamageError unless the files of an item are those that were saved.

  Nothing is known of a checkpoint without digests.
  """
  if digests is None:
    return
  known = digests.get(item.name, {})
  with futures.ThreadPoolExecutor() as pool:
    found = pool.map(_digest, [item / name for name in known])
    for (name, digest), actual in zip(known.items(), found):
      if actual != digest:
        raise DamageError(f'{item / name} is not what was saved. {_AGAIN}')


def _digest(path: pathlib.Path) -> str:
  """The SHA-256 of a file; DamageError if it cannot be read."""
  try:
    with untrusted.open_file(path) as file:
      return hashlib.file_digest(file, 'sha256').hexdigest()
  except (OSError, UserError) as e:
    raise DamageError(f'{path} cannot be read: {e}. {_AGAIN}') from e


def _checksum(value: Mapping[str, Any]) -> str:
  text = json.dumps(value, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()
