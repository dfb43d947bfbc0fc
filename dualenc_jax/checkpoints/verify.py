"""Proof of a conversion: tensors bit by bit, and texts encoded on both sides.

The sides are this library and the one whose form it is, with its own tokenizer
and its own T5; the latter needs torch. One after the other, so that one model
is in memory at a time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import gc
import importlib.util
import logging
import pathlib
from typing import Any

import jax
import numpy as np

from dualenc_jax.checkpoints import assignment, loading, opening
from dualenc_jax.checkpoints.hugging_face import PROJECTION_FILE
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import (
  EMBEDDING,
  ENCODERS,
  PROJECTION,
  SIZES,
  Usage,
  Weights,
)
from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.parallel.partitioning import Partitioner
from dualenc_jax.retrieval.encoding import artifact
from dualenc_jax.retrieval.encoding.towers import Loaded
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

# Of cosines of vectors in float32; two right implementations differ by 1e-6.
TOLERANCE = 1e-4
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
# What is encoded: prose and code, from a word to more than 128 tokens.
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
    *ODD,
)
# Texts that are encoded at once: few, as activations come on top of the model.
_ROWS = 4
_ONLY_HERE: dict[str, Any] = {
    'local_files_only': True, 'trust_remote_code': False
}

# Of n texts float32 [2, n, D] of norm one: as queries, and as passages.
Encode = Callable[[Sequence[str]], np.ndarray]


def compare(
    sides: Sequence[tuple[str, Encode]], texts: Sequence[str],
    query_alone: bool = False,
) -> list[str]:
  """Encodes texts on every side and compares each with the first.

  Args:
    sides: with names. The first side is ours, so that no other library takes
      memory beside our model; of the others the components that ours has are
      compared.
    texts: to encode, two or more.
    query_alone: compare only what the texts are as queries.

  Returns:
    Lines that say how large the differences are.

  Raises:
    UserError: a side differs by more than `TOLERANCE`, or nothing is shown, as
      all texts have the same vector.
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
    # Programs of a side that is done take memory, too.
    jax.clear_caches()
    gc.collect()
    found = encode(texts)[towers, :, : first.shape[-1]]
    by_text = cosine_differences(first, found)
    lines.append(
        f'{name} and {other}: largest cosine difference over {len(texts)} texts'
        f' {by_text.max():.1e}'
    )
    differing = [t for t, d in zip(texts, by_text) if not d <= TOLERANCE]
    if differing:
      raise UserError(
          f'{lines[-1]}; expected at most {TOLERANCE:.0e}. Nothing was written.'
          f' {len(differing)} texts differ by more, the shortest of which is'
          f' {min(differing, key=len)[:200]!r}'
      )
  return lines


def cosine_differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """How far two sides are apart, by text.

  The largest, over query and passage, of 1 - cos(a_i, b_i), and over all pairs
  with the text of |cos(q_i, p_j) of a - cos(q_i, p_j) of b|.
  """
  (aq, ap), (bq, bp) = a, b = _unit(a), _unit(b)
  scores = np.abs(aq @ ap.T - bq @ bp.T)
  each = 1 - np.sum(a * b, axis=-1)
  return np.max([*each, scores.max(axis=1), scores.max(axis=0)], axis=0)


def _unit(vectors: np.ndarray) -> np.ndarray:
  wide = vectors.astype(np.float64)
  return wide / np.linalg.norm(wide, axis=-1, keepdims=True)


def check_written(weights: Weights, folder: pathlib.Path) -> None:
  """Reads what was written; compares every tensor, bit by bit, and settings."""
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
  facts, found = map(_settings, (weights, back))
  for name, wanted in facts.items():
    if wanted != found.get(name):
      raise UserError(
          f'{name} is {wanted!r}, but {found.get(name)!r} in the output.'
          ' Nothing was kept.'
      )


def _settings(weights: Weights) -> dict[str, Any]:
  """What vectors depend on beside tensors, by name."""
  found = {**weights.usage.facts(), 'the passage tower': weights.passage_tower}
  for tower in ENCODERS:
    encoder = getattr(weights, tower)
    for name in (*SIZES, 'num_buckets') if encoder else ():
      value = getattr(encoder, name)
      found[f'{tower}: {name}'] = tuple(value) if name == SIZES[-1] else value
  return found


def absent(*packages: str) -> list[str]:
  """Those packages that are not installed."""
  return [name for name in packages if importlib.util.find_spec(name) is None]


def other_ids(
    folder: pathlib.Path, usage: Usage, texts: Sequence[str]
) -> set[int]:
  """Which texts, without prefixes, a folder's tokenizers split unlike ours.

  The set is empty where the folder has no tokenizer, or transformers is not
  installed.
  """
  found = sorted(folder.rglob('tokenizer_config.json'))
  if not found or absent('transformers'):
    return set()
  import transformers

  length = max(usage.query_length or 0, usage.passage_length or 0)
  vocabulary = Vocabulary(str(usage.vocabulary))
  rows, other = vocabulary.encode(texts, length), set()
  for file in found:
    with _guarded('transformers', file.parent):
      tokenizer = transformers.AutoTokenizer.from_pretrained(
          file.parent, **_ONLY_HERE
      )
      for i, text in enumerate(texts):
        ids = tokenizer(text, truncation=True, max_length=length)['input_ids']
        if ids != rows.row(i).tolist():
          other.add(i)
  return other


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
      return np.stack([
          model.queries(model.tokenizer.encode_queries(texts)),
          model.passages(model.tokenizer.encode_passages(texts)),
      ])

  return encode


class _OneDevice(Partitioner):
  """The CPU, whose memory holds a model of any size, if JAX may use it."""

  def devices(self) -> Sequence[jax.Device]:
    try:
      return jax.local_devices(backend='cpu')[:1]
    except RuntimeError:
      return jax.local_devices()[:1]


def exported(folder: pathlib.Path, usage: Usage) -> Encode:
  """The programs of `jax.export`, which bring their own tokenizer.

  A query tower alone encodes queries in the place of passages, too.
  """
  del usage

  def encode(texts: Sequence[str]) -> np.ndarray:
    model = artifact.Artifact.open(folder)
    queries = model.queries(model.tokenizer.encode_queries(texts))
    if model.manifest.passage_tower:
      return np.stack([queries, queries])
    passages = model.passages(model.tokenizer.encode_passages(texts))
    return np.stack([queries, passages])

  return encode


def sentence_transformers(
    folder: pathlib.Path, given: Mapping[str, int | str] | None = None
) -> Encode:
  """`SentenceTransformer(folder)`, float32, on the CPU.

  Its own calls decide: prompts and lengths are those that it takes itself, but
  for given ones, by the names of `Usage`.
  """
  wanted: dict[str, Any] = dict(given or {})

  @_guarded('sentence-transformers', folder)
  def encode(texts: Sequence[str]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    # Without a dtype every module gets that of the first, float16 perhaps.
    model = SentenceTransformer(
        str(folder), device='cpu', **_ONLY_HERE,
        model_kwargs={'dtype': torch.float32, 'use_safetensors': True},
    )
    options: dict[str, Any] = {
        'batch_size': _ROWS,
        'normalize_embeddings': True,
        'show_progress_bar': False,
    }
    for module in model.modules():
      for side, name in (('query', 'query'), ('passage', 'document')):
        if hasattr(module, f'{name}_length') and f'{side}_length' in wanted:
          setattr(module, f'{name}_length', wanted[f'{side}_length'])
    prompts = wanted.get('query_prefix'), wanted.get('passage_prefix')
    texts = list(texts)
    return np.stack([
        model.encode_query(texts, prompt=prompts[0], **options),
        model.encode_document(texts, prompt=prompts[1], **options),
    ])

  return encode


def hugging_face(folder: pathlib.Path, usage: Usage) -> Encode:
  """`T5EncoderModel` of a folder, or of its `query` and `passage` folders.

  It gets our ids, which `other_ids` compares with those of its tokenizer; its
  states are pooled, projected if it has a projection, and normalised, in
  float64.
  """

  def encode(texts: Sequence[str]) -> np.ndarray:
    vocabulary = Vocabulary(str(usage.vocabulary))
    tokenizer = Tokenizer(vocabulary, **usage.facts())
    sides = {
        'query': tokenizer.encode_queries(texts),
        'passage': tokenizer.encode_passages(texts),
    }
    two = all((folder / tower).is_dir() for tower in sides)
    vectors = []
    for tower, rows in sides.items():
      opened = folder / tower if two else folder
      with _guarded('transformers', opened):
        vectors.append(_encode_t5(opened, rows))
    return np.stack(vectors)

  return encode


def _encode_t5(folder: pathlib.Path, rows: Ragged) -> np.ndarray:
  import torch
  import transformers

  transformers.logging.disable_progress_bar()
  config = transformers.AutoConfig.from_pretrained(folder, **_ONLY_HERE)
  kind = 'MT5' if config.model_type == 'mt5' else 'T5'
  model, info = getattr(transformers, f'{kind}EncoderModel').from_pretrained(
      folder, **_ONLY_HERE, dtype=torch.float32, use_safetensors=True,
      output_loading_info=True,
  )
  if info['missing_keys']:
    raise UserError(
        f'{folder}: transformers finds no {sorted(info["missing_keys"])[0]}.'
    )
  model.eval()
  vectors = np.empty((len(rows), config.d_model))
  for i in range(len(rows)):
    # One at a time, so that there is no padding.
    ids = torch.from_numpy(rows.row(i)[None].astype(np.int64))
    with torch.inference_mode():
      states = model(input_ids=ids).last_hidden_state
    vectors[i] = states[0].double().mean(0).numpy()
  file = folder / PROJECTION_FILE
  if file.is_file():
    (kernel,) = safetensors_file.read(file).values()
    vectors = vectors @ kernel.read().T
  return _unit(vectors).astype(np.float32)


@contextlib.contextmanager
def _guarded(library: str, folder: pathlib.Path) -> Iterator[None]:
  """Makes whatever another library raises over a folder a UserError.

  Its files may be anybody's, and those that read them check little.
  """
  try:
    yield
  except (UserError, MemoryError):
    raise
  except BaseException as e:
    # A panic in the Rust of `tokenizers` is no Exception.
    if not isinstance(e, Exception) and type(e).__name__ != 'PanicException':
      raise
    said = ' '.join(str(e).split())
    raise UserError(
        f'{library} cannot read {folder}: {type(e).__name__}'
        + (f': {said[:300]}' if said else '')
        + '. Copy or download it again.'
    ) from e
