"""Evaluation of a model on a split of its task, into a result folder.

Beside its own results, in the same folder, are those of BM25 and of both fused.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import logging
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.data import Dataset
from dualenc_jax.data.text.near_duplicates import near_pairs
from dualenc_jax.data.text.words import words
from dualenc_jax.evaluation import (
  evaluation,
  metrics,
  teacher_scores,
  trec,
)
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.results import codecs, result_files, tables
from dualenc_jax.evaluation.results.baselines import (
  Baselines,
  BM25_FOLDER,
  Dense,
  HYBRID_FOLDER,
)
from dualenc_jax.evaluation.results.result_files import VALIDATION
from dualenc_jax.evaluation.results.result_writer import (
  remove_result,
  write_result,
)
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.compression import Coded, Spec
from dualenc_jax.retrieval.compression.codec import with_candidates
from dualenc_jax.retrieval.encoding.teacher import Teacher
from dualenc_jax.retrieval.encoding.towers import Loaded
from dualenc_jax.retrieval.index.build_for_model import corpus_embeddings
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils import files, json_file, table as table_lib
from dualenc_jax.utils.errors import UserError

RERANK_FOLDER = result_files.SYSTEMS[-1]
_LOG = logging.getLogger(__name__)
# Facts in which results of one model on one set may differ.
_INCIDENTAL = (
    'command', 'k', 'git_revision', 'versions', 'device', 'queries_counted',
    result_files.TRAIN_OVERLAP, 'system', 'k1', 'b', 'language',
)
# What results are of, whatever was measured.
_OF_DATA = 'label', 'split', 'source', 'corpus'
# What a result says of its teacher, as far as it is there.
_OF_TEACHER = (
    'model_dir', 'checkpoint', 'form', 'run_id', 'checkpoint_step', 'template',
    'query_prefix', 'passage_prefix',
)


@dataclasses.dataclass(frozen=True)
class Options:
  """How splits are evaluated.

  Attributes:
    k: hits a query in the run file.
    index_dir: keeps the embeddings of the corpus there, and reads them if they
      exist; None keeps them in memory.
    document_separator: ranks documents by their best passage, see `Documents`.
    baselines: what is measured beside the model.
    teacher: re-ranks the model's hits: a cross-encoder, or a file of scores.
    rerank_depth: hits of a query that it scores.
    codecs: measured on the model's embeddings.
    learnt: queries that the model has learnt from, among which those that it is
      measured by are looked for; None for no such look.
    relevance_level: the least grade of a relevant passage.
    equal_texts: whether passages of one text are one.
    candidates: l, of an index that is searched in two steps; None for its own.
  """

  k: int = 1000
  index_dir: pathlib.Path | None = None
  document_separator: str | None = None
  baselines: Baselines = Baselines()
  teacher: Teacher | pathlib.Path | None = None
  rerank_depth: int = 100
  codecs: Sequence[Spec] = ()
  learnt: Sequence[str] | None = None
  candidates: int | None = None
  relevance_level: int = 1
  equal_texts: bool = False

  @property
  def depth(self) -> int:
    """Hits a query that metrics are of."""
    return max(self.k, metrics.DEPTH)

  def label(self, task: Dataset) -> str:
    """The label of a task's results."""
    of_documents = self.document_separator is not None
    label = task.label + result_files.DOCUMENTS * of_documents
    return label + result_files.EQUAL_TEXTS * self.equal_texts


def default_output(model_dir: str | os.PathLike[str]) -> pathlib.Path:
  """Where the results of a model_dir are."""
  return pathlib.Path(model_dir) / 'evaluation'


def folder_name(task: Dataset, split: str, options: Options = Options()) -> str:
  """The result folder of a split, below `default_output`."""
  return f'{options.label(task)}-{split}'.replace('/', '-')


def evaluate(
    model: Loaded, experiment: Experiment, split: str, folder: pathlib.Path,
    config: str, command: str, options: Options = Options(),
) -> dict[str, Evaluation]:
  """Evaluates on a split of a task and writes the result folder.

  `config` is everything that took part, as gin, `command` the command line that
  makes this result. Returns results by system: '' the model, and the baselines.

  Raises:
    UserError: data that cannot be evaluated, embeddings that are not finite, or
      a folder that cannot be written.
  """
  task: Any = experiment.task
  may_choose = options.baselines.may_choose(task, split)
  if options.codecs and model.codec is not None:
    raise UserError(
        '--codecs is given, but the model is always measured by its own codec,'
        f' {model.codec.name}. Leave --codecs out, or evaluate the model that'
        ' training started from.'
    )
  ranked = _opened(experiment, split, folder, options)
  codecs.check(options.codecs, model.dim, len(ranked.corpus))
  embedder: Any = model.embedder
  queries = evaluation.encode_queries(embedder, model.params, ranked)
  passages = corpus_embeddings(model, ranked.corpus, options.index_dir)
  if options.candidates is not None:
    passages = with_candidates(passages, options.candidates)
  if options.codecs and isinstance(passages, Coded):
    raise UserError(
        f'--codecs is given, but --index_dir={options.index_dir} holds codes of'
        f' {passages.codec.name}. Give an index of --codec=fp32, or none.'
    )
  found = {'': evaluation.rank(queries, passages, ranked, options.depth)}
  new = None
  if options.teacher is not None:
    # What is wrong with it is found before a result is replaced.
    score = teacher_scores.open_scores(
        options.teacher, ranked, folder / RERANK_FOLDER
    )
    assert score is not None
    new = evaluation.rerank(found[''], ranked, score, options.rerank_depth)
  facts = {**facts_of(experiment, split, ranked, options), 'command': command}
  own = {**model.provenance, 'embedding_dtype': str(passages.dtype)}
  if options.learnt is not None:
    overlap = count_overlap(ranked.query_texts, options.learnt)
    own[result_files.TRAIN_OVERLAP] = overlap
    print(f'  {result_files.describe_overlap(overlap)}')
  if isinstance(passages, Coded):
    coded = passages.codec
    own |= {'codec': coded.name, 'bytes_per_passage': coded.bytes_per_passage}
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

  write('', found[''], own)

  def validation() -> tuple[RetrievalSet, np.ndarray, Any]:
    other = _set(experiment, VALIDATION, options)
    same = other.corpus.cache.header == ranked.corpus.cache.header
    return (
        other,
        evaluation.encode_queries(embedder, model.params, other),
        passages if same else corpus_embeddings(model, other.corpus),
    )

  for name, result, how in options.baselines.evaluate(
      ranked,
      Dense(queries, passages, validation if may_choose else None),
      options.depth,
  ):
    found[name] = result
    print(f'  {tables.describe_words(how)}')
    write(name, result, {**own, **how} if name == HYBRID_FOLDER else how)
  if options.codecs:
    table = codecs.evaluate(
        options.codecs, found[''], queries, passages, ranked,
        folder / codecs.FOLDER, {**facts, **own}, options.k, options.depth,
    )
    print(table_lib.text(table))
  if new is not None:
    found[RERANK_FOLDER] = new
    write(RERANK_FOLDER, new, own | rerank_facts(options))
  return found


def _remove_others(
    folder: pathlib.Path, facts: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
  """Removes earlier results beside a model's, of another model or data.

  What is only not measured again stays; BM25 is of no model.
  """
  if not _is_of(folder / BM25_FOLDER, facts):
    remove_result(folder / BM25_FOLDER)
  if not _is_of(folder, {**facts, **own}):
    for name in (HYBRID_FOLDER, RERANK_FOLDER):
      remove_result(folder / name)
    codecs.remove(folder / codecs.FOLDER)


def _is_of(folder: pathlib.Path, facts: Mapping[str, Any]) -> bool:
  """Whether a result is there and would have these facts, made again."""
  before, now = _facts_in(folder), json.loads(json.dumps(facts))
  names = {*before, *now} - {*_INCIDENTAL}
  return all(before.get(name) == now.get(name) for name in names)


def _facts_in(folder: pathlib.Path) -> dict[str, Any]:
  """What a result says that it is of; {} for none that can be read."""
  try:
    found = result_files.read_result(folder)
  except UserError:
    return {}
  return {**found.key._asdict(), **found.provenance}


def count_overlap(
    queries: Sequence[str], learnt: Sequence[str]
) -> dict[str, int]:
  """How many queries a model is measured by and has learnt from, or nearly.

  Returns:
    'queries' and 'learnt', how many there are; 'queries_same' and
    'learnt_same', those with all the words, in any case, of one of the others;
    'queries_near' and 'learnt_near', as of `near_pairs`, these included.
  """
  texts = [
      [' '.join(words(text)) or text for text in own]
      for own in (queries, learnt)
  ]
  counts = {}
  near = near_pairs(texts[0], texts[1])
  sides = zip(('queries', 'learnt'), texts, texts[::-1], near)
  for what, own, others, places in sides:
    known = {*others}
    same = {i for i, text in enumerate(own) if text in known}
    counts[what] = len(own)
    counts[f'{what}_same'] = len(same)
    counts[f'{what}_near'] = len(same.union(places.tolist()))
  return counts


def rerank_facts(options: Options) -> dict[str, Any]:
  """What a re-ranked result depends on beside what is re-ranked."""
  depth = options.rerank_depth
  own = {'system': RERANK_FOLDER, 'rerank_depth': depth}
  return own | teacher_facts(options.teacher)


def teacher_facts(teacher: Any) -> dict[str, Any]:
  """What scores depend on."""
  if not isinstance(teacher, Teacher):
    return {'teacher': {'scores': teacher.name}}
  own = teacher.provenance
  return {'teacher': {n: own[n] for n in _OF_TEACHER if own.get(n, '') != ''}}


def evaluate_bm25(
    experiment: Any, split: str, folder: pathlib.Path, command: str,
    options: Options = Options(), overwrite: bool = False,
) -> Evaluation:
  """Evaluates BM25 alone; `experiment` needs no more than task and cache.

  Only `overwrite` replaces results of other data.
  """
  ranked = _opened(experiment, split, folder, options)
  facts = {**facts_of(experiment, split, ranked, options), 'command': command}
  if not overwrite:
    now = {name: facts[name] for name in _OF_DATA}
    json_file.check_own(
        folder, result_files.METRICS, [result_files.RUN], now, dict
    )
  index = options.baselines.words.of(ranked)
  result, how = options.baselines.bm25(index, ranked, options.depth)
  print(f'  {tables.describe_words(how)}')
  write_result(folder, ranked, result, options.k, {**facts, **how})
  return result


def _set(experiment: Any, split: str, options: Options) -> RetrievalSet:
  ranked = RetrievalSet.of_split(experiment, split, options.document_separator)
  ranked = dataclasses.replace(ranked, relevance_level=options.relevance_level)
  return ranked.with_equal_texts_as_one() if options.equal_texts else ranked


def _opened(
    experiment: Any, split: str, folder: pathlib.Path, options: Options
) -> RetrievalSet:
  """What is ranked; what would stop it later stops it before the encoding."""
  ranked = _set(experiment, split, options)
  files.make_folder(folder, 'another --output_dir')
  trec.check_ids('query id', ranked.query_ids)
  trec.check_ids('id', ranked.ranked_ids)
  return ranked


def facts_of(
    experiment: Any, split: str, ranked: RetrievalSet, options: Options
) -> dict[str, Any]:
  """What the numbers of every system depend on."""
  task = experiment.task.for_split(split)
  corpus = ranked.corpus.cache.header
  own = task.identity(split)
  named = {*task.FILES} - {'hard_negatives'}
  level, copies = options.relevance_level, ranked.unjudged_copies()
  facts = {
      'task': task.task_name,
      'dataset': task.dataset,
      'label': options.label(task),
      'split': split,
      'files': {name: own[name] for name in sorted(named) if own.get(name)},
      'queries': len(ranked.query_ids),
      'passages': len(ranked.corpus),
      'k': options.k,
      'depth': options.depth,
      'document_separator': options.document_separator,
      'source': ranked.cache.header['source'],
      'corpus': {name: corpus[name] for name in ('split', 'source')},
      # As `compare` has it: the usual value is not there.
      **({'relevance_level': level} if level > 1 else {}),
      **({'equal_texts': 'one'} if options.equal_texts else {}),
      **({result_files.COPIES: copies} if copies else {}),
  }
  print(f'  {tables.size(facts)}')
  if told := result_files.describe_copies(facts):
    _LOG.warning(told)
  return facts
