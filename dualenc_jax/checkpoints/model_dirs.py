"""Reads the folders that training writes, without config or Orbax's manager.

What no tensor of a model says (activations, dtype, ...) is saved beside them.
"""

from collections.abc import Callable, Mapping
import dataclasses
import logging
import os
import pathlib
import re
from typing import Any, TypeVar

import jax

from dualenc_jax import models
from dualenc_jax.checkpoints import described, weights as weights_lib
from dualenc_jax.checkpoints.weights import infer_encoder, Weights
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.models import T5Encoder
from dualenc_jax.retrieval.compression import Codec, model_codec
from dualenc_jax.utils import json_file, machine
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import checkpoint_meta
from dualenc_jax.utils.tensor_files.tensors import DamageError, Tensor

KIND = 'dualenc_jax model_dir'
# A statistic of a parameter in optax state: 0/v_row/encoder/.../kernel.
# What parameters of a cross-encoder's head and of a generator's decoder begin
# with.
HEAD, _DECODER = 'head/', 'decoder/'
# Saved beside what `models.describe` says of a generator.
GENERATOR = 'generator'
CROSS_ENCODER = 'cross-encoder'
# By kind: its ability, the command that uses it, and the gin file of one.
_OF_KIND = {
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
_CODEC = f'{model_codec.GROUP}/'
_AGAIN = 'Copy the whole folder again.'
_META = {
    **checkpoint_meta.TYPES,
    'data': {
        'vocabulary': str,
        'query_length': int | None,
        'passage_length': int | None,
        'query_prefix?': str,
        'passage_prefix?': str,
        'prompts?': {str: str},
        'default_prompt?': str | None,
    },
    'model': {
        'encoder?': dict | None,
        'passage_encoder?': dict | None,
        f'{TRAINED_DIMS}?': [int],
        'template?': {'text': str, 'length': int, 'eos?': bool},
        f'{model_codec.GROUP}?': {'name': str, 'dim': int, 'normalise': [bool]},
    },
}
_LOG = logging.getLogger(__name__)
_T = TypeVar('_T')


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A checkpoint of a model_dir; its tensors are read when they are wanted.

  Attributes:
    folder: that of the checkpoint in the model_dir.
    meta: what was saved beside the tensors.
    tensors: the model's, one for each layer, by the names of `DualEncoder` or
      of whatever model it is.
    loss: those of the loss, 'loss/log_temperature'.
    of_codec: those of the model's codec, without 'codec/'; {} without one.
  """

  model_dir: pathlib.Path
  folder: pathlib.Path
  meta: Mapping[str, Any]
  tensors: Mapping[str, Tensor]
  loss: Mapping[str, Tensor]
  of_codec: Mapping[str, Tensor]

  def codec(self) -> Codec | None:
    """The codec that was trained with the model, if one was."""
    known = self.meta['model'].get(model_codec.GROUP)
    if known is None:
      return None
    arrays = {name: tensor.read() for name, tensor in self.of_codec.items()}
    return model_codec.from_arrays(known, arrays)

  @property
  def trained_dims(self) -> tuple[int, ...]:
    """As of `Weights`."""
    return tuple(self.meta['model'].get(TRAINED_DIMS, ()))

  def check_vocabulary(self, vocabulary: Vocabulary) -> None:
    """Raises UserError unless the model was trained with a vocabulary."""
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
    known = {name: facts[name] for name in names if name in facts}
    tokenizer = Tokenizer(Vocabulary(str(path)), **known)
    self.check_vocabulary(tokenizer.vocabulary)
    return tokenizer

  def provenance(
      self, model: Any, tokenizer: Tokenizer, seed: int | None = None
  ) -> dict[str, Any]:
    """The facts that numbers and vectors of a model depend on, as JSON.

    The model may be of another dtype than it was trained in. `seed` is None for
    the one that was saved.
    """
    dims = self.trained_dims
    return {
        'checkpoint_step': self.meta['step'],
        'run_id': self.meta['run_id'],
        'model_dir': self.model_dir.name,
        **texts_of(tokenizer),
        'dtype': model.encoder.dtype,
        **({TRAINED_DIMS: list(dims)} if dims else {}),
        'seed': self.meta['data'].get('seed') if seed is None else seed,
        'git_revision': machine.git_revision(),
        'versions': machine.versions(),
        'device': jax.devices()[0].device_kind,
    }


def texts_of(tokenizer: Tokenizer) -> dict[str, Any]:
  """The facts that the tokens of texts depend on, as JSON."""
  names = 'query_length', 'passage_length', 'query_prefix', 'passage_prefix'
  facts = {name: getattr(tokenizer, name) for name in names}
  return {'vocabulary': tokenizer.vocabulary.sha256, **facts}


def is_one(path: pathlib.Path) -> bool:
  """Whether training wrote this folder."""
  return (path / _CHECKPOINTS).is_dir()


def steps(path: pathlib.Path) -> list[int]:
  """Steps of the complete checkpoints of a model_dir, oldest first."""
  folder = path / _CHECKPOINTS
  names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
  return sorted(int(name) for name in names if _STEP.fullmatch(name))


def folder_of(path: pathlib.Path, step: int) -> pathlib.Path:
  """The folder of a checkpoint in a model_dir."""
  return path / _CHECKPOINTS / str(step)


def read(path: pathlib.Path, step: int | None = None) -> Weights:
  """The best, the newest or a chosen checkpoint; UserError if there is none."""
  return weights_of(open_checkpoint(path, wanted(path, step)[0]))


def read_decoder(path: pathlib.Path) -> dict[str, Tensor]:
  """Decoder and head of a generator, by the names of `Seq2Seq`; else {}.

  They are of the checkpoint that `read` opens.
  """
  checkpoint = open_checkpoint(path, wanted(path, None)[0])
  return _starting(_DECODER, checkpoint.tensors)


def restore(
    path: pathlib.Path, step: int | None, use: Callable[[Checkpoint], _T]
) -> _T:
  """What `use` returns for a checkpoint of a model_dir.

  The checkpoint is that of `step`, or with None the best or newest that can be
  read. UserError where none can.
  """
  unreadable = {}
  for candidate in wanted(path, step):
    try:
      return use(open_checkpoint(path, candidate))
    except DamageError as e:
      unreadable[candidate] = str(e)
      _LOG.warning(
          'WARNING: checkpoint %d cannot be read, so an earlier one is looked'
          ' for: %s', candidate, e
      )
  causes = ' '.join(f'{step}: {cause}' for step, cause in unreadable.items())
  raise UserError(
      f'No checkpoint in {path / _CHECKPOINTS} can be read ({causes}). Nothing'
      ' was changed. Restore them from a copy, mend what keeps them from being'
      ' read, or train anew in another MODEL_DIR.'
  )


def open_checkpoint(path: pathlib.Path, step: int) -> Checkpoint:
  """A checkpoint, of which only metadata is read; DamageError if it cannot."""
  folder = folder_of(path, step)
  meta, known = checkpoint_meta.read(folder, **_META)
  meta |= {'model': models.current_names(meta['model'])}
  everything = checkpoint_meta.read_item(folder / 'params', known)
  loss, codec = (_starting(s, everything) for s in ('loss/', _CODEC))
  tensors = _without(everything, loss, codec)
  codec = {n.removeprefix(_CODEC): t for n, t in codec.items()}
  return Checkpoint(path, folder, meta, tensors, loss, codec)


def _starting(start: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
  return {n: t for n, t in tensors.items() if n.startswith(start)}


def _without(
    tensors: Mapping[str, Tensor], *others: Mapping[str, Tensor]
) -> dict[str, Tensor]:
  left = set().union(*others)
  return {n: t for n, t in tensors.items() if n not in left}


def weights_of(checkpoint: Checkpoint) -> Weights:
  """A checkpoint of a `DualEncoder` as one of any kind, without its optimizer.

  That of a cross-encoder is one of its encoder, without a projection; its score
  head is kept beside, as the parameters of a loss are. That of a generator is
  one of its encoder, too, and `decoder` has the others. Of another model it
  raises UserError.
  """
  meta = checkpoint.meta
  beside = TRAINED_DIMS, model_codec.GROUP
  heads, written = (
      _starting(s, checkpoint.tensors) for s in (HEAD, _DECODER)
  )
  tensors = _without(checkpoint.tensors, heads, written)
  encoders = {
      tower: _encoder(tensors, meta['model'].get(tower) or {}, tower)
      for tower in weights_lib.ENCODERS
      if _starting(f'{tower}/', tensors)
  }
  # Prefixes are saved where there are some.
  data = {'query_prefix': '', 'passage_prefix': '', **meta['data']}
  return Weights(
      KIND,
      str(checkpoint.model_dir),
      tensors,
      encoders.get('encoder') or infer_encoder(tensors),
      encoders.get('passage_encoder'),
      weights_lib.Usage().saved(data, checkpoint.model_dir),
      left_out=dict.fromkeys(written, 'decoder'),
      loss={**checkpoint.loss, **heads},
      step=meta['step'],
      described={n: x for n, x in meta['model'].items() if n not in beside},
      trained_dims=checkpoint.trained_dims,
      codec=checkpoint.codec(),
  ).check()


def _encoder(
    tensors: Mapping[str, Tensor], facts: Mapping[str, Any], tower: str
) -> T5Encoder:
  where = f'{tower} of the checkpoint'
  if facts.get('num_layers') == 0:
    # No tensor shows the sizes of layers that do not exist.
    sizes = {name: int for name in weights_lib.SIZES[:-1]}
    json_file.check(facts, {**sizes, 'activations': [str]}, where, _AGAIN)
    return T5Encoder(
        **{n: facts[n] for n in sizes}, activations=tuple(facts['activations'])
    )
  types = {'activations?': [str], 'num_layers?': int}
  json_file.check(facts, types, where, _AGAIN)
  return infer_encoder(tensors, facts.get('activations'), tower)


def kind_of(facts: Mapping[str, Any]) -> str:
  """What the model of a checkpoint is, of the facts saved: 'generator'."""
  if 'template' in facts:
    return CROSS_ENCODER
  if GENERATOR in facts:
    return GENERATOR
  name = str(facts.get('class')).split('.')[-1]
  return 'dual encoder' if name == 'DualEncoder' else name


def facts_of(path: pathlib.Path) -> Mapping[str, Any]:
  """The saved facts of the model in a model_dir, as `restore` opens it."""
  return restore(path, None, lambda checkpoint: checkpoint.meta['model'])


def check_kind(
    facts: Mapping[str, Any], kind: str, path: str | os.PathLike[str]
) -> None:
  """Raises UserError unless facts are of a `CROSS_ENCODER`, or `GENERATOR`."""
  found = kind_of(facts)
  if found != kind:
    ability, _, file = _OF_KIND[kind]
    raise UserError(
        f'{path} is a {found}, not a {kind}, which {ability}. Train one'
        f' with --gin_file={file}.'
    )


def model_of(facts: Mapping[str, Any], path: str) -> Any:
  """The module of which `describe` returned these facts."""
  kind = kind_of(facts)
  if kind in _OF_KIND:
    ability, command, _ = _OF_KIND[kind]
    raise UserError(
        f'{path} is a {kind}, which {ability} and embeds nothing. Use it in'
        f' `dualenc {command}{path}`, or give a dual encoder.'
    )
  return described.module(facts, path)


def wanted(path: pathlib.Path, step: int | None) -> list[int]:
  """Steps to try, the best first; raises UserError if there are none."""
  found = steps(path)
  if not found or (step is not None and step not in found):
    lacking = f' of step {step}' if found else ' yet'
    known = f'; it has {", ".join(map(str, found))}' if found else ''
    raise UserError(
        f'{path} has no checkpoint{lacking}{known}. Train first, or give the'
        ' folder of a trained model.'
    )
  if step is not None:
    return [step]
  best = best_step(path)
  return sorted(found, key=lambda step: (step == best, step), reverse=True)


def best_step(path: pathlib.Path) -> int | None:
  """The step that the run has kept as its best, if it has one and is whole."""
  folder = folder_of(path, steps(path)[-1])
  types = {'notes?': {'best?': {'step': int}}}
  try:
    found, _ = checkpoint_meta.read(folder, **types)
  except UserError:
    return None
  return found.get('notes', {}).get('best', {}).get('step')
