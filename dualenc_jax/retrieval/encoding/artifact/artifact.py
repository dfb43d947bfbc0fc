"""Reads an artifact and runs its programs, without the code of the model."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import os
import pathlib
from typing import Any

import jax
from jax import export as jax_export
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.encoding import towers
from dualenc_jax.retrieval.encoding.artifact import (
  export,
  manifest as manifest_lib,
)
from dualenc_jax.retrieval.encoding.artifact.manifest import Manifest
from dualenc_jax.retrieval.encoding.towers import Loaded, Towers
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file


@dataclasses.dataclass(frozen=True)
class Artifact(Loaded):
  """The towers of an artifact, on all devices of this host.

  A query tower alone encodes no passages, and raises UserError when asked to.
  """

  folder: pathlib.Path
  manifest: Manifest

  @classmethod
  def open(cls, folder: str | os.PathLike[str]) -> 'Artifact':
    """Checks and reads an artifact.

    Raises:
      UserError: it is missing or of an unknown version; a file is missing, cut
        off or changed, or has numbers that are not finite; or this JAX or this
        kind of device cannot run it.
    """
    folder = pathlib.Path(os.path.realpath(os.path.expanduser(folder)))
    manifest = Manifest.read(folder)
    _check_runs_here(folder, manifest)
    manifest.check_model(folder)
    query, passage = manifest.towers['query'], manifest.passages
    programs = Programs(folder, manifest)
    params = {}
    weights = safetensors_file.read(folder / manifest_lib.WEIGHTS)
    shapes = {name: list(tensor.shape) for name, tensor in weights.items()}
    if shapes != manifest.params:
      wrong = [n for n in {**shapes, **manifest.params}
               if shapes.get(n) != manifest.params.get(n)]
      raise UserError(
          f'{folder / manifest_lib.WEIGHTS} has {wrong[0]} of shape'
          f' {shapes.get(wrong[0])}; {manifest_lib.FILE} says'
          f' {manifest.params.get(wrong[0])}. Copy the whole folder again.'
      )
    for name, tensor in weights.items():
      params[name] = jax.device_put(tensor.read(), programs.replicated)
      # Until then the copy on the host is needed.
      params[name].block_until_ready()
    codec = None
    if codec_lib.FILE in manifest.files:
      codec, _ = codec_lib.load(folder / codec_lib.FILE)
    return cls(
        params,
        Tokenizer(
            Vocabulary(str(folder / manifest_lib.VOCABULARY)),
            query.length,
            passage.length,
            query.prefix,
            passage.prefix,
            manifest.prompts,
            manifest.default_prompt,
        ),
        programs,
        manifest.provenance,
        folder,
        manifest,
        codec=codec,
    )


class Programs(Towers):
  """The programs of an artifact, each compiled when it is first needed.

  Attributes:
    replicated: sharding of the parameters, on every device of this host.
  """

  def __init__(self, folder: pathlib.Path, manifest: Manifest):
    # Read now: another artifact may take their place.
    self._folder = folder
    self._manifest = manifest
    self._programs = {
        (name, length): (
            folder / manifest_lib.program_file(name, length)
        ).read_bytes()
        for name, tower in manifest.towers.items()
        for length in tower.lengths
    }
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
    return self._manifest.dim

  def batches(
      self,
      method: str,
      params: Any,
      tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    name = method.removeprefix('encode_')
    if name not in self._manifest.towers:
      raise UserError(
          f'{self._folder} has only a query tower and cannot encode passages.'
          ' Search an index of its passage tower, Retriever.from_dir(...,'
          ' index=FOLDER), or encode with the whole model.'
      )
    tower = self._manifest.towers[name]
    own = {param: params[param] for param in tower.params}
    sharding = NamedSharding(self._mesh, PartitionSpec('data'))

    def program(host: np.ndarray) -> jax.Array:
      run = self._run(name, host.shape[-1])
      return run(own, jax.device_put(host, sharding))

    shapes = towers.Fixed(self._max_tokens, tower.lengths)
    return towers.batches(
        program, tokens, self._max_tokens, shapes, rows, self._mesh.size
    )

  def digest(self, params: Any, tower: str) -> Mapping[str, str]:
    del params
    if tower == 'passage':
      return self._manifest.passages.sha256
    return self._manifest.towers[tower].sha256

  def _run(self, tower: str, length: int) -> Callable[..., jax.Array]:
    """A program on all devices, compiled for a number of rows when called."""
    if (tower, length) in self._compiled:
      return self._compiled[tower, length]
    path = self._folder / manifest_lib.program_file(tower, length)
    exported = export.load(self._programs[tower, length], length, path)
    names = self._manifest.towers[tower].params
    shapes = {name: self._manifest.params[name] for name in names}
    export.check_shapes(exported, shapes, length, self.dim, path)
    by_rows = PartitionSpec('data')
    # A program for one device runs on each, over its own chunk.
    run = jax.jit(
        jax.shard_map(
            lambda params, tokens: exported.call(params, tokens[0])[None],
            mesh=self._mesh,
            in_specs=(PartitionSpec(), by_rows),
            out_specs=by_rows,
            check_vma=False,
        )
    )
    self._compiled[tower, length] = run
    return run


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
        f"{path}: its programs run on {', '.join(manifest.platforms)}, but JAX"
        f' runs on {platform} here. Write the artifact with'
        f' platforms={(*manifest.platforms, platform)!r}.'
    )
