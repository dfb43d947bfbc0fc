"""Documents without queries, as pairs to train on.

A title is a query of its text (title -> text), and a sentence is one of what
is around it: the inverse cloze task of Lee, Chang and Toutanova (ORQA, 2019).
"""

from collections.abc import Iterator, Sequence
import dataclasses
import hashlib
import logging
import pathlib
import re
from typing import Any

import numpy as np

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.data.readers.texts import Texts
from dualenc_jax.utils.errors import (
  check_whole,
  expect,
  SourceUnavailable,
  UserError,
)

# Held out: one document in this many, by a hash of its id.
_HELD_OUT = 20
# Bounds of a query, and of a sentence, which ends at . ! ? before a space, or a
# line.
_LEAST_WORDS = 3
_SENTENCE = re.compile(r'(?<=[.!?])\s+|\n+')


@dataclasses.dataclass(frozen=True)
class Documents(FilesDataset):
  """Pairs made of documents, and the documents as a corpus.

  Each document gives `titles` pairs of title and text, if it has both, and
  `clozes` of a sentence and the text, without that sentence at the share
  `removal`. Sentences are drawn by the document's id, so the pairs are the same
  in every run. Documents of which no pair can be made (no text, or neither a
  title nor two sentences) are counted in the log; in the corpus they are all.

  Splits: train, and validation of one document in twenty, held out by a hash of
  its id, with one pair of a sentence and the text without it; corpus, all
  documents with their titles.

  Attributes:
    path: JSONL or TSV of documents, or a folder in BEIR's layout, as of
      `readers.Texts`.
    titles: copies of the pair of title and text; 0 for none.
    clozes: pairs of a sentence and its text, of as many sentences.
    removal: share of these whose sentence is taken out of the text; ORQA has
      0.9.
    strict: as of `readers.Texts`.
  """

  task_name = 'documents'
  evaluated = 'validation'
  FILES = ('path',)
  NOT_OF_CORPUS = ('titles', 'clozes', 'removal')
  REPEATS = True

  path: str | None = None
  titles: int = 3
  clozes: int = 1
  removal: float = 0.9
  strict: bool = True

  def __post_init__(self):
    check_whole('Documents.titles', self.titles, 0)
    check_whole('Documents.clozes', self.clozes, 0)
    expect(
        self.titles or self.clozes, 'Documents.titles and clozes', 0,
        'one of them above 0',
    )
    in_range = 0 <= self.removal <= 1
    expect(in_range, 'Documents.removal', self.removal, '0 to 1')

  def splits(self) -> tuple[str, ...]:
    return 'train', 'validation', 'corpus'

  def paths(self, split: str) -> Sequence[pathlib.Path]:
    """The same of all splits."""
    if split not in self.splits():
      raise self.missing_split(split, self.splits())
    return self._texts.paths('corpus')

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    """Yields the pairs, or the documents, in the order of the file."""
    self.check_split(split)
    if split == 'corpus':
      yield from self._texts.examples('corpus')
      return
    pairs = documents = without = 0
    for row in self._texts.examples('corpus'):
      name = row['passage_id']
      digest = hashlib.sha256(f'documents\0{name}'.encode('utf-8', 'replace'))
      rng = np.random.default_rng(int.from_bytes(digest.digest()[:8], 'big'))
      if (rng.integers(_HELD_OUT) == 0) != (split == 'validation'):
        continue
      documents += 1
      # A passage is its title and its text; the title is the row's name.
      title, text = row['name'].strip(), row['passage'].strip()
      is_titled = title and row['passage'].startswith(title)
      text = text.removeprefix(title).strip() if is_titled else text
      made = 0
      if split == 'validation':
        found = _clozes(text, 1, 1.0, rng)
      else:
        found = _clozes(text, self.clozes, self.removal, rng)
        if is_titled and text:
          found = [(title, text)] * self.titles + found
      for made, (query, passage) in enumerate(found, 1):
        yield example(
            query, passage, query_id=f'{name}#{made}',
            passage_id=f'{name}#{made}', name=row['name'],
            location=row['location'],
        )
      pairs += made
      without += not made
    if not pairs:
      raise UserError(
          f'{self.path}, split {split}: no pair can be made of {documents:,}'
          ' documents. Expected titles, or texts of two or more sentences; for'
          ' a validation split, at least twenty documents.'
      )
    if without:
      logging.getLogger(__name__).info(
          '%s, split %s: %d of %d documents give no pair.',
          self.path, split, without, documents,
      )

  @property
  def _texts(self) -> Texts:
    if not self.path:
      raise SourceUnavailable(
          'documents needs a file or folder: give it with --gin.DOCUMENTS=...'
      )
    return Texts(self.path, self.strict)


def _clozes(
    text: str, count: int, removal: float, rng: np.random.Generator
) -> list[tuple[str, str]]:
  """Sentences, and the text without or with them."""
  parts = list(filter(None, map(str.strip, _SENTENCE.split(text))))
  if len(parts) < 2:
    return []
  long = [i for i, s in enumerate(parts) if len(s.split()) >= _LEAST_WORDS]
  found = []
  for i in rng.permutation(long)[:count].tolist():
    rest = ' '.join(parts[:i] + parts[i + 1 :])
    found.append((parts[i], text if rng.random() >= removal else rest))
  return found
