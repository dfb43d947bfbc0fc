"""Which generated queries are kept, by what other models make of them."""

import argparse
from collections import Counter
from collections.abc import Sequence
import pathlib

import numpy as np

from dualenc_jax.commands import flags, rerank
from dualenc_jax.errors import UserError
from dualenc_jax.generation.generator import Query
from dualenc_jax.generation.shards import Passage
from dualenc_jax.interop import own
from dualenc_jax.retriever import Retriever

FLAGS = 'round_trip', 'round_trip_depth', 'teacher', 'min_teacher_score'


def add_flags(parser: flags.Parser) -> None:
  """Adds those of `FLAGS`, and what a released teacher is."""
  add = parser.add_argument
  add(
      '--round_trip', metavar='MODEL',
      help='leave out queries whose passage this dual encoder does not find'
      ' (Promptagator, Dai et al. 2022)',
  )
  add(
      '--round_trip_depth', type=flags.whole(), metavar='K',
      help='among its best; 1',
  )
  add(
      '--teacher', metavar='MODEL_DIR',
      help='a cross-encoder, for --min_teacher_score',
  )
  add(
      '--min_teacher_score', type=flags.number, metavar='X',
      help='leave out queries whose logit with their passage is lower',
  )
  rerank.add_form(parser)


def check(args: argparse.Namespace) -> None:
  """Raises UserError for what would not do, before anything is generated."""
  if (args.teacher is None) != (args.min_teacher_score is None):
    raise UserError(
        'Give --teacher and --min_teacher_score, or neither: the one scores'
        ' queries, the other says which are kept.'
    )
  if args.round_trip is None and args.round_trip_depth is not None:
    raise UserError(
        '--round_trip_depth is of the hits of a model: give --round_trip, or'
        ' leave it out.'
    )
  if args.teacher is not None and args.teacher_form is None:
    rerank.check_own(args.teacher)
  if args.round_trip is None or not own.is_one(pathlib.Path(args.round_trip)):
    return
  kind = own.kind_of(own.facts_of(pathlib.Path(args.round_trip)))
  if kind in (own.CROSS_ENCODER, own.GENERATOR):
    raise UserError(
        f'--round_trip is {args.round_trip}, a {kind}; expected a dual encoder,'
        ' which searches.'
    )


def kept(
    queries: Sequence[Query],
    passages: Sequence[Passage],
    args: argparse.Namespace,
    counts: Counter[str],
) -> list[Query]:
  """The queries that are kept.

  Args:
    queries: those that are left.
    passages: among which the round trip searches.
    args: with `FLAGS`.
    counts: of those left out, by cause; counted up.
  """
  if args.round_trip is not None:
    retriever = Retriever.from_dir(args.round_trip)
    retriever.index(
        [passage.text for passage in passages], [p.id for p in passages]
    )
    depth = min(args.round_trip_depth or 1, len(passages))
    hits = retriever.search([query.text for query in queries], depth).ids
    found = [
        query
        for query, best in zip(queries, hits)
        if passages[query.passage].id in best
    ]
    counts['whose passage is not found'] = len(queries) - len(found)
    queries = found
  if args.teacher is not None and queries:
    teacher = rerank.cross_encoder(args.teacher, args)
    pairs = np.array([(i, q.passage) for i, q in enumerate(queries)], np.int64)
    scores = teacher.scores(
        [query.text for query in queries],
        [passage.text for passage in passages],
        pairs,
    )
    found = [
        query
        for query, score in zip(queries, scores)
        if score >= args.min_teacher_score
    ]
    counts["below the teacher's score"] = len(queries) - len(found)
    queries = found
  return list(queries)
