"""Reads an artifact and runs its programs, without the code of the model."""

import collections
from collections.abc import Callable, Mapping
import os
import pathlib
from typing import Any

import jax
from jax import export as jax_export
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.inference.artifact import export, manifest as manifest_lib
from dualenc_jax.inference.artifact.manifest import Manifest
from dualenc_jax.tensor_files import safetensors_file
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.tokenizer import Tokenizer
from dualenc_jax.text.vocabulary import Vocabulary

# Tokens that a device encodes at once: on a CPU small chunks stay in the cache.
_TOKENS_ON_CPU = 2048
_TOKENS = 32768
# Chunks that wait on the devices while the host is busy with an earlier one.
_AHEAD = 2


class Artifact:
  """Two towers of an artifact, on all devices of this host.

  Attributes:
    folder: where it is.
    manifest: what it says about itself.
    tokenizer: vocabulary, lengths and prefixes.
  """

  def __init__(
      self,
      folder: pathlib.Path,
      manifest: Manifest,
      programs: Mapping[tuple[str, int], bytes],
  ):
    """Use `open`; programs are by tower and length."""
    self.folder = folder
    self.manifest = manifest
    query, passage = (manifest.towers[name] for name in manifest_lib.TOWERS)
    self.tokenizer = Tokenizer(
        Vocabulary(str(folder / manifest_lib.VOCABULARY)),
        query.length,
        passage.length,
        query.prefix,
        passage.prefix,
    )
    self._programs = programs
    self._compiled: dict[tuple[str, int], Callable[..., jax.Array]] = {}
    devices = jax.local_devices()
    self._mesh = jax.make_mesh(
        (len(devices),),
        ('data',),
        axis_types=(jax.sharding.AxisType.Auto,),
        devices=devices,
    )
    self._rows = NamedSharding(self._mesh, PartitionSpec('data'))
    self._params = self._read_params()

  @classmethod
  def open(cls, folder: str | os.PathLike[str]) -> 'Artifact':
    """Checks and reads an artifact.

    Raises:
      UserError: there is none; it is of an unknown version; a file is missing,
        cut off or changed; or this JAX or this kind of device cannot run it.
    """
    folder = pathlib.Path(os.path.realpath(os.path.expanduser(folder)))
    manifest = Manifest.read(folder)
    _check_runs_here(folder, manifest)
    manifest.check_model(folder)
    programs = {
        (name, length): (
            folder / manifest_lib.program_file(name, length)
        ).read_bytes()
        for name, tower in manifest.towers.items()
        for length in tower.lengths
    }
    return cls(folder, manifest, programs)

  @property
  def dim(self) -> int:
    """D, of the embeddings."""
    return self.manifest.dim

  @property
  def provenance(self) -> Mapping[str, Any]:
    """What the vectors depend on, as JSON."""
    return self.manifest.provenance

  def queries(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised queries: float32 [len(tokens), D]."""
    return self._encode('query', tokens)

  def passages(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised passages: float32 [len(tokens), D]."""
    return self._encode('passage', tokens)

  def _encode(self, tower: str, tokens: Ragged) -> np.ndarray:
    """Embeds the longest texts first, in chunks of few shapes."""
    out = np.empty((len(tokens), self.dim), np.float32)
    order = np.argsort(-tokens.lengths, kind='stable')
    params = {p: self._params[p] for p in self.manifest.towers[tower].params}
    waiting = collections.deque()
    while len(order):
      length = self._length(tower, tokens.lengths[order[0]])
      rows = self._mesh.size * self._rows_each(len(order), length)
      chunk, order = order[:rows], order[rows:]
      host = np.zeros((rows, length), np.int32)
      host[: len(chunk)] = tokens.padded(chunk, length)
      run = self._run(tower, length)
      waiting.append((chunk, run(params, jax.device_put(host, self._rows))))
      if len(waiting) > _AHEAD:
        _fetch(out, *waiting.popleft())
    while waiting:
      _fetch(out, *waiting.popleft())
    return out

  def _length(self, tower: str, tokens: int) -> int:
    """The shortest length of a program that holds a text."""
    lengths = self.manifest.towers[tower].lengths
    return next(length for length in lengths if length >= tokens)

  def _rows_each(self, count: int, length: int) -> int:
    """Rows of a device, a power of two, when so many texts are left."""
    platform = self._mesh.devices.flat[0].platform
    most = (_TOKENS_ON_CPU if platform == 'cpu' else _TOKENS) // length
    rows = 1
    while rows * self._mesh.size < count and 2 * rows <= most:
      rows *= 2
    return rows

  def _run(self, tower: str, length: int) -> Callable[..., jax.Array]:
    """A program on all devices, compiled for a number of rows when called."""
    if (tower, length) in self._compiled:
      return self._compiled[tower, length]
    try:
      exported = export.load(self._programs[tower, length])
    except Exception as e:
      cause = (str(e).splitlines() or [type(e).__name__])[0]
      raise UserError(
          f'{self.folder / manifest_lib.program_file(tower, length)} cannot be'
          f' read by JAX {jax.__version__}: {cause}. It was written by JAX'
          f' {self.manifest.versions.get("jax")}; install that or a later one.'
      ) from e
    by_rows = PartitionSpec('data')
    # A program for one device runs on each, over its own rows.
    run = jax.jit(
        jax.shard_map(
            exported.call,
            mesh=self._mesh,
            in_specs=(PartitionSpec(), by_rows),
            out_specs=by_rows,
            check_vma=False,
        )
    )
    self._compiled[tower, length] = run
    return run

  def _read_params(self) -> dict[str, jax.Array]:
    """The parameters on every device, read one at a time."""
    replicated = NamedSharding(self._mesh, PartitionSpec())
    path = self.folder / manifest_lib.WEIGHTS
    params = {}
    for name, tensor in safetensors_file.read(path).items():
      params[name] = jax.device_put(tensor.read(), replicated)
      # The copy on the host is needed until this one is there.
      params[name].block_until_ready()
    return params


def _fetch(
    out: np.ndarray, positions: np.ndarray, embeddings: jax.Array
) -> None:
  out[positions] = np.asarray(embeddings)[: len(positions)]


def _check_runs_here(folder: pathlib.Path, manifest: Manifest) -> None:
  """Raises UserError if this JAX or this kind of device is not its own."""
  path = folder / manifest_lib.FILE
  version = manifest.calling_convention
  oldest = jax_export.minimum_supported_calling_convention_version
  newest = jax_export.maximum_supported_calling_convention_version
  if not oldest <= version <= newest:
    raise UserError(
        f'{path}: its programs follow calling convention {version} of'
        f' jax.export, that of JAX {manifest.versions.get("jax")}; JAX'
        f' {jax.__version__} here knows {oldest} to {newest}. Install the JAX'
        ' that wrote them, or write the artifact again.'
    )
  platform = jax_export.default_export_platform()
  if platform not in manifest.platforms:
    raise UserError(
        f'{path}: its programs run on {", ".join(manifest.platforms)}, and'
        f' JAX is on {platform} here. Write the artifact with platforms='
        f'{(*manifest.platforms, platform)!r}.'
    )
