"""Models that sentence-transformers runs, in place of ours: st:FOLDER.

They take whole texts, as the readers give them (a title, a space, the text),
and cut them by themselves. `TextTowers` is over anything that has
`encode_query` and `encode_document`, `TextTeacher` over `predict`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import importlib.metadata
import pathlib
from typing import Any

import jax
import numpy as np

from dualenc_jax.checkpoints import sentence_transformers, verification
from dualenc_jax.checkpoints.checkpoint_reader import tokenizer_facts
from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import DOCUMENT, LONGEST, QUERY
from dualenc_jax.data.text.whole_texts import WholeTexts
from dualenc_jax.retrieval.encoding.teacher import PairScorer
from dualenc_jax.retrieval.encoding.towers import LoadedModel, Towers
from dualenc_jax.utils import hub, json_file, machine
from dualenc_jax.utils.errors import (
  did_you_mean_or_known,
  expect,
  missing,
  UserError,
)

_PACKAGES = 'torch', 'sentence_transformers'
# Classes of models, as config_sentence_transformers.json names them.
_EMBEDS, _SCORES = 'SentenceTransformer', 'CrossEncoder'
# Texts or pairs that the library sorts by length and encodes at once.
_BLOCK = 2**9


class TextTowers(Towers):
  """Two towers of another library.

  Their tokens are the rows of `WholeTexts`; parameters are not given to them.
  """

  def __init__(
      self, model: Any, sha256: Mapping[str, str], normalised: bool = True,
      dim: int | None = None, prompts: Sequence[str | None] = (None, None),
  ):
    """Wraps a model.

    Args:
      model: its `encode_query` and `encode_document` make vectors [n, D] of a
        list of n texts; their options are those of sentence-transformers.
      sha256: digests of the model by names.
      normalised: whether vectors are made of length one, to compare by cosine.
      dim: components that vectors are cut to; None for all.
      prompts: names of the prompts before queries and passages; None for the
        model's usual ones.
    """
    self.normalised = normalised
    self._sha256 = sha256
    options = {
        'normalize_embeddings': normalised, 'truncate_dim': dim,
        'convert_to_numpy': True, 'show_progress_bar': False,
    }
    query, passage = prompts
    self._encode = {
        'encode_query': functools.partial(
            model.encode_query, prompt_name=query, **options
        ),
        'encode_passage': functools.partial(
            model.encode_document, prompt_name=passage, **options
        ),
    }

  @functools.cached_property
  def dim(self) -> int:  # type: ignore[override] # It is read many times.
    return self._encode['encode_query'](['a']).shape[1]

  def batches(
      self, method: str, params: Any, tokens: Ragged,
      rows: np.ndarray | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rows = np.arange(len(tokens)) if rows is None else rows
    for start in range(0, len(rows), _BLOCK):
      texts = [tokens.text(row) for row in rows[start : start + _BLOCK]]
      found = np.asarray(self._encode[method](texts), np.float32)
      yield np.arange(start, start + len(texts)), found

  def digest(self, params: Any, tower: str) -> Mapping[str, str]:
    return self._sha256


@dataclasses.dataclass(frozen=True, eq=False)
class TextTeacher(PairScorer):
  """A cross-encoder of another library.

  Attributes:
    predict: makes logits [n] of a list of n pairs of query and passage.
  """

  predict: Callable[[list[tuple[str, str]]], np.ndarray]
  provenance: Mapping[str, Any]
  calibration: None = None

  def blocks(
      self, queries: Sequence[str], passages: Sequence[str], pairs: np.ndarray,
      size: int = _BLOCK,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(pairs), size):
      block = pairs[start : start + size]
      texts = [(queries[q], passages[p]) for q, p in block.tolist()]
      yield block, np.asarray(self.predict(texts), np.float32)


def load(
    name: str, dim: int | None = None, prompt: str | None = None,
    passage_prompt: str | None = None,
) -> LoadedModel:
  """Opens the dual encoder of st:FOLDER.

  Args:
    name: st:FOLDER.
    dim: components that embeddings are cut to; None for all.
    prompt: name of the prompt before queries; None for the model's own.
    passage_prompt: the same before passages.

  Raises:
    UserError: the library is not installed; the folder has no such model, or
      cannot be read; there is no such prompt or dim; or vectors are compared
      neither by cosine nor by dot product.
  """
  model, facts = _open(name, _EMBEDS)
  usual = QUERY, DOCUMENT
  prefixes = [
      _prompt(model, given or own, name)
      for given, own in zip((prompt, passage_prompt), usual)
  ]
  length = min(model.max_seq_length or LONGEST, LONGEST)
  tokenizer = WholeTexts(
      query_length=length, passage_length=length, query_prefix=prefixes[0],
      passage_prefix=prefixes[1],
  )
  similarity = model.similarity_fn_name
  expect(
      similarity in ('cosine', 'dot'), f'{name}: similarity_fn_name',
      similarity, "'cosine' or 'dot', by which vectors are searched here",
  )
  towers = TextTowers(
      model, {'files': facts['run_id'], 'library': facts['library']},
      similarity == 'cosine', dim, (prompt, passage_prompt),
  )
  if dim is not None:
    if towers.dim < dim:
      raise UserError(
          f'--dim is {dim}, but {name} has {towers.dim} components. Give fewer,'
          ' or leave it out.'
      )
    facts['dim'] = dim
  facts |= {'similarity': similarity, **tokenizer_facts(tokenizer)}
  # Their sizes are counted.
  params = {
      name: jax.ShapeDtypeStruct(tuple(parameter.shape), np.float32)
      for name, parameter in model.named_parameters()
  }
  return LoadedModel(params, tokenizer, towers, facts)


def load_teacher(name: str) -> TextTeacher:
  """Opens the cross-encoder of st:FOLDER, whose scores are logits.

  No sigmoid follows, whatever the folder names as its activation: margins of
  probabilities near 0 or 1 vanish.

  Raises:
    UserError: as of `load`, or it gives a pair more than one score.
  """
  model, facts = _open(name, _SCORES)
  expect(
      model.num_labels == 1, f'{name}: num_labels', model.num_labels,
      '1, a score of relevance',
  )
  from torch.nn import Identity  # An extra, which `_open` has imported.

  predict = functools.partial(
      model.predict, activation_fn=Identity(), show_progress_bar=False
  )
  return TextTeacher(predict, facts)


def _prompt(model: Any, name: str, path: str) -> str:
  """The text of a prompt; raises UserError if there is no such prompt."""
  if name not in model.prompts:
    raise UserError(
        f'{path} has no prompt {name!r}.'
        f'{did_you_mean_or_known(name, model.prompts)}'
    )
  return model.prompts[name]


def _open(name: str, kind: str) -> tuple[Any, dict[str, Any]]:
  """The model of st:FOLDER of a class, and the facts that determine it."""
  folder = pathlib.Path(hub.model(name.removeprefix('st:'))).expanduser()
  if not folder.is_dir():
    raise UserError(
        f'{missing(folder)} Expected a folder that sentence-transformers has'
        ' saved.'
    )
  _check_kind(folder, name, kind)
  if absent := verification.missing(_PACKAGES):
    raise UserError(
        f'{name} is run by sentence-transformers, but {" and ".join(absent)}'
        " cannot be imported: pip install 'dualenc-jax[convert]'"
    )
  import sentence_transformers as library  # Slow, and an extra.
  import transformers

  transformers.logging.disable_progress_bar()
  try:
    model = getattr(library, kind)(
        str(folder), local_files_only=True, trust_remote_code=False,
        model_kwargs={'use_safetensors': True},
    )
  except Exception as e:  # Whatever a library raises over a folder.
    raise UserError(
        f'sentence-transformers cannot read {folder}: {e!r:.300}. Copy or'
        ' download it again; weights must be in safetensors.'
    ) from e
  names = 'sentence-transformers', 'transformers', 'torch'
  own = {each: importlib.metadata.version(each) for each in names}
  return model, {
      'model_dir': f'st:{folder.resolve().name}',
      'run_id': _digest(folder),
      'library': f'sentence-transformers {own[names[0]].partition(".")[0]}',
      'dtype': str(model.dtype).removeprefix('torch.'),
      'versions': {**machine.versions(), **own},
      'device': str(model.device),
  }


def _check_kind(folder: pathlib.Path, name: str, kind: str) -> None:
  """Raises UserError unless the library has saved a model of a class there.

  It would open other folders, too, with random weights in place of missing
  ones.
  """
  config = folder / 'config.json'
  saved, settings = '', folder / sentence_transformers.CONFIG
  if sentence_transformers.matches(folder):
    saved = _EMBEDS
    if settings.is_file():
      saved = json_file.read(settings).get('model_type', saved)
  elif config.is_file():
    # Releases before 6 wrote cross-encoders so.
    named = json_file.read(config).get('architectures')
    if str(named).endswith("ForSequenceClassification']"):
      saved = _SCORES
  if saved == kind:
    return
  if not saved:
    raise UserError(
        f'{folder} is no model of sentence-transformers: it has no'
        f' {sentence_transformers.MODULES}. Expected a folder of its'
        ' save_pretrained.'
    )
  uses = {
      _EMBEDS: f'It embeds texts: give --model_dir={name}.',
      _SCORES: f'It scores pairs: use it in `dualenc rerank --teacher={name}`.',
  }
  raise UserError(
      f'{name} is a {saved}; expected a {kind}. {uses.get(saved, "")}'.strip()
  )


def _digest(folder: pathlib.Path) -> str:
  """SHA-256 of the files of a folder, but hidden ones and its description."""
  found = hashlib.sha256()
  for path in sorted(folder.rglob('*')):
    inner = path.relative_to(folder)
    hidden = any(part.startswith('.') for part in inner.parts)
    if path.is_file() and not hidden and path.suffix != '.md':
      found.update(f'{inner.as_posix()}\n{path.stat().st_size}\n'.encode())
      with path.open('rb') as file:
        found.update(hashlib.file_digest(file, 'sha256').digest())
  return found.hexdigest()
