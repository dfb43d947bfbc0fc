"""Re-ranks a TREC run by a cross-encoder's scores, and measures both.

  dualenc rerank --teacher=teacher_dir --run=bm25/beir-scifact-test/run.trec
    --tasks=beir/scifact --gin.DATA_ROOT=/data

The teacher is a model_dir of --gin_file=architectures/cross_encoder.gin or
split_ranker.gin, a released monoT5 or RankT5 (--teacher_form), st:FOLDER, a
CrossEncoder of sentence-transformers, or a file of query id, passage id and
score from any other scorer. The run may come from a retriever, `dualenc bm25`
or another library, over the corpus of the task.

Writes the files of `dualenc evaluate` to OUTPUT_DIR, and the scores of all
pairs (logits) to scores.tsv there, from which a killed run continues.
"""

import argparse
from collections.abc import Iterator, Sequence
import dataclasses
import logging
import pathlib
import shlex

import numpy as np

from dualenc_jax.checkpoints import (
  checkpoint_reader,
  foreign_models,
  loading,
  released_models,
)
from dualenc_jax.cli import config, data_command, flags, runtime, task_selection
from dualenc_jax.evaluation.metrics import Scores
from dualenc_jax.evaluation.results import evaluate, significance, tables
from dualenc_jax.parallel import hosts
from dualenc_jax.retrieval import index
from dualenc_jax.retrieval.encoding import shared_teacher
from dualenc_jax.retrieval.encoding.split_teacher import SplitTeacher
from dualenc_jax.retrieval.encoding.teacher import PairScorer
from dualenc_jax.retriever import Hit
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import UserError

TEACHER = 'MODEL_DIR | st:FOLDER | FILE'
_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> None:
  args = config.parse_args(make_parser(), argv)
  asked = evaluate.parse_metrics(args.metrics, args.k)
  runtime.start(args)
  host = runtime.host()
  inputs, chosen = task_selection.inputs_without_model(args)
  task, split = task_selection.select_one(chosen)
  inputs = dataclasses.replace(inputs, task=task)
  prompts = args.prompt, args.passage_prompt
  options = evaluate.Options(
      k=args.k,
      teacher=shared_teacher.share(
          load_teacher(args.teacher, args, *prompts), host
      ),
      rerank_depth=args.depth,
      relevance_level=args.relevance_level,
      metrics=asked,
      host=host,
  )
  folder = pathlib.Path(args.output_dir)
  print(f'{task.label}, split {split}:')
  before, after = evaluate.rerank_run(
      inputs,
      split,
      pathlib.Path(args.run),
      folder,
      shlex.join(['dualenc', 'rerank', *argv]),
      options,
      args.overwrite,
  )
  if host.index:
    hosts.wait_for_all()
    return
  means = {'before': before.metrics, 'after': after.metrics}
  print(tables.metric_lines(means))
  for line in verdict(before.scores, after.scores):
    print(line)
  found = getattr(options.teacher, 'calibration', None)
  if found is not None:
    print(f'  A score s is the probability {found.describe()}.')
  print(f'  Written to {folder}.')
  hosts.wait_for_all()


def make_parser() -> flags.Parser:
  parser = config.make_parser('rerank', __doc__)
  data_command.add_flags(parser)
  add = parser.add_argument
  add('--teacher', required=True, metavar=TEACHER,
      help='a cross-encoder, or a file of query id, passage id and score')
  add('--run', required=True, metavar='FILE', help='TREC run to re-rank')
  add('--tasks', type=flags.listed, help=flags.ONE_TASK)
  add('--split', help=flags.SPLIT)
  add_form(parser)
  flags.add_prompts(parser)
  add('--depth', type=flags.whole(), default=100,
      help='best hits per query that are scored; the others stay below them'
      ' (default %(default)s)')
  add('--k', type=flags.whole(), default=1000,
      help='hits per query in the new run file (default %(default)s)')
  add('--output_dir', default='reranked',
      help='folder of the results (default %(default)s)')
  add('--overwrite', action='store_true',
      help='replace results of another run, task or teacher in --output_dir')
  flags.add_metrics(parser)
  flags.add_relevance_level(parser)
  runtime.add_flags(parser)
  return parser


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of a command that re-ranks what it finds."""
  add = parser.add_argument
  add('--rerank', metavar=TEACHER,
      help='re-rank the best hits by this cross-encoder or, in evaluate only,'
      ' by a file of query id, passage id and score')
  add('--rerank_depth', type=flags.whole(), default=100,
      help='hits per query that --rerank re-ranks (default %(default)s)')
  add_form(parser)


def add_form(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that describe a released teacher."""
  add = parser.add_argument
  add('--teacher_form', choices=list(released_models.FORMS),
      help='form of a teacher that is a T5X checkpoint or Hugging Face folder')
  add('--teacher_vocabulary', metavar='FILE',
      help="the teacher's SentencePiece file, if none is beside it")
  add('--teacher_length', type=flags.whole(),
      help='maximum tokens of query and passage together for the teacher'
      f' (default {released_models.LENGTH})')
  add('--teacher_index', metavar='DIR',
      help='index that `dualenc encode` has made of the corpus by a split'
      ' re-ranker: no passage is encoded again')


def load_teacher(
    path: str | None, args: argparse.Namespace, *prompts: str | None
) -> PairScorer | pathlib.Path | None:
  """A cross-encoder with `prompts` of its own, or the path of its scores."""
  if path is None:
    return None
  if args.teacher_form is None and pathlib.Path(path).is_file():
    if any(prompts) or args.teacher_index is not None:
      raise UserError(
          f'{path} is a file of scores, which takes no --prompt,'
          ' --passage_prompt or --teacher_index. Leave them out.'
      )
    return pathlib.Path(path)
  return load_cross_encoder(path, args, *prompts)


def load_cross_encoder(
    path: str, args: argparse.Namespace, *prompts: str | None
) -> PairScorer:
  """The cross-encoder of a model_dir, a released one, or st:FOLDER."""
  found = _load_cross_encoder(path, args, *prompts)
  if args.teacher_index is None:
    return found
  if not isinstance(found, SplitTeacher):
    raise UserError(
        f'--teacher_index: {path} is no split re-ranker, and keeps nothing of'
        ' passages. Leave it out.'
    )
  stored = index.open_index(found.model, args.teacher_index)
  return dataclasses.replace(found, stored=stored)


def _load_cross_encoder(
    path: str, args: argparse.Namespace, *prompts: str | None
) -> PairScorer:
  if hub.is_foreign(path):
    names = 'teacher_form', 'teacher_vocabulary', 'teacher_length'
    given = [name for name in names if getattr(args, name) is not None]
    if given or any(prompts):
      raise UserError(
          f'{path} has its own vocabulary, length and prompts. Leave out'
          f' --{(*given, "prompt and --passage_prompt")[0]}.'
      )
    return foreign_models.load_teacher(path)
  if args.teacher_form is not None:
    if any(prompts):
      raise UserError(
          f'--teacher_form={args.teacher_form} takes no --prompt or'
          ' --passage_prompt. Leave them out.'
      )
    return released_models.load_ranker(
        path,
        args.teacher_form,
        args.teacher_vocabulary,
        args.teacher_length or released_models.LENGTH,
    )
  for name in ('teacher_vocabulary', 'teacher_length'):
    if getattr(args, name) is not None:
      raise UserError(
          f'--{name} needs --teacher_form: a model_dir has its own.'
      )
  folder = pathlib.Path(path)
  if not checkpoint_reader.is_model_dir(folder):
    raise UserError(
        f'{path} is not the model_dir of a cross-encoder, or has no checkpoint'
        ' yet. Train one first, or for a released T5 give'
        f" --teacher_form={' or '.join(released_models.FORMS)}."
    )
  found = loading.load_teacher(folder, None, *prompts)
  step = found.provenance['checkpoint_step']
  _LOG.info('Re-ranking by step %d of %s.', step, path)
  return found


def reorder(
    teacher: PairScorer, query: str, hits: Sequence[Hit], depth: int
) -> list[Hit]:
  """Reorders the first `depth` hits of one query by the teacher's scores.
  The scores of the hits below fall by one each, from the lowest score above.
  """
  hits, below = hits[:depth], hits[depth:]
  if not hits:
    return []
  passages = [hit.passage.text for hit in hits]
  if not all(passages):
    raise UserError(
        'The index has no texts, which re-ranking reads. Build it again with'
        ' `dualenc encode`.'
    )
  pairs = np.stack([np.zeros(len(hits), int), np.arange(len(hits))], axis=1)
  scores = teacher.scores([query], passages, pairs).tolist()
  new = [hit._replace(score=score) for hit, score in zip(hits, scores)]
  lowest = min(scores)
  return sorted(new, key=lambda hit: -hit.score) + [
      hit._replace(score=lowest - i) for i, hit in enumerate(below, start=1)
  ]


def verdict(before: Scores, after: Scores) -> Iterator[str]:
  """Lines on whether re-ranking improves MRR@10, with a test."""
  metric = 'MRR@10'
  if metric not in before.values:
    return
  found = significance.paired(before.values[metric], after.values[metric])
  yield f'  Re-ranking: {found.describe(metric)}.'
  if found.after <= found.before:
    yield '  WARNING: the teacher does not beat what it re-ranks.'
