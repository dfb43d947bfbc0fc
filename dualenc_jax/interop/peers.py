"""The other libraries' own encoders, to compare with: torch is needed here."""

from collections.abc import Sequence
import importlib.util
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.interop import safetensors_file
from dualenc_jax.interop.verify import Encode
from dualenc_jax.interop.verify import Vectors
from dualenc_jax.interop.weights import Usage

_ROWS = 8


def check_installed(form: str, *packages: str) -> None:
  """Raises UserError unless packages are installed."""
  absent = [package for package in packages if not is_installed(package)]
  if absent:
    raise UserError(
        f'{form} is compared with the original library before it is written,'
        f' and {" and ".join(absent)} is not installed. Install it: pip install'
        " 'dualenc-jax[convert]'."
    )


def is_installed(*packages: str) -> bool:
  """Whether all of these can be imported."""
  return all(importlib.util.find_spec(name) is not None for name in packages)


def sentence_transformers(
    folder: pathlib.Path, usage: Usage | None = None
) -> Encode:
  """`SentenceTransformer(folder)`, float32, on the CPU.

  Args:
    folder: that it opens.
    usage: whose prefixes are the prompts; None for those that it takes itself,
      which are not all that a folder names.
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
        model_kwargs={'dtype': torch.float32},
    )
    options = {
        'batch_size': _ROWS,
        'normalize_embeddings': True,
        'show_progress_bar': False,
    }
    prompts = (
        (usage.query_prefix, usage.passage_prefix) if usage else (None, None)
    )
    return Vectors(
        model.encode_query(list(texts), prompt=prompts[0], **options),
        model.encode_document(list(texts), prompt=prompts[1], **options),
    )

  return encode


def hugging_face(folder: pathlib.Path, usage: Usage) -> Encode:
  """`T5EncoderModel` of a folder, or of its `query` and `passage` folders.

  Pooled, projected if there is a projection, and normalised in float64.

  Args:
    folder: what `hugging_face.write` wrote, or any that `read` reads.
    usage: lengths and prefixes, of which such a folder says nothing.
  """

  def encode(texts: Sequence[str]) -> Vectors:
    sides = []
    for tower in ('query', 'passage'):
      own = folder / tower if (folder / tower).is_dir() else folder
      prefix = getattr(usage, f'{tower}_prefix')
      length = getattr(usage, f'{tower}_length')
      sides.append(_encode_t5(own, [prefix + t for t in texts], length))
    return Vectors(*sides)

  return encode


def _encode_t5(
    folder: pathlib.Path, texts: Sequence[str], length: int
) -> np.ndarray:
  import torch
  import transformers

  transformers.logging.disable_progress_bar()
  config = transformers.AutoConfig.from_pretrained(folder)
  kind = (
      transformers.MT5EncoderModel
      if config.model_type == 'mt5'
      else transformers.T5EncoderModel
  )
  model, info = kind.from_pretrained(
      folder, dtype=torch.float32, output_loading_info=True
  )
  if info['missing_keys']:
    raise UserError(
        f'{folder}: transformers finds no {sorted(info["missing_keys"])[0]}.'
    )
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  # Of like lengths together, as little is padded.
  order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
  pooled = [None] * len(texts)
  for start in range(0, len(texts), _ROWS):
    chunk = order[start : start + _ROWS]
    rows = tokenizer(
        [texts[i] for i in chunk],
        padding=True,
        truncation=True,
        max_length=length,
        return_tensors='pt',
    )
    with torch.inference_mode():
      hidden = model.eval()(**rows).last_hidden_state.numpy().astype(np.float64)
    mask = rows['attention_mask'].numpy()[:, :, None]
    means = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    for i, mean in zip(chunk, means):
      pooled[i] = mean
  vectors = np.stack(pooled)
  file = folder / 'projection.safetensors'
  if file.is_file():
    (kernel,) = safetensors_file.read(file).values()
    vectors = vectors @ kernel.read().T
  norms = np.linalg.norm(vectors, axis=1, keepdims=True)
  return (vectors / norms).astype(np.float32)
