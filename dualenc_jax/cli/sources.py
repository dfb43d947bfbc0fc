"""Sources of queries and of candidate passages, from flags."""

import argparse
from collections.abc import Iterator, Mapping
import dataclasses
import logging
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.cli import bm25, data_command, flags, model_dir, tasks
from dualenc_jax.data.corpus import Corpus
from dualenc_jax.data.readers import Texts
from dualenc_jax.data.text.ragged import fingerprints
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.pipelines.mining import candidates
from dualenc_jax.pipelines.mining.candidates import Candidates
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import UserError

_LOG = logging.getLogger(__name__)
DEPTH = 100
# Of `Asked.facts`, and of flags, what makes results those of something else.
_OWN = 'label', 'split', 'source', 'corpus', 'bm25', 'run'
_OF_MODEL = 'run_id', 'checkpoint_step'


class Asked(NamedTuple):
  """What a command line asks for.

  `inputs` are a task with tokenizer and caches; `model` searches, if given.
  """

  inputs: Any
  split: str
  ranked: RetrievalSet
  model: model_dir.TrainedModel | None

  def facts(self) -> dict[str, Any]:
    """What results depend on."""
    task, ranked = self.inputs.task.for_split(self.split), self.ranked
    corpus = ranked.corpus.cache.header
    return {
        'task': task.task_name,
        'label': task.label,
        'split': self.split,
        'queries': len(ranked.query_ids),
        'passages': len(ranked.corpus),
        'source': ranked.cache.header['source'],
        'corpus': {name: corpus[name] for name in ('split', 'source')},
        'model': self.model and dict(self.model.provenance),
    }

  def check_folder(
      self, folder: pathlib.Path, facts: str, pairs: str,
      args: argparse.Namespace,
  ) -> None:
    """Refuses to replace files of another task or of other sources.

    Args:
      folder: where the results go.
      facts: file there that says what those of an earlier run are of; it is
        written before `pairs`.
      pairs: file there to train on.
      args: the flags; with --overwrite nothing is refused.
    """
    if not args.overwrite:
      json_file.check_own(
          folder, facts, [pairs], _identity(self.facts(), vars(args)),
          lambda saved: _identity(saved, saved['flags']),
          flags=dict, model=dict | None,
      )


def _identity(
    facts: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
  every = {**given, **facts}
  model = every['model'] or {}
  own = {name: every.get(name) for name in _OWN}
  return own | {'model': [model.get(name) for name in _OF_MODEL]}


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds a task, queries and sources."""
  data_command.add_flags(parser)
  add = parser.add_argument
  add('--model_dir',
      help='search with this dual encoder; its task is the default task')
  add('--step', type=flags.whole(0),
      help='checkpoint of --model_dir (default the newest)')
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
  add('--skip_bad_rows', action='store_true',
      help='leave out bad rows of --queries and report their number')
  add('--depth', type=flags.whole(), default=DEPTH,
      help='rank of the last candidate (default %(default)s)')
  add('--overwrite', action='store_true',
      help='replace files of another task or of other sources in --output_dir')
  bm25.add_flags(parser)


def check(args: argparse.Namespace) -> None:
  """Raises UserError where nothing ranks, or flags do not go together."""
  if not (args.model_dir or args.bm25 or args.run):
    raise UserError(
        'Nothing to search with. Give one or more of --model_dir, --bm25 and'
        ' --run=FILE.'
    )
  names = ['model', 'bm25', *(pathlib.Path(run).stem for run in args.run or ())]
  if twice := [name for name in names if names.count(name) > 1]:
    raise UserError(
        f'Two sources are called {twice[0]!r}; runs are called by their files.'
        ' Rename one.'
    )
  if args.model_dir and args.what:
    raise UserError(
        f'{args.what[0]} and --model_dir are both given. Give --tasks, or'
        f' --gin.TRAIN_FILE={args.what[0]}, in place of the former.'
    )


def asked(args: argparse.Namespace) -> Asked:
  """The task, queries and model of a command line."""
  names, model = args.tasks or (), None
  if args.model_dir:
    model = model_dir.load_from_args(args, before=tasks.gin_files(names))
    inputs: Any = model.experiment
    chosen = tasks.chosen(inputs, names, args.split)
  else:
    inputs, chosen = tasks.without_model(args)
  task, split = tasks.only(chosen)
  inputs = dataclasses.replace(inputs, task=task)
  if args.queries is None:
    return Asked(inputs, split, RetrievalSet.of_split(inputs, split), model)
  texts = Texts(args.queries, not args.skip_bad_rows)
  return Asked(inputs, split, _unlabelled(inputs, split, texts), model)


def ranked_by(args: argparse.Namespace, found: Asked) -> Iterator[Candidates]:
  """The candidates of each source."""
  ranked, depth = found.ranked, args.depth
  if found.model is not None:
    index_dir = args.index_dir and pathlib.Path(args.index_dir)
    yield candidates.by_model(found.model, ranked, depth, index_dir)
  if args.bm25:
    yield candidates.by_bm25(bm25.words(args).of(ranked), ranked, depth)
  for path in args.run or ():
    yield candidates.by_run(pathlib.Path(path), ranked, depth)


def _unlabelled(inputs: Any, split: str, texts: Texts) -> RetrievalSet:
  """Queries of a file over what the task's split is ranked over."""
  task = inputs.task.for_split(split)
  cache = inputs.passage_cache(task.corpus_split(split) or split)
  own = dataclasses.replace(inputs, task=texts).cache('queries')
  _, first = np.unique(fingerprints(own.query_texts), return_index=True)
  rows = np.sort(first)
  if repeated := len(own) - len(rows):
    _LOG.warning(
        '%s: %s of %s queries have the text of an earlier one, and are left'
        ' out.', texts.path, f'{repeated:,}', f'{len(own):,}',
    )
  return RetrievalSet(
      own, rows, [own.query_ids.text(row) for row in rows],
      Corpus.from_cache(cache), [{} for _ in rows], [[] for _ in rows],
      task.answer_text,
  )
