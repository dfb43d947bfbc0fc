"""Towers as serialised programs, written and run without the model's code."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import pathlib
import re
from typing import Any
import zlib

import jax
from jax import export as jax_export
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.retrieval.encoding import towers
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

_SHORTEST = 16
# Bytes of a decompressed program: the limit of flatbuffers.
_LARGEST = 2**31
# Calls that XLA itself handles on any platform; the programs of the shipped
# models have only the first.
_CALLS = {
    *('shape_assertion', 'Sharding'),
    *('SPMDFullToShardShape', 'SPMDShardToFullShape'),
}
_CALL = re.compile(r'custom_call\w*(?:\s+@([\w.$-]+)\()?[^\n]{0,60}')


def lengths_up_to(limit: int) -> list[int]:
  """Lengths of programs: powers of two, then the limit itself."""
  lengths, length = [], _SHORTEST
  while length < limit:
    lengths.append(length)
    length *= 2
  return [*lengths, limit]


def export(
    model: Any,
    tower: str,
    params: Mapping[str, jax.Array],
    length: int,
    platforms: Sequence[str],
) -> bytes:
  """Exports a tower, 'query' or 'passage', of a dual encoder for one length L.

  `params` are those that it uses, of which only shapes matter. The result is a
  compressed `jax.export` of ({name: array}, int32 [b, L]) -> [b, D].
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
  _check_calls(exported, f'The {tower} tower as a program')
  # Tables of relative positions are constants of mostly zeros.
  return zlib.compress(bytes(exported.serialize()))


def load(program: bytes, where: Any) -> jax_export.Exported:
  """Loads a program of `export`; raises UserError, which begins with `where`.

  The file may be damaged or hostile, with calls of native code.
  """
  content = untrusted.decompress(program, _LARGEST, where, 'Copy it again.')
  try:
    exported = jax_export.deserialize(bytearray(content))
    _check_calls(exported, where)
  except (UserError, ImportError):
    # JAX itself asks for flatbuffers where they are not installed.
    raise
  except Exception as e:  # Damage takes many forms; any of them is one.
    cause = (str(e).splitlines() or [type(e).__name__])[0]
    raise UserError(
        f'{where} cannot be read by JAX {jax.__version__}: {cause}. Copy it'
        ' again, or install the JAX that wrote it.'
    ) from e
  return exported


def _check_calls(exported: jax_export.Exported, where: Any) -> None:
  """Raises UserError for a call of native code: a kernel, or an address."""
  for match in _CALL.finditer(exported.mlir_module()):
    if match[1] not in _CALLS:
      raise UserError(
          f'{where} calls native code, {untrusted.quote(match[1] or match[0])}.'
          ' Serve a model with kernels of its own from its model_dir.'
      )


class ExportedTowers(towers.Towers):
  """Towers whose programs are compiled when they are first needed.

  Attributes:
    replicated: sharding of the parameters, on every device of this host.
  """

  def __init__(
      self, files: Mapping[tuple[str, int], pathlib.Path],
      params: Mapping[str, Sequence[str]], dim: int,
      sha256: Mapping[str, Mapping[str, str]],
  ):
    """Reads the programs of each tower and length, [tower, length].

    Another artifact may take their place later. `params` are the names of each
    tower's parameters, `sha256` its digest, see `tower_digest`.
    """
    self._files = files
    self._content = {key: path.read_bytes() for key, path in files.items()}
    self._params, self._dim, self._sha256 = params, dim, sha256
    self._compiled: dict[tuple[str, int], Callable[..., jax.Array]] = {}
    devices = jax.local_devices()
    self._mesh = jax.make_mesh(
        (len(devices),),
        ('data',),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=devices,
    )
    self.replicated = NamedSharding(self._mesh, PartitionSpec())
    on_cpu = devices[0].platform == 'cpu'
    grid = towers.CPU if on_cpu else towers.ACCELERATOR
    self._max_tokens = grid.max_tokens

  @property
  def dim(self) -> int:
    return self._dim

  def batches(
      self,
      method: str,
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    tower = method.removeprefix('encode_')
    if tower not in self._params:
      raise UserError(
          'This model has only a query tower and cannot encode passages. Search'
          ' an index of its passage tower, Retriever.from_dir(...,'
          ' index=FOLDER), or encode with the whole model.'
      )
    own = {name: params[name] for name in self._params[tower]}
    sharding = NamedSharding(self._mesh, PartitionSpec('data'))

    def program(host: np.ndarray) -> jax.Array:
      run = self._compile(tower, host.shape[-1])
      return run(own, jax.device_put(host, sharding))

    lengths = sorted(length for name, length in self._files if name == tower)
    shapes = towers.Shapes(self._max_tokens, lengths)
    return towers.batches(
        program, tokens, self._max_tokens, shapes, rows, self._mesh.size
    )

  def digest(self, params: Any, tower: str) -> Mapping[str, str]:
    del params
    return self._sha256[tower]

  def _compile(self, tower: str, length: int) -> Callable[..., jax.Array]:
    """A program on all devices, compiled for a number of rows when called."""
    key = tower, length
    if key not in self._compiled:
      exported = load(self._content[key], self._files[key])
      by_rows = PartitionSpec('data')
      # A program for one device runs on each, over its own chunk.
      self._compiled[key] = jax.jit(
          jax.shard_map(
              lambda params, tokens: exported.call(params, tokens[0])[None],
              mesh=self._mesh,
              in_specs=(PartitionSpec(), by_rows),
              out_specs=by_rows,
              check_vma=False,
          )
      )
    return self._compiled[key]
