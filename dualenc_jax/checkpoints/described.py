"""Modules rebuilt from the JSON of `models.describe`, which may be wrong."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any, get_args

from flax import linen as nn

from dualenc_jax import models
from dualenc_jax.models.dual_encoder import class_name
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

KNOWN = {
    class_name(value): value
    for value in (
        models.CrossEncoder, models.dot_product_attention, models.DualEncoder,
        models.Projection, models.ScoreHead, models.Seq2Seq, models.T5Decoder,
        models.T5Encoder, models.TokenEmbedder,
    )
}
_AGAIN = 'Copy the whole folder again.'


def module(facts: Mapping[str, Any], where: str) -> Any:
  """The module, or function, of which `models.describe` returned these facts.

  They may be wrong; `where` they were read is for messages.
  """
  name = facts.get('class')
  if not isinstance(name, str):
    raise UserError(
        f'{where} has the class {untrusted.shown(name)}; expected a name.'
        f' {_AGAIN}'
    )
  if name not in KNOWN:
    raise UserError(
        f'{where} has your own model class, {name[:80]}, which only its config,'
        ' a program, can build. dualenc_jax.cli.model_dir.load(folder)'
        ' runs it and returns a model for Retriever(...).'
    )
  known = KNOWN[name]
  if not isinstance(known, type):
    return known
  kinds = {field.name: field.type for field in dataclasses.fields(known)}
  attributes = {
      name: _attribute(value, kinds.get(name), f'{where}: {name}')
      for name, value in facts.items()
      if name != 'class'
  }
  try:
    return known(**attributes)
  except TypeError as e:
    raise UserError(
        f'{where} was written by another version of this library: {e}. Open it'
        ' with that version.'
    ) from e


def _attribute(value: Any, kind: Any, where: str) -> Any:
  """A value of a field of a module's class, whose annotation is `kind`."""
  if isinstance(value, dict):
    value = module(value, where)
  kinds = (kind,) if kind == Sequence[str] else get_args(kind) or (kind,)
  parts = tuple(
      k for k in kinds if isinstance(k, type) and issubclass(k, nn.Module)
  )
  if value is None and type(None) in kinds:
    fits = True
  elif kind == Sequence[str]:
    fits = isinstance(value, list) and bool(value)
    fits = fits and all(isinstance(item, str) for item in value)
    value = tuple(value) if fits else value
  elif parts:
    fits = isinstance(value, parts)
  elif type(value) is int:
    fits = bool({int, float} & set(kinds)) and 0 <= value < 2**31
  elif type(value) in (bool, float, str):
    fits = type(value) in kinds
  else:
    # A function; or of a field that the class is going to refuse.
    fits = callable(value) or kind is None
  if where.endswith(': dtype'):
    fits = fits and value in ('float32', 'bfloat16')
  if not fits:
    raise UserError(
        f'{where} is {untrusted.shown(value)}, which is not a valid value.'
        f' {_AGAIN}'
    )
  return value
