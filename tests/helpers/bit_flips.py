"""Checkpoints that are damaged: a byte of a file, or a bit of a tensor."""

import json
import pathlib
from typing import Any

import ml_dtypes  # noqa: F401  TensorStore's bfloat16
import numpy as np
import tensorstore as ts


def flip_byte(path: pathlib.Path, place: float, mask: int = 1) -> None:
  """Changes the bits of `mask` in the byte at a place, of 0 to 1."""
  content = bytearray(path.read_bytes())
  content[int(place * len(content))] ^= mask
  path.write_bytes(content)


def flip_bit(item: pathlib.Path, name: str, index: Any, bit: int) -> None:
  """Rewrites a tensor by TensorStore with one bit of an element changed.

  Args:
    item: the folder, `checkpoints/10/params`.
    name: of the tensor, 'encoder.wi.kernel'.
    index: of the element.
    bit: 0 for the least significant.
  """
  facts = json.loads((item / '_METADATA').read_text())
  store = ts.open(
      {
          'driver': 'zarr3' if facts.get('use_zarr3') else 'zarr',
          'kvstore': {
              'driver': 'ocdbt', 'base': f'file://{item}/', 'path': f'{name}/'
          },
          # Nothing here has to outlive a power cut.
          'context': {'file_io_sync': False},
      },
      open=True,
  ).result()
  array = np.array(store.read().result())
  words = array.view(f'u{array.itemsize}')
  words[index] ^= words.dtype.type(1 << bit)
  store.write(array).result()
