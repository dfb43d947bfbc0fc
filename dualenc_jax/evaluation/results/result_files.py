"""Result folders of `dualenc evaluate`: their files, written and read.

per_query.tsv has the values of every query, whose means are the metrics: a
header `query_id<TAB>P@1<TAB>MRR...`, then a line a query. A cell is empty where
a metric does not apply to the query, which that mean then leaves out.
"""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import shutil
from typing import Any, NamedTuple, TYPE_CHECKING

import numpy as np

from dualenc_jax.evaluation import trec
from dualenc_jax.evaluation.metrics import Scores
from dualenc_jax.retrieval.search.ranking import Ranking
from dualenc_jax.utils import files, json_file, untrusted
from dualenc_jax.utils.errors import UserError

if TYPE_CHECKING:
  # Commands that read result files do without JAX.
  from dualenc_jax.evaluation.evaluation import Evaluation
  from dualenc_jax.evaluation.retrieval_set import RetrievalSet

METRICS, PER_QUERY, RUN = 'metrics.json', 'per_query.tsv', 'run.trec'
EXAMPLES = 'examples.jsonl'
# MODEL_DIR/validation has values of all queries before and after training, and
# those of the hits that a cross-encoder orders.
VALIDATION = 'validation'
BEFORE, AFTER, OF_BM25 = 'before.tsv', 'after.tsv', 'bm25.tsv'
# Folders, in a result folder, of systems that were evaluated with the model.
BASELINES = ('bm25', 'hybrid')
# The last is the model's hits re-ranked.
SYSTEMS = (*BASELINES, 'rerank')
# Ends of the labels of results that rank documents by their best passage, and
# of those that rank passages of one text as one.
DOCUMENTS, EQUAL_TEXTS = '-documents', '-equal-texts'
# Keys: numbers of queries with a relevant passage that has an unjudged copy,
# and of those with the words of a training query.
COPIES = 'unjudged_copies'
# Key: the metrics that were asked for, beside the standard ones.
ASKED = 'metrics_asked'
# Key: milliseconds of a query's search.
TIME = 'search_ms'
# The folder in a result folder with results of codecs.
CODECS = 'codecs'
_SHAPE = {
    'metrics': {str: int | float}, **dict.fromkeys(('label', 'split'), str)
}
# Folders from a result up to its model_dir: evaluation, those of dim and
# prompts, and that of the result's system.
_ABOVE = 6
_ID = 'query_id'
# Ends messages on a damaged result folder.
AGAIN = 'Run `dualenc evaluate` again.'
# Numbers of sampled queries, of their hits, and of a text's characters.
_QUERIES, _HITS, _LENGTH = 40, 5, 1000


def write_result(
    folder: pathlib.Path, ranked: 'RetrievalSet', result: 'Evaluation', k: int,
    facts: Mapping[str, Any],
) -> None:
  """Writes run.trec with k hits a query, and all other files of a result.

  Raises:
    UserError: an id that no run file can hold, or a disk that is full.
  """
  files.make_folder(folder, 'another --output_dir')
  # This file makes a result complete: it goes first and comes last.
  (folder / METRICS).unlink(missing_ok=True)
  trec.write_run(
      folder / RUN,
      Ranking(*(part[:, :k] for part in result.ranking)),
      ranked.query_ids,
      ranked.ranked_ids,
      'dualenc' + EQUAL_TEXTS * ('equal_texts' in facts),
  )
  scores = result.scores
  query_ids = [ranked.query_ids[query] for query in scores.queries]
  write_per_query(folder / PER_QUERY, Scores(query_ids, scores.values))
  total = len(ranked.query_ids)
  chosen = np.random.default_rng(0).permutation(total)[:_QUERIES].tolist()
  examples = (_example(ranked, result, query) for query in sorted(chosen))
  lines = [json.dumps(e, ensure_ascii=False) + '\n' for e in examples]
  files.write(folder / EXAMPLES, ''.join(lines))
  own = {'metrics': result.metrics, 'queries_counted': len(query_ids)}
  files.write_json(folder / METRICS, {**own, **facts})


def remove_result(folder: pathlib.Path) -> None:
  """Removes a result, if there is one; a teacher's scores in it remain."""
  for name in (METRICS, RUN, PER_QUERY, EXAMPLES):
    (folder / name).unlink(missing_ok=True)
  with contextlib.suppress(OSError):
    folder.rmdir()


def remove_codecs(folder: pathlib.Path) -> None:
  """Removes the results of codecs beside a result, if there are any."""
  if (folder / CODECS / f'{CODECS}.md').exists():
    shutil.rmtree(folder / CODECS)


def _example(
    ranked: 'RetrievalSet', result: 'Evaluation', query: int
) -> dict[str, Any]:
  """A query and its best hits, as JSON.

  `rank` is that of the best relevant passage, null where it is not known, and
  `relevant` that passage, or any relevant one that is not among the hits.
  `grade` is null where a hit is not judged.
  """
  judged = ranked.judgements[query]
  hits = result.ranking.indices[query]
  hits = hits[hits >= 0].tolist()
  scores = result.ranking.scores[query].tolist()
  gold = set(ranked.gold[query])
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
  """A passage, or the first passage of a document."""
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


def write_per_query(path: pathlib.Path, scores: Scores) -> None:
  """Writes a per_query.tsv that reads back bit for bit, whole or not at all."""
  columns = [
      ['' if math.isnan(cell) else repr(cell) for cell in column.tolist()]
      for column in scores.values.values()
  ]
  # Cells stand in the file as they are: `trec.field` leaves no tab in an id.
  rows = zip(map(trec.field, scores.queries), *columns, strict=True)
  lines = ['\t'.join(row) + '\n' for row in ([_ID, *scores.values], *rows)]
  files.write(path, ''.join(lines))


def read_per_query(path: pathlib.Path) -> Scores:
  """Reads what `write_per_query` wrote."""
  content = json_file.read_text(path, AGAIN).removesuffix('\n')
  header, *rows = [line.split('\t') for line in content.split('\n')]
  try:
    values = np.array([[float(c or 'nan') for c in row[1:]] for row in rows])
    columns = dict(zip(header[1:], values.T, strict=True))
  except ValueError as e:
    raise UserError(f'{path} is damaged. {AGAIN}') from e
  return Scores([row[0] for row in rows], columns)


class Key(NamedTuple):
  """A task, such as 'beir', its data set, or None, a label and a split.

  The label is 'beir-scifact'; 'beir-scifact-documents' where documents were
  ranked by the best of their passages, and 'beir-scifact-equal-texts' where
  passages of one text were ranked as one.
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
  """The metrics of a model on a split.

  Attributes:
    where: the folder or file that was read.
    key: the task and split.
    metrics: shares of 0 to 1 by name.
    provenance: all else that the numbers depend on.
    per_query: reads the values whose means the metrics are.
  """

  where: str
  key: Key
  metrics: Mapping[str, float]
  provenance: Mapping[str, Any]
  per_query: Callable[[], Scores]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A system: its name for tables, its path, its results.

  `line` is the name of the line of a figure that it is a point of.
  """

  name: str
  where: str
  results: Mapping[Key, Result]
  line: str = ''


def read_model(
    path: pathlib.Path, name: str | None = None, baseline: str = ''
) -> Model:
  """Reads the results in a model_dir, its folder `evaluation`, or one result.

  The name is by default that of the model_dir. `baseline` is one of `SYSTEMS`,
  to read its results in place of the model's.

  Raises:
    UserError: no results, two of the same split, or one that cannot be read.
  """
  found = find_results(path, baseline)
  if not found:
    file = f'{baseline}/{METRICS}' if baseline else METRICS
    raise UserError(
        f'{path} has no results: {file} is missing. Run `dualenc evaluate`'
        ' first, or give a model_dir or a result folder.'
    )
  results: dict[Key, Result] = {}
  for result in (read_result(file.parent) for file in found):
    other = results.setdefault(result.key, result)
    if other is not result:
      raise UserError(
          f'{other.where} and {result.where} are both results on {result.key}.'
          ' Give one of the two folders.'
      )
  known = {result.provenance.get('model_dir') for result in results.values()}
  own = (known.pop() if len(known) == 1 else None) or path.resolve().name
  names = {
      'bm25': 'BM25', 'hybrid': f'{own} + BM25', 'rerank': f'{own}, re-ranked'
  }
  return Model(name or names.get(baseline, own), str(path), results)


def find_results(path: pathlib.Path, baseline: str = '') -> list[pathlib.Path]:
  """Finds the metrics.json of all results that `read_model` reads."""
  file = f'{baseline}/{METRICS}' if baseline else METRICS
  for pattern in (file, f'evaluation/*/{file}', f'*/{file}'):
    if found := sorted(path.glob(pattern)):
      return found
  return []


def read_all(path: pathlib.Path, name: str | None = None) -> list[Model]:
  """Reads the model of a folder, and the systems evaluated with it."""
  systems = [system for system in SYSTEMS if find_results(path, system)]
  return [
      read_model(path, name), *(read_model(path, baseline=s) for s in systems)
  ]


def read_result(folder: pathlib.Path) -> Result:
  """Reads one result folder; its per-query values only when asked for."""
  content = json_file.read(folder / METRICS, AGAIN)
  json_file.check(content, _SHAPE, folder / METRICS, AGAIN)
  key = Key(*(content.pop(name, None) for name in Key._fields))
  per_query = functools.cache(lambda: read_per_query(folder / PER_QUERY))
  return Result(str(folder), key, content.pop('metrics'), content, per_query)


def run_depth(path: pathlib.Path, run: trec.Run) -> float:
  """The hits a query that a run holds at least, where there are so many.

  It is infinite for the run of a result folder that has all that the system
  retrieves, as of a small corpus.
  """
  most = max(map(len, run.values()))
  if path.name != RUN or not (path.parent / METRICS).exists():
    return most
  facts = read_result(path.parent).provenance
  # A run that was re-ranked is as deep as it was.
  if 'run' in facts:
    return most
  limit = min(facts.get('k', 0), facts.get('candidates', math.inf))
  return math.inf if most < limit else most


def size(facts: Mapping[str, Any]) -> str:
  """'500 queries over 472 passages'; '' where facts do not say."""
  queries, passages = facts.get('queries'), facts.get('passages')
  if queries is None or passages is None:
    return ''
  return f'{queries:,} queries over {passages:,} passages'


def describe_copies(facts: Mapping[str, Any]) -> str:
  """A sentence on the key `COPIES`, '' without it."""
  if not (copies := facts.get(COPIES)):
    return ''
  return (
      f'For {copies:,} of {facts.get("queries") or 0:,} queries a relevant'
      ' passage has a copy in the corpus that is not judged relevant, and ids'
      ' decide which ranks first. --equal_texts=one ranks them as one.'
  )


def describe_words(facts: Mapping[str, Any]) -> str:
  """'BM25: k1 1.5, b 0.75, language english'; '' for other systems."""
  if 'k1' not in facts:
    return ''
  known = {n: facts[n] for n in ('weight', 'k1', 'b', 'language') if n in facts}
  parts = (f'{n} {"none" if v is None else v}' for n, v in known.items())
  return f'{"Hybrid" if "weight" in known else "BM25"}: {", ".join(parts)}'


def newest_step(model_dir: pathlib.Path) -> int | None:
  """The step of the newest checkpoint; None before the first."""
  # Orbax gives a checkpoint its name, the step, when it is complete.
  names = [path.name for path in model_dir.glob('checkpoints/*')]
  return max(map(int, filter(untrusted.is_digits, names)), default=None)


def read_meta(model_dir: pathlib.Path, step: int) -> dict[str, Any]:
  """Reads the meta beside a checkpoint's tensors, without the config."""
  meta = json_file.read(model_dir / f'checkpoints/{step}/meta/metadata')
  return {name: meta[name] for name in meta if name != 'config'}


def describe_outdated(result: Result) -> str:
  """'of step 10, the newest checkpoint of step 30', or ''.

  It is '' for a result that is in no model_dir, and for one of the checkpoint
  that commands read: the best that the newest step's meta names, else the
  newest.
  """
  measured = result.provenance.get('checkpoint_step')
  for folder in pathlib.Path(result.where).resolve().parents[:_ABOVE]:
    newest = newest_step(folder)
    if measured is None or newest is None:
      continue
    meta = read_meta(folder, newest)
    best = meta.get('notes', {}).get('best')
    which, step = ('best', best['step']) if best else ('newest', newest)
    if measured != step:
      return f'of step {measured:,}, the {which} checkpoint of step {step:,}'
    runs = result.provenance.get('run_id'), meta.get('run_id')
    if None not in runs and runs[0] != runs[1]:
      return f'of another training run than the {which} checkpoint'
  return ''
