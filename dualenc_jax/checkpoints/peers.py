"""Encoders of other libraries, to compare with; needs torch."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import importlib.util
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints.hugging_face import PROJECTION_FILE
from dualenc_jax.checkpoints.verify import Encode
from dualenc_jax.checkpoints.weights import Usage
from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file

# Texts that torch encodes at once.
_ROWS = 8
_ONLY_HERE: dict[str, Any] = {
    'local_files_only': True, 'trust_remote_code': False
}


def absent(*packages: str) -> list[str]:
  """Those packages that are not installed."""
  return [name for name in packages if importlib.util.find_spec(name) is None]


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


def other_ids(
    folder: pathlib.Path, usage: Usage, texts: Sequence[str]
) -> set[int]:
  """Which texts, without prefixes, a folder's tokenizers split unlike ours.

  A folder that has no tokenizer says nothing, nor does any without
  transformers.
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
  by_length = np.argsort(rows.lengths, kind='stable')
  for some in np.array_split(by_length, -(-len(rows) // _ROWS)):
    padded = rows.padded(some, rows.lengths[some].max())
    ids = torch.from_numpy(padded.astype(np.int64))
    mask = (ids != 0).to(torch.int64)
    with torch.inference_mode():
      states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    states, mask = states.double(), mask[..., None]
    vectors[some] = ((states * mask).sum(1) / mask.sum(1)).numpy()
  file = folder / PROJECTION_FILE
  if file.is_file():
    (kernel,) = safetensors_file.read(file).values()
    vectors = vectors @ kernel.read().T
  norms = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / norms).astype(np.float32)
