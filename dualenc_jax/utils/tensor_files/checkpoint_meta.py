"""The JSON of a checkpoint, with digests of its tensors.

`sha256` in it is that of the object without it, as JSON with sorted keys and
without spaces. Checkpoints that were made without digests have neither.
"""

from collections.abc import Mapping
import hashlib
import json
import pathlib
from typing import Any

from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import digests as digests_lib, zarr_files
from dualenc_jax.utils.tensor_files.tensors import DamageError, Tensor, unstack

# The file within a checkpoint, as Orbax names it.
FILE = 'meta/metadata'
# Fields that every run goes on with.
TYPES = {'run_id': str, 'step': int, 'data': dict, 'notes?': dict}
_DIGESTS, _SHA256 = 'digests', 'sha256'
_AGAIN = 'Copy the whole folder again.'

# Digests of tensors by item ('params') and name.
Digests = Mapping[str, Mapping[str, str]]


def seal(meta: Mapping[str, Any], digests: Digests) -> dict[str, Any]:
  """Meta, JSON, with digests and its own checksum, as it is read again."""
  value = json.loads(json.dumps({**meta, _DIGESTS: digests}))
  return {**value, _SHA256: _checksum(value)}


def unseal(
    meta: Mapping[str, Any], where: Any
) -> tuple[dict[str, Any], Digests | None]:
  """The arguments of `seal`, digests None without any; or DamageError."""
  value = dict(meta)
  checksum = value.pop(_SHA256, None)
  if checksum is None and _DIGESTS not in value:
    return value, None
  if checksum != _checksum(value):
    raise DamageError(
        f'{where} is not what was saved: its checksum differs. It is damaged'
        f' or was changed. {_AGAIN}'
    )
  digests = value.pop(_DIGESTS, None)
  try:
    json_file.check(digests, {str: {str: str}}, f'{where}: {_DIGESTS}', _AGAIN)
  except UserError as e:
    raise DamageError(str(e)) from e
  return value, digests


def read(
    checkpoint: pathlib.Path, **types: Any
) -> tuple[dict[str, Any], Digests | None]:
  """The meta of a checkpoint and the digests of its tensors, if it has them.

  Args:
    checkpoint: its folder.
    **types: of fields that it must have, as `json_file.check` takes them.
  """
  path = checkpoint / FILE
  try:
    meta, digests = unseal(json_file.read(path, _AGAIN), path)
    json_file.check(meta, types, path, _AGAIN)
  except DamageError:
    raise
  except UserError as e:
    raise DamageError(str(e)) from e
  return meta, digests


def read_item(folder: pathlib.Path, known: Digests | None) -> dict[str, Tensor]:
  """The tensors of an item of a checkpoint, one for each layer.

  They are compared with their digests, if those are known, as they are read;
  DamageError where one is missing.
  """
  tensors = unstack(zarr_files.read_tree(folder))
  if known is None:
    return tensors
  return digests_lib.verify_on_read(tensors, known.get(folder.name, {}), folder)


def _checksum(value: Mapping[str, Any]) -> str:
  text = json.dumps(value, sort_keys=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()
