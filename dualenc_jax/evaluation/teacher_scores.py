"""A teacher's scores of a retrieval set, computed or from a file.

Files are TSV lines of query id, passage id and score, a logit, or TREC runs.
They are keyed by ids: order and gaps mean nothing.
"""

from collections.abc import Callable, Iterable
import json
import math
import os
import pathlib

import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index.encoding import Host
from dualenc_jax.inference.teacher import Teacher
from dualenc_jax.io import files, json_file
from dualenc_jax.io.progress import Progress

SCORES, HEADER = 'scores.tsv', 'scores.json'
# Pairs after which scores are written: of a killed run these are not lost.
BLOCK = 2**11
# Of a teacher's provenance, what its scores depend on but for rounding.
_OWN = (
    'run_id',
    'checkpoint_step',
    'template',
    'vocabulary',
    'query_length',
    'passage_length',
    'query_prefix',
    'passage_prefix',
    'dtype',
)
Score = Callable[[np.ndarray], np.ndarray]
Known = dict[tuple[str, str], float]


class OthersLeft(Exception):
  """Pairs are left to other hosts; the message says how many."""


def of(
    teacher: Teacher | pathlib.Path | None,
    retrieval_set: RetrievalSet,
    folder: pathlib.Path,
    host: Host = Host(),
) -> Score | None:
  """Scores by a cross-encoder or of a file; None for neither."""
  if isinstance(teacher, Teacher):
    return of_teacher(teacher, retrieval_set, folder, host)
  if teacher is None:
    return None
  others = {*folder.glob('scores*.tsv')} - {teacher}
  if others:
    raise UserError(
        f'{min(others)} has scores of a teacher, not those of {teacher}. Remove'
        ' it, or give another --output_dir.'
    )
  return of_file(teacher, retrieval_set)


def of_file(path: pathlib.Path, retrieval_set: RetrievalSet) -> Score:
  """Scores by the ids of a file.

  Raises:
    UserError: the file cannot be read, or, when asked for them, scores of pairs
      are not in it.
  """
  known = read(path)

  def score(pairs: np.ndarray) -> np.ndarray:
    names = _names(pairs, retrieval_set)
    missing = [name for name in names if name not in known]
    if missing:
      query, passage = missing[0]
      raise UserError(
          f'{path} has no score of {len(missing):,} of the {len(names):,} pairs'
          f' that are wanted, such as query {query!r} and passage {passage!r}.'
          ' Score them all, known positives too where there are labels, or'
          ' lower the depth.'
      )
    return np.array([known[name] for name in names], np.float32)

  return score


def of_teacher(
    teacher: Teacher,
    retrieval_set: RetrievalSet,
    folder: pathlib.Path,
    host: Host = Host(),
) -> Score:
  """Scores by a cross-encoder, kept in a folder as they are computed.

  What the folder has of the same teacher is not computed again. Of several
  hosts each has a file of its own and computes its share of the queries.

  Args:
    teacher: the cross-encoder.
    retrieval_set: whose queries and passages are scored.
    folder: made if there is none; of all hosts.
    host: which of how many.

  Raises:
    UserError: the folder has scores of another teacher or data set, or cannot
      be written.
    OthersLeft: pairs are left to other hosts.
  """
  path, header = folder / _name(host), folder / HEADER
  own = {name: teacher.provenance[name] for name in _OWN} | {
      'scores': 'logit',
      # Ids say nothing of whose they are.
      'queries': retrieval_set.cache.header['source'],
      'corpus': retrieval_set.corpus.cache.header['source'],
  }

  def score(pairs: np.ndarray) -> np.ndarray:
    files.make_folder(folder, 'another --output_dir')
    known = _kept(path, header, own)
    names = _names(pairs, retrieval_set)
    for odd in (name for pair in names for name in pair):
      if '\t' in odd or '\n' in odd:
        raise UserError(
            f'The id {odd!r} cannot stand in {path}, whose fields tabs part.'
            ' Rename it.'
        )
    wanted = np.array([name not in known for name in names], bool)
    others = wanted & (pairs[:, 0] % host.count != host.index)
    wanted &= ~others
    with (
        files.writing(path, 'another --output_dir'),
        open(path, 'a', encoding='utf-8') as out,
        Progress('Scoring', len(pairs), 'pairs') as progress,
    ):
      progress.reach(int(np.count_nonzero(~wanted)), len(pairs))
      for block, found in teacher.blocks(
          retrieval_set.query_texts,
          retrieval_set.corpus.texts,
          pairs[wanted],
          BLOCK,
      ):
        for name, value in zip(_names(block, retrieval_set), found.tolist()):
          known[name] = value
          out.write(f'{name[0]}\t{name[1]}\t{value!r}\n')
        progress(len(block))
        out.flush()
        os.fsync(out.fileno())
    if others.any():
      # They may have been done meanwhile.
      known |= _kept(path, header, own)
    if left := sum(name not in known for name in names):
      raise OthersLeft(
          f'{left:,} of {len(names):,} pairs are left to other hosts; the last'
          f' of them measures, from the files in {folder}.'
      )
    return np.array([known[name] for name in names], np.float32)

  return score


def _name(host: Host) -> str:
  if host.count == 1:
    return SCORES
  return f'scores-{host.index}-of-{host.count}.tsv'


def read(path: pathlib.Path) -> Known:
  """The scores of a file.

  Raises:
    UserError: it cannot be read; a line is none of the two forms, or has a
      score that is not finite; or a pair has two.
  """
  try:
    with open(path, encoding='utf-8') as lines:
      is_run = len(next(lines, '').split()) == 6
      if is_run:
        run = trec.read_run(path)
        return {(q, p): s for q, hits in run.items() for p, s in hits.items()}
      lines.seek(0)
      known = _parsed(lines, path)
  except OSError as e:
    raise UserError(f'{path}: cannot read the scores: {e.strerror}.') from e
  except UnicodeDecodeError as e:
    raise UserError(
        f'{path}: not a text file in UTF-8: {e.reason}. Expected the folder of'
        ' a cross-encoder, or lines of query id, passage id and score.'
    ) from e
  if not known:
    raise UserError(f'{path} has no scores.')
  return known


def _parsed(lines: Iterable[str], path: pathlib.Path) -> Known:
  """The scores of TSV lines."""
  known: Known = {}
  for number, line in enumerate(lines, start=1):
    if number == 1 and line.rstrip().lower().endswith('\tscore'):
      continue  # Names of the columns.
    name, value = _parse(line, f'{path}:{number}')
    if name in known:
      raise UserError(
          f'{path}:{number}: query {name[0]!r} and passage {name[1]!r} have a'
          ' score before. Expected one of each pair.'
      )
    known[name] = value
  return known


def _parse(line: str, where: str) -> tuple[tuple[str, str], float]:
  fields = line.rstrip('\r\n').split('\t')
  try:
    query, passage, text = fields
    value = float(text)
  except ValueError:
    raise UserError(
        f'{where}: {line.strip()[:80]!r}; expected query id, passage id and a'
        ' score with tabs between, or the six fields of a TREC run.'
    ) from None
  if not math.isfinite(value):
    raise UserError(f'{where}: the score is {text}; expected a finite number.')
  return (query, passage), value


def _kept(
    path: pathlib.Path, header: pathlib.Path, own: dict[str, object]
) -> Known:
  """What was computed before, of all hosts.

  In the file of this host a line that a kill has cut is cut off.
  """
  text = json.dumps(own, indent=2, sort_keys=True) + '\n'
  files_there = sorted(path.parent.glob('scores*.tsv'))
  if not files_there:
    files.write(header, text)
  elif not header.exists() or header.read_text() != text:
    other = json_file.read(header, 'Remove it.') if header.exists() else {}
    named = sorted(k for k in own if other.get(k) != json.loads(text)[k])
    raise UserError(
        f'{files_there[0]} has scores of another teacher or data set, by'
        f' {", ".join(named)} in {header}. Remove both, or give another'
        ' --output_dir.'
    )
  known: Known = {}
  for file in files_there:
    content = file.read_bytes()
    whole = content[: content.rfind(b'\n') + 1]
    if len(whole) < len(content) and file == path:
      with files.writing(path, 'another --output_dir'):
        os.truncate(path, len(whole))
    # Another host may be writing its last line.
    known |= _parsed(
        whole.decode(errors='replace').removesuffix('\n').split('\n'), file
    )
  return known


def _names(
    pairs: np.ndarray, retrieval_set: RetrievalSet
) -> list[tuple[str, str]]:
  queries, passages = retrieval_set.query_ids, retrieval_set.corpus.ids
  return [(queries[q], str(passages[p])) for q, p in pairs.tolist()]
