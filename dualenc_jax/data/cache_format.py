"""The files of a token cache: written in chunks, mapped when opened."""

from collections.abc import Iterable, Sequence
import contextlib
import dataclasses
import hashlib
import itertools
import json
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data.fingerprint import fingerprints
from dualenc_jax.data.ragged import map_array
from dualenc_jax.data.ragged import open_array
from dualenc_jax.data.ragged import Ragged
from dualenc_jax.data.ragged import RaggedWriter
from dualenc_jax.data.tokenizer import Tokenizer

CHUNK = 8192
HEADER = 'header.json'
_TOKENS = ('query_tokens', 'passage_tokens', 'negative_tokens')
_TEXTS = (
    'query_texts',
    'passage_texts',
    'query_ids',
    'passage_ids',
    'names',
    'locations',
    'answers',
)
_ARRAYS = {
    'negative_offsets': np.int64,
    'query_fingerprints': np.uint64,
    'passage_fingerprints': np.uint64,
    'negative_fingerprints': np.uint64,
    'answer_offsets': np.int64,
    'relevances': np.int32,
}


class DamagedCache(Exception):
  """A cache folder whose files are not those of its header."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cache:
  """Tokenised examples on disk, n of them, memory-mapped.

  Attributes:
    folder: where the files are.
    header: the key (task, options, split, vocabulary, lengths, source), counts.
    query_tokens: token ids, n rows, each ending with EOS.
    passage_tokens: the same.
    negative_tokens: rows of all examples' hard negatives, one after the other.
    negative_offsets: int64 [n + 1]; example i has the negative rows
      negative_offsets[i] to negative_offsets[i + 1].
    query_fingerprints: uint64 [n], of the tokens.
    passage_fingerprints: uint64 [n]; a negative with the same tokens has the
      same one.
    negative_fingerprints: uint64 [number of negatives].
    query_texts: UTF-8, n rows; `query_texts.text(i)` is a string.
    passage_texts: the same.
    query_ids: the task's own, or 'q' and a hash of the text.
    passage_ids: the task's own, or 'p' and a hash of the text.
    names: what a search hit displays, or ''.
    locations: 'file:line', or ''.
    answers: strings of all examples, one after the other.
    answer_offsets: int64 [n + 1]; example i has the answers answer_offsets[i]
      to answer_offsets[i + 1].
    relevances: int32 [n], grade of the passage for the query.
  """

  folder: pathlib.Path
  header: dict[str, Any]
  query_tokens: Ragged
  passage_tokens: Ragged
  negative_tokens: Ragged
  negative_offsets: np.ndarray
  query_fingerprints: np.ndarray
  passage_fingerprints: np.ndarray
  negative_fingerprints: np.ndarray
  query_texts: Ragged
  passage_texts: Ragged
  query_ids: Ragged
  passage_ids: Ragged
  names: Ragged
  locations: Ragged
  answers: Ragged
  answer_offsets: np.ndarray
  relevances: np.ndarray

  @classmethod
  def open(cls, folder: str | pathlib.Path) -> 'Cache':
    """Maps a complete cache.

    Raises:
      DamagedCache: the header is missing, or a file is not of its size there.
    """
    folder = pathlib.Path(folder)
    try:
      header = json.loads((folder / HEADER).read_text('utf-8'))
      files = header['files']
    except (OSError, ValueError, KeyError) as error:
      raise DamagedCache(f'{folder / HEADER} is unreadable: {error}') from error
    for name, size in files.items():
      path = folder / name
      found = path.stat().st_size if path.exists() else None
      if found != size:
        raise DamagedCache(f'{path} has {found} bytes, its header says {size}')
    return cls(
        folder=folder,
        header=header,
        **{name: Ragged.load(folder, name) for name in (*_TOKENS, *_TEXTS)},
        **{name: map_array(folder, name) for name in _ARRAYS},
    )

  def __len__(self) -> int:
    return len(self.query_tokens)


def write(
    folder: pathlib.Path,
    examples: Iterable[dict],
    tokenizer: Tokenizer,
    header: dict[str, Any],
) -> int:
  """Writes examples into an empty folder, the header last; returns how many.

  Memory holds one chunk of `CHUNK` examples at a time.
  """
  examples = iter(examples)
  count = negatives = answers = 0
  with contextlib.ExitStack() as stack:
    dtypes = dict.fromkeys(_TOKENS, tokenizer.vocabulary.token_dtype)
    dtypes |= dict.fromkeys(_TEXTS, np.uint8)
    writers = {
        name: stack.enter_context(RaggedWriter(folder, name, dtype))
        for name, dtype in dtypes.items()
    }
    arrays = {
        name: stack.enter_context(open_array(folder, name, dtype))
        for name, dtype in _ARRAYS.items()
    }
    for name in ('negative_offsets', 'answer_offsets'):
      np.zeros(1, np.int64).tofile(arrays[name])
    while chunk := list(itertools.islice(examples, CHUNK)):
      tokens = _tokens(chunk, tokenizer)
      for name, rows in (tokens | _texts(chunk)).items():
        writers[name].append(rows)
      for name, rows in tokens.items():
        fingerprint_file = arrays[name.replace('tokens', 'fingerprints')]
        fingerprints(rows).tofile(fingerprint_file)
      counts = np.array([len(e['negatives']) for e in chunk], np.int64)
      (negatives + np.cumsum(counts)).tofile(arrays['negative_offsets'])
      negatives += int(counts.sum())
      counts = np.array([len(e['answers']) for e in chunk], np.int64)
      (answers + np.cumsum(counts)).tofile(arrays['answer_offsets'])
      answers += int(counts.sum())
      relevances = np.array([e['relevance'] for e in chunk], np.int32)
      relevances.tofile(arrays['relevances'])
      count += len(chunk)
  header = header | {
      'examples': count,
      'negatives': negatives,
      'files': {
          path.name: path.stat().st_size for path in sorted(folder.iterdir())
      },
  }
  text = json.dumps(header, indent=2, default=str) + '\n'
  (folder / HEADER).write_text(text, 'utf-8')
  return count


def _tokens(
    chunk: Sequence[dict], tokenizer: Tokenizer
) -> dict[str, Ragged]:
  negatives = [text for example in chunk for text in example['negatives']]
  return {
      'query_tokens': tokenizer.encode_queries([e['query'] for e in chunk]),
      'passage_tokens': tokenizer.encode_passages(
          [e['passage'] for e in chunk]
      ),
      'negative_tokens': tokenizer.encode_passages(negatives),
  }


def _texts(chunk: Sequence[dict]) -> dict[str, Ragged]:
  columns = {
      'query_texts': [e['query'] for e in chunk],
      'passage_texts': [e['passage'] for e in chunk],
      'query_ids': [e['query_id'] or _id('q', e['query']) for e in chunk],
      'passage_ids': [e['passage_id'] or _id('p', e['passage']) for e in chunk],
      'names': [e['name'] for e in chunk],
      'locations': [e['location'] for e in chunk],
      'answers': [answer for e in chunk for answer in e['answers']],
  }
  return {name: Ragged.from_texts(texts) for name, texts in columns.items()}


def _id(prefix: str, text: str) -> str:
  if not text:
    return ''
  return prefix + hashlib.sha256(text.encode('utf-8')).hexdigest()[:16]
