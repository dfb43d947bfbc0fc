"""Proof of a conversion: the same texts, encoded on both sides.

The sides are this library and the one whose form it is, with its own tokenizer
and its own T5. One after the other, so that one model is in memory at a time.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import gc
import logging
import pathlib
import sysconfig

import jax
import numpy as np

from dualenc_jax.checkpoints import assignment, loading, opening
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import EMBEDDING, PROJECTION, Weights
from dualenc_jax.data.readers.python_code import find_functions
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding.towers import Loaded
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

NUM_TEXTS = 64
# Of cosines of vectors in float32; two right implementations differ by 1e-6.
TOLERANCE = 1e-4
# Encoded at once: few, as activations come on top of the model.
_ROWS = 4
# Of the standard library, in prose and code, from a few words to pages.
_FILES = ('argparse.py', 'heapq.py', 'pathlib.py', 'statistics.py')
# Texts that a tokenizer made of another splits otherwise, if any.
ODD = (
    # Composed and not: letters, letters with two marks, syllables.
    'Äpfel A\u0308pfel Öl O\u0308l é e\u0301 c\u030c s\u030b',
    'Tiếng Việt Tie\u0302\u0301ng Vie\u0323\u0302t 한국어 \u1112\u1161\u11ab',
    'I\u0307stanbul \u03b1\u0345',
    # Joiners, a selector of a variation, a modifier; marks of half a width.
    'می\u200cخواهم क्\u200dष ❤\ufe0f 👩\u200d💻 👍🏽 が か\u3099 ｶﾞ ﬁ',
    # Marks in another order than Unicode's, and marks behind no letter.
    'שׁ ש\u05bc\u05c1 مّ م\u064e\u0651 q\u0307\u0323 a\u0323\u0302 \u0301x',
    '</s> <pad> <0x41> ▁x▁ ▁',
)

# Of n texts float32 [2, n, D] of norm one: as queries, and as passages.
Encode = Callable[[Sequence[str]], np.ndarray]


def real_texts() -> list[str]:
  """64 texts: docstrings and code of the standard library, and odd ones."""
  root = pathlib.Path(sysconfig.get_path('stdlib'))
  functions = []
  for name in _FILES:
    if (root / name).is_file():
      functions += find_functions(root / name, name)
  count = NUM_TEXTS - len(ODD)
  if 2 * len(functions) < count:
    raise UserError(
        f'The standard library in {root} has fewer than {count} texts. Give'
        ' a file with one text per line, --texts=FILE.'
    )
  found = [f[side] for side in ('query', 'passage') for f in functions]
  return [*found[:: len(found) // count][:count], *ODD]


def ours(weights: Weights) -> Encode:
  """This library's side. A pretrained T5 is pooled, without a projection."""

  def encode(texts: Sequence[str]) -> np.ndarray:
    whole = weights
    if not weights.has_projection:
      width = weights.tensors[EMBEDDING].shape[1]
      identity = functools.partial(np.eye, width, dtype=np.float32)
      tensor = Tensor('the identity', (width, width), identity)
      tensors = {**weights.tensors, PROJECTION: tensor}
      whole = dataclasses.replace(weights, tensors=tensors)
    params, embedder = loading.place(
        whole.model(), whole.tensors, whole.path, _OneDevice(), _ROWS
    )
    model = Loaded(params, make_tokenizer(whole), embedder, {})
    # On a GPU float32 products are not exact by default.
    with jax.default_matmul_precision('highest'):
      return encode_with(model, texts)

  return encode


def encode_with(model: Loaded, texts: Sequence[str]) -> np.ndarray:
  """Texts through both towers of a model, as an `Encode` returns them."""
  return np.stack([
      model.queries(model.tokenizer.encode_queries(texts)),
      model.passages(model.tokenizer.encode_passages(texts)),
  ])


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
  The first side is ours, so that no other library takes memory beside our
  model. Returns lines that say how large the differences are.
  """
  (name, encode), *others = sides
  first = encode(texts)
  if len(texts) > 1 and not np.ptp(first, axis=1).max(axis=1).min() > 0:
    raise UserError(
        'All texts have the same vector, so nothing can be compared: prefixes'
        ' fill the lengths, or the model is broken. Give other lengths,'
        ' prefixes or --texts.'
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


def cosine_difference(a: np.ndarray, b: np.ndarray) -> tuple[float, int]:
  """How far two sides are apart, and the text where they are most.

  The largest, over queries and passages, of 1 - cos(a_i, b_i), and over all
  pairs of |cos(q_i, p_j) of a - cos(q_i, p_j) of b|; NaN counts as the largest.
  """
  (aq, ap), (bq, bp) = a, b = _unit(a), _unit(b)
  scores = np.abs(aq @ ap.T - bq @ bp.T)
  each = 1 - np.sum(a * b, axis=-1)
  by_text = np.max([*each, scores.max(axis=1), scores.max(axis=0)], axis=0)
  worst = int(np.argmax(by_text))
  return float(by_text[worst]), worst


def _unit(vectors: np.ndarray) -> np.ndarray:
  wide = vectors.astype(np.float64)
  return wide / np.linalg.norm(wide, axis=-1, keepdims=True)


def check_written(weights: Weights, folder: pathlib.Path) -> None:
  """Reads what was written and compares every tensor, bit by bit."""
  # What a user must know about prompts was said when the source was read.
  logging.disable(logging.WARNING)
  try:
    back = opening.read(folder)
  finally:
    logging.disable(logging.NOTSET)
  shapes = {name: tensor.shape for name, tensor in weights.tensors.items()}
  for name, source in assignment.assign(shapes, back).items():
    if source is None:
      raise UserError(f'{name} is missing in the output. Nothing was kept.')
    array = weights.tensors[name].read()
    if not np.array_equal(array, back.tensors[source].read()):
      raise UserError(
          f'{back.tensors[source].where} differs from'
          f' {weights.tensors[name].where}. Nothing was kept.'
      )
  facts, found = (
      {**w.usage.facts(), 'the passage tower': w.passage_tower}
      for w in (weights, back)
  )
  for name, wanted in facts.items():
    if wanted != found.get(name):
      raise UserError(
          f'{name} is {wanted!r}, but {found.get(name)!r} in the output.'
          ' Nothing was kept.'
      )
