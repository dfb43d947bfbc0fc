"""The inspection of a task: each split in one pass, and what splits share."""

import array
from collections.abc import Iterable, Iterator, Sequence
import itertools
from typing import Any

import numpy as np

from dualenc_jax.data.check import counters, summary
from dualenc_jax.data.dataset import Dataset, Mixture, rows as rows_of
from dualenc_jax.data.readers.rows import (
  BadRows,
  collecting,
  Occurrences,
  SHOWN,
)
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress
from dualenc_jax.utils.untrusted import escape

# A chunk ends at so many rows or characters, whichever comes first.
_ROWS, _CHARACTERS = 2048, 2**22


class SplitReader:
  """Counts the examples of a split, of which it keeps about 50 bytes each.

  Attributes:
    queries, passages, places: those of all rows.
    repeats: whether pairs repeat on purpose.
  """

  def __init__(self, tokenizer: Tokenizer, repeats: bool = False):
    """`repeats` is `Dataset.REPEATS`: repeats, ids and lists do not count."""
    self._tokenizer, self.repeats = tokenizer, repeats
    vocabulary, length = tokenizer.vocabulary, tokenizer.passage_length
    self.queries = counters.TextCounter(
        vocabulary, tokenizer.query_length, not repeats
    )
    self.passages = counters.TextCounter(vocabulary, length, not repeats)
    self._negatives = counters.TextCounter(vocabulary, length)
    self._negative_counts: array.array[int] = array.array('i')
    self._relevant: array.array[int] = array.array('b')
    self.places = counters.Places()
    self._samples: list[summary.Sample] = []

  def read(self, examples: Iterable[dict]) -> Iterator[int]:
    """Counts all examples; yields the rows of each chunk that is done."""
    for chunk in _chunks(examples):
      self._add(chunk)
      yield len(chunk)

  @property
  def relevant(self) -> np.ndarray:
    """bool [n]: pairs, rows of a query and a relevant passage."""
    return (
        np.frombuffer(self._relevant, bool)
        & (self.queries.hashes != counters.NONE)
        & (self.passages.hashes != counters.NONE)
    )

  @property
  def pairs(self) -> np.ndarray:
    """int64 [n]: hashes of the pairs, `counters.NONE` for other rows."""
    both = counters.pair_hashes(self.queries.hashes, self.passages.hashes)
    return np.where(self.relevant, both, counters.NONE)

  def result(self, refused: BadRows, **facts: Any) -> summary.Split:
    """The counts of all examples.

    `refused` and `facts`, fields of `summary.Split`, are what only the caller
    knows.
    """
    queries, passages = self.queries.hashes, self.passages.hashes
    has_query, has_passage = queries != counters.NONE, passages != counters.NONE
    relevant = self.relevant
    num_pairs = int(relevant.sum())
    pairs = self.pairs
    again, firsts = _again(pairs, relevant)
    repeated = copied = Occurrences()
    place = self.places.__getitem__
    if not self.repeats:
      ids = counters.pair_hashes(self.queries.ids, self.passages.ids)
      with_ids, same = _again(counters.pair_hashes(pairs, ids), relevant)
      repeated = counters.locate(with_ids, same[with_ids], place)
      others = np.setdiff1d(again, with_ids)
      copied = counters.locate(others, firsts[others], place)
    equal = np.flatnonzero(relevant & (queries == passages))
    blank = np.flatnonzero(~has_passage & ~has_query)
    counts = np.frombuffer(self._negative_counts, np.int32)
    of_pairs = counts[relevant]
    row_of_negative = np.repeat(np.arange(len(relevant)), counts)
    is_positive = self._negatives.hashes == passages[row_of_negative]
    own = np.unique(row_of_negative[is_positive & relevant[row_of_negative]])

    def place_of_negative(i: int) -> str:
      return place(int(row_of_negative[i]))

    return summary.Split(
        rows=len(relevant),
        pairs=num_pairs,
        distinct_pairs=num_pairs - len(again),
        judged_irrelevant=int((has_query & has_passage & ~relevant).sum()),
        lone_queries=int((has_query & ~has_passage).sum()),
        lone_passages=int((has_passage & ~has_query).sum()),
        queries=self.queries.result(place),
        passages=self.passages.result(place),
        negatives=self._negatives.result(place_of_negative),
        fewest_negatives=int(of_pairs.min()) if len(of_pairs) else 0,
        most_negatives=int(of_pairs.max(initial=0)),
        without_negatives=int((of_pairs == 0).sum()),
        found={
            'blank_passages': counters.locate(blank, None, place),
            'repeated_pairs': repeated,
            'copied_pairs': copied,
            'equal_texts': counters.locate(equal, None, place),
            'positive_negatives': counters.locate(own, None, place),
        },
        refused=refused,
        samples=self._samples,
        **facts,
    )

  def _add(self, chunk: list[dict]) -> None:
    start = len(self.places)
    for row in chunk:
      self.places.append(row['location'])
    for column, what in ((self.queries, 'query'), (self.passages, 'passage')):
      column.add(
          [row[what] for row in chunk],
          lambda i: self.places[start + i],
          () if self.repeats else [row[f'{what}_id'] for row in chunk],
      )
    self._relevant.extend(row['relevance'] > 0 for row in chunk)
    counts = [len(row['negatives']) for row in chunk]
    self._negative_counts.extend(counts)
    rows = np.repeat(np.arange(start, start + len(chunk)), counts)
    self._negatives.add(
        [text for row in chunk for text in row['negatives']],
        lambda i: self.places[int(rows[i])],
    )
    for number, row in enumerate(chunk, start + 1):
      # Rows 1, 10, 100, 1,000, ...: few, and from all over the split.
      if str(number).strip('0') == '1':
        self._samples.append(self._sample(row, self.places[number - 1]))

  def _sample(self, row: dict, place: str) -> summary.Sample:
    vocabulary = self._tokenizer.vocabulary
    passage_length = self._tokenizer.passage_length
    texts = []
    for what, text, limit in (
        ('query', row['query'], self._tokenizer.query_length),
        ('passage', row['passage'], passage_length),
        ('negative', ''.join(row['negatives'][:1]), passage_length),
    ):
      if text:
        kept = vocabulary.encode([text], limit).row(0)
        tokens = len(vocabulary.encode([text], 2**31).row(0))
        shown = escape(vocabulary.decode(kept)) + vocabulary.add_eos * ' EOS'
        texts.append((what, shown, len(kept), tokens))
    return summary.Sample(place, texts)


def _again(
    keys: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """The chosen rows whose key a row before has, and `first_rows`."""
  firsts = counters.first_rows(keys)
  return np.flatnonzero(chosen & (firsts != np.arange(len(firsts)))), firsts


def _chunks(examples: Iterable[dict]) -> Iterator[list[dict]]:
  chunk: list[dict] = []
  characters = 0
  for row in examples:
    chunk.append(row)
    characters += len(row['query']) + len(row['passage'])
    characters += sum(map(len, row['negatives']))
    if len(chunk) >= _ROWS or characters >= _CHARACTERS:
      yield chunk
      chunk, characters = [], 0
  if chunk:
    yield chunk


def inspect_task(
    task: Dataset | Mixture, tokenizer: Tokenizer, splits: Sequence[str] = ()
) -> summary.Inspection:
  """Reads the splits of a task, or of each task of a mixture, once.

  Args:
    task: the task.
    tokenizer: its lengths decide what counts as truncated.
    splits: those to read; none for all that exist.

  Raises:
    UserError: nothing can be read.
  """
  parts = _parts(task)
  read = [
      _read(part, split, name if len(parts) > 1 else '', tokenizer)
      for name, part in parts.items()
      for split in splits or _all_splits(part)
  ]
  results = [result for result, _ in read]
  if not any(result.rows or result.refused for result in results):
    for error in (result.error for result in results if result.error):
      raise UserError(error)
  return summary.Inspection(
      task=task.label,
      options={
          name: {k: v for k, v in part.options.items() if v is not None}
          for name, part in parts.items()
      },
      vocabulary=tokenizer.vocabulary.path,
      vocabulary_size=tokenizer.vocabulary.size,
      query_length=tokenizer.query_length,
      passage_length=tokenizer.passage_length,
      splits=results,
      overlaps=list(_overlaps(read)),
  )


def _all_splits(part: Dataset) -> Sequence[str]:
  splits = part.splits()
  # Without a split of pairs, the reader says best what is missing.
  return splits if {*splits} - {'corpus'} else ('train', *splits)


def _parts(task: Dataset | Mixture) -> dict[str, Dataset]:
  """The tasks to read, by names of their own."""
  tasks = [part for part, _ in task.parts()]
  if isinstance(task, Mixture) and task.validation:
    tasks += [task.validation] * (task.validation not in tasks)
  parts: dict[str, Dataset] = {}
  for part in tasks:
    name, number = part.task_name, 1
    while name in parts:
      number += 1
      name = f'{part.task_name} {number}'
    parts[name] = part
  return parts


def _read(
    task: Dataset, split: str, prefix: str, tokenizer: Tokenizer
) -> tuple[summary.Split, SplitReader]:
  reader = SplitReader(tokenizer, task.REPEATS and split != 'corpus')
  errors: list[str] = []

  def until_error() -> Iterator[dict]:
    try:
      yield from rows_of(task, split)
    except UserError as error:
      errors.append(str(error))

  name = f'{prefix}/{split}' if prefix else split
  with collecting() as bad, Progress(name, None, 'rows') as progress:
    for rows in reader.read(until_error()):
      progress(rows)
  result = reader.result(
      bad, name=name, split=split, error=errors[0] if errors else None,
      corpus=task.corpus_split(split),
  )
  return result, reader


def _overlaps(
    read: Sequence[tuple[summary.Split, SplitReader]]
) -> Iterator[summary.Overlap]:
  for (held, one), (train, other) in itertools.product(read, read):
    # Queries that are made of documents nobody can take out.
    if one.repeats:
      continue
    if held.split in ('validation', 'test') and train.split == 'train':
      shared = [
          _shared(one, other, values, others)
          for values, others in (
              (one.queries.hashes, other.queries.hashes),
              (one.passages.hashes, other.passages.hashes),
              (one.pairs, other.pairs),
          )
      ]
      yield summary.Overlap(held.name, train.name, *shared)


def _shared(
    held_out: SplitReader, train: SplitReader, values: np.ndarray,
    others: np.ndarray,
) -> Occurrences:
  """Different values that both have, with the places of both."""
  rows = np.flatnonzero(counters.members(values, others))
  rows = np.sort(rows[np.unique(values[rows], return_index=True)[1]])
  places = []
  for row in rows[:SHOWN]:
    first = int(np.flatnonzero(others == values[row])[0])
    places.append(f'{held_out.places[int(row)]} and {train.places[first]}')
  return Occurrences(len(rows), places)
