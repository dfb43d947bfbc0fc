"""The inspection of all splits of a task, and of texts that they share."""

from collections.abc import Iterator, Sequence
import itertools
from typing import NamedTuple

import numpy as np

from dualenc_jax.data.check import counters, summary
from dualenc_jax.data.check.split import SplitReader
from dualenc_jax.data.dataset import Dataset, Mixture, rows as rows_of
from dualenc_jax.data.readers.rows import collecting, Occurrences, SHOWN
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress


class _Read(NamedTuple):
  """A split that has been read."""

  task: Dataset
  result: summary.Split
  reader: SplitReader


def inspect_task(
    task: Dataset | Mixture, tokenizer: Tokenizer, splits: Sequence[str] = (),
    limit: int | None = None,
) -> summary.Inspection:
  """Reads the splits of a task, or of each task of a mixture, once.

  Args:
    task: the task.
    tokenizer: its lengths decide what counts as truncated.
    splits: those to read; none for all that exist.
    limit: most rows of a split to read.

  Raises:
    UserError: nothing can be read.
  """
  parts = _parts(task)
  read = [
      _read(part, split, name if len(parts) > 1 else '', tokenizer, limit)
      for name, part in parts.items()
      for split in splits or _all_splits(part)
  ]
  if not any(r.result.rows or r.result.refused for r in read):
    for error in (r.result.error for r in read if r.result.error):
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
      limit=limit,
      splits=[r.result for r in read],
      overlaps=list(_overlaps(read)),
      missing=list(_missing(read)),
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
    task: Dataset, split: str, prefix: str, tokenizer: Tokenizer,
    limit: int | None,
) -> _Read:
  reader = SplitReader(tokenizer, task.REPEATS and split != 'corpus')
  errors: list[str] = []

  def until_error() -> Iterator[dict]:
    try:
      yield from rows_of(task, split)
    except UserError as error:
      errors.append(str(error))

  examples = until_error()
  name = f'{prefix}/{split}' if prefix else split
  with collecting() as bad, Progress(name, None, 'rows') as progress:
    for rows in reader.read(itertools.islice(examples, limit)):
      progress(rows)
    limited = limit is not None and next(examples, None) is not None
  result = reader.result(
      bad, name=name, split=split, error=errors[0] if errors else None,
      limited=limited, corpus=task.corpus_split(split),
  )
  return _Read(task, result, reader)


def _overlaps(read: Sequence[_Read]) -> Iterator[summary.Overlap]:
  for (task, held, one), (_, train, other) in itertools.product(read, read):
    # Queries that are made of documents nobody can take out.
    if task.REPEATS:
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
  rows = _once(values, counters.members(values, others))
  places = []
  for row in rows[:SHOWN]:
    first = int(np.flatnonzero(others == values[row])[0])
    place = held_out.places[int(row)]
    places.append(counters.join_places(place, train.places[first]))
  return Occurrences(len(rows), places)


def _once(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
  """The first of the chosen rows with each value, in ascending order."""
  rows = np.flatnonzero(chosen)
  return np.sort(rows[np.unique(values[rows], return_index=True)[1]])


def _missing(read: Sequence[_Read]) -> Iterator[summary.Missing]:
  for (task, pairs, reader), (other, corpus, of_corpus) in itertools.product(
      read, read
  ):
    if task != other or pairs.corpus != corpus.split:
      continue
    if pairs.error or corpus.error or corpus.limited:
      continue
    relevant = np.where(reader.relevant, reader.passages.hashes, counters.NONE)
    there = counters.members(relevant, of_corpus.passages.hashes)
    rows = _once(relevant, (relevant != counters.NONE) & ~there)
    places = counters.locate(rows, None, reader.places.__getitem__)
    yield summary.Missing(pairs.name, corpus.name, places)
