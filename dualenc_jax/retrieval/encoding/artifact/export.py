"""Towers as serialised programs."""

from collections.abc import Iterable, Mapping, Sequence
import re
from typing import Any
import zlib

import jax
from jax import export as jax_export
import jax.numpy as jnp

from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

SHORTEST = 16
# Bounds of a decompressed program: its operations; for each pair of positions
# its entries in tables of relative positions, some 116 bytes; and the limit of
# flatbuffers.
_PROGRAM_BYTES, _TABLE_BYTES, _LARGEST = 2**25, 2**10, 2**31
# Calls that XLA itself handles on any platform; the programs of the shipped
# models have only the first.
_CALLS = {
    *('shape_assertion', 'Sharding'),
    *('SPMDFullToShardShape', 'SPMDShardToFullShape'),
}
_CALL = re.compile(r'custom_call\w*(?:\s+@([\w.$-]+)\()?[^\n]{0,60}')


def lengths_up_to(limit: int) -> list[int]:
  """Lengths of programs: powers of two, then the limit itself."""
  lengths, length = [], SHORTEST
  while length < limit:
    lengths.append(length)
    length *= 2
  return [*lengths, limit]


def params_of_tower(names: Iterable[str], tower: str) -> list[str]:
  """The parameters of a dual encoder that a tower uses."""
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
  """A program of one tower and one length L, for any number of rows b.

  Args:
    model: the dual encoder.
    tower: 'query' or 'passage'.
    params: those that the tower uses, by name; only shapes matter.
    length: L.
    platforms: to lower for.

  Returns:
    A compressed `jax.export` of ({name: array}, int32 [b, L]) -> [b, D].
  """
  # Serving needs no Flax.
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
  check_calls(exported, f'The {tower} tower as a program')
  # Tables of relative positions are constants of mostly zeros.
  return zlib.compress(bytes(exported.serialize()))


def load(
    program: bytes, length: int, where: Any = 'The program'
) -> jax_export.Exported:
  """The program that `export` returned, from a file that may be hostile.

  Raises:
    UserError: it is damaged, larger than `length` allows, calls native code, or
      this JAX cannot read it.
  """
  largest = min(_PROGRAM_BYTES + _TABLE_BYTES * length**2, _LARGEST)
  content = untrusted.decompress(program, largest, where, 'Copy it again.')
  try:
    exported = jax_export.deserialize(bytearray(content))
    check_calls(exported, where)
  except (UserError, ImportError):
    # JAX itself asks for flatbuffers where they are not installed.
    raise
  except Exception as e:  # Damage takes many forms; any of them is one.
    cause = (str(e).splitlines() or [type(e).__name__])[0]
    raise UserError(
        f'{where} cannot be read by JAX {jax.__version__}: {cause}. It is'
        ' damaged, or was written by another JAX: copy it again, or install the'
        ' one that wrote it, or a later one.'
    ) from e
  return exported


def check_calls(exported: jax_export.Exported, where: Any) -> None:
  """Raises UserError for a custom call that XLA itself does not handle.

  It names native code of the process: a kernel, or a Python function at an
  address.
  """
  for match in _CALL.finditer(exported.mlir_module()):
    if match[1] not in _CALLS:
      raise UserError(
          f'{where} calls native code, {untrusted.shown(match[1] or match[0])};'
          f' expected nothing but {", ".join(sorted(_CALLS))}. Serve a model'
          ' with kernels of its own from its model_dir.'
      )


def check_shapes(
    exported: jax_export.Exported,
    params: Mapping[str, Sequence[int]],
    length: int,
    dim: int,
    where: Any,
) -> None:
  """Raises UserError unless a program maps `params`, tokens to embeddings."""
  shapes = [tuple(params[name]) for name in sorted(params)]
  expected = [f'float32{shape}' for shape in shapes]
  expected += [f'int32(rows, {length})', f'-> float32(rows, {dim})']
  tree: Any = jax.tree.structure(((dict.fromkeys(params, 0), 0), {}))
  found = [f'{a.dtype}{_shape(a)}' for a in exported.in_avals]
  found += [f'-> {a.dtype}{_shape(a)}' for a in exported.out_avals]
  if found != expected or exported.in_tree != tree:
    differs = [f'{a}, expected {b}' for a, b in zip(found, expected) if a != b]
    raise UserError(
        f'{where} is not the program that artifact.json describes:'
        f" {', '.join(differs[:1]) or 'it takes other parameters'}. Copy the"
        ' whole folder again.'
    )


def _shape(value: Any) -> str:
  sizes = ['rows' if type(n) is not int else str(n) for n in value.shape]
  return f'({", ".join(sizes)}{"," * (len(sizes) == 1)})'
