"""TREC run files: one hit a line, `qid Q0 docid rank score tag`.

Fields are separated by white space, so an id that is empty or holds white
space cannot be written: it is an error, never escaped, because other tools
would not undo the escape.
"""

from collections.abc import Sequence
import contextlib
import math
import os
import pathlib

from dualenc_jax.errors import UserError
from dualenc_jax.retrieval.ranking import Ranking


def write_run(
    path: str | os.PathLike[str],
    ranking: Ranking,
    query_ids: Sequence[str],
    passage_ids: Sequence[str],
    tag: str = 'dualenc',
) -> None:
  """Writes the hits [Q, k] of Q queries, best first, ranks from 1.

  Scores keep the nine digits that a float32 needs to come back bit for bit,
  so trec_eval orders the file as `ranking` is. The file appears whole or not
  at all.

  Raises:
    UserError: an id or a tag that is empty or holds white space, a repeated
      query id, sizes that disagree, or a path that cannot be written.
  """
  path = pathlib.Path(path)
  if len(ranking.indices) != len(query_ids):
    raise UserError(
        f'{path}: the ranking has {len(ranking.indices)} rows for '
        f'{len(query_ids)} query ids: expected one each.'
    )
  _check_field('tag', tag, path)
  seen = set()
  for query_id in query_ids:
    _check_field('query id', query_id, path)
    if query_id in seen:
      raise UserError(f'{path}: query id {query_id!r} is repeated.')
    seen.add(query_id)
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  try:
    with open(partial, 'w', encoding='utf-8') as f:
      for query_id, scores, indices in zip(
          query_ids, ranking.scores.tolist(), ranking.indices.tolist()
      ):
        for rank, (score, index) in enumerate(zip(scores, indices), start=1):
          passage_id = passage_ids[index]
          _check_field('passage id', passage_id, path)
          f.write(f'{query_id} Q0 {passage_id} {rank} {score:.9g} {tag}\n')
    os.replace(partial, path)
  except OSError as e:
    raise UserError(f'{path}: cannot write the run: {e.strerror}.') from e
  finally:
    with contextlib.suppress(OSError):
      partial.unlink()


def read_run(path: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
  """Reads a run: query id -> passage id -> score, in the order of the file.

  As in trec_eval the score alone orders the hits; the rank is not read.

  Raises:
    UserError: names file and line; not six fields, a score that is not a
      finite number, or a hit that is repeated.
  """
  path = pathlib.Path(path)
  run: dict[str, dict[str, float]] = {}
  try:
    with open(path, encoding='utf-8') as f:
      for number, line in enumerate(f, start=1):
        query_id, passage_id, score = _parse(line, f'{path}:{number}')
        hits = run.setdefault(query_id, {})
        if passage_id in hits:
          raise UserError(
              f'{path}:{number}: passage {passage_id!r} is repeated for query '
              f'{query_id!r}: expected each hit once.'
          )
        hits[passage_id] = score
  except OSError as e:
    raise UserError(f'{path}: cannot read the run: {e.strerror}.') from e
  except UnicodeDecodeError as e:
    raise UserError(f'{path}: not a text file in UTF-8: {e.reason}.') from e
  return run


def _parse(line: str, where: str) -> tuple[str, str, float]:
  fields = line.split()
  if len(fields) != 6:
    raise UserError(
        f'{where}: {len(fields)} fields: expected the six of a TREC run, '
        "'qid Q0 docid rank score tag'."
    )
  try:
    score = float(fields[4])
  except ValueError:
    score = math.nan
  if not math.isfinite(score):
    raise UserError(
        f'{where}: score {fields[4]!r} in the fifth field: expected a finite '
        'number.'
    )
  return fields[0], fields[2], score


def _check_field(name: str, value: str, path: pathlib.Path) -> None:
  if value.split() != [value]:
    raise UserError(
        f'{path}: {name} {value!r} cannot stand in a TREC run file: expected '
        'at least one character and no white space. Rename it.'
    )
