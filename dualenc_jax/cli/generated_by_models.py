"""Filters of generated queries by the scores of other models."""

import argparse
from collections import Counter
from collections.abc import Sequence
import pathlib

import numpy as np

from dualenc_jax.checkpoints import model_dirs
from dualenc_jax.cli import flags, rerank
from dualenc_jax.pipelines.generation.generator import Query
from dualenc_jax.pipelines.generation.shards import Passage
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

FLAGS = 'round_trip', 'round_trip_depth', 'teacher', 'min_teacher_score'


def add_flags(parser: flags.Parser) -> None:
  """Adds those of `FLAGS`, and what a released teacher is."""
  add = parser.add_argument
  add('--round_trip', metavar='MODEL',
      help='leave out queries whose passage this dual encoder does not find'
      ' (Promptagator, Dai et al. 2022)')
  add('--round_trip_depth', type=flags.whole(), metavar='K',
      help='lowest rank at which --round_trip may find the passage (default 1)')
  add('--teacher', metavar='MODEL_DIR',
      help='a cross-encoder for --min_teacher_score')
  add('--min_teacher_score', type=flags.number, metavar='X',
      help="leave out queries whose passage has a lower logit from --teacher")
  rerank.add_form(parser)


def check(args: argparse.Namespace) -> None:
  """Raises UserError for what would not do, before anything is generated."""
  if (args.teacher is None) != (args.min_teacher_score is None):
    raise UserError('Give --teacher and --min_teacher_score, or neither.')
  if args.round_trip is None and args.round_trip_depth is not None:
    raise UserError('--round_trip_depth: give --round_trip, or leave it out.')
  if args.teacher is not None and args.teacher_form is None:
    rerank.check_own(args.teacher)
  model = pathlib.Path(args.round_trip or '')
  if args.round_trip is not None and model_dirs.is_one(model):
    check_dual_encoder('round_trip', model)


def check_dual_encoder(flag: str, model: pathlib.Path) -> None:
  """Raises UserError for a model_dir of something else."""
  kind = model_dirs.kind_of(model_dirs.facts_of(model))
  if kind in (model_dirs.CROSS_ENCODER, model_dirs.GENERATOR):
    raise UserError(f'--{flag} is {model}, a {kind}; expected a dual encoder.')


def kept(
    queries: Sequence[Query], passages: Sequence[Passage],
    args: argparse.Namespace, counts: Counter[str],
) -> list[Query]:
  """The queries that are kept; counts those that are left out, by cause."""
  texts = [passage.text for passage in passages]
  kept = list(queries)
  if args.round_trip is not None:
    ids = [passage.id for passage in passages]
    retriever = Retriever.from_dir(args.round_trip)
    retriever.index(texts, ids)
    depth = min(args.round_trip_depth or 1, len(passages))
    hits = retriever.search([query.text for query in kept], depth).ids
    found = [q for q, best in zip(kept, hits) if ids[q.passage] in best]
    counts['whose passage is not found'] = len(kept) - len(found)
    kept = found
  if args.teacher is not None and kept:
    teacher = rerank.cross_encoder(args.teacher, args)
    pairs = np.array([(i, q.passage) for i, q in enumerate(kept)], np.int64)
    scores = teacher.scores([query.text for query in kept], texts, pairs)
    least = args.min_teacher_score
    found = [query for query, score in zip(kept, scores) if score >= least]
    counts["below the teacher's score"] = len(kept) - len(found)
    kept = found
  return kept
