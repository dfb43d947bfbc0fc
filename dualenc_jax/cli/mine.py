"""Mines hard negatives for the queries of a task.

  dualenc mine --model_dir=my_model
  dualenc mine --bm25 train.jsonl
  dualenc mine --model_dir=my_model --model_dir=another --bm25
    --run=other.trec --tasks=msmarco --gin.DATA_ROOT=/data --depth=200
    --first_rank=11 --relative_margin=0.05 --sampling=random

Candidates are the best passages of models (exact search), of BM25, of TREC
runs, or of several of them in turns. Known positives are left out, by id and
by text; then the flags below apply. With --teacher a cross-encoder scores.

Writes to OUTPUT_DIR: pairs.jsonl, to train on with --gin_file=tasks/pairs.gin;
hard-negatives.jsonl, the same by id (for BEIR_HARD_NEGATIVES and the like; the
one to use for --queries, which have no labels); mined.json with counts; with a
cross-encoder scores.tsv, from which a killed run continues. Files of an earlier
run are replaced, except those of another task or of other sources.
"""

import argparse
from collections.abc import Sequence
import pathlib
import shlex

import numpy as np

from dualenc_jax.cli import candidate_sources, config, flags, rerank
from dualenc_jax.cli.candidate_sources import CandidateRequest
from dualenc_jax.pipelines.mining import filters, negatives
from dualenc_jax.retrieval.encoding.teacher import check_spread
from dualenc_jax.utils.errors import UserError

# Flags that the files depend on, beside data, model and teacher.
_FLAGS = (
    'bm25', 'depth', 'first_rank', 'num_negatives', 'relative_margin', 'run',
    'sampling', 'seed',
)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  rules = filters.Rules(args.first_rank, args.depth, args.relative_margin)
  if args.min_spread is not None and args.teacher is None:
    raise UserError('--min_spread needs --teacher: give both.')
  with candidate_sources.open_request(
      args, 'mines', negatives.FACTS, negatives.PAIRS
  ) as request:
    _mine(args, rules, request, shlex.join(['dualenc', 'mine', *(argv or ())]))


def _mine(
    args: argparse.Namespace, rules: filters.Rules, request: CandidateRequest,
    command: str,
) -> None:
  folder = pathlib.Path(args.output_dir)
  ranked, score = request.ranked, request.score
  labelled = any(ranked.gold)
  if not labelled and args.queries is None:
    raise UserError(
        f'{request.inputs.task.label}, split {request.split}, has no query with'
        ' a known positive. Expected a split to train on, or --queries.'
    )
  found = request.candidates(args)
  if request.host.index:
    return
  # Where scores decide nothing, a teacher scores only what is taken.
  first = None if rules.relative_margin is None else score
  kept = [
      filters.filter_candidates(each, rules, ranked, first)
      for each in found
  ]
  taken = [*negatives.choose(
      kept, ranked, args.num_negatives, args.sampling, args.seed
  )]
  margins = ''
  if score is not None:
    if first is None:
      chosen = [{n.passage for n in own} for own in taken]
      kept = [
          filters.score_chosen(each, chosen, ranked, score) for each in kept
      ]
      taken = [*negatives.with_scores(taken, kept)]
    margins = _check_margins(args, kept, taken)
  facts = {
      **request.facts(),
      'flags': {name: getattr(args, name) for name in _FLAGS},
      'command': command,
  }
  negatives.write_files(
      folder, ranked, kept, taken, score is not None, facts
  )
  print('\n'.join(negatives.count_table(kept)))
  if margins:
    print(margins)
  print(f'{negatives.summary(taken)} Written to {folder}.')
  if not any(taken):
    print('WARNING: nothing is left; the table says which rule took it.')
    return
  if labelled and request.split != 'train':
    print(
        f'These are queries of split {request.split}: a model that trains on'
        ' them cannot be measured by it any more.'
    )


def _check_margins(
    args: argparse.Namespace, kept: Sequence[filters.FilteredCandidates],
    taken: Sequence[Sequence[negatives.Negative]],
) -> str:
  """A line on a teacher's margins; UserError if they spread too little."""
  labels = negatives.margins(kept, taken)
  if not len(labels):
    return ''
  if args.min_spread is not None:
    scores = np.array([n.score for own in taken for n in own])
    check_spread(labels, scores, args.min_spread)
  return (
      f'Margins of {len(labels):,} triplets: mean {labels.mean():.2f},'
      f' standard deviation {labels.std():.2f}; {np.mean(labels < 0):.1%} are'
      " below 0, where a mined passage is better than the query's own."
  )


def make_parser() -> flags.Parser:
  parser = config.make_parser('mine', __doc__)
  candidate_sources.add_flags(parser)
  add = parser.add_argument
  add('--first_rank', type=flags.whole(), default=1,
      help='rank of the first candidate (default %(default)s)')
  add('--relative_margin', type=flags.number, metavar='SHARE',
      help="leave out passages that score above the query's lowest positive"
      ' score less this share of it, such as 0.05')
  add('--num_negatives', type=flags.whole(), default=7,
      help='maximum negatives per query (default %(default)s)')
  add('--sampling', choices=negatives.SAMPLING, default='top',
      help='take the best of the remaining passages, or random ones (default'
      ' %(default)s)')
  add('--seed', type=flags.whole(0), default=0,
      help='seed of --sampling=random (default %(default)s)')
  add('--teacher', metavar=rerank.TEACHER,
      help='a cross-encoder, or a file of query id, passage id and logit, whose'
      ' scores replace those of the search and are written as labels')
  rerank.add_form(parser)
  add('--min_spread', type=flags.number, metavar='X',
      help='refuse a teacher whose margins have a lower standard deviation;'
      ' such as 1 for logits')
  add('--output_dir', default='mined',
      help='folder of the results (default %(default)s)')
  return parser

