"""What an artifact says about itself: artifact.json."""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import pathlib
from typing import Any

from dualenc_jax.compression import codec_file
from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import PassageTower
from dualenc_jax.io import files, json_file, untrusted
from dualenc_jax.io.untrusted import shown
from dualenc_jax.text.tokenizer import LONGEST

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
}


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
    prompts: as of `Tokenizer`.
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
    json_file.check(value, _TYPES, path, _AGAIN)
    elsewhere = value['passage_tower']
    is_alone = elsewhere is not None
    there = TOWERS[:1] if is_alone else TOWERS
    json_file.check(
        value,
        {
            'towers': {name: _TOWER for name in there},
            **({'passage_tower': _PASSAGE_TOWER} if is_alone else {}),
        },
        path,
        _AGAIN,
    )
    fields = {
        f.name: value[f.name]
        for f in dataclasses.fields(cls)
        if f.name in value
    }
    towers = {name: _of(Tower, value['towers'][name]) for name in there}
    elsewhere = _of(PassageTower, elsewhere) if is_alone else None
    found = cls(**fields | {'towers': towers, 'passage_tower': elsewhere})
    found._check(path)
    return found

  def _check(self, path: pathlib.Path) -> None:
    """Raises UserError unless the fields are of one artifact."""
    for name in self.files:
      _check_within(path, name)
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
    # Of a codec it may be there, or not.
    others = self.model_files.keys() - needed - {codec_file.FILE}
    bad += [f'files lacks {n}, so nothing says that it is the one that was'
            ' written' for n in sorted(needed - self.files.keys())]
    bad += [f'files has {shown(n)}, which is no part of it'
            for n in sorted(others)]
    if bad:
      raise UserError(f'{path} is damaged: {bad[0]}. {_AGAIN}')

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
    extra = [n for n in of_names(folder, INDEX) if n not in self.index_files]
    if extra:
      raise UserError(
          f'{folder / extra[0]} is there, and {FILE} does not list it. Remove'
          ' it, or save the retriever again.'
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


def _check_within(file: pathlib.Path, name: str) -> None:
  """Raises UserError unless a file that artifact.json lists is in its folder.

  Files are copied by these names, and who wrote them may be a stranger.
  """
  untrusted.check_name(
      name,
      f'{file}: a file that it lists',
      'Nothing was written. Do not use this artifact, unless you know who'
      ' changed it.',
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
