"""Writes the towers of a model as an artifact."""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import os
import pathlib
import shutil

from jax import export as jax_export

from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.encoding.artifact import (
  export,
  manifest as manifest_lib,
)
from dualenc_jax.retrieval.encoding.artifact.artifact import Artifact
from dualenc_jax.retrieval.encoding.artifact.manifest import Manifest, Tower
from dualenc_jax.retrieval.encoding.towers import Loaded, PassageTower
from dualenc_jax.utils import files, machine
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file

PLATFORMS = ('cpu', 'cuda', 'tpu')


def write(
    loaded: Loaded,
    folder: str | os.PathLike[str],
    platforms: Sequence[str] = PLATFORMS,
    passage_tower: PassageTower | None = None,
) -> None:
  """Writes an artifact; the folder appears when it is complete.

  Args:
    loaded: the model; an `Artifact` is copied.
    folder: a new or empty one, or an artifact to replace.
    platforms: targets of the programs, to which the attention must lower.
    passage_tower: if given, the query tower alone is written.

  Raises:
    UserError: the folder holds something else, or cannot be written.
  """
  with new_artifact(folder) as new:
    fill(loaded, new, platforms, passage_tower).write(new)


@contextlib.contextmanager
def new_artifact(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields a new folder, which then replaces an older artifact."""
  with files.new_folder(folder, marker=manifest_lib.FILE) as new:
    with files.writing(folder):
      yield new


def fill(
    loaded: Loaded,
    folder: pathlib.Path,
    platforms: Sequence[str] = PLATFORMS,
    passage_tower: PassageTower | None = None,
) -> Manifest:
  """`write` into an empty folder; returns the content of artifact.json.

  Raises:
    UserError: an artifact to copy is no longer the one that was opened.
  """
  (folder / 'programs').mkdir()
  if isinstance(loaded, Artifact):
    return _copy(loaded, folder)
  # Serving needs no Flax.
  from flax import traverse_util

  from dualenc_jax.retrieval.encoding import tower_digest
  from dualenc_jax.retrieval.encoding.embedder import Embedder

  assert isinstance(loaded.embedder, Embedder)
  tokenizer, model = loaded.tokenizer, loaded.embedder.model
  params = traverse_util.flatten_dict(loaded.params, sep='/')
  encoders = {'query': model.encoder}
  if passage_tower is None:
    encoders['passage'] = model.passage_encoder or model.encoder
  by_tower = {
      name: Tower(
          getattr(tokenizer, f'{name}_length'),
          getattr(tokenizer, f'{name}_prefix'),
          loaded.tower_digest(name),
          export.lengths_up_to(getattr(tokenizer, f'{name}_length')),
          export.params_of_tower(params, name),
          tuple(encoder.activations),
      )
      for name, encoder in encoders.items()
  }
  for name, tower in by_tower.items():
    own = {param: params[param] for param in tower.params}
    for length in tower.lengths:
      program = export.export(model, name, own, length, platforms)
      path = folder / manifest_lib.program_file(name, length)
      path.write_bytes(program)
  used = {name for tower in by_tower.values() for name in tower.params}
  params = {name: params[name] for name in params if name in used}
  shutil.copyfile(tokenizer.vocabulary.file, folder / manifest_lib.VOCABULARY)
  safetensors_file.write(
      folder / manifest_lib.WEIGHTS,
      tower_digest.on_devices(params),
  )
  if loaded.codec is not None and passage_tower is None:
    codec_lib.save(folder / codec_lib.FILE, loaded.codec)
  return Manifest(
      loaded.dim,
      by_tower,
      {name: value.shape for name, value in params.items()},
      tuple(platforms),
      jax_export.maximum_supported_calling_convention_version,
      machine.versions(),
      manifest_lib.of_folder(folder),
      dict(loaded.provenance),
      passage_tower,
      tokenizer.prompts,
      tokenizer.default_prompt,
  )


def _copy(artifact: Artifact, folder: pathlib.Path) -> Manifest:
  """Copies the model of an artifact, which may have been replaced by now."""
  files = artifact.manifest.model_files
  for name, expected in files.items():
    source = artifact.folder / name
    is_there = source.is_file()
    if is_there:
      shutil.copyfile(source, folder / name)
    if not is_there or manifest_lib.of_file(folder / name) != expected:
      raise UserError(
          f'{source} was changed or removed after the model was opened, so the'
          ' model cannot be copied. Open it again with Retriever.from_dir, and'
          ' index again.'
      )
  return dataclasses.replace(artifact.manifest, files=files)

