"""Reads the model_dirs that training writes, without config or Orbax's manager.

Activations, dtype and whatever else no tensor shows are saved beside them.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import importlib
import logging
import os
import pathlib
import re
from typing import Any, NamedTuple, TypeVar

import jax

from dualenc_jax import models
from dualenc_jax.checkpoints import adapters, weights as weights_lib
from dualenc_jax.checkpoints.weights import infer_encoder, Weights
from dualenc_jax.data.text.tokenizer import (
  SPECIAL_TOKENS,
  Tokenizer,
  Vocabulary,
)
from dualenc_jax.models import GemmaEncoder, T5Encoder
from dualenc_jax.retrieval.compression import Codec, model_codec
from dualenc_jax.utils import json_file, machine
from dualenc_jax.utils.errors import expect, missing, UserError
from dualenc_jax.utils.tensor_files import checkpoint_meta, zarr_files
from dualenc_jax.utils.tensor_files.tensors import (
  DamageError,
  Tensor,
  unstack,
)

KIND = 'dualenc_jax model_dir'
# Saved beside what `models.describe` says of a generator.
GENERATOR = 'generator'
CROSS_ENCODER = 'cross-encoder'
SPLIT_RANKER = 'split re-ranker'
# By kind: its use, the command that uses it, and a gin file that trains one.
_KINDS = {
    CROSS_ENCODER: (
        'scores pairs', 'rerank --teacher=', 'architectures/cross_encoder.gin'
    ),
    GENERATOR: (
        'writes queries', 'generate --generator=', 'runs/doc2query.gin'
    ),
}
# Saved beside what `models.describe` says of a model: the dims of
# `losses.Matryoshka`.
TRAINED_DIMS = 'trained_dims'
_CHECKPOINTS = 'checkpoints'
_STEP = re.compile('0|[1-9][0-9]{0,17}')
_AGAIN = 'Copy the whole folder again.'
_META = {
    **checkpoint_meta.TYPES,
    'data': {'vocabulary': str, **weights_lib.USAGE},
    'model': {
        'encoder?': dict | None,
        'passage_encoder?': dict | None,
        f'{TRAINED_DIMS}?': [int],
        'template?': {'text': str, 'length': int, 'eos?': bool},
        f'{model_codec.GROUP}?': {'name': str, 'dim': int, 'normalise': [bool]},
    },
    f'{adapters.GROUP}?': adapters.FACTS,
}
_LOG = logging.getLogger(__name__)
_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A checkpoint of a model_dir; its tensors are read on demand.

  Attributes:
    model_dir: the folder of the run.
    folder: that of the checkpoint in it.
    meta: JSON that was saved beside the tensors.
    tensors: the model's, one for each layer, by the names of `DualEncoder` or
      of another model; adapters are folded in.
    loss: those of the loss, 'loss/log_temperature'.
    codec_tensors: those of the model's codec, without 'codec/'.
  """

  model_dir: pathlib.Path
  folder: pathlib.Path
  meta: Mapping[str, Any]
  tensors: Mapping[str, Tensor]
  loss: Mapping[str, Tensor]
  codec_tensors: Mapping[str, Tensor]

  def codec(self) -> Codec | None:
    """The codec that was trained with the model, if any."""
    known = self.meta['model'].get(model_codec.GROUP)
    if known is None:
      return None
    arrays = {name: t.read() for name, t in self.codec_tensors.items()}
    return model_codec.from_arrays(known, arrays)

  @property
  def trained_dims(self) -> tuple[int, ...]:
    """As of `Weights`."""
    return tuple(self.meta['model'].get(TRAINED_DIMS, ()))

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    """Raises UserError unless the model was trained with this vocabulary."""
    trained_on = self.meta['data']['vocabulary']
    if trained_on != vocabulary.sha256:
      raise UserError(
          f'{self.model_dir} was trained with another vocabulary than'
          f' {vocabulary.path}: the SHA-256 of its file was {trained_on}. Give'
          ' that file, --gin.data.Vocabulary.path=...'
      )

  def tokenizer(self) -> Tokenizer:
    """The tokenizer that the model was trained with."""
    facts = self.meta['data']
    path = self.model_dir / weights_lib.VOCABULARY
    if not path.is_file():
      raise UserError(
          f'{path}, the vocabulary that the model was trained with, does not'
          ' exist. Copy the whole model_dir.'
      )
    names = [field.name for field in dataclasses.fields(Tokenizer)[1:]]
    special, known = (
        {name: facts[name] for name in group if name in facts}
        for group in (SPECIAL_TOKENS, names)
    )
    tokenizer = Tokenizer(Vocabulary(str(path), **special), **known)
    self.check_vocabulary(tokenizer.vocabulary)
    return tokenizer

  def provenance(
      self, model: Any, tokenizer: Tokenizer, seed: int | None = None
  ) -> dict[str, Any]:
    """The facts that the embeddings of a model depend on, as JSON.

    The model may have another dtype than it was trained in. None takes the seed
    that was saved.
    """
    dims = self.trained_dims
    return {
        'checkpoint_step': self.meta['step'],
        'run_id': self.meta['run_id'],
        'model_dir': self.model_dir.name,
        **tokenizer_facts(tokenizer),
        'dtype': model.encoder.dtype,
        **({TRAINED_DIMS: list(dims)} if dims else {}),
        'seed': self.meta['data'].get('seed') if seed is None else seed,
        'git_revision': machine.git_revision(),
        'versions': machine.versions(),
        'device': jax.devices()[0].device_kind,
    }


def tokenizer_facts(tokenizer: Tokenizer) -> dict[str, Any]:
  """The facts that the tokens of texts depend on, as JSON."""
  names = 'query_length', 'passage_length', 'query_prefix', 'passage_prefix'
  facts = {name: getattr(tokenizer, name) for name in names}
  return {'vocabulary': tokenizer.vocabulary.sha256, **facts}


def is_model_dir(path: pathlib.Path) -> bool:
  """Whether training wrote this folder."""
  return (path / _CHECKPOINTS).is_dir()


def steps(path: pathlib.Path) -> list[int]:
  """Steps of the complete checkpoints of a model_dir, oldest first."""
  folder = path / _CHECKPOINTS
  names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
  return sorted(int(name) for name in names if _STEP.fullmatch(name))


def step_folder(path: pathlib.Path, step: int) -> pathlib.Path:
  """The folder of a checkpoint in a model_dir."""
  return path / _CHECKPOINTS / str(step)


def read(path: pathlib.Path, step: int | None = None) -> Weights:
  """Reads the best, the newest or a chosen checkpoint of a model_dir."""
  return to_weights(open_checkpoint(path, candidate_steps(path, step)[0]))


def restore(
    path: pathlib.Path, step: int | None, use: Callable[[Checkpoint], _T]
) -> _T:
  """Returns `use(checkpoint)` for a checkpoint of a model_dir.

  The checkpoint is that of `step`, or with None the best or newest that can be
  read. UserError where none can.
  """
  causes = []
  for candidate in candidate_steps(path, step):
    try:
      return use(open_checkpoint(path, candidate))
    except DamageError as e:
      causes.append(f'{candidate}: {e}')
      _LOG.warning(
          'WARNING: checkpoint %d cannot be read, so an earlier one is looked'
          ' for: %s', candidate, e
      )
  raise UserError(
      f'No checkpoint in {path / _CHECKPOINTS} can be read'
      f' ({" ".join(causes)}). Nothing was changed. Restore them from a copy.'
  )


def open_checkpoint(path: pathlib.Path, step: int) -> Checkpoint:
  """Opens a checkpoint; DamageError if its files are not what was saved."""
  folder = step_folder(path, step)
  meta, known = checkpoint_meta.read(folder, **_META)
  meta |= {'model': models.current_names(meta['model'])}
  checkpoint_meta.check_item(folder / 'params', known)
  tensors = unstack(zarr_files.read_tree(folder / 'params'))
  if lora := meta.get(adapters.GROUP):
    # The reader of all forms imports this module.
    forms = importlib.import_module('dualenc_jax.checkpoints')
    tensors = adapters.fold(tensors, lora, path, forms.read)
  loss, codec, others = _partition(tensors, 'loss', model_codec.GROUP)
  codec = {n.partition('/')[2]: t for n, t in codec.items()}
  return Checkpoint(path, folder, meta, others, loss, codec)


def _partition(
    tensors: Mapping[str, Tensor], *parts: str
) -> list[dict[str, Tensor]]:
  """The tensors of each part, such as 'decoder/...', and all others."""
  groups: list[dict[str, Tensor]] = [{} for _ in (*parts, 'others')]
  for name, tensor in tensors.items():
    part = name.partition('/')[0]
    groups[parts.index(part) if part in parts else -1][name] = tensor
  return groups


def to_weights(checkpoint: Checkpoint) -> Weights:
  """A checkpoint as one of any form, without its optimizer.

  The encoder of a cross-encoder or of a generator has no projection; the score
  head is among the parameters of the loss. UserError for any other model.
  """
  meta = checkpoint.meta
  head, decoder, tensors = _partition(checkpoint.tensors, 'head', 'decoder')
  encoders = {
      tower: _encoder(tensors, meta['model'].get(tower) or {}, tower)
      for tower in weights_lib.ENCODERS
      if _partition(tensors, tower)[0]
  }
  return Weights(
      KIND,
      str(checkpoint.model_dir),
      tensors,
      encoders.get('encoder') or infer_encoder(tensors),
      encoders.get('passage_encoder'),
      weights_lib.Usage().updated(meta['data'], checkpoint.model_dir),
      read_decoder=lambda: decoder,
      left_out=dict.fromkeys(decoder, 'decoder'),
      loss={**checkpoint.loss, **head},
      step=meta['step'],
      described={
          name: value
          for name, value in meta['model'].items()
          if name not in (TRAINED_DIMS, model_codec.GROUP)
      },
      trained_dims=checkpoint.trained_dims,
      codec=checkpoint.codec(),
  ).check()


def _encoder(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], tower: str
) -> T5Encoder | GemmaEncoder:
  where = f'{tower} of the checkpoint'
  if facts.get('class') == models.class_name(GemmaEncoder):
    return weights_lib.rebuild_gemma(facts, where)
  if facts.get('num_layers') == 0:
    # No tensor shows the sizes of layers that do not exist.
    sizes = {name: int for name in weights_lib.SIZES[:-1]}
    json_file.check(facts, {**sizes, 'activations': [str]}, where, _AGAIN)
    return T5Encoder(
        **{n: facts[n] for n in sizes}, activations=tuple(facts['activations']),
        bias_per_layer=f'{tower}/relpos_bias/rel_embedding' not in tensors,
    )
  types = {'activations?': [str], 'num_layers?': int}
  json_file.check(facts, types, where, _AGAIN)
  return infer_encoder(tensors, facts.get('activations'), tower)


def kind_of(facts: Mapping[str, Any]) -> str:
  """The kind of a model, 'generator' say, from its saved facts."""
  if 'template' in facts:
    return CROSS_ENCODER
  if GENERATOR in facts:
    return GENERATOR
  name = str(facts.get('class')).split('.')[-1]
  known = {'DualEncoder': 'dual encoder', 'SplitRanker': SPLIT_RANKER}
  return known.get(name, name)


def read_facts(path: pathlib.Path) -> Mapping[str, Any]:
  """The saved facts of the model in a model_dir, as `restore` opens it."""
  return restore(path, None, lambda checkpoint: checkpoint.meta['model'])


def check_kind(
    facts: Mapping[str, Any], kind: str, path: str | os.PathLike[str]
) -> None:
  """Raises UserError unless facts are of a kind, such as `GENERATOR`."""
  actual = kind_of(facts)
  if actual != kind:
    ability, _, file = _KINDS[kind]
    raise UserError(
        f'{path} is a {actual}, not a {kind}, which {ability}. Train one'
        f' with --gin_file={file}.'
    )


def build_model(facts: Mapping[str, Any], path: str) -> Any:
  """The module whose saved facts these are; UserError if it embeds nothing."""
  kind = kind_of(facts)
  if kind in _KINDS:
    ability, command, _ = _KINDS[kind]
    raise UserError(
        f'{path} is a {kind}, which {ability} and embeds nothing. Use it in'
        f' `dualenc {command}{path}`, or give a dual encoder.'
    )
  return models.rebuild(facts, path)


def candidate_steps(path: pathlib.Path, step: int | None) -> list[int]:
  """Steps to try, the best first; raises UserError if there are none."""
  saved = steps(path)
  if not saved and not path.is_dir():
    what = f'{path} is a file.' if path.exists() else missing(path)
    raise UserError(f'{what} Expected the folder of a trained model.')
  if not saved:
    raise UserError(
        f'{path} has no checkpoint yet. Train first, or give the folder of a'
        ' trained model.'
    )
  if step is not None:
    known = f'a step with a checkpoint, {", ".join(map(str, saved))}'
    expect(step in saved, f'{path}: the step', step, known)
    return [step]
  best = best_step(path)
  return sorted(saved, key=lambda step: (step == best, step), reverse=True)


def best_step(path: pathlib.Path) -> int | None:
  """The step that the run has kept as its best, if any is known."""
  folder = step_folder(path, steps(path)[-1])
  types = {'notes?': {'best?': {'step': int}}}
  try:
    meta, _ = checkpoint_meta.read(folder, **types)
  except UserError:
    return None
  return meta.get('notes', {}).get('best', {}).get('step')


class Findings(NamedTuple):
  """The findings of `check_integrity` in a checkpoint.

  Attributes:
    step: that of the checkpoint.
    problems: a line each, with the file or the tensor; () of a good one.
    has_digests: whether its files could be compared with their digests.
  """

  step: int
  problems: tuple[str, ...]
  has_digests: bool


def check_integrity(path: pathlib.Path) -> Iterator[Findings]:
  """Reads all of every checkpoint, oldest first, a tensor at a time.

  Args:
    path: a model_dir, which is not changed; UserError if it has no checkpoint.
  """
  candidate_steps(path, None)
  for step in steps(path):
    folder = step_folder(path, step)
    problems, known = [], None
    try:
      _, known = checkpoint_meta.read(folder, **checkpoint_meta.TYPES)
    except DamageError as e:
      problems.append(str(e))
    items = known or [p.name for p in folder.iterdir() if zarr_files.is_tree(p)]
    for item in sorted({'params', *items}):
      try:
        checkpoint_meta.check_item(folder / item, known)
        for tensor in zarr_files.read_tree(folder / item).values():
          tensor.read()
      except UserError as e:
        problems.append(str(e))
    yield Findings(step, tuple(problems), known is not None)
