"""Artifacts: towers as programs that need neither their Python code nor Flax.

`write` makes a folder, `Artifact.open` reads one with JAX, NumPy and
SentencePiece alone:

  artifact.json            what it is: format version, lengths, prefixes, the
                           parameters of each tower and their shapes, the size
                           and SHA-256 of every file, provenance.
  vocabulary.model         the SentencePiece model.
  weights.safetensors      the parameters, float32, by name.
  index/                   of `Retriever.save`: the passages, if it had some.
  programs/TOWER-LENGTH.bin
                           what `jax.export` serialises, compressed with zlib:
                           ({name: parameter}, int32 [b, LENGTH] tokens, padded
                           with 0) -> float32 [b, D], for any number of rows b.

An artifact is code: who wrote it decides what its programs compute. They are
compared with their digests, and none that calls native code is run, but take
artifacts from people you trust.

A text goes to the shortest length that holds it. A query tower alone has no
programs and parameters of passages; artifact.json says which passage tower it
belongs to.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
from typing import Any

import jax
from jax import export as jax_export

from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.encoding import exported_programs
from dualenc_jax.retrieval.encoding.exported_programs import ExportedTowers
from dualenc_jax.retrieval.encoding.towers import (
  LoadedModel,
  params_of_tower,
  PassageTower,
)
from dualenc_jax.utils import files, json_file, machine, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file

FILE = 'artifact.json'
VOCABULARY = 'vocabulary.model'
WEIGHTS = 'weights.safetensors'
INDEX = 'index'
PLATFORMS = ('cpu', 'cuda', 'tpu')
_FORMAT, _VERSION = 'dualenc-artifact', 2
_AGAIN = 'Copy the whole folder again, or write it again.'
_PASSAGE_TOWER = {'length': int, 'prefix': str, 'sha256': {str: str}}
_TOWER = {
    **_PASSAGE_TOWER,
    'lengths': [int],
    'params': [str],
    'activations': [str],
    'encoder?': dict | None,
}
_TYPES = {
    'dim': int,
    'towers': {'query': _TOWER},
    'params': {str: [int]},
    'platforms': [str],
    'versions': {str: str},
    'files': {str: {'bytes': int, 'sha256': str}},
    'provenance': dict,
    'passage_tower': dict | None,
    'prompts?': {str: str},
    'default_prompt?': str | None,
    'add_bos?': bool,
    'add_eos?': bool,
}


@dataclasses.dataclass(frozen=True)
class Tower(PassageTower):
  """One tower's programs.

  Attributes:
    lengths: tokens of the rows of each program, ascending to `length`.
    params: names of the parameters that the programs take.
    activations: activations of its feed-forward blocks.
    encoder: the encoder as `models.describe` has it, of another family than T5.
  """

  lengths: Sequence[int]
  params: Sequence[str]
  activations: Sequence[str]
  encoder: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The content of artifact.json.

  Attributes:
    dim: D, of the embeddings.
    towers: 'query' and 'passage', or 'query' alone.
    params: shapes of the parameters, float32.
    platforms: targets of the programs: 'cpu', 'cuda', 'tpu'.
    versions: of the libraries that wrote it.
    files: size and SHA-256 of every file, of an index too, by its path.
    provenance: JSON that determines the vectors.
    passage_tower: the one that a query tower alone belongs to.
    prompts, default_prompt: see `Tokenizer`.
    add_bos, add_eos: see `Vocabulary`.
  """

  dim: int
  towers: Mapping[str, Tower]
  params: Mapping[str, Sequence[int]]
  platforms: Sequence[str]
  versions: Mapping[str, str]
  files: Mapping[str, Mapping[str, Any]]
  provenance: Mapping[str, Any]
  passage_tower: PassageTower | None = None
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  default_prompt: str | None = None
  add_bos: bool = False
  add_eos: bool = True

  def write(self, folder: pathlib.Path) -> None:
    """Writes artifact.json."""
    form = {'format': _FORMAT, 'version': _VERSION, 'dtype': 'float32'}
    files.write_json(folder / FILE, form | dataclasses.asdict(self))

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Manifest':
    """Reads artifact.json."""
    path = folder / FILE
    absent = 'Expected a folder of Retriever.save or --to=jax_export.'
    value = json_file.read(path, _AGAIN, absent)
    json_file.check_format(
        value, path, _FORMAT, _VERSION, 'Write it again with this dualenc-jax.'
    )
    json_file.check(value, _TYPES, path, _AGAIN)
    other = value['passage_tower']
    types: Any = {'towers': {'passage': _TOWER}}
    if other is not None:
      types = {'passage_tower': _PASSAGE_TOWER}
    json_file.check(value, types, path, _AGAIN)
    value['passage_tower'] = other and _make(PassageTower, other)
    value['towers'] = {
        name: _make(Tower, tower) for name, tower in value['towers'].items()
    }
    manifest = _make(cls, value)
    for name in manifest.files:
      # Files are copied by these names, and a stranger may have chosen them.
      untrusted.check_name(
          name,
          f'{path}: a file that it lists',
          'Nothing was written. Do not use this artifact, unless you know who'
          ' changed it.',
      )
    return manifest

  @property
  def passages(self) -> PassageTower:
    """The passage tower, in this folder or another."""
    return self.passage_tower or self.towers['passage']

  @property
  def program_files(self) -> Mapping[tuple[str, int], str]:
    """The programs by tower and length: paths below the folder."""
    return {
        (name, length): f'programs/{name}-{length}.bin'
        for name, tower in self.towers.items()
        for length in tower.lengths
    }

  @property
  def index_files(self) -> Mapping[str, Mapping[str, Any]]:
    """The `files` of the index."""
    return {n: f for n, f in self.files.items() if n.startswith(f'{INDEX}/')}

  @property
  def model_files(self) -> Mapping[str, Mapping[str, Any]]:
    """The other `files`."""
    own = self.index_files
    return {n: f for n, f in self.files.items() if n not in own}

  def with_index(self, folder: pathlib.Path) -> 'Manifest':
    """The same model with the index in a folder."""
    files = {**self.model_files, **digest_files(folder, INDEX)}
    return dataclasses.replace(self, files=files)


@dataclasses.dataclass(frozen=True)
class Artifact(LoadedModel):
  """The towers of an artifact, on all devices of this host.

  A query tower alone encodes no passages, and raises UserError when asked to.
  """

  folder: pathlib.Path
  manifest: Manifest

  @classmethod
  def open(cls, folder: str | os.PathLike[str]) -> 'Artifact':
    """Opens an artifact; raises UserError where it is damaged or not for here.

    Every file is compared with its digest.
    """
    folder = pathlib.Path(os.path.realpath(os.path.expanduser(folder)))
    manifest = Manifest.read(folder)
    _check_runs_here(folder, manifest)
    check_files(folder, manifest.model_files)
    query, passage = manifest.towers['query'], manifest.passages
    towers = ExportedTowers(
        {key: folder / name for key, name in manifest.program_files.items()},
        {name: tower.params for name, tower in manifest.towers.items()},
        manifest.dim,
        {'query': query.sha256, 'passage': passage.sha256},
    )
    params = {}
    for name, tensor in safetensors_file.read(folder / WEIGHTS).items():
      params[name] = jax.device_put(tensor.read(), towers.replicated)
      # Until then the copy on the host is needed.
      params[name].block_until_ready()
    codec = None
    if codec_lib.FILE in manifest.files:
      codec, _ = codec_lib.load(folder / codec_lib.FILE)
    return cls(
        params,
        Tokenizer(
            Vocabulary(
                str(folder / VOCABULARY), add_bos=manifest.add_bos,
                add_eos=manifest.add_eos,
            ),
            query.length,
            passage.length,
            query.prefix,
            passage.prefix,
            manifest.prompts,
            manifest.default_prompt,
        ),
        towers,
        manifest.provenance,
        folder,
        manifest,
        codec=codec,
    )


def write(
    model: LoadedModel,
    folder: str | os.PathLike[str],
    platforms: Sequence[str] = PLATFORMS,
    passage_tower: PassageTower | None = None,
) -> None:
  """Writes an artifact; the folder appears when it is complete.

  Args:
    model: the model; an `Artifact` is copied.
    folder: a new or empty one, or an artifact to replace.
    platforms: targets of the programs, to which the attention must lower.
    passage_tower: if given, the query tower alone is written.
  """
  with new_artifact(folder) as new:
    fill(model, new, platforms, passage_tower).write(new)


@contextlib.contextmanager
def new_artifact(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yields a new folder, which then replaces an older artifact."""
  with files.new_folder(folder, marker=FILE) as new:
    with files.writing(folder):
      yield new


def fill(
    model: LoadedModel,
    folder: pathlib.Path,
    platforms: Sequence[str] = PLATFORMS,
    passage_tower: PassageTower | None = None,
) -> Manifest:
  """Writes all but artifact.json into an empty folder; returns its content."""
  (folder / 'programs').mkdir()
  if isinstance(model, Artifact):
    return _copy(model, folder)
  # Serving needs no Flax.
  from flax import traverse_util

  from dualenc_jax.models import describe, T5Encoder
  from dualenc_jax.retrieval.encoding import tower_digest
  from dualenc_jax.retrieval.encoding.embedder import Embedder

  assert isinstance(model.embedder, Embedder)
  tokenizer, module = model.tokenizer, model.embedder.model
  params = traverse_util.flatten_dict(model.params, sep='/')
  encoders = {'query': module.encoder}
  if passage_tower is None:
    encoders['passage'] = module.passage_encoder or module.encoder
  towers = {}
  for name, encoder in encoders.items():
    length = getattr(tokenizer, f'{name}_length')
    towers[name] = Tower(
        length,
        getattr(tokenizer, f'{name}_prefix'),
        model.tower_digest(name),
        exported_programs.lengths_up_to(length),
        params_of_tower(params, name),
        tuple(encoder.activations),
        None if isinstance(encoder, T5Encoder) else describe(encoder),
    )
  used = {name for tower in towers.values() for name in tower.params}
  own = {name: params[name] for name in params if name in used}
  manifest = Manifest(
      model.dim,
      towers,
      {name: value.shape for name, value in own.items()},
      tuple(platforms),
      machine.versions(),
      {},
      dict(model.provenance),
      passage_tower,
      tokenizer.prompts,
      tokenizer.default_prompt,
      tokenizer.vocabulary.add_bos,
      tokenizer.vocabulary.add_eos,
  )
  for (name, length), file in manifest.program_files.items():
    given = {param: params[param] for param in towers[name].params}
    program = exported_programs.export(module, name, given, length, platforms)
    (folder / file).write_bytes(program)
  shutil.copyfile(tokenizer.vocabulary.file, folder / VOCABULARY)
  safetensors_file.write(folder / WEIGHTS, tower_digest.device_tensors(own))
  if model.codec is not None and passage_tower is None:
    codec_lib.save(folder / codec_lib.FILE, model.codec)
  return dataclasses.replace(manifest, files=digest_files(folder))


def digest_files(folder: pathlib.Path, part: str = '') -> dict[str, Any]:
  """Size and SHA-256 of every file in a part of a folder, by its path."""
  paths = sorted(p for p in (folder / part).rglob('*') if p.is_file())
  return {p.relative_to(folder).as_posix(): digest_file(p) for p in paths}


def digest_file(path: pathlib.Path) -> dict[str, Any]:
  """Size and SHA-256 of a file."""
  with path.open('rb') as file:
    digest = hashlib.file_digest(file, 'sha256').hexdigest()
  return {'bytes': path.stat().st_size, 'sha256': digest}


def check_files(
    folder: pathlib.Path, files: Mapping[str, Mapping[str, Any]]
) -> None:
  """Raises UserError if a file of a manifest is missing or changed."""
  for name, expected in files.items():
    path = folder / name
    if not path.is_file() or digest_file(path) != expected:
      raise UserError(
          f'{path} is missing or was changed: {FILE} has another digest of it.'
          f' {_AGAIN}'
      )


def _copy(artifact: Artifact, folder: pathlib.Path) -> Manifest:
  """Copies the model of an artifact, which may have been replaced by now."""
  files = artifact.manifest.model_files
  check_files(artifact.folder, files)
  for name in files:
    shutil.copyfile(artifact.folder / name, folder / name)
  return dataclasses.replace(artifact.manifest, files=files)


def _make(kind: type, facts: Mapping[str, Any]) -> Any:
  names = {f.name for f in dataclasses.fields(kind)}
  return kind(**{name: facts[name] for name in names & facts.keys()})


def _check_runs_here(folder: pathlib.Path, manifest: Manifest) -> None:
  """Raises UserError if JAX runs on another platform here."""
  platform = jax_export.default_export_platform()
  if platform not in manifest.platforms:
    raise UserError(
        f'{folder / FILE}: its programs run on'
        f' {", ".join(manifest.platforms)}, but JAX runs on {platform} here.'
        ' Write the artifact with'
        f' platforms={(*manifest.platforms, platform)!r}.'
    )
