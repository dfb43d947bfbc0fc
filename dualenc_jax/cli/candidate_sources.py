"""Flags of `mine` and `label`: queries, sources of candidates, a teacher."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import logging
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.cli import (
  bm25,
  data_command,
  flags,
  rerank,
  runtime,
  saved_run,
  task_selection,
)
from dualenc_jax.data.corpus import Corpus
from dualenc_jax.data.readers import rows as rows_lib, Texts
from dualenc_jax.data.text.ragged import fingerprints
from dualenc_jax.evaluation import teacher_scores
from dualenc_jax.evaluation.results import evaluate
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.parallel import hosts
from dualenc_jax.parallel.hosts import Host
from dualenc_jax.pipelines.mining import candidates as sources
from dualenc_jax.pipelines.mining.candidates import Candidates, Score
from dualenc_jax.retrieval.encoding import shared_teacher
from dualenc_jax.retrieval.encoding.shared_teacher import SharedTeacher
from dualenc_jax.retrieval.encoding.teacher import PairScorer
from dualenc_jax.utils import folder_lock, json_file
from dualenc_jax.utils.errors import UserError

_LOG = logging.getLogger(__name__)
DEPTH = 100
# Facts and flags by which results are of something else.
_OWN = 'label', 'split', 'source', 'corpus', 'bm25', 'run'
_OF_MODEL = 'run_id', 'checkpoint_step'


class CandidateRequest(NamedTuple):
  """The task, queries, models and teacher of a command line.

  Attributes:
    inputs: a task with tokenizer and caches, those of the first model that
      has a task.
    split: of the queries.
    ranked: queries and corpus.
    models: dual encoders that search, by name.
    teacher: a cross-encoder or a file of scores; None for none.
    score: pairs of query and passage -> the teacher's scores.
    host: this process's part of the work.
  """

  inputs: Any
  split: str
  ranked: RetrievalSet
  models: Mapping[str, saved_run.TrainedModel]
  teacher: PairScorer | pathlib.Path | None
  score: Score | None
  host: Host

  def facts(self) -> dict[str, Any]:
    """The values that results depend on."""
    task, ranked = self.inputs.task.for_split(self.split), self.ranked
    corpus = ranked.corpus.cache.header
    models = [dict(model.provenance) for model in self.models.values()]
    return {
        'task': task.task_name,
        'label': task.label,
        'split': self.split,
        'queries': len(ranked.query_ids),
        'passages': len(ranked.corpus),
        'source': ranked.cache.header['source'],
        'corpus': {name: corpus[name] for name in ('split', 'source')},
        'model': models[0] if models else None,
        'other_models': models[1:],
        **(evaluate.teacher_facts(self.teacher) if self.teacher else {}),
    }

  def candidates(self, args: argparse.Namespace) -> list[Candidates]:
    """The candidates of each source, of which the first host makes use.

    The others find them by models, score what it asks for, and return none.
    """
    if not self.host.index:
      return [*self._candidates(args, args.bm25, args.run or ())]
    for _ in self._candidates(args):
      pass
    if isinstance(self.teacher, SharedTeacher):
      self.teacher.help(self.ranked.query_texts, self.ranked.corpus.texts)
    return []

  def _candidates(
      self, args: argparse.Namespace, with_bm25: bool = False,
      runs: Sequence[str] = (),
  ) -> Iterator[Candidates]:
    index_dir = args.index_dir and pathlib.Path(args.index_dir)
    for name, model in self.models.items():
      ranked, own = self.ranked, model.experiment
      # The same texts, in tokens of its own.
      if own.tokenizer is not self.inputs.tokenizer:
        own = dataclasses.replace(own, task=self.inputs.task)
        ranked = _ranked(args, own, self.split)
      found = sources.find_by_model(
          model, ranked, args.depth, index_dir, self.host
      )
      yield dataclasses.replace(found, name=name)
    if with_bm25:
      words = bm25.words(args).of(self.ranked)
      yield sources.find_by_bm25(words, self.ranked, args.depth)
    for path in runs:
      yield sources.find_in_run(pathlib.Path(path), self.ranked, args.depth)


@contextlib.contextmanager
def open_request(
    args: argparse.Namespace, activity: str, facts: str, pairs: str
) -> Iterator[CandidateRequest]:
  """Opens data and models of the flags of `add_flags`, and locks the output.

  Where several hosts have joined, the first alone locks and writes it.

  Args:
    args: the flags.
    activity: verb for the lock of the folder: 'mines'.
    facts: file in the output folder that describes an earlier run, and is
      written before `pairs`.
    pairs: file there to train on.

  Raises:
    UserError: flags exclude each other, or the folder has results of another
      task or of other sources, without --overwrite.
  """
  _check(args)
  runtime.start(args)
  folder, host = pathlib.Path(args.output_dir), runtime.host()
  lock: contextlib.AbstractContextManager = contextlib.nullcontext()
  if not host.index:
    lock = folder_lock.lock_folder(folder, activity, 'another --output_dir')
  with lock:
    inputs, split, models = _inputs(args)
    ranked = _ranked(args, inputs, split)
    ranked.agree()
    request = CandidateRequest(inputs, split, ranked, models, None, None, host)
    if not args.overwrite:
      json_file.check_own(
          folder, facts, [pairs], _identity(request.facts(), vars(args)),
          lambda saved: _identity(saved, saved['flags']),
          flags=dict, model=dict | None,
      )
    teacher = shared_teacher.share(
        rerank.load_teacher(args.teacher, args), host
    )
    score = teacher_scores.open_scores(teacher, ranked, folder)
    yield request._replace(teacher=teacher, score=score)
    if isinstance(teacher, SharedTeacher) and not host.index:
      teacher.release()
    hosts.wait_for_all()


def _identity(
    facts: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
  every = {**given, **facts}
  models = every['model'] or {}, *(every.get('other_models') or ())
  own = {name: every.get(name) for name in _OWN}
  return own | {
      'model': [model.get(name) for model in models for name in _OF_MODEL]
  }


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds a task, queries and sources."""
  data_command.add_flags(parser)
  add = parser.add_argument
  add('--model_dir', action='append', default=[],
      help='search with this dual encoder, or st:FOLDER, a model of'
      ' sentence-transformers; repeatable. The task of the first that has one'
      ' is the default task')
  add('--step', type=flags.whole(0),
      help='checkpoint of --model_dir (default the best kept, else the newest)')
  flags.add_dim(parser)
  flags.add_prompts(parser)
  add('--index_dir', help='folder for the embeddings of the corpus')
  add('--bm25', action='store_true', help='search with BM25')
  add('--run', type=flags.listed, metavar='FILE[,FILE]',
      help='take the hits of TREC runs over the corpus of the task')
  add('--tasks', type=flags.listed, help=flags.ONE_TASK)
  add('--split', default='train',
      help='split of the queries (default %(default)s)')
  add('--queries', metavar='FILE',
      help='unlabelled queries in place of those of the split: JSONL of _id and'
      ' text, or TSV')
  add('--depth', type=flags.whole(), default=DEPTH,
      help='rank of the last candidate (default %(default)s)')
  add('--overwrite', action='store_true',
      help='replace files of another task or of other sources in --output_dir')
  bm25.add_flags(parser)
  runtime.add_flags(parser)


def _check(args: argparse.Namespace) -> None:
  """Raises UserError where nothing ranks, or flags do not go together."""
  if not (args.model_dir or args.bm25 or args.run):
    raise UserError(
        'Nothing to search with. Give one or more of --model_dir, --bm25 and'
        ' --run=FILE.'
    )
  runs = [pathlib.Path(run).stem for run in args.run or ()]
  names = [*_model_names(args), 'bm25', *runs]
  if twice := [name for name in names if names.count(name) > 1]:
    raise UserError(
        f'Two sources are called {twice[0]!r}; runs are called by their files,'
        ' several models by their folders. Rename one.'
    )
  for flag in ('step', 'index_dir'):
    if len(args.model_dir) > 1 and getattr(args, flag) is not None:
      raise UserError(
          f'--{flag} is of one model, but {len(args.model_dir)} are given.'
          ' Leave it out, or run the command for each model alone.'
      )
  runtime.check_multihost(args, needs_index=bool(args.model_dir))
  if args.model_dir and args.what:
    raise UserError(
        f'{args.what[0]} and --model_dir are both given. Give --tasks, or'
        f' --gin.TRAIN_FILE={args.what[0]}, in place of the former.'
    )


def _model_names(args: argparse.Namespace) -> list[str]:
  """Names of the models: of their folders, but one alone is 'model'."""
  if len(args.model_dir) < 2:
    return ['model']
  return [pathlib.Path(folder).absolute().name for folder in args.model_dir]


def _inputs(
    args: argparse.Namespace,
) -> tuple[Any, str, dict[str, saved_run.TrainedModel]]:
  """Task with tokenizer and caches, split, and the models that search."""
  names, models = args.tasks or (), {}
  if args.model_dir:
    gin_files = task_selection.gin_files(names)
    models = {
        name: saved_run.load_from_args(
            args, per_host=True, before=gin_files, folder=folder
        )
        for name, folder in zip(_model_names(args), args.model_dir)
    }
    every = [model.experiment for model in models.values()]
    inputs = next((e for e in every if e.task is not None), every[0])
    chosen = task_selection.select(inputs, names, args.split)
  else:
    inputs, chosen = task_selection.inputs_without_model(args)
  task, split = task_selection.select_one(chosen)
  return dataclasses.replace(inputs, task=task), split, models


def _ranked(args: argparse.Namespace, inputs: Any, split: str) -> RetrievalSet:
  """Queries of the split, or of --queries, over the corpus of the split."""
  if args.queries is None:
    return RetrievalSet.of_split(inputs, split)
  task = inputs.task.for_split(split)
  cache = inputs.passage_cache(task.corpus_split(split) or split)
  own = dataclasses.replace(inputs, task=Texts(args.queries))
  with rows_lib.skipped_by(None):
    own = own.cache('queries')
  _, first = np.unique(fingerprints(own.query_texts), return_index=True)
  rows = np.sort(first)
  if repeated := len(own) - len(rows):
    _LOG.warning(
        '%s: %s of %s queries have the text of an earlier one, and are left'
        ' out.', args.queries, f'{repeated:,}', f'{len(own):,}',
    )
  return RetrievalSet(
      own, rows, [own.query_ids.text(row) for row in rows],
      Corpus.from_cache(cache), [{} for _ in rows], [[] for _ in rows],
      task.answer_text,
  )
