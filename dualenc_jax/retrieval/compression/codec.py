"""`Codec`, which turns vectors of an index into codes and scores queries.

On disk it is codec.safetensors: the arrays, and a plan of them as JSON.

Shapes: n vectors, D their dim, d the dim after the linear maps, Q queries, w
columns of codes.
"""

from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.retrieval.compression.linear import Linear
from dualenc_jax.retrieval.compression.product import Product
from dualenc_jax.retrieval.compression.quantisers import (
  Floats,
  Hamming,
  Int8,
  Signs,
)
from dualenc_jax.utils import finite, json_file
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

FILE = 'codec.safetensors'
_FORMAT = 'dualenc-codec'
_AGAIN = 'Make the index again: `dualenc encode --codec`.'
_PLAN = {
    'name': str,
    'dim': int,
    'rescored': int | None,
    'parts': [{'class': str}],
}
_PARTS = {
    part.__name__: part
    for part in (Linear, Product, Floats, Int8, Signs, Hamming)
}

@dataclasses.dataclass(frozen=True, eq=False)
class Codec:
  """Trained linear maps, one after the other, and a trained quantiser.

  Attributes:
    name: as in `specs`, such as 'opq:96'.
    dim: D.
    rescored: l: the search takes the l best by Hamming distance and scores
      these again, by the float query; None scores all passages at once.
  """

  name: str
  dim: int
  transforms: Sequence[Linear]
  quantiser: Any
  rescored: int | None = None

  @property
  def bytes_per_passage(self) -> int:
    """Bytes of a passage on disk and in memory."""
    return self.quantiser.width * self.code_dtype.itemsize

  @property
  def code_dtype(self) -> np.dtype:
    return np.dtype(self.quantiser.dtype)

  @property
  def is_normalised(self) -> bool:
    """Whether decoded vectors have length one, up to rounding."""
    is_map = isinstance(self.quantiser, Floats) and bool(self.transforms)
    return is_map and self.transforms[-1].normalise

  def encode(self, vectors: np.ndarray) -> np.ndarray:
    """Codes of passages [n, D]: [n, w]; UserError where a vector has none."""
    self._check('passage', vectors)
    return self.quantiser.encode(self._map(vectors))

  def decode(self, codes: np.ndarray) -> np.ndarray:
    """The vectors that codes stand for, float32 [n, d]."""
    return self.quantiser.decode(codes)

  def queries(self, queries: np.ndarray) -> np.ndarray:
    """Queries to compare with decoded codes: float32 [Q, D] -> [Q, d]."""
    self._check('query', queries)
    return self.quantiser.map_queries(self._map(queries))

  def _map(self, vectors: np.ndarray) -> np.ndarray:
    """Maps vectors by the linear maps: float32 [n, d]."""
    vectors = np.asarray(vectors, np.float32)
    for transform in self.transforms:
      vectors = transform(vectors)
    return vectors

  def _check(self, side: str, vectors: np.ndarray) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != self.dim:
      raise UserError(
          f'{side} embeddings have shape {vectors.shape}, and the codec'
          f' {self.name} was trained for [rows, {self.dim}]. Use the model that'
          ' it was trained with, or train it again.'
      )
    finite.check_rows(f'{side} embeddings', vectors)


class Coded:
  """N vectors that are kept as codes and decoded when read; read-only.

  `ExactSearch` searches them. `store[a:b]` and `store[rows]` are float32
  vectors, to compare with `codec.queries`. Codes [N, w] are an array or a store
  of rows.
  """

  ndim = 2
  dtype = np.dtype(np.float32)

  def __init__(self, codec: Codec, codes: Any):
    """Takes codes of this codec."""
    self.codec = codec
    self.codes = codes
    self.shape = len(codes), codec.quantiser.dim

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: int | slice | np.ndarray) -> np.ndarray:
    codes = np.asarray(self.codes[rows])
    found = self.codec.decode(codes.reshape(-1, codes.shape[-1]))
    return found.reshape(*codes.shape[:-1], self.shape[1])

  def own_part(self) -> tuple[int, 'Coded']:
    """The part that this host searches; see `RowStore.own_part`."""
    part = getattr(self.codes, 'own_part', None)
    first, own = part() if part else (0, self.codes)
    return first, self if own is self.codes else Coded(self.codec, own)

  def first_step(self) -> 'Coded':
    """The passages of the first of two steps: same codes, signs of queries."""
    signs = Hamming(self.codec.quantiser.dim)
    codec = dataclasses.replace(self.codec, quantiser=signs, rescored=None)
    return Coded(codec, self.codes)


def with_candidates(passages: Any, count: int) -> Coded:
  """Returns the codes with `count` candidates for the second step of search.

  Raises UserError for passages that are not searched in two steps.
  """
  codec = getattr(passages, 'codec', None)
  if codec is None or codec.rescored is None:
    what = 'no codes' if codec is None else f'codes of {codec.name}'
    raise UserError(
        f'candidates is {count}: only an index that is searched in two steps'
        f' takes it, but this one has {what}. Leave it out, or encode with'
        ' --codec=binary.'
    )
  expect(count >= 1, 'candidates', count, '1 or more')
  *before, _ = codec.name.split('+')
  name = '+'.join([*before, f'binary:{count}'])
  return Coded(
      dataclasses.replace(codec, name=name, rescored=count), passages.codes
  )


def save(path: pathlib.Path, codec: Codec) -> None:
  """Writes a codec, all of it or nothing."""
  tensors, parts = {}, []
  names: dict[int, str] = {}
  for i, part in enumerate([*codec.transforms, codec.quantiser]):
    facts: dict[str, Any] = {'class': type(part).__name__}
    for field in dataclasses.fields(part):
      value, name = getattr(part, field.name), f'{i}/{field.name}'
      if not hasattr(value, 'shape'):
        facts[field.name] = value
      elif id(value) in names:
        facts[field.name] = {'tensor': names[id(value)]}
      else:
        names[id(value)] = name
        facts[field.name] = {'tensor': name}
        array = np.asarray(value, np.float32)
        read = functools.partial(np.asarray, array)
        tensors[name] = Tensor(name, array.shape, read)
    parts.append(facts)
  plan = {
      'name': codec.name,
      'dim': codec.dim,
      'rescored': codec.rescored,
      'parts': parts,
  }
  safetensors_file.write(
      path, tensors, {'format': _FORMAT, 'codec': json.dumps(plan)}
  )


def load(path: pathlib.Path) -> tuple[Codec, str]:
  """Loads a codec; returns it with the SHA-256 of its file."""
  if not path.is_file():
    raise UserError(f'{path} does not exist. {_AGAIN}')
  found = safetensors_file.metadata(path)
  if not isinstance(found, dict) or found.get('format') != _FORMAT:
    raise UserError(f'{path} is not a codec of an index. {_AGAIN}')
  tensors = safetensors_file.read(path)
  arrays = {name: tensor.read() for name, tensor in tensors.items()}
  plan = json_file.parse(found.get('codec') or '', path, _AGAIN)
  json_file.check(plan, _PLAN, path, _AGAIN)
  try:
    *transforms, quantiser = [_part(facts, arrays) for facts in plan['parts']]
  except (KeyError, TypeError, ValueError) as e:
    raise UserError(f'{path} is damaged: {e!r}. {_AGAIN}') from e
  codec = Codec(
      plan['name'], plan['dim'], transforms, quantiser, plan['rescored']
  )
  return codec, hashlib.sha256(path.read_bytes()).hexdigest()


def _part(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
  # A field that is null has its default.
  facts = {name: x for name, x in facts.items() if x is not None}
  kind = _PARTS[facts.pop('class')]
  for name, value in facts.items():
    if isinstance(value, dict):
      facts[name] = arrays[value['tensor']]
  return kind(**facts)
