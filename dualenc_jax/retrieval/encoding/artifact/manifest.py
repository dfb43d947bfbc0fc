"""The description of an artifact: artifact.json."""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import pathlib
from typing import Any

from dualenc_jax.data.text.tokenizer import LONGEST
from dualenc_jax.retrieval.compression import codec as codec_lib
from dualenc_jax.retrieval.encoding.towers import PassageTower
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.untrusted import shown

FORMAT = 'dualenc-artifact'
VERSION = 2
FILE = 'artifact.json'
VOCABULARY = 'vocabulary.model'
WEIGHTS = 'weights.safetensors'
INDEX = 'index'
TOWERS = ('query', 'passage')
_AGAIN = 'Copy the whole folder again, or write it again.'
_PASSAGE_TOWER = {'length': int, 'prefix': str, 'sha256': {str: str}}
_TOWER = {
    **_PASSAGE_TOWER,
    'lengths': [int],
    'params': [str],
    'activations': [str],
}
_TYPES = {
    'dim': int,
    'towers': dict,
    'params': {str: [int]},
    'platforms': [str],
    'calling_convention': int,
    'versions': {str: str},
    'files': {str: {'bytes': int, 'sha256': str}},
    'provenance': dict,
    'passage_tower': dict | None,
    'prompts?': {str: str},
    'default_prompt?': str | None,
}


@dataclasses.dataclass(frozen=True)
class Tower(PassageTower):
  """One tower's programs.

  Attributes:
    lengths: tokens of the rows of each program, ascending to `length`.
    params: names of the parameters that the programs take.
    activations: activations of its feed-forward blocks.
  """

  lengths: Sequence[int]
  params: Sequence[str]
  activations: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Manifest:
  """The content of artifact.json.

  Attributes:
    dim: D, of the embeddings.
    towers: 'query' and 'passage', or 'query' alone.
    params: shapes of the parameters, float32.
    platforms: targets of the programs: 'cpu', 'cuda', 'tpu'.
    calling_convention: version of `jax.export`'s.
    versions: of the libraries that wrote it.
    files: size and SHA-256 of every file, of an index too, by its path.
    provenance: JSON that determines the vectors.
    passage_tower: the one that a query tower alone belongs to.
    prompts, default_prompt: see `Tokenizer`.
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
  prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  default_prompt: str | None = None

  def write(self, folder: pathlib.Path) -> None:
    """Writes artifact.json."""
    form = {'format': FORMAT, 'version': VERSION, 'dtype': 'float32'}
    files.write_json(folder / FILE, form | dataclasses.asdict(self))

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Manifest':
    """Reads artifact.json.

    Raises:
      UserError: it is missing, damaged or of an unknown version, or lists a
        file outside the folder.
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
    json_file.check(value, _TYPES, path, _AGAIN)
    is_alone = value['passage_tower'] is not None
    there = TOWERS[:1] if is_alone else TOWERS
    types: dict[str, Any] = {'towers': {name: _TOWER for name in there}}
    if is_alone:
      types['passage_tower'] = _PASSAGE_TOWER
    json_file.check(value, types, path, _AGAIN)
    names = {f.name for f in dataclasses.fields(cls)}
    fields = {name: value[name] for name in names & value.keys()}
    fields['towers'] = {n: _of(Tower, value['towers'][n]) for n in there}
    if is_alone:
      fields['passage_tower'] = _of(PassageTower, value['passage_tower'])
    found = cls(**fields)
    found._check(path)
    return found

  def _check(self, path: pathlib.Path) -> None:
    """Raises UserError unless the fields are of one artifact."""
    for name in self.files:
      # Files are copied by these names, and a stranger may have chosen them.
      untrusted.check_name(
          name,
          f'{path}: a file that it lists',
          'Nothing was written. Do not use this artifact, unless you know who'
          ' changed it.',
      )
    needed = {WEIGHTS, VOCABULARY}
    bad = [] if 0 < self.dim < 2**31 else [f'dim is {self.dim}']
    for name, tower in self.towers.items():
      lengths = tower.lengths
      if lengths != sorted({*lengths, tower.length}) or not (
          0 < lengths[0] and lengths[-1] == tower.length <= LONGEST
      ):
        bad.append(f'the lengths of the {name} tower are {shown(lengths)}')
        continue
      needed |= {program_file(name, length) for length in lengths}
      bad += [
          f'the {name} tower takes {shown(param)}, which params has not'
          for param in tower.params
          if param not in self.params
      ]
    bad += [
        f'the parameter {shown(param)} has the shape {shown(shape)}'
        for param, shape in self.params.items()
        if not all(0 <= n < 2**31 for n in shape)
    ]
    others = self.model_files.keys() - needed - {codec_lib.FILE}
    bad += [f'files lacks {n}, so it cannot be verified'
            for n in sorted(needed - self.files.keys())]
    bad += [f'files has {shown(n)}, which is no part of it'
            for n in sorted(others)]
    if bad:
      raise UserError(f'{path} is damaged: {bad[0]}. {_AGAIN}')

  @property
  def passages(self) -> PassageTower:
    """The passage tower, in this folder or another."""
    return self.passage_tower or self.towers['passage']

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
    files = {**self.model_files, **of_folder(folder, INDEX)}
    return dataclasses.replace(self, files=files)

  def check_model(self, folder: pathlib.Path) -> None:
    """Raises UserError if a file of the model is missing or changed."""
    _check(folder, self.model_files)

  def check_index(self, folder: pathlib.Path) -> None:
    """Raises UserError if a file of the index is missing or changed.

    Reading all of it takes some seconds for each 10 GB.
    """
    _check(folder, self.index_files)
    extra = [n for n in of_names(folder, INDEX) if n not in self.index_files]
    if extra:
      raise UserError(
          f'{folder / extra[0]} is not listed in {FILE}. Remove it, or save the'
          ' retriever again.'
      )


def of_folder(folder: pathlib.Path, part: str = '') -> dict[str, Any]:
  """Size and SHA-256 of every file in a part of a folder, by its path."""
  return {name: of_file(folder / name) for name in of_names(folder, part)}


def of_names(folder: pathlib.Path, part: str = '') -> list[str]:
  """Paths of the files in a part of a folder, sorted."""
  files = sorted(p for p in (folder / part).rglob('*') if p.is_file())
  return [p.relative_to(folder).as_posix() for p in files]


def of_file(path: pathlib.Path) -> dict[str, Any]:
  """Size and SHA-256 of a file."""
  with path.open('rb') as file:
    digest = hashlib.file_digest(file, 'sha256').hexdigest()
  return {'bytes': path.stat().st_size, 'sha256': digest}


def _of(kind: type, facts: Mapping[str, Any]) -> Any:
  return kind(**{f.name: facts[f.name] for f in dataclasses.fields(kind)})


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
