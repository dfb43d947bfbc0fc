"""Towers as serialised programs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
import zlib

import jax
from jax import export as jax_export
import jax.numpy as jnp

from dualenc_jax.errors import UserError

SHORTEST = 16


def check_installed() -> None:
  """Raises UserError without what `jax.export` reads and writes programs by."""
  try:
    import flatbuffers  # noqa: F401
  except ImportError as e:
    raise UserError(
        'Programs of jax.export are read and written with the package'
        ' flatbuffers, which is not installed here: pip install flatbuffers.'
    ) from e


def lengths_up_to(limit: int) -> list[int]:
  """Lengths of programs: powers of two, then the limit itself."""
  lengths, length = [], SHORTEST
  while length < limit:
    lengths.append(length)
    length *= 2
  return [*lengths, limit]


def params_of_tower(names: Iterable[str], tower: str) -> list[str]:
  """Which parameters of a dual encoder a tower uses.

  Args:
    names: of all, 'passage_projection/kernel' and so on.
    tower: 'query' or 'passage'.
  """
  own = [name for name in names if name.startswith('passage_')]
  shared = [name for name in names if not name.startswith('passage_')]
  if tower == 'query':
    return shared
  parts = {name.removeprefix('passage_').split('/')[0] for name in own}
  return own + [name for name in shared if name.split('/')[0] not in parts]


def export(
    model: Any,
    tower: str,
    params: Mapping[str, jax.Array],
    length: int,
    platforms: Sequence[str],
) -> bytes:
  """A program of one tower and one length, for any number of rows.

  Args:
    model: the dual encoder.
    tower: 'query' or 'passage'.
    params: by name, those that the tower uses; only shapes are looked at.
    length: L, tokens of a row.
    platforms: to lower for.

  Returns:
    A compressed `jax.export` of ({name: array}, int32 [b, L]) -> [b, D].
  """

  # Only who exports has Flax.
  from flax import traverse_util

  def encode(params, tokens):
    tree = traverse_util.unflatten_dict(params, sep='/')
    return model.apply({'params': tree}, tokens, method=f'encode_{tower}')

  (rows,) = jax_export.symbolic_shape('b')
  shapes = {
      name: jax.ShapeDtypeStruct(value.shape, jnp.float32)
      for name, value in params.items()
  }
  exported = jax_export.export(jax.jit(encode), platforms=tuple(platforms))(
      shapes, jax.ShapeDtypeStruct((rows, length), jnp.int32)
  )
  # Tables of relative positions are constants of mostly zeros.
  return zlib.compress(bytes(exported.serialize()))


def load(program: bytes) -> jax_export.Exported:
  """The program of what `export` returned."""
  return jax_export.deserialize(bytearray(zlib.decompress(program)))

