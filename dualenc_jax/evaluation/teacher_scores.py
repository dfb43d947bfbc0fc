"""A teacher's scores of pairs of a retrieval set, computed or from a file.

Files are TSV lines of query id, passage id and score, a logit, or TREC runs.
Scores are found by ids: order and gaps of a file mean nothing.
"""

import array
from collections.abc import Callable, Iterable, Iterator, Sequence
import io
import json
import math
import os
import pathlib

import numpy as np

from dualenc_jax.data.readers import qrels
from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.encoding.teacher import Teacher
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.progress import Progress

# Pairs after which scores are written: of a killed run these are not lost.
BLOCK = 2**11
# Of a teacher's provenance, what its scores depend on but for rounding.
_OWN = (
    'run_id', 'checkpoint_step', 'template', 'vocabulary', 'query_length',
    'passage_length', 'query_prefix', 'passage_prefix', 'dtype',
)
Score = Callable[[np.ndarray], np.ndarray]
# Of a query and a passage by their ids, with the line that it stands in.
Entry = tuple[str, str, float, int]


class OthersLeft(Exception):
  """Other hosts have pairs left to score; the message says how many."""


def of(
    teacher: Teacher | pathlib.Path | None,
    retrieval_set: RetrievalSet,
    folder: pathlib.Path,
    host: Host = Host(),
) -> Score | None:
  """Scores of a cross-encoder or of a file; None for neither."""
  if isinstance(teacher, Teacher):
    return of_teacher(teacher, retrieval_set, folder, host)
  if teacher is None:
    return None
  others = {*folder.glob('scores*.tsv')} - {teacher}
  if others:
    raise UserError(
        f'{min(others)} has the scores of another teacher than {teacher}.'
        ' Remove it, or give another --output_dir.'
    )
  return of_file(teacher, retrieval_set)


def of_file(path: pathlib.Path, retrieval_set: RetrievalSet) -> Score:
  """Scores of a file, by ids.

  Raises:
    UserError: the file cannot be read, or, later, lacks scores of pairs asked
      for.
  """
  known = _Known(retrieval_set)
  known.add(_entries(path), path, once=True)

  def score(pairs: np.ndarray) -> np.ndarray:
    found = known.of(pairs)
    missing = np.flatnonzero(np.isnan(found))
    if len(missing):
      query, passage = _name(pairs[missing[0]], retrieval_set)
      raise UserError(
          f'{path} has no score of {len(missing):,} of the {len(pairs):,}'
          f' pairs, such as query {query!r} and passage {passage!r}. Score all'
          ' of them, with known positives if there are labels, or lower the'
          ' depth.'
      )
    return found

  return score


def of_teacher(
    teacher: Teacher,
    retrieval_set: RetrievalSet,
    folder: pathlib.Path,
    host: Host = Host(),
) -> Score:
  """Scores of a cross-encoder, kept in a folder as they are computed.

  Scores of the same teacher in the folder are not computed again, but for a
  block that a kill has cut: rounding depends on the block, and the result must
  be the same. Each of several hosts computes its share of the queries into a
  file of its own there.

  Raises:
    UserError: the folder has scores of another teacher or data set, or cannot
      be written.
    OthersLeft: other hosts have pairs left to score.
  """
  part = f'-{host.index}-of-{host.count}' if host.count > 1 else ''
  path, header = folder / f'scores{part}.tsv', folder / 'scores.json'
  own = {name: teacher.provenance[name] for name in _OWN} | {
      'scores': 'logit',
      # Ids say nothing of whose they are.
      'queries': retrieval_set.cache.header['source'],
      'corpus': retrieval_set.corpus.cache.header['source'],
  }
  known = _Known(retrieval_set)
  queries, passages = retrieval_set.query_ids, retrieval_set.corpus.ids
  asked = np.zeros(0, np.int64)

  def read_kept() -> None:
    for file in _kept(path, header, own):
      known.add(_whole_lines(file), file)

  def score(pairs: np.ndarray) -> np.ndarray:
    nonlocal asked
    files.make_folder(folder, 'another --output_dir')
    read_kept()
    found = known.of(pairs)
    missing = np.isnan(found)
    own_share = pairs[:, 0] % host.count == host.index
    others, wanted = missing & ~own_share, missing & own_share
    # Those that this process has not asked for are what blocks are made of.
    keys = known.keys(pairs)
    new = np.flatnonzero(own_share & ~np.isin(keys, asked))
    asked = np.union1d(asked, keys)
    wanted[new[_cut_block(wanted[new])]] = True
    places = np.flatnonzero(wanted)
    for ids, column in ((queries, 0), (passages, 1)):
      for row in np.unique(pairs[wanted, column]).tolist():
        if '\t' in ids[row] or '\n' in ids[row]:
          raise UserError(
              f'{path}, whose fields are separated by tabs, cannot hold the id'
              f' {ids[row]!r}. Rename it.'
          )
    with (
        files.writing(path, 'another --output_dir'),
        open(path, 'a', encoding='utf-8') as out,
        Progress('Scoring', len(pairs), 'pairs') as progress,
    ):
      progress.reach(int(np.count_nonzero(~wanted)), len(pairs))
      done = 0
      for block, scores in teacher.blocks(
          retrieval_set.query_texts, retrieval_set.corpus.texts, pairs[wanted],
          BLOCK,
      ):
        if not np.isfinite(scores).all():
          odd = _name(block[np.isfinite(scores).argmin()], retrieval_set)
          raise UserError(
              f'The teacher gives query {odd[0]!r} and passage {odd[1]!r} a'
              ' score that is not finite. Check its checkpoint: T5 overflows in'
              ' float16.'
          )
        some = places[done : done + len(block)]
        found[some] = scores
        done += len(block)
        for (query, passage), value, is_new in zip(
            block.tolist(), scores.tolist(), missing[some].tolist()
        ):
          if is_new:
            out.write(f'{queries[query]}\t{passages[passage]}\t{value!r}\n')
        progress(len(block))
        out.flush()
        os.fsync(out.fileno())
    if others.any():
      # They may have been done meanwhile.
      read_kept()
      found[others] = known.of(pairs[others])
    if left := np.count_nonzero(np.isnan(found)):
      raise OthersLeft(
          f'{left:,} of {len(found):,} pairs are left to other hosts; the last'
          f' of them measures, from the files in {folder}.'
      )
    return found

  return score


class _Known:
  """Scores of pairs of a retrieval set, by number: 12 bytes each."""

  def __init__(self, retrieval_set: RetrievalSet):
    self._set = retrieval_set
    self._keys = np.zeros(0, np.int64)
    self._values = np.zeros(0, np.float32)

  def add(
      self, entries: Iterable[Entry], path: pathlib.Path, once: bool = False
  ) -> None:
    """Takes the scores of a file, in place of earlier ones.

    With `once` a pair that has two of them is an error.
    """
    # As runs have them, in which white space is escaped.
    queries = {trec.field(n): i for i, n in enumerate(self._set.query_ids)}
    passages = {trec.field(n): i for i, n in enumerate(self._set.corpus.ids)}
    keys, values, lines = array.array('q'), array.array('f'), array.array('q')
    for query, passage, value, line in entries:
      row = queries.get(trec.field(query))
      column = passages.get(trec.field(passage))
      if row is not None and column is not None:
        keys.append(row * len(passages) + column)
        values.append(value)
        lines.append(line)
    every = np.concatenate([keys, self._keys], dtype=np.int64)
    scores = np.concatenate([values, self._values], dtype=np.float32)
    unique, first = np.unique(every, return_index=True)
    if once and len(unique) < len(every):
      again = np.setdiff1d(np.arange(len(every)), first)[0]
      row, column = divmod(int(every[again]), len(passages))
      query, passage = _name((row, column), self._set)
      raise UserError(
          f'{path}:{lines[again]}: query {query!r} and passage {passage!r}'
          ' already have a score. Expected one per pair.'
      )
    self._keys, self._values = unique, scores[first]

  def keys(self, pairs: np.ndarray) -> np.ndarray:
    """A number of each of the pairs [n, 2]: int64 [n]."""
    return pairs[:, 0] * len(self._set.corpus) + pairs[:, 1]

  def of(self, pairs: np.ndarray) -> np.ndarray:
    """The scores of pairs [n, 2], NaN for none: float32 [n]."""
    keys = self.keys(pairs)
    places = np.searchsorted(self._keys, keys)
    there = places < len(self._keys)
    there[there] = self._keys[places[there]] == keys[there]
    out = np.full(len(keys), np.nan, np.float32)
    out[there] = self._values[places[there]]
    return out


def _cut_block(wanted: np.ndarray) -> slice:
  """The known start, left by a kill, of a block whose rest is wanted [n]."""
  if not wanted.any():
    return slice(0)
  first = int(wanted.argmax())
  return slice(first // BLOCK * BLOCK if wanted[first:].all() else first, first)


def _entries(path: pathlib.Path) -> Iterator[Entry]:
  """Yields the scores of a file, or raises UserError."""
  entry = None
  try:
    file = untrusted.open_file(path, 'Give a file of scores.')
    with io.TextIOWrapper(file, 'utf-8') as lines:
      first = next(lines, '')
      if first.count('\t') != 2 and len(first.encode().split()) == 6:
        for query, hits in trec.read_run(path).items():
          yield from ((query, passage, s, 0) for passage, s in hits.items())
        return
      lines.seek(0)
      for entry in _parsed(lines, path):
        yield entry
  except OSError as e:
    raise UserError(f'{path}: cannot read the scores: {e.strerror}.') from e
  except UnicodeDecodeError as e:
    raise UserError(
        f'{path}: not a text file in UTF-8: {e.reason}. Expected the folder of'
        ' a cross-encoder, or lines of query id, passage id and score.'
    ) from e
  if entry is None:
    raise UserError(f'{path} has no scores.')


def _parsed(lines: Iterable[str], path: pathlib.Path) -> Iterator[Entry]:
  """Yields the scores of TSV lines; a header says which columns they are in."""
  columns: tuple[int, ...] = 3, 0, 1, 2
  for number, line in enumerate(lines, start=1):
    where = f'{path}:{number}'
    if number == 1 and (header := qrels.header(where, line)):
      columns = header
    else:
      yield *_parse(line, where, *columns), number


def _parse(
    line: str, where: str, width: int, *places: int
) -> tuple[str, str, float]:
  fields = line.rstrip('\r\n').split('\t')
  if len(fields) != width:
    raise UserError(
        f'{where}: {line.strip()[:80]!r}; expected query id, passage id and'
        ' score separated by tabs, or the six fields of a TREC run.'
    )
  query, passage, text = (fields[place] for place in places)
  value = untrusted.number(text)
  if not math.isfinite(value):
    raise UserError(f'{where}: the score is {text}; expected a finite number.')
  return query, passage, value


def _kept(
    path: pathlib.Path, header: pathlib.Path, own: dict[str, object]
) -> list[pathlib.Path]:
  """The files of the same teacher, of all hosts; a cut line is cut off."""
  text = json.dumps(own, indent=2, sort_keys=True) + '\n'
  found = sorted(path.parent.glob('scores*.tsv'))
  other = {}
  if found and header.exists():
    other = json_file.read(header, 'Remove it.')
  if not found:
    files.write(header, text)
  elif other != (own := json.loads(text)):
    named = sorted(name for name in own if other.get(name) != own[name])
    raise UserError(
        f'{found[0]} has scores of another teacher or data set, by'
        f' {", ".join(named)} in {header}. Remove both, or give another'
        ' --output_dir.'
    )
  if path in found:
    with files.writing(path, 'another --output_dir'):
      os.truncate(path, path.read_bytes().rfind(b'\n') + 1)
  return found


def _whole_lines(path: pathlib.Path) -> Iterator[Entry]:
  """Yields the scores of a file whose last line another host may be writing."""
  with open(path, encoding='utf-8', errors='replace') as lines:
    yield from _parsed((line for line in lines if line.endswith('\n')), path)


def _name(pair: Sequence[int], retrieval_set: RetrievalSet) -> tuple[str, str]:
  query, passage = pair
  return retrieval_set.query_ids[query], str(retrieval_set.corpus.ids[passage])
