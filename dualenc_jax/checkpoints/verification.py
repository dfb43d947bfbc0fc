"""Proof of a conversion: tensors bit by bit, and texts encoded on both sides.

The sides are this library and sentence-transformers, which has its own
tokenizer and its own T5, or an artifact's programs. They run one after the
other, so that one model is in memory at a time.
"""

from collections.abc import Callable, Sequence
import gc
import importlib.util
import logging
import pathlib
from typing import Any

import jax
import numpy as np

from dualenc_jax.checkpoints import assignment, formats, loading
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.utils.errors import UserError

# Largest difference of cosines in float32; two right implementations differ by
# 1e-6.
TOLERANCE = 1e-4
# Prose and code, from a word to more than 128 tokens.
TEXTS = (
    'sort',
    'how to parse a date in another time zone',
    'Who wrote "The Origin of Species", and when was it first published?',
    'The capital of Australia is Canberra, not Sydney or Melbourne.',
    'Die Straße führt über die Brücke; la forêt est à côté de la rivière.',
    'https://example.org/a_b?c=1&d=2.5e-3#top 1,234.56 $7 50%',
    'SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name;',
    'for (int i = 0; i < numRows; ++i) { sum += values[i]; }',
    'def parse(text: str) -> dict:\n  """Parses JSON."""\n  return loads(text)',
    f'The numbers are {" ".join(map(str, range(200)))}.',
)
# Texts that are encoded at once: few, as activations come on top of the model.
_ROWS = 4

# Encodes n texts, as queries and as passages: float32 [2, n, D] of norm one.
Encode = Callable[[Sequence[str]], np.ndarray]


def check_written(weights: Weights, folder: pathlib.Path) -> None:
  """Reads what was written; compares every tensor, bit by bit, and settings."""
  # Reading the source has logged its warnings already.
  logging.disable(logging.WARNING)
  try:
    written = formats.read(folder)
  finally:
    logging.disable(logging.NOTSET)
  shapes = {name: tensor.shape for name, tensor in weights.tensors.items()}
  for name, source in assignment.assign(shapes, written).items():
    if source is None:
      raise UserError(f'{name} is missing in the output. Nothing was kept.')
    array = weights.tensors[name].read()
    if not np.array_equal(array, written.tensors[source].read()):
      raise UserError(
          f'{written.tensors[source].where} differs from'
          f' {weights.tensors[name].where}. Nothing was kept.'
      )
  actual = written.settings()
  for name, value in weights.settings().items():
    if value != actual.get(name):
      raise UserError(
          f'{name} is {value!r}, but {actual.get(name)!r} in the output.'
          ' Nothing was kept.'
      )


def compare(
    sides: Sequence[tuple[str, Encode]], texts: Sequence[str] = TEXTS,
    query_alone: bool = False,
) -> list[str]:
  """Encodes texts on every side and compares each with the first.

  Args:
    sides: names and functions. The first side is ours, so that no other library
      takes memory beside our model; the others are cut to the components that
      ours has.
    texts: two or more.
    query_alone: compare query embeddings only.

  Returns:
    Lines that say how large the differences are.

  Raises:
    UserError: a side differs by more than `TOLERANCE`, or all texts have the
      same vector, which would prove nothing.
  """
  (name, encode), *others = sides
  towers = [0, 0] if query_alone else [0, 1]
  first = encode(texts)[towers]
  if not np.ptp(first, axis=1).max(axis=1).min() > 0:
    raise UserError(
        'All texts have the same vector, so nothing can be compared: prefixes'
        ' fill the lengths, or the model is broken. Give other lengths or'
        ' prefixes.'
    )
  lines = []
  for other, encode in others:
    # Programs of the side before take memory, too.
    jax.clear_caches()
    gc.collect()
    vectors = encode(texts)[towers, :, : first.shape[-1]]
    by_text = cosine_differences(first, vectors)
    lines.append(
        f'{name} and {other}: largest cosine difference over {len(texts)} texts'
        f' {by_text.max():.1e}'
    )
    differing = [t for t, d in zip(texts, by_text) if not d <= TOLERANCE]
    if differing:
      raise UserError(
          f'{lines[-1]}; expected at most {TOLERANCE:.0e}. {len(differing)}'
          f' texts differ, such as {min(differing, key=len)!r}. Nothing was'
          ' written. If the vocabulary is another, give --vocabulary.'
      )
  return lines


def cosine_differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Computes how far two sides are apart, by text.

  The difference of text i is the largest, over query and passage, of
  1 - cos(a_i, b_i), and over all pairs with it of |cos(q_i, p_j) of a -
  cos(q_i, p_j) of b|.
  """
  (aq, ap), (bq, bp) = a, b = _normalize(a), _normalize(b)
  scores = np.abs(aq @ ap.T - bq @ bp.T)
  each = 1 - np.sum(a * b, axis=-1)
  return np.max([*each, scores.max(axis=1), scores.max(axis=0)], axis=0)


def _normalize(vectors: np.ndarray) -> np.ndarray:
  wide = vectors.astype(np.float64)
  return wide / np.linalg.norm(wide, axis=-1, keepdims=True)


def missing(packages: Sequence[str]) -> list[str]:
  """Lists the packages that are not installed."""
  return [name for name in packages if importlib.util.find_spec(name) is None]


def our_encoder(weights: Weights) -> Encode:
  """This library, on the devices of this host."""

  def encode(texts: Sequence[str]) -> np.ndarray:
    params, embedder = loading.place(
        weights.model(), weights.tensors, weights.path, batch_size=_ROWS
    )
    model = LoadedModel(params, make_tokenizer(weights), embedder, {})
    # On a GPU float32 products are not exact by default.
    with jax.default_matmul_precision('highest'):
      return np.stack([
          model.queries(model.tokenizer.encode_queries(texts)),
          model.passages(model.tokenizer.encode_passages(texts)),
      ])

  return encode


def exported_encoder(folder: pathlib.Path) -> Encode:
  """The programs of `jax.export`, with their own tokenizer.

  A query tower alone encodes the texts as queries twice.
  """

  def encode(texts: Sequence[str]) -> np.ndarray:
    model = artifact.Artifact.open(folder)
    queries = model.queries(model.tokenizer.encode_queries(texts))
    if model.manifest.passage_tower:
      return np.stack([queries, queries])
    passages = model.passages(model.tokenizer.encode_passages(texts))
    return np.stack([queries, passages])

  return encode


def sentence_transformers_encoder(folder: pathlib.Path) -> Encode:
  """`SentenceTransformer(folder)` with its own prompts and lengths."""

  def encode(texts: Sequence[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    options: dict[str, Any] = {
        'batch_size': _ROWS,
        'normalize_embeddings': True,
        'show_progress_bar': False,
    }
    try:
      # Without a dtype every module gets that of the first, float16 perhaps.
      model = SentenceTransformer(
          str(folder), device='cpu', local_files_only=True,
          trust_remote_code=False,
          model_kwargs={'dtype': torch.float32, 'use_safetensors': True},
      )
      return np.stack([
          model.encode_query(list(texts), **options),
          model.encode_document(list(texts), **options),
      ])
    except Exception as e:  # Whatever a library raises over a folder.
      raise UserError(
          f'sentence-transformers cannot read {folder}: {e!r:.300}. Copy or'
          ' download it again.'
      ) from e

  return encode
