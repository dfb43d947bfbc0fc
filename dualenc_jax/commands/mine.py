"""Mines hard negatives for the queries of a task.

  dualenc mine --model_dir=my_model
  dualenc mine --bm25 train.jsonl
  dualenc mine --model_dir=my_model --bm25 --run=other.trec --tasks=msmarco
    --gin.DATA_ROOT=/data --depth=200 --first_rank=11 --relative_margin=0.05
    --sampling=random

Candidates are the best passages by a model (exact search), by BM25, of TREC
runs, or of several of these. Known positives are left out, by id and by text;
then what the flags say. With --teacher scores are a cross-encoder's.

Writes to OUTPUT_DIR: pairs.jsonl, to train on with --gin_file=tasks/pairs.gin;
hard-negatives.jsonl, the same by id (BEIR_HARD_NEGATIVES and so on); report.md
with what was left out, scores and examples to read; mined.json; with a teacher
scores.tsv, from which a killed run goes on.
"""

import argparse
from collections.abc import Iterator, Sequence
import dataclasses
import pathlib
import shlex
from typing import Any

from dualenc_jax.commands import (
  bm25,
  config,
  data_command,
  flags,
  model_dir,
  rerank,
  runtime,
  tasks,
)
from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import teacher_scores
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.inference.teacher import Teacher
from dualenc_jax.io import files
from dualenc_jax.mining import candidates, filters, negatives, output
from dualenc_jax.mining.candidates import Candidates
from dualenc_jax.results import evaluate

# More are read of a model or BM25 than are taken, for some are left out.
_DEPTH = 100


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  rules = filters.Rules(
      args.first_rank,
      args.depth,
      args.least_score,
      args.most_score,
      args.margin,
      args.relative_margin,
  )
  runs = list(filter(None, args.run or ()))
  if not (args.model_dir or args.bm25 or runs):
    raise UserError(
        'Nothing to mine with. Give --model_dir, --bm25, --run=FILE.trec, or'
        ' several of them.'
    )
  runtime.start()
  names = list(filter(None, args.tasks or ()))
  model, inputs = None, None
  if args.model_dir:
    if args.what:
      raise UserError(
          f'{args.what[0]} and --model_dir are given. Give --tasks, or'
          f' --gin.TRAIN_FILE={args.what[0]}, in its place.'
      )
    model = model_dir.load_from_args(args, before=tasks.gin_files(names))
    inputs = model.experiment
  else:
    args.gin_file = [*tasks.gin_files(names), *args.gin_file]
    inputs = data_command.build(args, needs_task=not names)
  chosen = tasks.chosen(inputs, names, args.split)
  if len(chosen) > 1:
    raise UserError(
        f'{len(chosen)} sets are asked for; expected one, such as beir/scifact.'
    )
  ((task, split),) = chosen
  inputs = dataclasses.replace(inputs, task=task)
  teacher = rerank.teacher(args.teacher, args)
  folder = pathlib.Path(args.output_dir)
  files.make_folder(folder, 'another --output_dir')
  ranked = RetrievalSet.of_split(inputs, split)
  if not any(ranked.gold):
    raise UserError(
        f'{task.label}, split {split}, has no query with a known positive.'
        ' Expected a split to train on.'
    )
  score = _score(teacher, ranked, folder)
  kept = [
      filters.apply(each, rules, ranked, score)
      for each in _sources(args, model, ranked, runs)
  ]
  taken = negatives.choose(
      kept, ranked, args.num_negatives, args.sampling, args.seed
  )
  command = shlex.join(['dualenc', 'mine', *(argv or ())])
  facts = _facts(args, inputs, split, ranked, model, teacher, command)
  output.write(folder, ranked, kept, taken, score is not None, facts)
  for line in output.counted(kept):
    print(line)
  count = sum(map(len, taken))
  print(f'{count:,} hard negatives of {len(taken):,} queries: {folder}.')
  without = sum(not each for each in taken)
  if without:
    print(f'{without:,} queries have none; {output.REPORT} says what was left.')
  print(
      'Train on them with --gin_file=tasks/pairs.gin'
      f' --gin.TRAIN_FILE={folder / output.PAIRS}'
      f' --gin.NUM_NEGATIVES={args.num_negatives}.'
  )


def make_parser() -> flags.Parser:
  parser = config.make_parser('mine', __doc__)
  data_command.add_flags(parser)
  add = parser.add_argument
  add('--model_dir', help='mine with this dual encoder, on its own task')
  add('--step', type=int, help='its checkpoint, the newest by default')
  add('--index_dir', help='keep the embeddings of the corpus there')
  add('--bm25', action='store_true', help='mine with BM25')
  add(
      '--run', type=flags.listed, metavar='FILE[,FILE]',
      help='mine TREC runs over the corpus of the task',
  )
  add('--tasks', type=flags.listed, help='as of `dualenc evaluate`, one set')
  add('--split', default='train', help='whose queries; train by default')
  add(
      '--depth', type=flags.whole(), default=_DEPTH,
      help=f'the last rank that is looked at; {_DEPTH}',
  )
  add(
      '--first_rank', type=flags.whole(), default=1,
      help='ranks before it are left out, whatever else is',
  )
  add(
      '--margin', type=float,
      help="leave out scores above the lowest positive's less this",
  )
  add(
      '--relative_margin', type=float,
      help='the same, less this share of its size: 0.05',
  )
  add('--least_score', type=float, help='leave out lower scores')
  add('--most_score', type=float, help='leave out higher scores')
  add(
      '--num_negatives', type=flags.whole(), default=7,
      help='taken of a query, at most; 7',
  )
  add(
      '--sampling', choices=negatives.SAMPLING, default='top',
      help='the best, or any of those that are left; top',
  )
  add('--seed', type=int, default=0, help='of --sampling=random')
  add(
      '--teacher', metavar='MODEL_DIR | FILE',
      help='whose scores decide, and are written to learn from',
  )
  rerank.add_form(parser)
  bm25.add_flags(parser)
  add('--output_dir', default='mined', help='where the files go; mined')
  return parser


def _sources(
    args: argparse.Namespace,
    model: model_dir.TrainedModel | None,
    ranked: RetrievalSet,
    runs: Sequence[str],
) -> Iterator[Candidates]:
  if model is not None:
    index_dir = args.index_dir and pathlib.Path(args.index_dir)
    yield candidates.by_model(model, ranked, args.depth, index_dir)
  if args.bm25:
    yield candidates.by_bm25(bm25.words(args).of(ranked), ranked, args.depth)
  for path in runs:
    yield candidates.by_run(pathlib.Path(path), ranked, args.depth)


def _score(
    teacher: Teacher | pathlib.Path | None,
    ranked: RetrievalSet,
    folder: pathlib.Path,
) -> teacher_scores.Score | None:
  if isinstance(teacher, Teacher):
    return teacher_scores.of_teacher(teacher, ranked, folder)
  return teacher and teacher_scores.of_file(teacher, ranked)


def _facts(
    args: argparse.Namespace,
    inputs: Any,
    split: str,
    ranked: RetrievalSet,
    model: model_dir.TrainedModel | None,
    teacher: Teacher | pathlib.Path | None,
    command: str,
) -> dict[str, Any]:
  """What the files depend on."""
  options = evaluate.Options(teacher=teacher)
  facts = evaluate.facts_of(inputs, split, ranked, options)
  if teacher is not None:
    facts |= evaluate.teacher_facts(options)
  names = ('first_rank', 'depth', 'margin', 'relative_margin', 'least_score')
  names += ('most_score', 'num_negatives', 'sampling', 'seed', 'bm25', 'run')
  return {
      **{name: facts[name] for name in ('task', 'label', 'split', 'queries')},
      **{name: facts[name] for name in ('passages', 'source', 'corpus')},
      'teacher': facts.get('teacher'),
      'model': None if model is None else dict(model.provenance),
      'flags': {name: getattr(args, name) for name in names},
      'command': command,
  }
