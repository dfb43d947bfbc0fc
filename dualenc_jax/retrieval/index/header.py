"""The header of an index, written before its first shard."""

from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any

from dualenc_jax.retrieval.encoding.towers import TOWER_SHA256
from dualenc_jax.utils import files, json_file

FORMAT, VERSION, FILE = 'dualenc-index', 3, 'header.json'
AGAIN = 'Run `dualenc encode` again, with --overwrite.'
TOWERS = ('passage', 'query')
# A kill costs the work on one shard at most. At D = 768 one is 403 MB, and the
# 8.8 million passages of MS MARCO are 68 of them, opened in no time. A block of
# exact search lies in one shard, and need not be copied.
SHARD_SIZE = 2**17
# Fields that are not compared: a model whose other tower is trained further or
# replaced makes the same index.
_INFORMATION = ('model_dir', 'run_id', 'checkpoint_step')
_SHAPE = {
    **dict.fromkeys(('passages', 'dim', 'tokens', 'shard_size'), int),
    'dtype': str,
    'tower': str,
    'normalised': bool,
    'codec?': str,
    'width?': int,
    'provenance': {f'{TOWER_SHA256}?': {str: str}},
}


@dataclasses.dataclass(frozen=True)
class Header:
  """The plan of an index. Builds with equal headers continue each other.

  Attributes:
    passages: N, the number of rows: passages, or queries of a query tower.
    dim: D, the dim of an embedding.
    tower: 'passage' or 'query'.
    tokens: the most tokens that were read of a text.
    dtype: of the embeddings on disk, or of their codes.
    normalised: whether the embeddings have length one.
    shard_size: the number of rows of every shard but the last.
    codec: name of the codec (`retrieval.compression.specs`), or None.
    width: the number of columns of the codes; None without codes.
    provenance: JSON on the texts and on the model that encoded them: digest of
      the tower, run, checkpoint step, vocabulary, task.
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
    # JSON has lists for tuples.
    provenance = json.loads(json.dumps(dict(self.provenance)))
    object.__setattr__(self, 'provenance', provenance)

  @property
  def columns(self) -> int:
    """The number of columns on disk."""
    return self.width or self.dim

  @property
  def shards(self) -> int:
    """The number of shards."""
    return -(-self.passages // self.shard_size)

  def shard_rows(self, shard: int) -> range:
    """The rows of a shard."""
    first = shard * self.shard_size
    return range(first, min(first + self.shard_size, self.passages))

  def mismatches(self, expect: Mapping[str, Any]) -> list[str]:
    """A line for each field, or part of provenance, that is not as expected."""
    found = {**self.provenance, **self._fields()}
    lines = []
    for name, value in expect.items():
      own = found.get(name)
      if name in found and own == value:
        continue
      if name == TOWER_SHA256:
        what = 'it does not say what encoded it'
        if own:
          what = f'it was encoded by another {self.tower} tower'
        lines.append(f'{what} ({TOWER_SHA256})')
        continue
      own, value = ('none' if v is None else repr(v) for v in (own, value))
      lines.append(f'{name} is {own}, expected {value}')
      if name == 'dim' and self.dim < expect[name]:
        lines[-1] += f' (if it was made with --dim={own}, give that here, too)'
    return lines

  def lines(self) -> str:
    """A line for each field that is compared."""
    every = {**self.provenance, **self._fields()}
    return '\n'.join(
        f'{name} {value}'
        for name, value in sorted(every.items())
        if name not in (*_INFORMATION, 'provenance')
    )

  def differences(self, other: 'Header') -> list[str]:
    """A line for each field that differs in another header."""
    mine, theirs = (
        {**header.provenance, **header._fields()} for header in (self, other)
    )
    names = sorted((mine.keys() | theirs.keys()) - {*_INFORMATION})
    return self.mismatches({name: theirs.get(name) for name in names})

  def write(self, folder: pathlib.Path) -> None:
    """Writes header.json, all of it or nothing."""
    value = self._fields() | {'provenance': self.provenance}
    files.write_json(folder / FILE, value, sync=True)

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Header':
    """Reads header.json."""
    path = folder / FILE
    absent = 'Give the folder that `dualenc encode` wrote, or run it first.'
    value = json_file.read(path, AGAIN, absent)
    json_file.check_format(value, path, FORMAT, VERSION, AGAIN)
    json_file.check(value, _SHAPE, path, AGAIN)
    names = {field.name for field in dataclasses.fields(cls)}
    return cls(**{name: v for name, v in value.items() if name in names})

  def _fields(self) -> dict[str, Any]:
    """The fields that stand beside provenance, as header.json has them."""
    own = {name: v for name, v in vars(self).items() if v is not None}
    del own['provenance']
    return {'format': FORMAT, 'version': VERSION, **own, 'shards': self.shards}
