"""TREC run files, a hit a line, `qid Q0 docid rank score tag`, and qrels.

White space in the sense of C's `isspace`, as in trec_eval, separates fields.
Within an id it is percent-encoded, 'a b' as a%20b; see `field`. Readers compare
ids in that form.
"""

from collections.abc import Iterable, Mapping, Sequence
import math
import os
import pathlib
import re
import urllib.parse

import numpy as np

from dualenc_jax.data.readers import qrels as qrels_reader, rows
from dualenc_jax.data.readers.files import lines
from dualenc_jax.data.readers.rows import BadRow
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils import files, untrusted
from dualenc_jax.utils.errors import UserError

Run = Mapping[str, Mapping[str, float]]
_EXPECTED = (
    "Expected the six fields of a TREC run, 'qid Q0 docid rank score tag'."
)
_SPACE = re.compile(r'[ \t-\r]')
# Ids that are read and checked at a time.
_CHUNK = 1 << 16


def write_run(
    path: str | os.PathLike[str], ranking: Ranking, query_ids: Sequence[str],
    passage_ids: Sequence[str], tag: str = 'dualenc',
) -> None:
  """Writes the hits [Q, k] of Q queries, best first, ranks from 1.

  Scores have the nine digits of a float32, so that trec_eval orders the file as
  `ranking` is. The file appears whole or not at all. Ids must pass `check_ids`;
  each hit's is read once. The tag, the run's name, has no white space.
  """
  path = pathlib.Path(path)
  query_ids = list(map(field, query_ids))
  ids, place_of_row = _ids_of_hits(ranking.indices, passage_ids)
  depth = ranking.indices.shape[1]
  # One formatting operation a query is several times as fast as one a line.
  end = f'%.9g {tag.replace("%", "%%")}\n'
  lines = [f'%s Q0 %s {rank} {end}' for rank in range(1, depth + 1)]
  whole = ''.join(lines)
  with files.writing(path), files.replacing(path) as f:
    for query_id, scores, rows in zip(
        query_ids, ranking.scores, ranking.indices
    ):
      count = np.count_nonzero(rows >= 0)
      fields = [query_id] * (3 * count)
      fields[1::3] = ids[place_of_row[rows[:count]]].tolist()
      fields[2::3] = scores[:count].tolist()
      form = whole if count == depth else ''.join(lines[:count])
      f.write((form % tuple(fields)).encode())


def read_run(path: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
  """Reads a run: query id -> passage id -> score, in the order of the file.

  As in trec_eval the score alone orders the hits; the rank is not read. The
  file may be .gz; blank lines and a byte order mark are skipped.

  Raises:
    UserError: a line that is no hit, or no hits; names file and line.
  """
  path = pathlib.Path(path)
  run: dict[str, dict[str, float]] = {}
  for number, line in lines(path):
    try:
      query_id, passage_id, score = _parse(line)
      hits = run.setdefault(query_id, {})
      if passage_id in hits:
        raise BadRow(
            f'passage {passage_id!r} is repeated for query {query_id!r}: '
            'expected each hit once.'
        )
    except BadRow as reason:
      if not run and _are_qrels(path):
        raise UserError(
            f'{path} holds judgements, which --qrels of `dualenc compare` and'
            f' --truth of label take. {_EXPECTED}'
        ) from None
      raise UserError(f'{path}:{number}: {reason}') from None
    hits[passage_id] = score
  if not run:
    raise UserError(f'{path} is empty. Expected the hits of a TREC run.')
  return run


def numbers(
    run: Run, query_ids: Sequence[str], passage_ids: Sequence[str],
    path: pathlib.Path,
) -> tuple[dict[str, int], dict[str, int]]:
  """Numbers of ids by their fields in a run; UserError for unknown ids."""

  def numbered(
      what: str, ids: Sequence[str], used: Iterable[str]
  ) -> dict[str, int]:
    known = {field(str(name)): i for i, name in enumerate(ids)}
    unknown = sorted(name for name in used if name not in known)
    if unknown:
      raise UserError(
          f'{path}: the task has no {what} {unknown[0]!r}'
          + (f', nor {len(unknown) - 1:,} more' if len(unknown) > 1 else '')
          + '. Is the run of another data set or split?'
      )
    return known

  hits = {hit for hits in run.values() for hit in hits}
  return (
      numbered('query', query_ids, run), numbered('passage', passage_ids, hits)
  )


def read_qrels(path: str | os.PathLike[str]) -> dict[str, dict[str, int]]:
  """Reads qrels: query id -> passage id -> grade, in the order of the file.

  Formats are those of `data.readers.qrels.read`: BEIR's and TREC's.
  Errors name file and line.
  """
  qrels: dict[str, dict[str, int]] = {}
  read = qrels_reader.read(pathlib.Path(path))
  for query_id, passage_id, grade, _ in read.judgements:
    qrels.setdefault(query_id, {})[passage_id] = grade
  return qrels


def _are_qrels(path: pathlib.Path) -> bool:
  try:
    return bool(qrels_reader.read(path))
  except UserError:
    return False


def _parse(line: bytes) -> tuple[str, str, float]:
  """Query id, passage id and score; raises BadRow."""
  fields = line.split()
  if fields[0] == b'#' or line.startswith(b'#') and len(fields) != 6:
    raise BadRow('a comment: expected hits alone.')
  if len(fields) != 6:
    raise BadRow(f'{len(fields)} fields. {_EXPECTED}')
  query_id, passage_id, text = map(rows.decode, fields[:5:2])
  score = untrusted.parse_number(text)
  if not math.isfinite(score):
    raise BadRow(
        f'score {text!r} in the fifth field: expected a finite number.'
    )
  return query_id, passage_id, score


def _ids_of_hits(
    indices: np.ndarray, passage_ids: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
  """The ids of all hits, as compact strings, and a row's place among them."""
  is_hit = np.zeros(indices.max(initial=-1) + 1, bool)
  is_hit[indices[indices >= 0]] = True
  rows = np.flatnonzero(is_hit)
  ids = np.empty(len(rows), np.dtypes.StringDType())
  for start in range(0, len(rows), _CHUNK):
    chunk = rows[start : start + _CHUNK].tolist()
    ids[start : start + _CHUNK] = [field(passage_ids[row]) for row in chunk]
  return ids, np.cumsum(is_hit, dtype=np.int32) - 1


def field(name: str) -> str:
  """An id as in a run file: UTF-8, white space percent-encoded."""
  return _SPACE.sub(lambda found: urllib.parse.quote(found[0]), name)


def check_ids(name: str, ids: Sequence[str]) -> None:
  """Raises UserError if one of the ids cannot be in a run file."""
  escaped, percent = {}, set()
  for each in map(str, ids):
    written = field(each)
    if not each:
      raise UserError(
          f"{name} '' is empty, which a TREC run file cannot hold. Rename it."
      )
    if each is not written:
      escaped[written] = each
    elif '%' in each:
      percent.add(each)
  for same in escaped.keys() & percent:
    raise UserError(
        f'{name} {escaped[same]!r} and {name} {same!r} are the same in a TREC'
        ' run file, where white space is percent-encoded. Rename one.'
    )
