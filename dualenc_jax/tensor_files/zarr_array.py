"""Arrays in zarr folders, read whole or one entry of an axis at a time."""

from collections.abc import Mapping
import functools
import os
from typing import Any

from etils import epath
import numpy as np
import tensorstore as ts

from dualenc_jax.tensor_files.tensors import Tensor

ReadablePath = str | os.PathLike[str]


def kvstore(path: ReadablePath) -> dict[str, Any]:
  """Where TensorStore finds a local folder or one of gs://."""
  path = os.fspath(epath.Path(path))
  if path.startswith('gs://'):
    bucket, _, inside = path.removeprefix('gs://').partition('/')
    return {'driver': 'gcs', 'bucket': bucket, 'path': f'{inside}/'}
  return {'driver': 'file', 'path': f'{os.path.abspath(path)}/'}


def spec(folder: ReadablePath) -> dict[str, Any]:
  """TensorStore's specification of a zarr folder.

  T5X and Orbax store every chunk, so that one which is missing has been lost:
  reading it is an error, where zarr would take it for zeros.
  """
  return {
      'driver': 'zarr',
      'kvstore': kvstore(folder),
      'fill_missing_data_reads': False,
  }


def tensor(
    where: str, shape: tuple[int, ...], specification: Mapping[str, Any]
) -> Tensor:
  """A tensor of which any entry can be read without the others.

  Args:
    where: the file and the name of the tensor, for messages.
    shape: of the array.
    specification: as `spec` makes it.
  """
  return Tensor(
      where,
      shape,
      functools.partial(_read, specification),
      functools.partial(_read, specification),
  )


def first_line(error: BaseException) -> str:
  """What went wrong, without the specification that TensorStore appends."""
  line = (str(error).splitlines() or [type(error).__name__])[0]
  return line.split(' [tensorstore_spec=')[0].split(' [source locations')[0]


def _read(
    specification: Mapping[str, Any], axis: int = 0, entry: int | None = None
) -> np.ndarray:
  part = () if entry is None else (slice(None),) * axis + (entry,)
  try:
    array = ts.open(dict(specification), open=True, read=True).result()
    return array[part].read().result()
  except Exception as e:  # Damage takes many forms; any of them is one.
    raise ValueError(first_line(e)) from e
