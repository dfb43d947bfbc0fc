"""Result folders of `dualenc evaluate`: their files, written and read.

per_query.tsv has the values of every query, of which metrics are the means: a
header `query_id<TAB>P@1<TAB>MRR...`, then a line a query. A cell is empty where
a metric does not apply to the query, which is not in that mean then.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import functools
import io
import json
import math
import pathlib
from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError

if TYPE_CHECKING:  # They import JAX, which a comparison does without.
  from dualenc_jax.evaluation.evaluation import Evaluation
  from dualenc_jax.evaluation.retrieval_set import RetrievalSet

METRICS, PER_QUERY, RUN = 'metrics.json', 'per_query.tsv', 'run.trec'
_EXAMPLES = 'examples.jsonl'
# Queries of the sample, hits of each, and characters of a text that are kept.
_QUERIES, _HITS, _LENGTH = 40, 5, 1000
# In MODEL_DIR/validation: values of all queries before and after training; of a
# cross-encoder, those of what it orders, too.
VALIDATION = 'validation'
BEFORE, AFTER, OF_BM25 = 'before.tsv', 'after.tsv', 'bm25.tsv'
# Folders, in a result folder, of what was evaluated beside the model.
BASELINES = ('bm25', 'hybrid')
# What `compare` takes after a colon; the last is the model's hits re-ranked.
SYSTEMS = (*BASELINES, 'rerank')
# Of means that were summed in another order.
_TOLERANCE = 1e-9
# Ends the labels of results that rank documents by their best passage, and of
# those that take passages of one text as one.
DOCUMENTS, EQUAL_TEXTS = '-documents', '-equal-texts'
# The fact how many queries of a result the model has learnt from.
SEEN = 'seen_queries'
# The fact in how many queries a relevant passage has an unjudged copy.
COPIES = 'unjudged_copies'
# What is read again of a result; metrics are shares of 0 to 1.
_SHAPE = {
    'metrics': {str: int | float},
    **dict.fromkeys(('task', 'label', 'split'), str),
    **dict.fromkeys(
        (
            'dataset?', 'model_dir?', 'run_id?', 'embedding_dtype?',
            'command?', 'document_separator?',
        ),
        str | None,
    ),
    f'{SEEN}?': {
        f'{what}{how}': int
        for what in ('queries', 'learnt')
        for how in ('', '_same', '_near')
    },
    **dict.fromkeys(
        (
            'checkpoint_step?', 'queries?', 'passages?', 'k?', 'depth?',
            'relevance_level?', f'{COPIES}?',
        ),
        int | None,
    ),
}
_ID = 'query_id'
# Ends messages on a damaged result folder.
AGAIN = 'Run `dualenc evaluate` again.'


@dataclasses.dataclass(frozen=True, eq=False)
class PerQuery:
  """Values of Q queries: by metric float64 [Q], NaN where it does not apply."""

  query_ids: Sequence[str]
  values: Mapping[str, np.ndarray]

  def column(self, metric: str) -> dict[str, float]:
    """The values of a metric by query, of those that it applies to."""
    pairs = zip(self.query_ids, self.values[metric].tolist())
    return {query: value for query, value in pairs if not math.isnan(value)}

  def mean(self, metric: str) -> float:
    """The mean over the queries that a metric applies to; NaN if to none."""
    values = self.column(metric).values()
    return math.fsum(values) / len(values) if values else math.nan


def write_per_query(
    path: pathlib.Path, query_ids: Sequence[str],
    values: Mapping[str, np.ndarray],
) -> None:
  """Writes a per_query.tsv that reads back bit for bit, whole or not at all.

  Values [Q] are NaN where a metric does not apply to the query.
  """
  columns = [
      ['' if math.isnan(cell) else repr(cell) for cell in column.tolist()]
      for column in values.values()
  ]
  # Cells stand in the file as they are: `trec.field` leaves no tab in an id.
  rows = zip(map(trec.field, query_ids), *columns, strict=True)
  lines = ['\t'.join(row) + '\n' for row in ([_ID, *values], *rows)]
  files.write(path, ''.join(lines))


def read_per_query(path: pathlib.Path) -> PerQuery:
  """Reads what `write_per_query` wrote; a UserError names file and line."""

  def refuse(number: int, problem: str) -> UserError:
    return UserError(f'{path}:{number}: {problem} {AGAIN}')

  content = io.StringIO(json_file.read_text(path, AGAIN), newline=None)
  header, *lines = [
      line.removesuffix('\n').split('\t') for line in content
  ] or [[]]
  metrics = header[1:]
  if header[:1] != [_ID] or not 0 < len(metrics) == len({*metrics}):
    raise refuse(
        1,
        f'the header is {header[:4]}; expected {_ID} and different metrics,'
        ' separated by tabs.',
    )
  if not lines:
    raise refuse(2, 'no query; expected a line for each.')
  rows: dict[str, list[float]] = {}
  for number, line in enumerate(lines, start=2):
    if len(line) != len(header):
      cells = f'{len(line)} cells; expected {len(header)}, as in the header.'
      raise refuse(number, cells)
    query_id = line[0]
    if not query_id or query_id in rows:
      problem = f'query id {query_id!r}; expected each query once, by an id.'
      raise refuse(number, problem)
    rows[query_id] = list(map(_number, line[1:]))
    if math.inf in rows[query_id]:
      raise refuse(
          number, f'{line[:4]} has a value that is not a finite number.'
      )
  columns = np.array(list(rows.values()), np.float64).T
  return PerQuery(tuple(rows), dict(zip(metrics, columns)))


def _number(cell: str) -> float:
  """NaN for an empty cell, infinite for what is not a finite number."""
  value = untrusted.number(cell)
  return value if math.isfinite(value) or not cell else math.inf


class Key(NamedTuple):
  """What was evaluated: a task, such as 'beir', and its data set, or None.

  The label is both in one, 'beir-scifact'; 'beir-scifact-documents' where
  documents were ranked by the best of their passages, and
  'beir-scifact-equal-texts' where passages of one text were one.
  """

  task: str
  dataset: str | None
  label: str
  split: str

  def __str__(self) -> str:
    return f'{self.label} {self.split}'.strip()

  @property
  def as_in_papers(self) -> bool:
    """Whether passages were ranked, each on its own."""
    return not self.label.endswith((DOCUMENTS, EQUAL_TEXTS))


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
  """What a model scored on a split, shares of 0 to 1 by metric.

  `where` is the folder or file that it was read from, `provenance` what else
  the numbers depend on. `per_query` reads the values that the metrics are means
  of; it raises UserError if they are not.
  """

  where: str
  key: Key
  metrics: Mapping[str, float]
  provenance: Mapping[str, Any]
  per_query: Callable[[], PerQuery]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A system by its name for tables, where it is, and its results."""

  name: str
  where: str
  results: Mapping[Key, Result]


def read_model(
    path: pathlib.Path, name: str | None = None, baseline: str = ''
) -> Model:
  """The results in a model_dir, its folder `evaluation` or one result folder.

  The name is the model_dir's by default. With `baseline`, one of `SYSTEMS`,
  they are of that system beside the model.

  Raises:
    UserError: no results, two of the same split, or one that cannot be read.
  """
  files = found(path, baseline)
  if not files:
    file = f'{baseline}/{METRICS}' if baseline else METRICS
    raise UserError(
        f'{path} has no results, neither {file} nor evaluation/*/{file}. Run'
        ' `dualenc evaluate` first, or give a model_dir or a result folder.'
    )
  results: dict[Key, Result] = {}
  for result in (read_result(file.parent) for file in files):
    other = results.setdefault(result.key, result)
    if other is not result:
      raise UserError(
          f'{other.where} and {result.where} are both results on {result.key}.'
          ' Give one of the two folders instead of the one around them.'
      )
  known = {result.provenance.get('model_dir') for result in results.values()}
  own = (known.pop() if len(known) == 1 else None) or path.resolve().name
  names = {
      'bm25': 'BM25', 'hybrid': f'{own} + BM25', 'rerank': f'{own}, re-ranked'
  }
  return Model(name or names.get(baseline, own), str(path), results)


def found(path: pathlib.Path, baseline: str = '') -> list[pathlib.Path]:
  """The metrics.json of all results that `read_model` would read."""
  file = f'{baseline}/{METRICS}' if baseline else METRICS
  for pattern in (file, f'evaluation/*/{file}', f'*/{file}'):
    if files := sorted(path.glob(pattern)):
      return files
  return []


def read_all(path: pathlib.Path, name: str | None = None) -> list[Model]:
  """The model of a folder, and the systems that were evaluated with it."""
  beside = [read_model(path, baseline=s) for s in SYSTEMS if found(path, s)]
  return [read_model(path, name), *beside]


def read_result(folder: pathlib.Path) -> Result:
  """Reads one result folder; its per-query values only when asked for.

  Raises:
    UserError: metrics.json is missing, is not JSON, lacks a field, or has one
      of another type.
  """
  path = folder / METRICS
  content = json_file.read(path, AGAIN)
  json_file.check(content, _SHAPE, path, AGAIN)
  metrics = content.pop('metrics')
  if not metrics:
    raise UserError(f'{path}: "metrics" has no values. {AGAIN}')
  for name, value in metrics.items():
    if not 0 <= value <= 1:
      raise UserError(
          f'{path}: metric {name} is {value!r}; expected a share of 0 to 1.'
          f' {AGAIN}'
      )
  key = Key(*(content.pop(name, None) for name in Key._fields))
  per_query = functools.cache(lambda: _read_checked(folder, metrics))
  return Result(str(folder), key, metrics, content, per_query)


def _read_checked(
    folder: pathlib.Path, metrics: Mapping[str, float]
) -> PerQuery:
  path = folder / PER_QUERY
  values = read_per_query(path)
  for name in values.values.keys() & metrics.keys():
    mean = values.mean(name)
    if not math.isclose(mean, metrics[name], rel_tol=0, abs_tol=_TOLERANCE):
      raise UserError(
          f'{path}: the mean of {name} is {mean!r}, but {METRICS} beside it'
          f' has {metrics[name]!r}: a file is damaged, or they are of two'
          f' evaluations. {AGAIN}'
      )
  return values


def write_result(
    folder: pathlib.Path, ranked: 'RetrievalSet', result: 'Evaluation', k: int,
    facts: Mapping[str, Any],
) -> None:
  """Writes run.trec of k hits a query, and all other files of a result.

  Raises:
    UserError: an id that no run file can hold, or a disk that is full.
  """
  files.make_folder(folder, 'another --output_dir')
  trec.write_run(
      folder / RUN,
      Ranking(*(part[:, :k] for part in result.ranking)),
      ranked.query_ids,
      ranked.ranked_ids,
      'dualenc' + EQUAL_TEXTS * ('equal_texts' in facts),
  )
  query_ids, values = values_by_query(ranked, result)
  write_per_query(folder / PER_QUERY, query_ids, values)
  total = len(ranked.query_ids)
  chosen = np.random.default_rng(0).permutation(total)[:_QUERIES].tolist()
  examples = (_example(ranked, result, query) for query in sorted(chosen))
  lines = [json.dumps(e, ensure_ascii=False) + '\n' for e in examples]
  files.write(folder / _EXAMPLES, ''.join(lines))
  # Last: with it the result is complete.
  own = {'metrics': result.metrics, 'queries_counted': len(query_ids)}
  files.write_json(folder / METRICS, {**own, **facts})


def remove_result(folder: pathlib.Path) -> None:
  """Removes a result, if there is one; a teacher's scores in it stay."""
  for name in (METRICS, RUN, PER_QUERY, _EXAMPLES):
    (folder / name).unlink(missing_ok=True)
  with contextlib.suppress(OSError):
    folder.rmdir()


def values_by_query(
    ranked: 'RetrievalSet', result: 'Evaluation'
) -> tuple[list[str], dict[str, np.ndarray]]:
  """Ids of the queries that count, and by metric a value each, or NaN."""
  groups: list[Any] = [(result.answered, result.matches)]
  if result.scores is not None:
    groups.insert(0, (result.scores.queries, result.scores.values))
  counted = np.unique(np.concatenate([queries for queries, _ in groups]))
  values = {}
  for queries, by_metric in groups:
    for metric, own in by_metric.items():
      values[metric] = np.full(len(counted), np.nan)
      values[metric][np.searchsorted(counted, queries)] = own
  return [ranked.query_ids[q] for q in counted], values


def _example(
    ranked: 'RetrievalSet', result: 'Evaluation', query: int
) -> dict[str, Any]:
  """A query and its best hits.

  `rank` is of the best relevant passage, null where that is not known, and
  `relevant` this passage; any if it is not among the hits; null for none.
  `grade` is null where a hit is not judged.
  """
  judged = ranked.judgements[query]
  hits = result.ranking.indices[query]
  hits = hits[hits >= 0].tolist()
  scores = result.ranking.scores[query].tolist()
  least = ranked.relevance_level
  gold = {item for item, grade in judged.items() if grade >= least}
  rank = next((i for i, hit in enumerate(hits, 1) if hit in gold), None)
  relevant = min(gold, default=None) if rank is None else hits[rank - 1]
  return {
      'query_id': ranked.query_ids[query],
      'query': _cut(ranked.query_texts[query]),
      'rank': result.ranks.get(query) if rank is None else rank,
      'relevant': None if relevant is None else _item(ranked, relevant),
      'hits': [
          {
              'rank': i,
              'score': score,
              **_item(ranked, hit),
              'grade': judged.get(hit),
          }
          for i, (hit, score) in enumerate(zip(hits[:_HITS], scores), 1)
      ],
  }


def _item(ranked: 'RetrievalSet', item: int) -> dict[str, str]:
  """Of a document the first passage is shown."""
  passage, documents = item, ranked.documents
  if documents is not None:
    passage = int(np.argmax(documents.of_passage == item))
  return {
      'id': str(ranked.ranked_ids[item]),
      'name': ranked.corpus.name(passage),
      'text': _cut(ranked.corpus.texts[passage]),
  }


def _cut(text: str) -> str:
  return text if len(text) <= _LENGTH else text[:_LENGTH] + '...'


def describe_copies(facts: Mapping[str, Any]) -> str:
  """A sentence on the fact `COPIES`, '' without it."""
  if not (copies := facts.get(COPIES)):
    return ''
  return (
      f'For {copies:,} of {facts.get("queries") or 0:,} queries a relevant'
      ' passage has a copy in the corpus that is not judged relevant: of the'
      ' two the id decides which ranks first. --equal_texts=one measures them'
      ' as one.'
  )


def describe_seen(counts: Mapping[str, int]) -> str:
  """A sentence on the fact `SEEN`."""

  def share(what: str, how: str) -> str:
    part, whole = counts[f'{what}_{how}'], counts[what]
    return f'{part:,} ({part / max(whole, 1):.2%})'

  return (
      f'Of the {counts["queries"]:,} queries {share("queries", "same")} are'
      f' word for word among the {counts["learnt"]:,} that it has learnt from,'
      f' and {share("queries", "near")} nearly. Of what it has learnt from,'
      f' {share("learnt", "same")} are word for word among the queries, and'
      f' {share("learnt", "near")} nearly.'
  )
