"""Modules as JSON, saved with every checkpoint, and rebuilt from it.

So `checkpoints.checkpoint_reader` needs no config, which is a program.
"""

import collections.abc
from collections.abc import Mapping
import dataclasses
import re
from typing import Any, get_args, get_origin

from flax import linen as nn

from dualenc_jax.models.cross_encoder import CrossEncoder, ScoreHead
from dualenc_jax.models.dual_encoder import DualEncoder, Projection
from dualenc_jax.models.gemma_encoder import GemmaEncoder
from dualenc_jax.models.layers import TokenEmbedder
from dualenc_jax.models.seq2seq import Seq2Seq
from dualenc_jax.models.split_ranker import SplitRanker
from dualenc_jax.models.t5_decoder import T5Decoder
from dualenc_jax.models.t5_encoder import dot_product_attention, T5Encoder
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

# A module of this package, whose place in it may change.
_WITHIN_MODELS = re.compile(r'^(dualenc_jax\.models\.)\w+\.(?=\w+$)')
_AGAIN = 'Copy the whole folder again.'


def describe(value: Any) -> Any:
  """A module as JSON: its class and attributes, parts included."""
  if isinstance(value, nn.Module):
    names = [field.name for field in dataclasses.fields(value)]
    own = {n: getattr(value, n) for n in names if n not in ('parent', 'name')}
    attributes = {name: describe(part) for name, part in own.items()}
    return {'class': class_name(type(value)), **attributes}
  if isinstance(value, list | tuple):
    return [describe(part) for part in value]
  if value is None or isinstance(value, bool | int | float | str):
    return value
  named = value if hasattr(value, '__qualname__') else type(value)
  return {'class': class_name(named)}


def class_name(value: Any) -> str:
  """The name of a class for files: 'dualenc_jax.models.T5Encoder'.

  It is that of the package of models, wherever in it the class lies, and the
  whole path of a user's own.
  """
  return _current_name(f'{value.__module__}.{value.__qualname__}')


def _current_name(name: str) -> str:
  """The name of a class for files, which older files have by its module."""
  return _WITHIN_MODELS.sub(r'\1', name)


def current_names(facts: Any) -> Any:
  """Returns what `describe` returned, with the names of classes of today."""
  if isinstance(facts, dict):
    return {
        n: _current_name(x) if n == 'class' and isinstance(x, str)
        else current_names(x)
        for n, x in facts.items()
    }
  if isinstance(facts, list):
    return [current_names(x) for x in facts]
  return facts


_CLASSES = {
    class_name(value): value
    for value in (
        CrossEncoder, dot_product_attention, DualEncoder, GemmaEncoder,
        Projection, ScoreHead, Seq2Seq, SplitRanker, T5Decoder, T5Encoder,
        TokenEmbedder,
    )
}


def rebuild(facts: Mapping[str, Any], where: str) -> Any:
  """The module, or function, that `describe` returned these facts of.

  Args:
    facts: as read from a file, so that they may be wrong.
    where: the place that they were read from, for messages.

  Raises:
    UserError: they are of a user's own class, or no module's.
  """
  name = facts.get('class')
  if not isinstance(name, str):
    raise UserError(
        f'{where} has the class {untrusted.quote(name)}; expected a name.'
        f' {_AGAIN}'
    )
  if name not in _CLASSES:
    raise UserError(
        f'{where} has your own model class, {name[:80]}, which only its config,'
        ' a program, can build. dualenc_jax.cli.saved_run.load(folder)'
        ' runs it and returns a model for Retriever(...).'
    )
  known = _CLASSES[name]
  if not isinstance(known, type):
    return known
  kinds = {field.name: field.type for field in dataclasses.fields(known)}
  attributes = {}
  for name, value in facts.items():
    if isinstance(value, dict):
      value = rebuild(value, f'{where}: {name}')
    value = tuple(value) if isinstance(value, list) else value
    if name in kinds and not _fits(value, kinds[name]):
      raise UserError(
          f'{where}: {name} is {untrusted.quote(value)}, which is not a valid'
          f' value. {_AGAIN}'
      )
    attributes[name] = value
  del attributes['class']
  try:
    return known(**attributes)
  except TypeError as e:
    raise UserError(
        f'{where} was written by another version of this library: {e}. Open it'
        ' with that version.'
    ) from e


def _fits(value: Any, kind: Any) -> bool:
  """Whether a value is of the annotation of an attribute."""
  if get_origin(kind) is collections.abc.Callable:
    return callable(value)
  if get_origin(kind) is collections.abc.Sequence:
    items = get_args(kind)[0]
    return isinstance(value, tuple) and all(_fits(v, items) for v in value)
  kinds = get_args(kind) or (kind,)
  if type(value) is int:
    return bool({int, float} & set(kinds)) and 0 <= value < 2**31
  return isinstance(value, tuple(k for k in kinds if k is not int))
