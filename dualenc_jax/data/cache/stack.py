"""From examples to the arrays that a token cache keeps of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import hashlib
from typing import Any

import numpy as np

from dualenc_jax.data.columns import Column, TEXT
from dualenc_jax.errors import UserError
from dualenc_jax.text.fingerprint import fingerprints
from dualenc_jax.text.ragged import lengths_to_offsets, Ragged
from dualenc_jax.text.tokenizer import Tokenizer

Example = Mapping[str, Any]
Arrays = dict[str, Ragged | np.ndarray]


def stack(
    examples: Sequence[Example],
    table: Iterable[Column],
    tokenizer: Tokenizer,
    threads: int = -1,
) -> Arrays:
  """The arrays of all columns of some examples, by name; see `Cache`.

  Offsets are from 0 on.

  Raises:
    UserError: a value that its column cannot hold.
  """
  encoders = {
      'query': lambda texts: tokenizer.encode_queries(texts, threads),
      'passage': lambda texts: tokenizer.encode_passages(texts, threads),
  }
  arrays = {}
  for column in table:
    if column.tower:
      arrays |= _encoded(column, examples, encoders[column.tower])
    elif column.dtype == TEXT:
      arrays |= _texts(column, examples)
    else:
      arrays |= _numbers(column, examples)
  return arrays


def _encoded(
    column: Column,
    examples: Sequence[Example],
    encode: Callable[[Sequence[str]], Ragged],
) -> Arrays:
  """Tokens, and texts unless these are lists.

  An empty text is none and has 0 tokens, but for a blank passage of a corpus.
  """
  rows, name = [e[column.name] for e in examples], column.key
  if column.rank:
    kept = {f'{name}_offsets': _offsets(rows)}
    rows = _flat(rows)
  else:
    kept = {f'{name}_texts': Ragged.from_texts(rows)}
  there = np.array([bool(text) for text in rows], bool)
  if column.name == 'passage':
    # A row without a query is one of a corpus, whose passage may be blank.
    there |= np.array([not e['query'] for e in examples], bool)
  encoded = encode([text for text, is_there in zip(rows, there) if is_there])
  lengths = np.zeros(len(rows), np.int64)
  lengths[there] = encoded.lengths
  tokens = Ragged(encoded.values, lengths_to_offsets(lengths))
  return {
      f'{name}_tokens': tokens,
      f'{name}_fingerprints': fingerprints(tokens),
      **kept,
  }


def _texts(column: Column, examples: Sequence[Example]) -> Arrays:
  rows, name = [e[column.name] for e in examples], column.key
  if column.rank:
    return {
        name: Ragged.from_texts(_flat(rows)),
        f'{name}_offsets': _offsets(rows),
    }
  if column.hashed:
    rows = [
        text or _id(column.hashed[0], e[column.hashed])
        for text, e in zip(rows, examples)
    ]
  return {name: Ragged.from_texts(rows)}


def _numbers(column: Column, examples: Sequence[Example]) -> Arrays:
  rows, name = [e.get(column.name) for e in examples], column.key
  if column.per != 'candidate':
    rows = [column.default if value is None else value for value in rows]
    return {name: _array(column, rows, examples)}
  counts = [1 + len(e['negatives']) for e in examples]
  for i, (row, count) in enumerate(zip(rows, counts)):
    if row is None:
      rows[i] = [column.default] * count
    elif len(row) != count:
      raise UserError(
          f'{examples[i]["location"]}: the column {column.name!r} has'
          f' {len(row)} values; expected {count}, the one of the passage and'
          ' one for each of the hard negatives.'
      )
  values = _array(column, _flat(rows), examples)
  positives = lengths_to_offsets(np.array(counts))[:-1]
  return {
      name: values[positives],
      f'negative_{name}': np.delete(values, positives),
  }


def _array(
    column: Column, values: Sequence[Any], examples: Sequence[Example]
) -> np.ndarray:
  """Values, which are those of these examples."""
  try:
    return np.array(values, column.dtype)
  except (TypeError, ValueError, OverflowError):
    for example in examples:
      value = example.get(column.name, 0)
      try:
        np.array(value, column.dtype)
      except (TypeError, ValueError, OverflowError):
        raise UserError(
            f'{example["location"]}: the column {column.name!r} holds'
            f' {value!r}; expected {column.dtype}.'
        ) from None
    raise


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
  return [value for row in rows for value in row]


def _offsets(rows: Sequence[Sequence[Any]]) -> np.ndarray:
  lengths = np.fromiter(map(len, rows), np.int64, len(rows))
  return lengths_to_offsets(lengths)


def _id(prefix: str, text: str) -> str:
  if not text:
    return ''
  return prefix + hashlib.sha256(text.encode('utf-8')).hexdigest()[:16]
