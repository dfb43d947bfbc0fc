"""What an index says about itself, written before its first shard."""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import TOWER_SHA256
from dualenc_jax.io import files, json_file

FORMAT = 'dualenc-index'
VERSION = 3
FILE = 'header.json'
AGAIN = 'Run `dualenc encode` again.'
# Of embeddings, and of codes.
DTYPES = ('float32', 'float16', 'bfloat16', 'uint8')
TOWERS = ('passage', 'query')
# A kill costs the work on one shard at most. At D = 768 one is 403 MB, and the
# 8.8 million passages of MS MARCO are 68 of them, opened in no time. A block of
# exact search lies in one shard, and need not be copied.
SHARD_SIZE = 2**17
# Which model it was is told, but another one of the same tower, whose other
# tower is trained further or replaced, makes no other index.
_INFORMATION = ('model_dir', 'run_id', 'checkpoint_step')
_NUMBERS = ('passages', 'dim', 'tokens', 'shard_size')
_SHAPE = {
    'normalised': bool,
    'codec?': str,
    'width?': int,
    'provenance': {f'{TOWER_SHA256}?': {str: str}},
}


@dataclasses.dataclass(frozen=True)
class Header:
  """The plan of an index; two that are equal may go on with each other's work.

  Attributes:
    passages: N, the rows: passages, or queries of the query tower.
    dim: D, the embedding dim.
    tower: 'passage' or 'query'.
    tokens: most tokens that were kept of a text.
    dtype: of the embeddings on disk, or of their codes.
    codec: what the codes are by, see `compression.specs`; None for embeddings.
    width: columns of the codes; None for D.
    normalised: whether the embeddings have length one.
    shard_size: rows of every shard but the last.
    provenance: whatever says what was encoded by what, as JSON: digest of the
      tower, run, checkpoint step, vocabulary, task.
  """

  passages: int
  dim: int
  tower: str
  tokens: int
  dtype: str = 'float32'
  normalised: bool = True
  shard_size: int = SHARD_SIZE
  codec: str | None = None
  width: int | None = None
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    for name in _NUMBERS:
      value = getattr(self, name)
      if type(value) is not int or value < 1:
        raise UserError(
            f'field {name!r} is {value!r}: expected a whole number, 1 or more.'
        )
    for name, known in (('dtype', DTYPES), ('tower', TOWERS)):
      value = getattr(self, name)
      if value not in known:
        raise UserError(
            f'field {name!r} is {value!r}: expected {" or ".join(known)}.'
        )
    try:
      provenance = json.loads(json.dumps(dict(self.provenance)))
    except (TypeError, ValueError) as e:
      raise UserError(f'provenance must be plain JSON: {e}.') from e
    object.__setattr__(self, 'provenance', provenance)
    taken = sorted(self._own().keys() & provenance.keys())
    if taken:
      raise UserError(
          f'provenance names {taken} are fields of the header: rename them.'
      )

  @property
  def columns(self) -> int:
    """Numbers of a row on disk."""
    return self.width or self.dim

  @property
  def shards(self) -> int:
    """How many shards there are."""
    return -(-self.passages // self.shard_size)

  def rows_of(self, shard: int) -> range:
    """The rows of a shard."""
    first = shard * self.shard_size
    return range(first, min(first + self.shard_size, self.passages))

  def wrong(self, expect: Mapping[str, Any]) -> list[str]:
    """What to say of the fields, and of provenance, that are not as expected.

    Args:
      expect: values by name; other fields may be anything.
    """
    found = self._fields()
    said = []
    for name, value in expect.items():
      own = found.get(name)
      if name in found and own == value:
        continue
      if name == TOWER_SHA256:
        said.append(self._another_tower(own or {}, value or {}))
        continue
      line = f'{name} is {_said(own)}, expected {_said(value)}'
      if name == 'dim' and own < value:
        line += f' (if it was made with --dim={own}, give that here, too)'
      said.append(line)
    return said

  def differences(self, other: 'Header') -> list[str]:
    """What keeps this index from being the one of another header."""
    expect = other._fields()
    missing = dict.fromkeys(self._fields().keys() - expect.keys())
    return self.wrong({
        name: value
        for name, value in sorted((expect | missing).items())
        if name not in _INFORMATION
    })

  def write(self, folder: pathlib.Path) -> None:
    """Writes header.json, all of it or nothing."""
    value = self._own() | {'provenance': self.provenance}
    files.write_json(folder / FILE, value, sync=True)

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Header':
    """Reads header.json.

    Raises:
      UserError: there is none, or it is of another format or version or lacks
        a field.
    """
    path = folder / FILE
    absent = 'Give the folder that `dualenc encode` wrote, or run it first.'
    value = json_file.read(path, AGAIN, absent)
    json_file.check_format(value, path, FORMAT, VERSION, AGAIN)
    json_file.check(value, _SHAPE, path, AGAIN)
    try:
      names = [field.name for field in dataclasses.fields(cls)]
      header = cls(**{name: value.get(name) for name in names})
    except UserError as e:
      raise UserError(f'{path}: {e} {AGAIN}') from e
    if value.get('shards') != header.shards:
      raise UserError(
          f'{path}: shards is {value.get("shards")!r}, but {header.passages}'
          f' passages of {header.shard_size} a shard make {header.shards}.'
          f' {AGAIN}'
      )
    return header

  def _another_tower(
      self, found: Mapping[str, str], expected: Mapping[str, str]
  ) -> str:
    """What to say of digests of parts that are not as expected."""
    if not found:
      return f'{TOWER_SHA256} is absent: it does not say what encoded it'
    every = sorted(found.keys() | expected.keys())
    parts = [part for part in every if found.get(part) != expected.get(part)]
    those = 'is not that' if len(parts) == 1 else 'are not those'
    how = (
        '. A query tower aligned to that (losses/matching.gin) can search it'
        if self.tower == 'passage'
        else ''
    )
    return (
        f"this model's {' and '.join(parts)} {those} of the {self.tower} tower"
        f' that encoded it ({TOWER_SHA256}){how}'
    )

  def _fields(self) -> dict[str, Any]:
    return {**self.provenance, **self._own()}

  def _own(self) -> dict[str, Any]:
    """The fields that stand beside provenance, as header.json has them."""
    own = {
        name: value
        for name, value in vars(self).items()
        if name != 'provenance' and value is not None
    }
    return {
        'format': FORMAT, 'version': VERSION, **own, 'shards': self.shards
    }


def _said(value: Any) -> str:
  """A value of a field, or of one that is not there."""
  return 'none' if value is None else repr(value)
