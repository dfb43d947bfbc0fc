"""All splits of a task, and what they have in common."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import itertools

import numpy as np

from dualenc_jax.data.dataset import Dataset, rows as rows_of
from dualenc_jax.data.mixture import Mixture
from dualenc_jax.errors import UserError
from dualenc_jax.inspection import columns, summary
from dualenc_jax.inspection.split import SplitReader
from dualenc_jax.io.progress import Progress
from dualenc_jax.readers.rows import collecting, Found, SHOWN
from dualenc_jax.text.tokenizer import Tokenizer

_TRAIN = 'train'
_HELD_OUT = ('validation', 'test')


def inspect_task(
    task: Dataset | Mixture,
    tokenizer: Tokenizer,
    splits: Sequence[str] = (),
    limit: int | None = None,
) -> summary.Inspection:
  """Reads the splits of a task, or of each task of a mixture, once.

  Args:
    task: what to look at.
    tokenizer: its vocabulary tells lengths, its lengths what is truncated.
    splits: those to read; none for all that there are.
    limit: most rows of a split to read.

  Raises:
    UserError: there is nothing to read at all.
  """
  parts, read = _parts(task), []
  for name, part in parts.items():
    # Without a split at all, the reader itself says best what is missing.
    for split in splits or part.splits() or (_TRAIN,):
      full_name = split if len(parts) == 1 else f'{name}/{split}'
      read.append(_read(part, split, full_name, tokenizer, limit))
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


def _parts(task: Dataset | Mixture) -> dict[str, Dataset]:
  """The tasks to read, by names of their own."""
  tasks = [part for part, _ in task.parts()]
  if isinstance(task, Mixture) and task.validation not in (None, *tasks):
    tasks.append(task.validation)
  parts = {}
  for part in tasks:
    name, number = part.task_name, 1
    while name in parts:
      number += 1
      name = f'{part.task_name} {number}'
    parts[name] = part
  return parts


@dataclasses.dataclass(frozen=True)
class _Read:
  """A split that has been read: what is told, what is compared with others."""

  task: Dataset
  result: summary.Split
  reader: SplitReader


def _read(
    task: Dataset,
    split: str,
    name: str,
    tokenizer: Tokenizer,
    limit: int | None,
) -> _Read:
  reader, errors = SplitReader(tokenizer), []
  examples = _until_error(rows_of(task, split), errors)
  with collecting() as bad, Progress(name, None, 'rows') as progress:
    for rows in reader.read(itertools.islice(examples, limit)):
      progress(rows)
    limited = limit is not None and next(examples, None) is not None
  error = errors[0] if errors else None
  corpus = task.corpus_split(split)
  result = reader.result(name, split, bad, error, limited, corpus)
  return _Read(task, result, reader)


def _until_error(
    examples: Iterator[dict], errors: list[str]
) -> Iterator[dict]:
  try:
    yield from examples
  except UserError as error:
    errors.append(str(error))


def _overlaps(read: Sequence[_Read]) -> Iterator[summary.Overlap]:
  for held_out, train in itertools.product(read, read):
    if held_out.result.split in _HELD_OUT and train.result.split == _TRAIN:
      yield summary.Overlap(
          held_out.result.name,
          train.result.name,
          *(
              _shared(held_out.reader, train.reader, hashes)
              for hashes in (
                  lambda reader: reader.queries.hashes,
                  lambda reader: reader.passages.hashes,
                  lambda reader: reader.pairs,
              )
          ),
      )


def _shared(
    held_out: SplitReader,
    train: SplitReader,
    hashes: Callable[[SplitReader], np.ndarray],
) -> Found:
  """Different ones that both have, with the places of both."""
  values, others = hashes(held_out), hashes(train)
  rows = _once(values, columns.members(values, others))
  places = []
  for row in rows[: SHOWN]:
    first = int(np.flatnonzero(others == values[row])[0])
    places.append(columns.both(held_out.places[int(row)], train.places[first]))
  return Found(len(rows), places)


def _once(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
  """The first of the chosen rows with each value, in ascending order."""
  rows = np.flatnonzero(chosen)
  return np.sort(rows[np.unique(values[rows], return_index=True)[1]])


def _missing(read: Sequence[_Read]) -> Iterator[summary.Missing]:
  for pairs, corpus in itertools.product(read, read):
    if (
        pairs.task != corpus.task
        or pairs.result.corpus != corpus.result.split
        or pairs.result.error
        or corpus.result.error
        or corpus.result.limited
    ):
      continue
    reader = pairs.reader
    relevant = np.where(reader.relevant, reader.passages.hashes, columns.NONE)
    there = columns.members(relevant, corpus.reader.passages.hashes)
    rows = _once(relevant, (relevant != columns.NONE) & ~there)
    yield summary.Missing(
        pairs.result.name,
        corpus.result.name,
        columns.found(rows, reader.places.__getitem__),
    )
