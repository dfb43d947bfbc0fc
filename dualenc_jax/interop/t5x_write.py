"""Writes a legacy T5X checkpoint, which T5X, t5x_retrieval and others load."""

from collections.abc import Mapping
import pathlib
from typing import Any

from flax import serialization, traverse_util
import numpy as np
import tensorstore as ts

from dualenc_jax.errors import UserError
from dualenc_jax.interop import t5x, t5x_legacy
from dualenc_jax.interop.weights import infer_encoder, Weights
from dualenc_jax.tensor_files import zarr_files
from dualenc_jax.tensor_files.tensors import Tensor

# T5X's format since June 2021.
_VERSION = 3
_CHUNK_BYTES = 16 * 2**20
# Chunks that are compressed side by side; their sum bounds the memory.
_CHUNKS_AT_ONCE = 8


def write(weights: Weights, folder: pathlib.Path) -> None:
  """Writes `folder/checkpoint_<step>`, one tensor at a time, in float32.

  It has the parameters and the step, no state of an optimizer. Where queries
  and passages share all parts, the names are those of t5x_retrieval (GTR,
  Sentence-T5), whose towers are always one; a pretrained T5 has the same
  without a projection. Towers that differ have the names of `DualEncoder`.

  Args:
    weights: what to write; their step, or 0, is in the folder's name.
    folder: new and empty.

  Raises:
    UserError: a tower has other activations than a T5, a tensor cannot be read,
      or the files cannot be written.
  """
  _check_activations(weights)
  step = weights.step or 0
  checkpoint = folder.absolute() / f'checkpoint_{step}'
  checkpoint.mkdir(parents=True)
  shared = not any(name.startswith('passage_') for name in weights.tensors)
  leaves = {}
  for name, tensor in weights.tensors.items():
    if shared and name == 'projection/kernel':
      name = t5x.PROJECTION
    leaves[tuple(name.split('/'))] = _write_array(checkpoint, name, tensor)
  # Last, so that what is cut off is no checkpoint.
  (checkpoint / t5x_legacy.FILE).write_bytes(
      serialization.msgpack_serialize({
          'version': _VERSION,
          'optimizer': {
              'state': {'step': np.asarray(step, np.int32)},
              'target': traverse_util.unflatten_dict(leaves),
          },
      })
  )


def _check_activations(weights: Weights) -> None:
  """Raises UserError unless the files will tell what the activations are.

  Each tower is looked at as a reader will: by its tensors alone.
  """
  for tower in ('encoder', 'passage_encoder'):
    encoder = getattr(weights, tower)
    if encoder is None:
      continue
    own = tuple(encoder.activations)
    told = infer_encoder(weights.tensors, None, tower).activations
    if own != told:
      raise UserError(
          f'{weights.path} ({weights.kind}) has the activations'
          f' {" x ".join(own)} in its {tower}. A T5X checkpoint does not say'
          f' which they are, and who reads it expects {" x ".join(told)} of'
          ' these tensors. Convert it to another form, such as safetensors.'
      )


def _write_array(
    checkpoint: pathlib.Path, name: str, tensor: Tensor
) -> Mapping[str, Any]:
  """Writes one zarr folder; returns its specification, with a relative path."""
  inner = f'target.{name.replace("/", ".")}'
  array = np.ascontiguousarray(tensor.read())
  rows = max(1, _CHUNK_BYTES * len(array) // array.nbytes)
  specification = {
      'driver': 'zarr',
      'dtype': 'float32',
      'kvstore': {'driver': 'file', 'path': f'{inner}/'},
      'metadata': {
          'shape': array.shape,
          'chunks': (min(rows, len(array)), *array.shape[1:]),
          'compressor': {'id': 'gzip', 'level': 1},
      },
  }
  block = rows * _CHUNKS_AT_ONCE
  try:
    out = ts.open(
        specification | {'kvstore': zarr_files.kvstore(checkpoint / inner)},
        create=True,
    ).result()
    for start in range(0, len(array), block):
      part = array[start : start + block]
      out[start : start + len(part)].write(part).result()
  except Exception as e:  # A full disk has an error of several classes.
    raise UserError(
        f'{checkpoint / inner} cannot be written: {zarr_files.first_line(e)}.'
        ' Make room there, or give another folder.'
    ) from e
  return ts.Spec(specification).to_json()
