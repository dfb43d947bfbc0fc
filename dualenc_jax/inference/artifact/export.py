"""Towers as serialised programs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
import zlib

import jax
from jax import export as jax_export
import jax.numpy as jnp

SHORTEST = 16


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

  def encode(params, tokens):
    return model.apply(
        {'params': nested(params)}, tokens, method=f'encode_{tower}'
    )

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


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
  """{'a/b': x} -> {'a': {'b': x}}."""
  tree: dict[str, Any] = {}
  for name, value in flat.items():
    *parents, last = name.split('/')
    branch = tree
    for parent in parents:
      branch = branch.setdefault(parent, {})
    branch[last] = value
  return tree


def flat(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """{'a': {'b': x}} -> {'a/b': x}."""
  found = {}
  for name, value in tree.items():
    if isinstance(value, Mapping):
      found |= flat(value, f'{prefix}{name}/')
    else:
      found[prefix + name] = value
  return found
