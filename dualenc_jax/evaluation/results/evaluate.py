"""Evaluation of a model on a split of its task, into a result folder.

The same folder has the results of BM25, of both fused, and the like.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
from typing import Any

import jax

from dualenc_jax.data import Dataset
from dualenc_jax.evaluation import evaluation, metrics, teacher_scores, trec
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.results import codecs, result_files
from dualenc_jax.evaluation.results.baselines import (
  Baselines,
  BM25_FOLDER,
  EmbeddedSet,
  HYBRID_FOLDER,
)
from dualenc_jax.evaluation.results.codecs import Graph
from dualenc_jax.evaluation.results.result_files import (
  remove_codecs,
  remove_result,
  VALIDATION,
  write_result,
)
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.retrieval.compression import Coded, Spec
from dualenc_jax.retrieval.compression.codec import with_candidates
from dualenc_jax.retrieval.encoding.shared_teacher import SharedTeacher
from dualenc_jax.retrieval.encoding.teacher import PairScorer
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.index.build_for_model import corpus_embeddings
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils import files, json_file, table as table_lib
from dualenc_jax.utils.errors import UserError

RERANK_FOLDER = result_files.SYSTEMS[-1]
# The folder of `rerank_run` with the run as it was.
BEFORE_FOLDER = 'before'
_LOG = logging.getLogger(__name__)
# Facts that do not tell results of one model on one set apart.
_INCIDENTAL = (
    'command', 'k', 'git_revision', 'versions', 'device', 'queries_counted',
    'system', 'k1', 'b', 'language', result_files.ASKED, 'parameters',
    'bytes_per_passage', result_files.TIME,
)
# Facts that identify the data of a result.
_OF_DATA = 'label', 'split', 'source', 'corpus'
# Provenance of a teacher that a result has, as far as it is there.
_OF_TEACHER = (
    'model_dir', 'checkpoint', 'form', 'run_id', 'checkpoint_step', 'template',
    'query_prefix', 'passage_prefix', 'states',
)


@dataclasses.dataclass(frozen=True)
class Options:
  """How splits are evaluated.

  Attributes:
    k: hits a query in the run file.
    index_dir: folder of an index of the corpus, which is made unless it exists;
      None keeps the embeddings in memory.
    document_separator: ranks documents by their best passage, see `Documents`.
    baselines: the other systems to measure.
    teacher: re-ranks the model's hits: a cross-encoder, or a file of scores.
    rerank_depth: hits of a query that it scores.
    codecs: measured on the model's embeddings.
    time_codecs: whether the search of each is timed.
    relevance_level: the least grade of a relevant passage.
    equal_texts: whether passages of one text are ranked as one.
    metrics: names of metrics beside the standard ones.
    candidates: l, of an index that is searched in two steps; None for its own.
    host: one of those that share the index and call `evaluate`. They search
      together; the first alone does the rest, and writes.
  """

  k: int = 1000
  index_dir: pathlib.Path | None = None
  document_separator: str | None = None
  baselines: Baselines = Baselines()
  teacher: PairScorer | pathlib.Path | None = None
  rerank_depth: int = 100
  codecs: Sequence[Spec | Graph] = ()
  candidates: int | None = None
  relevance_level: int = 1
  equal_texts: bool = False
  metrics: tuple[str, ...] = ()
  time_codecs: bool = False
  host: Host = Host()

  @property
  def depth(self) -> int:
    """Hits a query that metrics are computed from."""
    return max(self.k, metrics.DEPTH)

  def label(self, task: Dataset) -> str:
    """The label of a task's results."""
    of_documents = self.document_separator is not None
    label = task.label + result_files.DOCUMENTS * of_documents
    return label + result_files.EQUAL_TEXTS * self.equal_texts


def parse_metrics(names: Sequence[str], k: int) -> tuple[str, ...]:
  """The metrics of --metrics where --k is k; errors of `parse_names`."""
  return metrics.parse_names(names, Options(k).depth)


def default_output(model_dir: str | os.PathLike[str]) -> pathlib.Path:
  """The folder of a model_dir's results."""
  return pathlib.Path(model_dir) / 'evaluation'


def folder_name(task: Dataset, split: str, options: Options = Options()) -> str:
  """The result folder of a split, below `default_output`."""
  return f'{options.label(task)}-{split}'.replace('/', '-')


def evaluate(
    model: LoadedModel, experiment: Experiment, split: str,
    folder: pathlib.Path, config: str, command: str,
    options: Options = Options(),
) -> dict[str, Evaluation]:
  """Evaluates on a split of a task and writes the result folder.

  Earlier results of other systems there are removed if they are of another
  model or other data.

  It keeps the whole config, as gin, and the command line beside the results.
  Returns results by system: '' the model, and the others.

  Raises:
    UserError: data that cannot be evaluated, embeddings that are not finite, or
      a folder that cannot be written.
  """
  if options.codecs and model.codec is not None:
    raise UserError(
        '--codecs is given, but the model has its own codec,'
        f' {model.codec.name}. Leave --codecs out, or evaluate the model that'
        ' training started from.'
    )
  ranked = _open_set(experiment, split, folder, options)
  if options.codecs:
    codecs.check(options.codecs, model.dim, ranked)
  embedder: Any = model.embedder
  queries = evaluation.encode_queries(embedder, model.params, ranked)
  passages = corpus_embeddings(
      model, ranked.corpus, options.index_dir, options.host
  )
  if options.candidates is not None:
    passages = with_candidates(passages, options.candidates)
  if options.codecs and isinstance(passages, Coded):
    raise UserError(
        f'--codecs is given, but --index_dir={options.index_dir} holds codes of'
        f' {passages.codec.name}. Give an index of --codec=fp32, or none.'
    )
  results = {'': evaluation.rank(queries, passages, ranked, options.depth)}
  if options.host.index:
    _help(options.teacher, ranked)
    if options.codecs:
      codecs.evaluate(
          options.codecs, queries, passages, ranked, folder, {}, options.k,
          options.depth, host=options.host,
      )
    return results
  reranked = None
  if options.teacher is not None:
    # Errors of the teacher come before a result is replaced.
    reranked = _rerank(results[''], ranked, folder / RERANK_FOLDER, options)
  facts = {**facts_of(experiment, split, ranked, options), 'command': command}
  own = {
      **model.provenance,
      'embedding_dtype': str(passages.dtype),
      'parameters': sum(leaf.size for leaf in jax.tree.leaves(model.params)),
      'bytes_per_passage': passages.shape[1] * passages.dtype.itemsize,
  }
  if isinstance(passages, Coded):
    own |= {'codec': passages.codec.name, **codecs.facts_of(passages.codec)}
  before = _facts_in(folder)
  if changed := [n for n in _OF_DATA if before.get(n, facts[n]) != facts[n]]:
    _LOG.warning(
        '%s had results of other data, by %s: they are replaced. --output_dir'
        ' keeps both.', folder, ', '.join(changed),
    )
  _remove_others(folder, facts, own)
  files.write(folder / 'config.gin', config)

  def write(name: str, result: Evaluation, how: Mapping[str, Any]) -> None:
    write_result(folder / name, ranked, result, options.k, {**facts, **how})

  timed = {}
  if options.time_codecs:
    search = make_search(passages, ranked.corpus.ids)
    taken = codecs.milliseconds(search, queries, options.depth)
    timed = {result_files.TIME: taken}
  write('', results[''], own | timed)

  def embed_validation() -> EmbeddedSet:
    other = _read_set(experiment, VALIDATION, options)
    same = other.corpus.cache.header == ranked.corpus.cache.header
    return (
        other,
        evaluation.encode_queries(embedder, model.params, other),
        passages if same else corpus_embeddings(model, other.corpus),
    )

  has_other = split != VALIDATION and VALIDATION in experiment.task.splits()
  # An empty choice asks for none.
  if options.baselines.names != []:
    for name, result, how in options.baselines.evaluate(
        ranked, queries, passages, options.depth,
        embed_validation if has_other else None,
    ):
      results[name] = result
      print(f'  {result_files.describe_words(how)}')
      write(name, result, {**own, **how} if name == HYBRID_FOLDER else how)
  if options.codecs:
    table = codecs.evaluate(
        options.codecs, queries, passages, ranked, folder, {**facts, **own},
        options.k, options.depth, options.time_codecs, options.host,
    )
    assert table is not None
    print(table_lib.text(table))
  if reranked is not None:
    results[RERANK_FOLDER] = reranked
    write(RERANK_FOLDER, reranked, own | rerank_facts(options))
  return results


def _remove_others(
    folder: pathlib.Path, facts: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
  """Removes earlier results of other systems, of another model or data."""
  if not _is_of(folder / BM25_FOLDER, facts):
    remove_result(folder / BM25_FOLDER)
  if not _is_of(folder, {**facts, **own}):
    for name in (HYBRID_FOLDER, RERANK_FOLDER):
      remove_result(folder / name)
    remove_codecs(folder)


def _is_of(folder: pathlib.Path, facts: Mapping[str, Any]) -> bool:
  """Whether there is a result that a new evaluation would not change."""
  before, now = _facts_in(folder), json.loads(json.dumps(facts))
  names = {*before, *now} - {*_INCIDENTAL}
  return all(before.get(name) == now.get(name) for name in names)


def _facts_in(folder: pathlib.Path) -> dict[str, Any]:
  """The facts of a result; {} if none can be read."""
  try:
    result = result_files.read_result(folder)
  except UserError:
    return {}
  return {**result.key._asdict(), **result.provenance}


def _rerank(
    first: Evaluation, ranked: RetrievalSet, folder: pathlib.Path,
    options: Options,
) -> Evaluation:
  """Re-ranks the best hits; `folder` keeps a cross-encoder's scores."""
  score = teacher_scores.open_scores(options.teacher, ranked, folder)
  assert score is not None
  found = evaluation.rerank(first, ranked, score, options.rerank_depth)
  if isinstance(options.teacher, SharedTeacher):
    options.teacher.release()
  return found


def _help(teacher: Any, ranked: RetrievalSet) -> None:
  """Scores what the first host asks a teacher of all hosts for."""
  if isinstance(teacher, SharedTeacher):
    teacher.help(ranked.query_texts, ranked.corpus.texts)


def rerank_run(
    experiment: Any, split: str, path: pathlib.Path, folder: pathlib.Path,
    command: str, options: Options, overwrite: bool = False,
) -> tuple[Evaluation, Evaluation]:
  """Re-ranks a TREC run and writes the result folder, and that of the run.

  `experiment` needs only a task and caches; the run is of their split. Returns
  the results before and after; hosts but the first, which help it, know the
  former alone.

  Raises:
    UserError: the run has unknown queries or passages, scores are missing or
      not finite, or the folder has the results of another run, task or teacher
      and `overwrite` is not given.
  """
  ranked = _open_set(experiment, split, folder, options)
  hits = trec.read_run(path)
  metrics.check_depth(
      result_files.run_depth(path, hits), len(ranked.ranked_ids),
      options.metrics, str(path),
  )
  run = evaluation.rank_run(hits, ranked, path)
  if options.host.index:
    _help(options.teacher, ranked)
    return run, run
  facts = facts_of(experiment, split, ranked, options)
  # Runs of many systems are called run.trec.
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  facts |= {'command': command, 'run': path.name, 'run_sha256': digest}
  facts['depth'] = run.ranking.indices.shape[1]
  how = rerank_facts(options)
  if not overwrite:
    names = (*_OF_DATA, 'run_sha256', 'teacher')
    now = {name: (facts | how)[name] for name in names}
    json_file.check_own(
        folder, result_files.METRICS, [result_files.RUN], now, dict
    )
  reranked = _rerank(run, ranked, folder, options)
  write_result(folder / BEFORE_FOLDER, ranked, run, options.k, facts)
  write_result(folder, ranked, reranked, options.k, facts | how)
  return run, reranked


def rerank_facts(options: Options) -> dict[str, Any]:
  """The additional facts that a re-ranked result depends on."""
  facts = {'system': RERANK_FOLDER, 'rerank_depth': options.rerank_depth}
  return facts | teacher_facts(options.teacher)


def teacher_facts(teacher: Any) -> dict[str, Any]:
  """The facts that a teacher's scores depend on."""
  if not isinstance(teacher, PairScorer):
    return {'teacher': {'scores': teacher.name}}
  own = teacher.provenance
  return {'teacher': {n: own[n] for n in _OF_TEACHER if own.get(n, '') != ''}}


def evaluate_bm25(
    experiment: Any, split: str, folder: pathlib.Path, command: str,
    options: Options = Options(), overwrite: bool = False,
) -> Evaluation:
  """Evaluates BM25 alone; `experiment` needs only a task and caches.

  Only `overwrite` replaces results of other data.
  """
  ranked = _open_set(experiment, split, folder, options)
  facts = {**facts_of(experiment, split, ranked, options), 'command': command}
  if not overwrite:
    now = {name: facts[name] for name in _OF_DATA}
    json_file.check_own(
        folder, result_files.METRICS, [result_files.RUN], now, dict
    )
  index = options.baselines.words.of(ranked)
  result, how = options.baselines.bm25(index, ranked, options.depth)
  print(f'  {result_files.describe_words(how)}')
  write_result(folder, ranked, result, options.k, {**facts, **how})
  return result


def _read_set(experiment: Any, split: str, options: Options) -> RetrievalSet:
  ranked = RetrievalSet.of_split(experiment, split, options.document_separator)
  ranked = dataclasses.replace(
      ranked, relevance_level=options.relevance_level,
      more_metrics=options.metrics,
  )
  return ranked.with_equal_texts_as_one() if options.equal_texts else ranked


def _open_set(
    experiment: Any, split: str, folder: pathlib.Path, options: Options
) -> RetrievalSet:
  """Opens the retrieval set and checks what would fail after the encoding."""
  ranked = _read_set(experiment, split, options)
  files.make_folder(folder, 'another --output_dir')
  ranked.agree()
  trec.check_ids('query id', ranked.query_ids)
  trec.check_ids('id', ranked.ranked_ids)
  for name in options.metrics:
    if what := ranked.lacks(name):
      _LOG.warning(
          '%s is left out: %s, split %s, has no %s.',
          name, options.label(experiment.task), split, what,
      )
  return ranked


def facts_of(
    experiment: Any, split: str, ranked: RetrievalSet, options: Options
) -> dict[str, Any]:
  """The facts that the numbers of every system depend on."""
  task = experiment.task.for_split(split)
  corpus = ranked.corpus.cache.header
  identity = task.identity(split)
  named = {*task.FILES} - {'hard_negatives'}
  level, copies = options.relevance_level, ranked.unjudged_copies()
  facts = {
      'task': task.task_name,
      'dataset': task.dataset,
      'label': options.label(task),
      'split': split,
      'files': {n: identity[n] for n in sorted(named) if identity.get(n)},
      'queries': len(ranked.query_ids),
      'passages': len(ranked.corpus),
      'k': options.k,
      'depth': options.depth,
      'document_separator': options.document_separator,
      'source': ranked.cache.header['source'],
      'corpus': {name: corpus[name] for name in ('split', 'source')},
      # `compare` leaves the usual level out, too.
      **({'relevance_level': level} if level > 1 else {}),
      **({'equal_texts': 'one'} if options.equal_texts else {}),
      **({result_files.COPIES: copies} if copies else {}),
      **({result_files.ASKED: options.metrics} if options.metrics else {}),
  }
  print(f'  {result_files.size(facts)}')
  if sentence := result_files.describe_copies(facts):
    _LOG.warning(sentence)
  return facts
