"""What an artifact says about itself: artifact.json."""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import PassageTower
from dualenc_jax.io import files, json_file

FORMAT = 'dualenc-artifact'
VERSION = 2
FILE = 'artifact.json'
VOCABULARY = 'vocabulary.model'
WEIGHTS = 'weights.safetensors'
INDEX = 'index'
TOWERS = ('query', 'passage')
_AGAIN = 'Copy the whole folder again, or write it again.'


@dataclasses.dataclass(frozen=True)
class Tower:
  """One tower's programs.

  Attributes:
    length: most tokens of a text, EOS included.
    prefix: put in front of every text.
    lengths: tokens of the rows of each program, ascending; the last is
      `length`.
    params: names of the parameters that the programs take.
    activations: of its feed-forward blocks, which no shape tells.
    sha256: digests of its parts, as of `tower_digest.digest`.
  """

  length: int
  prefix: str
  lengths: Sequence[int]
  params: Sequence[str]
  activations: Sequence[str]
  sha256: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The content of artifact.json.

  Attributes:
    dim: D, of the embeddings.
    towers: by name, 'query' and 'passage', or 'query' alone.
    params: shape of every parameter, all of them float32.
    platforms: that the programs run on: 'cpu', 'cuda', 'tpu'.
    calling_convention: version of `jax.export`'s.
    versions: of the libraries that made it.
    files: size and SHA-256 of every file, by its path in the folder; of those
      of an index, too, if there is one.
    provenance: what the vectors depend on.
    passage_tower: of a query tower alone, which passages it finds.
  """

  dim: int
  towers: Mapping[str, Tower]
  params: Mapping[str, Sequence[int]]
  platforms: Sequence[str]
  calling_convention: int
  versions: Mapping[str, str]
  files: Mapping[str, Mapping[str, Any]]
  provenance: Mapping[str, Any]
  passage_tower: PassageTower | None = None

  def write(self, folder: pathlib.Path) -> None:
    """Writes artifact.json."""
    value = {
        'format': FORMAT,
        'version': VERSION,
        'dtype': 'float32',
        **dataclasses.asdict(self),
    }
    files.write_json(folder / FILE, value)

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Manifest':
    """Reads artifact.json.

    Raises:
      UserError: there is none, it is damaged or of an unknown version, or it
        lists a file that is not within the folder.
    """
    path = folder / FILE
    absent = (
        'Expected a folder that Retriever.save or `dualenc convert'
        ' --to=jax_export` wrote.'
    )
    value = json_file.read(path, _AGAIN, absent)
    json_file.check_format(
        value, path, FORMAT, VERSION, 'Write it again with this dualenc-jax.'
    )
    try:
      names = [field.name for field in dataclasses.fields(cls)]
      fields = {name: value[name] for name in names}
      elsewhere = fields['passage_tower']
      elsewhere = elsewhere and PassageTower(**elsewhere)
      there = TOWERS[:1] if elsewhere else TOWERS
      towers = {name: Tower(**fields['towers'][name]) for name in there}
      files = {
          name: {'bytes': facts['bytes'], 'sha256': facts['sha256']}
          for name, facts in fields['files'].items()
      }
      for name in files:
        _check_within(folder, name)
      return cls(
          **fields
          | {'towers': towers, 'files': files, 'passage_tower': elsewhere}
      )
    except (KeyError, TypeError, AttributeError) as e:
      raise UserError(
          f'{path}: damaged, a field is missing or unknown: {e}. {_AGAIN}'
      ) from e

  @property
  def passages(self) -> Tower | PassageTower:
    """How passages are given to the passage tower, here or elsewhere."""
    return self.passage_tower or self.towers['passage']

  @property
  def index_files(self) -> Mapping[str, Mapping[str, Any]]:
    """Those of `files` that lie in the index."""
    return {n: f for n, f in self.files.items() if n.startswith(f'{INDEX}/')}

  @property
  def model_files(self) -> Mapping[str, Mapping[str, Any]]:
    """Those of `files` that do not."""
    own = self.index_files
    return {n: f for n, f in self.files.items() if n not in own}

  def with_index(self, folder: pathlib.Path) -> 'Manifest':
    """The same model with the files of the index that lies in a folder."""
    files = {**self.model_files, **of_folder(folder, INDEX)}
    return dataclasses.replace(self, files=files)

  def check_model(self, folder: pathlib.Path) -> None:
    """Raises UserError if a file of the model is missing or changed."""
    _check(folder, self.model_files)

  def check_index(self, folder: pathlib.Path) -> None:
    """Raises UserError if a file of the index is missing or changed.

    All of it is read: some seconds for each 10 GB.
    """
    _check(folder, self.index_files)


def of_folder(folder: pathlib.Path, part: str = '') -> dict[str, Any]:
  """Size and SHA-256 of every file in a part of a folder, by its path."""
  files = sorted(p for p in (folder / part).rglob('*') if p.is_file())
  return {p.relative_to(folder).as_posix(): of_file(p) for p in files}


def of_file(path: pathlib.Path) -> dict[str, Any]:
  """Size and SHA-256 of a file."""
  with path.open('rb') as file:
    digest = hashlib.file_digest(file, 'sha256').hexdigest()
  return {'bytes': path.stat().st_size, 'sha256': digest}


def _check_within(folder: pathlib.Path, name: str) -> None:
  """Raises UserError unless a file that artifact.json lists is in its folder.

  Files are copied by these names, and who wrote them may be a stranger.
  """
  path = pathlib.PurePosixPath(name)
  if path.is_absolute() or '..' in path.parts or '\\' in name:
    raise UserError(
        f'{folder / FILE} lists {name!r}, which is not a file within its'
        ' folder. Nothing was read or written. Do not use this artifact, unless'
        ' you know who changed it.'
    )


def _check(
    folder: pathlib.Path, files: Mapping[str, Mapping[str, Any]]
) -> None:
  for name, expected in files.items():
    path = folder / name
    if not path.is_file():
      raise UserError(f'{path} is missing. {_AGAIN}')
    found = path.stat().st_size
    if found != expected['bytes']:
      raise UserError(
          f'{path} has {found:,} bytes; {FILE} says {expected["bytes"]}.'
          f' {_AGAIN}'
      )
    digest = of_file(path)['sha256']
    if digest != expected['sha256']:
      raise UserError(
          f'{path} was changed: its SHA-256 is {digest}, {FILE} says'
          f' {expected["sha256"]}. {_AGAIN}'
      )


def program_file(tower: str, length: int) -> str:
  """Where a program is, below the folder of the artifact."""
  return f'programs/{tower}-{length}.bin'
