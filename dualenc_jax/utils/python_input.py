"""Checks of input from Python: texts, ids, embeddings."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import jax
import numpy as np

from dualenc_jax.utils.errors import UserError


def is_array(value: Any) -> bool:
  """Whether these are embeddings, not texts."""
  dtype = getattr(value, 'dtype', None)
  return isinstance(dtype, np.dtype) and dtype.kind not in 'OUST'


def texts_of(name: str, texts: Any) -> list[str]:
  """A list of strings, or UserError."""
  one = isinstance(texts, (str, bytes, Mapping, Set))
  if one or not isinstance(texts, Iterable):
    what = 'one string' if isinstance(texts, str) else type(texts).__name__
    raise UserError(
        f"{name} is {what}; expected a list of strings, ['like this']."
    )
  texts = list(texts)
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise UserError(
          f'{name}[{i}] is {text!r:.60}, {type(text).__name__}; expected a'
          ' string.'
      )
    if text.isascii():
      continue
    try:
      text.encode()
    except UnicodeEncodeError as e:
      raise UserError(
          f'{name}[{i}] is {text!r:.60}: half of a surrogate pair at character'
          f" {e.start}. Read the text as UTF-8, with errors='replace'."
      ) from e
  return texts


def ids_of(ids: Any, count: int) -> list[str]:
  """The checked ids of so many passages."""
  ids = texts_of('ids', ids)
  if len(ids) != count:
    raise UserError(
        f'{len(ids)} ids for {count} passages; expected one for each.'
    )
  seen: set[str] = set()
  for i, name in enumerate(ids):
    if name in seen:
      raise UserError(f'ids has {name!r} twice; expected different ones.')
    seen.add(name)
    # An index keeps an id a line, and NumPy ends a string at a zero.
    if not name or any(c in name for c in '\n\r\0'):
      raise UserError(
          f'ids[{i}] is {name!r}; expected one line that is not empty.'
      )
  return ids


def embeddings_of(name: str, array: Any, dim: int) -> Any:
  """Embeddings as exact search takes them: float32 or float16 [n, D]."""
  if isinstance(array, jax.Array):
    array = np.asarray(array)
  if array.dtype.kind != 'f':
    raise UserError(
        f'{name} is an array of {array.dtype}; expected embeddings in float32'
        ' or float16, or a list of texts.'
    )
  if len(array.shape) != 2 or array.shape[1] != dim:
    raise UserError(
        f'{name} has the shape {tuple(array.shape)}; the embeddings of this'
        f' model are [n, {dim}].'
    )
  if array.dtype in (np.float32, np.float16):
    return array
  with np.errstate(over='ignore'):
    return np.asarray(array, np.float32)
