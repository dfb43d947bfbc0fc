"""Proof of a conversion: the same texts, encoded on both sides.

The sides are this library and the one whose form it is, with its own tokenizer
and its own T5. One after the other, so that one model is in memory at a time.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import gc
import pathlib
import sysconfig

import jax
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import Loaded
from dualenc_jax.interop import assignment, loading, opening
from dualenc_jax.interop.vocabulary import make_tokenizer
from dualenc_jax.interop.weights import Weights
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.readers.python_functions import find_functions
from dualenc_jax.tensor_files.tensors import Tensor

NUM_TEXTS = 64
# Of cosines of vectors in float32; two right implementations differ by 1e-6.
TOLERANCE = 1e-4
# Encoded at once: few, as activations come on top of the model.
_ROWS = 4
# Of the standard library, in prose and code, from a few words to pages.
_FILES = ('argparse.py', 'heapq.py', 'pathlib.py', 'statistics.py')


@dataclasses.dataclass(frozen=True)
class Vectors:
  """The texts as both towers see them.

  Attributes:
    queries: float32 [n, D], of norm one.
    passages: float32 [n, D], of the same texts.
  """

  queries: np.ndarray
  passages: np.ndarray


Encode = Callable[[Sequence[str]], Vectors]


def real_texts() -> list[str]:
  """64 texts: docstrings and code of the standard library of this Python.

  Raises:
    UserError: it has no source files here.
  """
  root = pathlib.Path(sysconfig.get_path('stdlib'))
  functions = []
  for name in _FILES:
    if (root / name).is_file():
      functions += find_functions(root / name, name)
  if 2 * len(functions) < NUM_TEXTS:
    raise UserError(
        f'The standard library in {root} has no source to take {NUM_TEXTS}'
        ' texts from. Give a file of them, --texts=FILE, one a line.'
    )
  apart = 2 * len(functions) // NUM_TEXTS
  chosen = functions[::apart][: NUM_TEXTS // 2]
  return [f.query for f in chosen] + [f.passage for f in chosen]


def ours(weights: Weights) -> Encode:
  """This library's side. A pretrained T5 is pooled, without a projection."""

  def encode(texts: Sequence[str]) -> Vectors:
    whole = weights
    if not weights.has_projection:
      width = weights.tensors['token_embedder/embedding'].shape[1]
      identity = functools.partial(np.eye, width, dtype=np.float32)
      tensor = Tensor('the identity', (width, width), identity)
      tensors = {**weights.tensors, 'projection/kernel': tensor}
      whole = dataclasses.replace(weights, tensors=tensors)
    params, embedder = loading.place(
        whole.model(), whole.tensors, whole.path, _OneDevice(), _ROWS
    )
    model = Loaded(params, make_tokenizer(whole), embedder, {})
    # On a GPU float32 products are not exact by default.
    with jax.default_matmul_precision('highest'):
      return encode_with(model, texts)

  return encode


def queries_alone(encode: Encode) -> Encode:
  """A side of which queries are compared, in the place of passages, too."""

  def encode_queries(texts: Sequence[str]) -> Vectors:
    queries = encode(texts).queries
    return Vectors(queries, queries)

  return encode_queries


def first_components(encode: Encode, dim: int) -> Encode:
  """A side whose vectors are cut to the first components, not normalised."""

  def encode_and_cut(texts: Sequence[str]) -> Vectors:
    whole = encode(texts)
    return Vectors(whole.queries[:, :dim], whole.passages[:, :dim])

  return encode_and_cut


def encode_with(model: Loaded, texts: Sequence[str]) -> Vectors:
  """Texts through both towers of a model."""
  return Vectors(
      model.queries(model.tokenizer.encode_queries(texts)),
      model.passages(model.tokenizer.encode_passages(texts)),
  )


class _OneDevice(Partitioner):
  """The CPU, whose memory holds a model of any size, if JAX may use it."""

  def devices(self) -> Sequence[jax.Device]:
    try:
      return jax.local_devices(backend='cpu')[:1]
    except RuntimeError:
      return jax.local_devices()[:1]


def compare(
    sides: Sequence[tuple[str, Encode]], texts: Sequence[str]
) -> list[str]:
  """Encodes texts on every side and compares each with the first.

  Args:
    sides: their names, for people, and how they encode; the first is ours, so
      that no other library takes memory beside our model.
    texts: n of them.

  Returns:
    Lines that say how large the differences are.

  Raises:
    UserError: a cosine differs by more than `TOLERANCE`.
  """
  (name, encode), *others = sides
  first = encode(texts)
  for vectors in (first.queries, first.passages):
    if len(texts) > 1 and not np.ptp(vectors, axis=0).max() > 0:
      raise UserError(
          'All texts have the same vector, so that nothing can be compared:'
          ' lengths are used up by prefixes, or the model is broken. Give other'
          ' lengths, prefixes or --texts.'
      )
  lines = []
  for other, encode in others:
    # Programs of a side that is done take memory, too.
    jax.clear_caches()
    gc.collect()
    difference, worst = cosine_difference(first, encode(texts))
    lines.append(
        f'{name} and {other}: largest cosine difference over {len(texts)} texts'
        f' {difference:.1e}'
    )
    if not difference <= TOLERANCE:
      raise UserError(
          f'{lines[-1]}; expected at most {TOLERANCE:.0e}. Nothing was written.'
          f' They differ most at this text: {texts[worst][:200]!r}'
      )
  return lines


def cosine_difference(a: Vectors, b: Vectors) -> tuple[float, int]:
  """How far two sides are apart, and the text where they are most.

  The largest, over queries and passages, of 1 - cos(a_i, b_i), and over all
  pairs of |cos(q_i, p_j) of a - cos(q_i, p_j) of b|; NaN counts as the largest.
  """
  each = np.maximum(
      1 - np.sum(_wide(a.queries) * _wide(b.queries), axis=1),
      1 - np.sum(_wide(a.passages) * _wide(b.passages), axis=1),
  )
  scores = np.abs(
      _wide(a.queries) @ _wide(a.passages).T
      - _wide(b.queries) @ _wide(b.passages).T
  )
  by_text = np.maximum(np.maximum(each, scores.max(axis=1)), scores.max(axis=0))
  worst = int(np.argmax(by_text))
  return float(by_text[worst]), worst


def check_written(weights: Weights, folder: pathlib.Path) -> None:
  """Reads what was written and compares every tensor, bit by bit.

  Args:
    weights: what was to be written.
    folder: where it was.

  Raises:
    UserError: a tensor, a length or a prefix is missing, too many or not the
      same; names it.
  """
  back = opening.read(folder)
  shapes = {name: tensor.shape for name, tensor in weights.tensors.items()}
  for name, source in assignment.assign(shapes, back).items():
    if source is None:
      raise UserError(f'{name} is not in what was written. Nothing was kept.')
    array = weights.tensors[name].read()
    if not np.array_equal(array, back.tensors[source].read()):
      raise UserError(
          f'{back.tensors[source].where} is not {weights.tensors[name].where}.'
          ' Nothing was kept.'
      )
  for name, wanted in weights.usage.facts().items():
    found = getattr(back.usage, name)
    if wanted != found:
      raise UserError(
          f'{name} is {wanted!r}, but {found!r} in what was written. Nothing'
          ' was kept.'
      )
  if back.passage_tower != weights.passage_tower:
    raise UserError(
        'The passage tower that a query tower belongs to is not the same in'
        ' what was written. Nothing was kept.'
    )


def _wide(vectors: np.ndarray) -> np.ndarray:
  wide = vectors.astype(np.float64)
  return wide / np.linalg.norm(wide, axis=1, keepdims=True)
