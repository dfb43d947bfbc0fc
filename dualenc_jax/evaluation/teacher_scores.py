"""A teacher's scores of pairs of a retrieval set, computed or from a file.

Files are TSV lines of query id, passage id and score, a logit, or TREC runs.
Scores are found by ids: order and gaps of a file mean nothing.
"""

import array
from collections.abc import Callable, Iterable, Iterator
import itertools
import json
import math
import os
import pathlib

import numpy as np

from dualenc_jax.data.readers import qrels, rows
from dualenc_jax.data.readers.files import lines as text_lines
from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.encoding.teacher import PairScorer
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress

_FILE = 'scores.tsv'
# Pairs that are scored and written at a time.
BLOCK = 2**11
# Provenance fields that affect scores.
_PROVENANCE = (
    'run_id', 'checkpoint_step', 'template', 'vocabulary', 'query_length',
    'passage_length', 'query_prefix', 'passage_prefix', 'dtype', 'library',
    'states',
)
# Computes float32 [n], the scores of pairs int64 [n, 2], numbers of a query and
# a passage.
Score = Callable[[np.ndarray], np.ndarray]
# Ids of a query and a passage, and their score.
Entry = tuple[str, str, float]


def open_scores(
    teacher: PairScorer | pathlib.Path | None,
    retrieval_set: RetrievalSet,
    folder: pathlib.Path,
) -> Score | None:
  """Returns the scores of a cross-encoder or of a file; None for neither.

  Scores of a cross-encoder are kept in a folder, block by block, and are not
  computed again.

  Raises:
    UserError: the folder has scores of another teacher or data set, or cannot
      be written; the file cannot be read or, later, lacks a score.
  """
  if teacher is None:
    return None
  if isinstance(teacher, PairScorer):
    return _scores_of_teacher(teacher, retrieval_set, folder)
  if (kept := folder / _FILE) != teacher and kept.exists():
    raise UserError(
        f'{kept} has the scores of another teacher than {teacher}. Remove it,'
        ' or give another --output_dir.'
    )
  return _scores_of_file(teacher, retrieval_set)


def _scores_of_file(path: pathlib.Path, retrieval_set: RetrievalSet) -> Score:
  table = _ScoreTable(retrieval_set)
  table.add(read_scores(path), path)

  def score(pairs: np.ndarray) -> np.ndarray:
    scores = table.find(pairs)
    missing = np.flatnonzero(np.isnan(scores))
    if len(missing):
      query, passage = table.names(pairs[missing[0]])
      raise UserError(
          f'{path} has no score of {len(missing):,} of the {len(pairs):,}'
          f' pairs, such as query {query!r} and passage {passage!r}. Score all'
          ' pairs, with known positives if there are labels, or lower the'
          ' depth.'
      )
    return scores

  return score


def _scores_of_teacher(
    teacher: PairScorer, retrieval_set: RetrievalSet, folder: pathlib.Path
) -> Score:
  path, header = folder / _FILE, folder / 'scores.json'
  own = teacher.provenance
  facts = {name: own[name] for name in _PROVENANCE if name in own} | {
      'scores': 'logit',
      # Ids alone do not tell data sets apart.
      'queries': retrieval_set.cache.header['source'],
      'corpus': retrieval_set.corpus.cache.header['source'],
  }
  table = _ScoreTable(retrieval_set)

  def score(pairs: np.ndarray) -> np.ndarray:
    files.make_folder(folder, 'another --output_dir')
    table.add(_kept_scores(path, header, facts), path)
    scores = table.find(pairs)
    places = np.flatnonzero(np.isnan(scores))
    with (
        files.writing(path, 'another --output_dir'),
        open(path, 'a', encoding='utf-8') as out,
        Progress(
            'Scoring', len(pairs), 'pairs', done=len(pairs) - len(places)
        ) as progress,
    ):
      done = 0
      for block, values in teacher.blocks(
          retrieval_set.query_texts, retrieval_set.corpus.texts, pairs[places],
          BLOCK,
      ):
        if not np.isfinite(values).all():
          query, passage = table.names(block[np.isfinite(values).argmin()])
          raise UserError(
              f'The teacher gives query {query!r} and passage {passage!r} a'
              ' score that is not finite. Check its checkpoint: T5 overflows in'
              ' float16.'
          )
        scores[places[done : done + len(block)]] = values
        done += len(block)
        for pair, value in zip(block, values.tolist()):
          ids = map(trec.field, table.names(pair))
          out.write('\t'.join([*ids, repr(value)]) + '\n')
        progress(len(block))
        out.flush()
        os.fsync(out.fileno())
    return scores

  return score


class _ScoreTable:
  """Scores of pairs of a retrieval set, by number: 12 bytes each."""

  def __init__(self, retrieval_set: RetrievalSet):
    self._set = retrieval_set
    self._keys = np.zeros(0, np.int64)
    self._values = np.zeros(0, np.float32)

  def add(self, entries: Iterable[Entry], path: pathlib.Path) -> None:
    """Adds scores of a file; UserError if it has two of a pair."""
    # Runs have white space in ids escaped.
    queries = {trec.field(n): i for i, n in enumerate(self._set.query_ids)}
    passages = {trec.field(n): i for i, n in enumerate(self._set.corpus.ids)}
    keys, values = array.array('q'), array.array('f')
    for query, passage, value in entries:
      row = queries.get(trec.field(query))
      column = passages.get(trec.field(passage))
      if row is not None and column is not None:
        keys.append(row * len(passages) + column)
        values.append(value)
    new, counts = np.unique(np.array(keys, np.int64), return_counts=True)
    if (counts > 1).any():
      pair = divmod(int(new[counts.argmax()]), len(passages))
      raise UserError(
          f'{path}: the pair {self.names(pair)} has two scores. Expected one.'
      )
    self._keys, first = np.unique(
        np.concatenate([keys, self._keys], dtype=np.int64), return_index=True
    )
    scores = np.concatenate([values, self._values], dtype=np.float32)
    self._values = scores[first]

  def find(self, pairs: np.ndarray) -> np.ndarray:
    """The scores of pairs [n, 2], NaN where missing: float32 [n]."""
    keys = pairs[:, 0] * len(self._set.corpus) + pairs[:, 1]
    places = np.searchsorted(self._keys, keys)
    known = places < len(self._keys)
    known[known] = self._keys[places[known]] == keys[known]
    out = np.full(len(keys), np.nan, np.float32)
    out[known] = self._values[places[known]]
    return out

  def names(self, pair: Iterable[int]) -> tuple[str, str]:
    """The ids of a pair of numbers."""
    query, passage = pair
    return self._set.query_ids[query], str(self._set.corpus.ids[passage])


def read_scores(path: pathlib.Path) -> Iterator[Entry]:
  """Yields the scores of any file; raises UserError."""
  lines = text_lines(path)
  number, first = next(lines, (0, b''))
  if not number:
    raise UserError(f'{path} has no scores.')
  if first.count(b'\t') != 2 and len(first.split()) == 6:
    for query, hits in trec.read_run(path).items():
      yield from ((query, passage, s) for passage, s in hits.items())
    return
  yield from _parse(itertools.chain([(number, first)], lines), path)


def _parse(
    lines: Iterable[tuple[int, bytes]], path: pathlib.Path
) -> Iterator[Entry]:
  """Yields the scores of TSV lines, whose columns a header may name."""
  width, *places = 3, 0, 1, 2
  for number, content in lines:
    where = f'{path}:{number}'
    try:
      line = rows.decode(content)
    except rows.BadRow as e:
      raise UserError(f'{where}: {e}') from None
    if number == 1 and (header := qrels.header(where, line)):
      width, *places = header
      continue
    fields = line.rstrip('\r\n').split('\t')
    if len(fields) != width:
      raise UserError(
          f'{where}: {line.strip()[:80]!r}; expected query id, passage id and'
          ' score separated by tabs, or the six fields of a TREC run.'
      )
    query, passage, text = (fields[place] for place in places)
    value = untrusted.parse_number(text)
    if not math.isfinite(value):
      raise UserError(
          f'{where}: the score is {text}; expected a finite number.'
      )
    yield query, passage, value


def _kept_scores(
    path: pathlib.Path, header: pathlib.Path, facts: dict[str, object]
) -> list[Entry]:
  """Reads the scores so far, and cuts a broken last line."""
  if not path.exists():
    files.write_json(header, facts)
    return []
  known = json_file.read(header, 'Remove it.') if header.exists() else {}
  now = json.loads(json.dumps(facts))
  if changed := sorted(name for name in now if known.get(name) != now[name]):
    raise UserError(
        f'{path} has scores of another teacher or data set, by'
        f' {", ".join(changed)} in {header}. Remove both, or give another'
        ' --output_dir.'
    )
  with files.writing(path, 'another --output_dir'):
    os.truncate(path, path.read_bytes().rfind(b'\n') + 1)
  return [*_parse(text_lines(path), path)]
