"""Writes a token cache so that it can go on after a kill."""

from collections.abc import Mapping, Sequence
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from dualenc_jax.data.cache.array_file import ArrayWriter
from dualenc_jax.data.cache.format import ARRAYS, HEADER, OFFSETS, TEXTS, TOKENS
from dualenc_jax.text.fingerprint import fingerprints
from dualenc_jax.text.ragged import lengths_to_offsets, Ragged
from dualenc_jax.text.tokenizer import Tokenizer

JOURNAL = 'journal.json'
Columns = Mapping[str, Ragged | np.ndarray]


class CacheWriter:
  """Appends examples to the files of a cache, in a folder of its own.

  What has been committed survives a kill: a writer of the same folder and key
  goes on after it. The files depend on the examples only, not on how these
  were divided, nor on interruptions.

  A context manager.

  Attributes:
    folder: where the files are.
    examples: how many have been written.
  """

  def __init__(self, folder: pathlib.Path, key: Mapping[str, Any], dtype):
    """Opens a folder, or makes it.

    Args:
      folder: whatever is in it that is not of this key goes.
      key: what the header tells, beside counts and files.
      dtype: of the tokens.
    """
    self.folder = folder
    self._key = dict(key)
    state = _state(folder, key)
    if state is None:
      shutil.rmtree(folder, ignore_errors=True)
      folder.mkdir(parents=True)
      state = {'examples': 0, 'files': {}}
    self.examples = state['examples']
    dtypes = {
        **{f'{name}.values': dtype for name in TOKENS},
        **{f'{name}.values': np.uint8 for name in TEXTS},
        **{f'{name}.offsets': np.int64 for name in (*TOKENS, *TEXTS)},
        **dict.fromkeys(OFFSETS, np.int64),
        **ARRAYS,
    }
    sizes = {file.rpartition('.')[0]: s for file, s in state['files'].items()}
    self._files = {
        name: ArrayWriter(folder, name, dtype, *sizes.get(name, ()))
        for name, dtype in dtypes.items()
    }
    # On a full disk a close may fail; the others must follow all the same.
    self._stack = contextlib.ExitStack()
    for file in self._files.values():
      self._stack.callback(file.close)

  @property
  def size(self) -> int:
    """Bytes of all files."""
    return sum(file.size for file in self._files.values())

  def append(self, columns: Columns) -> None:
    """Writes the `columns` of examples."""
    for name, column in columns.items():
      if isinstance(column, Ragged):
        self._files[f'{name}.values'].append(column.values)
        self._files[f'{name}.offsets'].append_offsets(column.offsets)
      elif name in OFFSETS:
        self._files[name].append_offsets(column)
      else:
        self._files[name].append(column)
    self.examples += len(columns['relevances'])

  def commit(self) -> None:
    """Returns when the examples so far survive a kill."""
    for file in self._files.values():
      file.sync()
    state = {
        **self._key,
        'examples': self.examples,
        'negatives': self._files['negative_fingerprints'].rows,
        'files': {
            file.path.name: (file.rows, file.size)
            for file in self._files.values()
        },
    }
    temporary = self.folder / f'{JOURNAL}.new'
    with temporary.open('w', encoding='utf-8') as stream:
      json.dump(state, stream, indent=2)
      stream.write('\n')
      stream.flush()
      os.fsync(stream.fileno())
    temporary.replace(self.folder / JOURNAL)

  def finish(self) -> None:
    """Makes it a complete cache, which is a journal called header."""
    self.commit()
    (self.folder / JOURNAL).rename(self.folder / HEADER)

  def __enter__(self) -> 'CacheWriter':
    return self

  def __exit__(self, *unused_error) -> None:
    self._stack.close()


def columns(
    examples: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    threads: int = -1,
) -> Columns:
  """Everything that a cache keeps of some examples, by name of its attribute.

  Offsets are from 0 on.
  """
  negatives = [e['negatives'] for e in examples]
  answers = [e['answers'] for e in examples]
  texts = {
      'query_texts': [e['query'] for e in examples],
      'passage_texts': [e['passage'] for e in examples],
      'query_ids': [e['query_id'] or _id('q', e['query']) for e in examples],
      'passage_ids': [
          e['passage_id'] or _id('p', e['passage']) for e in examples
      ],
      'names': [e['name'] for e in examples],
      'locations': [e['location'] for e in examples],
      'answers': _flat(answers),
  }
  tokens = {
      'query': _tokens(texts['query_texts'], tokenizer.encode_queries, threads),
      'passage': _tokens(
          texts['passage_texts'], tokenizer.encode_passages, threads
      ),
      'negative': _tokens(
          _flat(negatives), tokenizer.encode_passages, threads
      ),
  }
  return {
      **{f'{name}_tokens': rows for name, rows in tokens.items()},
      **{
          f'{name}_fingerprints': fingerprints(rows)
          for name, rows in tokens.items()
      },
      **{name: Ragged.from_texts(rows) for name, rows in texts.items()},
      'negative_offsets': _offsets(negatives),
      'answer_offsets': _offsets(answers),
      'relevances': np.array([e['relevance'] for e in examples], np.int32),
  }


def _state(
    folder: pathlib.Path, key: Mapping[str, Any]
) -> dict[str, Any] | None:
  """The journal of a folder, None unless it is of this key and true."""
  try:
    # A kill between `finish` and what follows it leaves a header.
    name = HEADER if (folder / HEADER).exists() else JOURNAL
    state = json.loads((folder / name).read_text('utf-8'))
    sizes = [
        ((folder / file).stat().st_size, size)
        for file, (_, size) in state['files'].items()
    ]
  except (OSError, ValueError, KeyError, TypeError):
    return None
  same = all(state.get(name) == value for name, value in key.items())
  return state if same and all(has >= size for has, size in sizes) else None


def _tokens(texts: Sequence[str], encode, threads: int) -> Ragged:
  """Rows of tokens; that of an empty text, which is none, is empty."""
  there = np.array([bool(text) for text in texts], bool)
  rows = encode([text for text in texts if text], threads)
  lengths = np.zeros(len(texts), np.int64)
  lengths[there] = rows.lengths
  return Ragged(rows.values, lengths_to_offsets(lengths))


def _flat(rows: Sequence[Sequence[str]]) -> list[str]:
  return [value for row in rows for value in row]


def _offsets(rows: Sequence[Sequence[str]]) -> np.ndarray:
  lengths = np.fromiter(map(len, rows), np.int64, len(rows))
  return lengths_to_offsets(lengths)


def _id(prefix: str, text: str) -> str:
  if not text:
    return ''
  return prefix + hashlib.sha256(text.encode('utf-8')).hexdigest()[:16]
