"""Checks of input from Python: texts, ids, embeddings."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import jax
import numpy as np

from dualenc_jax.utils.errors import expect, UserError


def is_array(value: Any) -> bool:
  """Whether these are embeddings, not texts."""
  dtype = getattr(value, 'dtype', None)
  return isinstance(dtype, np.dtype) and dtype.kind not in 'OUST'


def check_texts(name: str, texts: Any) -> list[str]:
  """Returns texts as a list of strings; raises UserError for anything else."""
  one = isinstance(texts, (str, bytes, Mapping, Set))
  if one or not isinstance(texts, Iterable):
    what = 'one string' if isinstance(texts, str) else type(texts).__name__
    raise UserError(f'{name} is {what}; expected a list of strings.')
  texts = list(texts)
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise UserError(
          f'{name}[{i}] is {text!r:.60}, {type(text).__name__}; expected a'
          ' string.'
      )
    try:
      text.isascii() or text.encode()
    except UnicodeEncodeError as e:
      raise UserError(
          f'{name}[{i}] is {text!r:.60}: half of a surrogate pair at character'
          f" {e.start}. Read the text as UTF-8, with errors='replace'."
      ) from e
  return texts


def check_ids(ids: Any, count: int) -> list[str]:
  """Returns the ids of so many passages; raises UserError for bad ones."""
  ids = check_texts('ids', ids)
  expect(len(ids) == count, 'len(ids)', len(ids), f'one id a passage, {count}')
  seen: set[str] = set()
  for i, name in enumerate(ids):
    if name in seen:
      raise UserError(f'ids has {name!r} twice; expected different ones.')
    seen.add(name)
    # An index keeps an id a line, and NumPy ends a string at a zero.
    is_line = name and not any(c in name for c in '\n\r\0')
    expect(is_line, f'ids[{i}]', name, 'one line that is not empty')
  return ids


def check_embeddings(name: str, array: Any, dim: int) -> Any:
  """Returns embeddings [n, D] for exact search, in float32 or float16."""
  if isinstance(array, jax.Array):
    array = np.asarray(array)
  expect(
      array.dtype.kind == 'f', f'The dtype of {name}', str(array.dtype),
      'embeddings in float32 or float16, or a list of texts',
  )
  shape = tuple(array.shape)
  is_one = len(shape) == 2 and shape[1] == dim
  expect(is_one, f'The shape of {name}', shape, f'embeddings [n, {dim}]')
  if array.dtype in (np.float32, np.float16):
    return array
  with np.errstate(over='ignore'):
    return np.asarray(array, np.float32)
