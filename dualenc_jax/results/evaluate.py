"""Evaluates a model on a split of its task into a result folder.

Beside its own results, in the same folder, are those of BM25 and of both fused.
"""

from collections.abc import Collection, Mapping
import dataclasses
import json
import logging
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data import Dataset
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import by_scores, evaluation, metrics, trec
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import of_model
from dualenc_jax.inference.towers import Loaded
from dualenc_jax.io import files
from dualenc_jax.results.folder import (
  BASELINES,
  DOCUMENTS,
  METRICS,
  write_per_query,
)
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.search import bm25
from dualenc_jax.search.bm25 import BM25
from dualenc_jax.search.hybrid import Hybrid, RRF
from dualenc_jax.search.ranking import Ranking

BM25_FOLDER, HYBRID_FOLDER = BASELINES
VALIDATION = 'validation'
# Passages beyond which BM25 is computed only where it is asked for.
_MANY = 500_000
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Words:
  """How BM25 sees a corpus; see `search.bm25.BM25`.

  Attributes:
    k1: saturation of repeated words.
    b: how much long passages are held back.
    language: of stop words and stems; None for neither.
  """

  k1: float = bm25.K1
  b: float = bm25.B
  language: str | None = bm25.LANGUAGE

  def __post_init__(self):
    bm25.check_parameters(self.k1, self.b, self.language)

  def of(self, retrieval_set: RetrievalSet) -> BM25:
    """BM25 of the passages of a set."""
    return BM25(retrieval_set.corpus.texts, **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Options:
  """How splits are evaluated.

  Attributes:
    k: hits a query in the run file.
    index_dir: keeps the embeddings of the corpus there, and reads them if they
      exist; None keeps them in memory.
    document_separator: ranks documents by their best passage, see `Documents`.
    baselines: of 'bm25' and 'hybrid' those to evaluate, too; None for both,
      unless the corpus is large.
    words: how BM25 sees it.
    weight: of `Hybrid`; 'validation' chooses it on the task's validation split.
  """

  k: int = 1000
  index_dir: pathlib.Path | None = None
  document_separator: str | None = None
  baselines: Collection[str] | None = None
  words: Words = Words()
  weight: float | str = RRF

  @property
  def depth(self) -> int:
    """Hits a query that metrics are of."""
    return max(self.k, metrics.DEPTH)

  def label(self, task: Dataset) -> str:
    """The label of a task's results."""
    return task.label + DOCUMENTS * (self.document_separator is not None)


def default_output(model_dir: str | os.PathLike[str]) -> pathlib.Path:
  """Where the results of a model_dir are."""
  return pathlib.Path(model_dir) / 'evaluation'


def folder_name(task: Dataset, split: str, options: Options = Options()) -> str:
  """The result folder of a split, below `default_output`."""
  return f'{options.label(task)}-{split}'.replace('/', '-')


def evaluate(
    model: Loaded,
    experiment: Experiment,
    split: str,
    folder: pathlib.Path,
    config: str,
    command: str,
    options: Options = Options(),
) -> dict[str, Evaluation]:
  """Evaluates on a split of a task and writes the result folder.

  Args:
    model: whose towers.
    experiment: whose task, tokenizer and caches.
    split: of the task.
    folder: of the result.
    config: everything that took part, as gin.
    command: the command line that makes this result.
    options: how.

  Returns:
    By system: '' the model, and the baselines.

  Raises:
    UserError: data that cannot be evaluated, embeddings that are not finite, or
      a folder that cannot be written.
  """
  if options.weight == VALIDATION:
    _check_validation(experiment.task, split)
  ranked = _opened(experiment, split, folder, options)
  queries = evaluation.encode_queries(model.embedder, model.params, ranked)
  passages = of_model.corpus_embeddings(model, ranked.corpus, options.index_dir)
  result = evaluation.rank(queries, passages, ranked, options.depth)
  # Those of an earlier evaluation are not of this model.
  for name in BASELINES:
    (folder / name / METRICS).unlink(missing_ok=True)
  files.write(folder / 'config.gin', config)
  facts = {**_facts(experiment, split, ranked, options), 'command': command}
  own = {**model.provenance, 'embedding_dtype': str(passages.dtype)}
  write(folder, ranked, result, options, {**facts, **own})
  found, wanted = {'': result}, _baselines(options, len(ranked.corpus))
  if not wanted:
    return found
  try:
    words = options.words.of(ranked)
  except UserError as e:
    if options.baselines is not None:
      raise
    _LOG.warning('BM25 and hybrid search are left out: %s', e)
    return found
  if BM25_FOLDER in wanted:
    found[BM25_FOLDER] = _bm25(
        words, folder / BM25_FOLDER, ranked, options, facts
    )
  if HYBRID_FOLDER in wanted:
    system = Hybrid(words, passages, ranked.corpus.ids)
    weight = options.weight
    if weight == VALIDATION:
      weight = _weight(model, experiment, ranked, system, options)
    system = dataclasses.replace(system, weight=weight)
    found[HYBRID_FOLDER] = by_scores.evaluate(
        system.scores(ranked.query_texts, queries),
        ranked,
        options.depth,
    )
    how = {'system': 'hybrid', **dataclasses.asdict(options.words)}
    write(
        folder / HYBRID_FOLDER,
        ranked,
        found[HYBRID_FOLDER],
        options,
        {**facts, **own, **how, 'weight': weight},
    )
  return found


def evaluate_bm25(
    experiment: Any,
    split: str,
    folder: pathlib.Path,
    command: str,
    options: Options = Options(),
) -> Evaluation:
  """Evaluates BM25 alone; `experiment` needs no more than task and cache."""
  ranked = _opened(experiment, split, folder, options)
  facts = {**_facts(experiment, split, ranked, options), 'command': command}
  return _bm25(options.words.of(ranked), folder, ranked, options, facts)


def _opened(
    experiment: Any, split: str, folder: pathlib.Path, options: Options
) -> RetrievalSet:
  """What is ranked; what would stop it later stops it before the encoding."""
  ranked = RetrievalSet.of_split(experiment, split, options.document_separator)
  files.make_folder(folder, 'another --output_dir')
  trec.check_ids('query id', ranked.query_ids)
  trec.check_ids('id', ranked.ranked_ids)
  return ranked


def _bm25(
    words: BM25,
    folder: pathlib.Path,
    ranked: RetrievalSet,
    options: Options,
    facts: Mapping[str, Any],
) -> Evaluation:
  result = by_scores.evaluate(
      map(words.scores, ranked.query_texts), ranked, options.depth
  )
  how = {'system': 'bm25', **dataclasses.asdict(options.words)}
  write(folder, ranked, result, options, {**facts, **how})
  return result


def _baselines(options: Options, passages: int) -> Collection[str]:
  if options.baselines is not None:
    return options.baselines
  if passages <= _MANY:
    return BM25_FOLDER, HYBRID_FOLDER
  _LOG.info(
      'BM25 and hybrid search are left out, for %s passages are many;'
      ' --baselines=bm25,hybrid asks for them.',
      f'{passages:,}',
  )
  return ()


def _check_validation(task: Dataset, split: str) -> None:
  if split == VALIDATION or VALIDATION not in task.splits():
    raise UserError(
        f'The weight of hybrid search cannot be chosen on split {VALIDATION} of'
        f' {task.label}: '
        + ('it is what is measured.' if split == VALIDATION else 'it has none.')
        + f' Give --hybrid_weight a number of 0 to 1, or {RRF}.'
    )


def _weight(
    model: Loaded,
    experiment: Experiment,
    ranked: RetrievalSet,
    system: Hybrid,
    options: Options,
) -> float:
  """The weight that suits the validation split."""
  other = RetrievalSet.of_split(
      experiment, VALIDATION, options.document_separator
  )
  if other.corpus.cache.header != ranked.corpus.cache.header:
    passages = of_model.corpus_embeddings(model, other.corpus)
    system = Hybrid(options.words.of(other), passages, other.corpus.ids)
  queries = evaluation.encode_queries(model.embedder, model.params, other)
  weight = by_scores.choose_weight(system, queries, other)
  _LOG.info('Hybrid search: %s of the weight is the dense scores\'.', weight)
  return weight


def _facts(
    experiment: Any, split: str, ranked: RetrievalSet, options: Options
) -> dict[str, Any]:
  """What the numbers of every system depend on."""
  task = experiment.task.for_split(split)
  corpus = ranked.corpus.cache.header
  return {
      'task': task.task_name,
      'dataset': task.dataset,
      'label': options.label(task),
      'split': split,
      'queries': len(ranked.query_ids),
      'passages': len(ranked.corpus),
      'k': options.k,
      'depth': options.depth,
      'document_separator': options.document_separator,
      'source': ranked.cache.header['source'],
      'corpus': {name: corpus[name] for name in ('split', 'source')},
  }


def write(
    folder: pathlib.Path,
    ranked: RetrievalSet,
    result: Evaluation,
    options: Options,
    facts: Mapping[str, Any],
) -> None:
  """Writes run.trec, per_query.tsv, examples.jsonl and metrics.json."""
  files.make_folder(folder, 'another --output_dir')
  trec.write_run(
      folder / 'run.trec',
      Ranking(*(part[:, : options.k] for part in result.ranking)),
      ranked.query_ids,
      ranked.ranked_ids,
  )
  query_ids, values = per_query(ranked, result)
  write_per_query(folder / 'per_query.tsv', query_ids, values)
  write_examples(folder / 'examples.jsonl', ranked, result)
  # Last: with it the result is complete.
  files.write_json(
      folder / 'metrics.json',
      {
          'metrics': result.metrics,
          'queries_counted': len(query_ids),
          **facts,
      },
  )


def per_query(
    retrieval_set: RetrievalSet, result: Evaluation
) -> tuple[list[str], dict[str, np.ndarray]]:
  """Ids of the queries that count, and by metric a value each, or NaN."""
  groups = [(result.answered, result.matches)]
  if result.scores is not None:
    groups.insert(0, (result.scores.queries, result.scores.values))
  counted = np.unique(np.concatenate([queries for queries, _ in groups]))
  values = {}
  for queries, by_metric in groups:
    for metric, own in by_metric.items():
      values[metric] = np.full(len(counted), np.nan)
      values[metric][np.searchsorted(counted, queries)] = own
  return [retrieval_set.query_ids[q] for q in counted], values


QUERIES = 40
HITS = 5
# Characters of a text that are kept.
_LENGTH = 1000


def write_examples(
    path: pathlib.Path, retrieval_set: RetrievalSet, result: Evaluation
) -> None:
  """Writes a fixed sample of the queries, one JSON object a line.

  Each has query_id, query, rank (of the best relevant passage, null where that
  is not known), relevant (this passage; any if it is not among the hits; null
  for none) and hits: rank, score, id, name, text and grade, null where it is
  not judged.

  Args:
    path: of the file.
    retrieval_set: what was ranked.
    result: of all its queries.

  Raises:
    UserError: the file cannot be written.
  """
  total = len(retrieval_set.query_ids)
  chosen = np.random.default_rng(0).permutation(total)[:QUERIES].tolist()
  examples = (_example(retrieval_set, result, q) for q in sorted(chosen))
  lines = [json.dumps(e, ensure_ascii=False) + '\n' for e in examples]
  files.write(path, ''.join(lines))


def _example(
    retrieval_set: RetrievalSet, result: Evaluation, query: int
) -> dict[str, Any]:
  judged = retrieval_set.judgements[query]
  hits = result.ranking.indices[query].tolist()
  scores = result.ranking.scores[query].tolist()
  gold = {item for item, grade in judged.items() if grade >= 1}
  rank = next((i for i, hit in enumerate(hits, 1) if hit in gold), None)
  relevant = min(gold, default=None) if rank is None else hits[rank - 1]
  return {
      'query_id': retrieval_set.query_ids[query],
      'query': _cut(retrieval_set.query_texts[query]),
      'rank': result.ranks.get(query) if rank is None else rank,
      'relevant': None if relevant is None else _item(retrieval_set, relevant),
      'hits': [
          {
              'rank': i + 1,
              'score': scores[i],
              **_item(retrieval_set, hit),
              'grade': judged.get(hit),
          }
          for i, hit in enumerate(hits[:HITS])
      ],
  }


def _item(retrieval_set: RetrievalSet, item: int) -> dict[str, str]:
  """Of a document it is its first passage that is shown."""
  passage, documents = item, retrieval_set.documents
  if documents is not None:
    passage = int(np.argmax(documents.of_passage == item))
  return {
      'id': str(retrieval_set.ranked_ids[item]),
      'name': retrieval_set.corpus.name(passage),
      'text': _cut(retrieval_set.corpus.texts[passage]),
  }


def _cut(text: str) -> str:
  return text if len(text) <= _LENGTH else text[:_LENGTH] + '...'
