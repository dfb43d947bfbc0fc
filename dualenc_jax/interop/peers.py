"""The other libraries' own encoders, to compare with: torch is needed here."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import importlib.util
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.inference import towers
from dualenc_jax.interop.verify import Encode, Vectors
from dualenc_jax.interop.weights import Usage
from dualenc_jax.tensor_files import safetensors_file
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.tokenizer import Tokenizer, Vocabulary

_ROWS = 8


def check_installed(form: str, *packages: str) -> None:
  """Raises UserError unless packages are installed."""
  absent = [package for package in packages if not is_installed(package)]
  if absent:
    raise UserError(
        f'{form} is compared with the original library before it is written.'
        f' Not installed: {", ".join(absent)}. pip install'
        " 'dualenc-jax[convert]'"
    )


def is_installed(*packages: str) -> bool:
  """Whether all of these can be imported."""
  return all(importlib.util.find_spec(name) is not None for name in packages)


@contextlib.contextmanager
def _guarded(library: str, folder: pathlib.Path) -> Iterator[None]:
  """Makes whatever another library raises over a folder an error of the user's.

  Its files may be anybody's, and those that read them check little.

  Raises:
    UserError: names the folder, and what the library says.
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

  Its own calls decide: prompts and lengths are those that it takes itself.

  Args:
    folder: that it opens.
    given: lengths and prefixes, by the names of `Usage`, in place of its own.
  """

  def encode(texts: Sequence[str]) -> Vectors:
    from sentence_transformers import SentenceTransformer
    import torch
    import transformers

    transformers.logging.disable_progress_bar()
    # Without a dtype every module gets that of the first, float16 perhaps.
    model = SentenceTransformer(
        str(folder),
        device='cpu',
        local_files_only=True,
        trust_remote_code=False,
        model_kwargs={'dtype': torch.float32, 'use_safetensors': True},
    )
    options = {
        'batch_size': _ROWS,
        'normalize_embeddings': True,
        'show_progress_bar': False,
    }
    wanted = dict(given or {})
    for module in model.modules():
      for side, name in (('query', 'query'), ('passage', 'document')):
        if hasattr(module, f'{name}_length') and f'{side}_length' in wanted:
          setattr(module, f'{name}_length', wanted[f'{side}_length'])
    texts = list(texts)
    return Vectors(
        model.encode_query(
            texts, prompt=wanted.get('query_prefix'), **options
        ),
        model.encode_document(
            texts, prompt=wanted.get('passage_prefix'), **options
        ),
    )

  def guarded(texts: Sequence[str]) -> Vectors:
    with _guarded('sentence-transformers', folder):
      return encode(texts)

  return guarded


def hugging_face(folder: pathlib.Path, usage: Usage) -> Encode:
  """`T5EncoderModel` of a folder, or of its `query` and `passage` folders.

  It gets our ids, which `other_ids` compares with those of its tokenizer; its
  states are pooled, projected if there is a projection, and normalised, in
  float64.

  Args:
    folder: what `hugging_face.write` wrote, or any that `read` reads.
    usage: vocabulary, lengths and prefixes.
  """

  def encode(texts: Sequence[str]) -> Vectors:
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
    return Vectors(*vectors)

  return encode


def other_ids(
    folder: pathlib.Path, usage: Usage, texts: Sequence[str]
) -> set[int]:
  """Which texts a folder's own tokenizers split otherwise than ours.

  Args:
    folder: of transformers or sentence-transformers; one that has no tokenizer
      says nothing, nor does any without transformers.
    usage: vocabulary and lengths.
    texts: as they are, without prefixes.
  """
  found = sorted(folder.rglob('tokenizer_config.json'))
  if not found or not is_installed('transformers'):
    return set()
  import transformers

  length = max(usage.query_length, usage.passage_length)
  vocabulary = Vocabulary(str(usage.vocabulary))
  rows, other = vocabulary.encode(texts, length), set()
  for file in found:
    with _guarded('transformers', file.parent):
      tokenizer = transformers.AutoTokenizer.from_pretrained(
          file.parent, local_files_only=True, trust_remote_code=False
      )
      for i, text in enumerate(texts):
        ids = tokenizer(text, truncation=True, max_length=length)['input_ids']
        if ids != list(rows.values[rows.offsets[i] : rows.offsets[i + 1]]):
          other.add(i)
  return other


def _encode_t5(folder: pathlib.Path, rows: Ragged) -> np.ndarray:
  import torch
  import transformers

  transformers.logging.disable_progress_bar()
  only = {'local_files_only': True, 'trust_remote_code': False}
  config = transformers.AutoConfig.from_pretrained(folder, **only)
  kind = (
      transformers.MT5EncoderModel
      if config.model_type == 'mt5'
      else transformers.T5EncoderModel
  )
  model, info = kind.from_pretrained(
      folder,
      **only,
      dtype=torch.float32,
      use_safetensors=True,
      output_loading_info=True,
  )
  if info['missing_keys']:
    raise UserError(
        f'{folder}: transformers finds no {sorted(info["missing_keys"])[0]}.'
    )
  model.eval()

  def program(tokens: np.ndarray) -> np.ndarray:
    ids = torch.from_numpy(tokens[0].astype(np.int64))
    mask = (ids != 0).to(torch.int64)
    with torch.inference_mode():
      states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    states, mask = states.numpy().astype(np.float64), mask.numpy()[:, :, None]
    # A row of padding has no tokens.
    return ((states * mask).sum(1) / np.maximum(mask.sum(1), 1))[None]

  vectors = towers.put_back(
      np.empty((len(rows), config.d_model)),
      towers.batches(program, rows, _ROWS, towers.Shapes(2**30)),
  )
  file = folder / 'projection.safetensors'
  if file.is_file():
    (kernel,) = safetensors_file.read(file).values()
    vectors = vectors @ kernel.read().T
  norms = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / norms).astype(np.float32)
