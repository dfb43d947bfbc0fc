"""All splits of a task, and what they have in common."""

from collections.abc import Iterator, Sequence
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
  """A split that has been read: what is told, what is compared with others.

  `queries`, `passages` and `pairs` are hashes, int64 [n], `columns.NONE` where
  a row has none.
  """

  task: Dataset
  result: summary.Split
  places: columns.Places
  queries: np.ndarray
  passages: np.ndarray
  pairs: np.ndarray


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
  return _Read(
      task,
      reader.result(
          name,
          split,
          bad,
          errors[0] if errors else None,
          limited,
          task.corpus_split(split),
      ),
      reader.places,
      reader.queries.hashes,
      reader.passages.hashes,
      reader.pairs,
  )


def _until_error(
    examples: Iterator[dict], errors: list[str]
) -> Iterator[dict]:
  try:
    yield from examples
  except UserError as error:
    errors.append(str(error))


def _overlaps(read: Sequence[_Read]) -> Iterator[summary.Overlap]:
  for held_out in read:
    for train in read:
      if held_out.result.split in _HELD_OUT and train.result.split == _TRAIN:
        yield summary.Overlap(
            held_out.result.name,
            train.result.name,
            queries=_shared(held_out, held_out.queries, train, train.queries),
            passages=_shared(
                held_out, held_out.passages, train, train.passages
            ),
            pairs=_shared(held_out, held_out.pairs, train, train.pairs),
        )


def _shared(
    held_out: _Read, values: np.ndarray, train: _Read, others: np.ndarray
) -> Found:
  """Different values that are among the others, with the places of both."""
  rows = np.flatnonzero(columns.members(values, others))
  rows = rows[np.unique(values[rows], return_index=True)[1]]
  rows.sort()
  places = []
  for row in rows[: SHOWN]:
    first = int(np.flatnonzero(others == values[row])[0])
    places.append(
        columns.both(held_out.places[int(row)], train.places[first])
    )
  return Found(len(rows), places)


def _missing(read: Sequence[_Read]) -> Iterator[summary.Missing]:
  for pairs in read:
    for corpus in read:
      if (
          pairs.task != corpus.task
          or pairs.result.error
          or pairs.task.corpus_split(pairs.result.split)
          != corpus.result.split
          or corpus.result.error
          or corpus.result.limited
      ):
        continue
      relevant = np.where(pairs.pairs != columns.NONE, pairs.passages, 0)
      rows = np.flatnonzero(
          (relevant != columns.NONE)
          & ~columns.members(relevant, corpus.passages)
      )
      rows = rows[np.unique(relevant[rows], return_index=True)[1]]
      rows.sort()
      yield summary.Missing(
          pairs.result.name,
          corpus.result.name,
          columns.found(rows, pairs.places.__getitem__),
      )
