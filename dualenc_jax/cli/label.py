"""Labels passages by a teacher's scores, for queries with labels or without.

  dualenc label --model_dir=my_model --teacher=teacher_dir
  dualenc label --model_dir=my_model --teacher=teacher_dir
    --queries=unlabelled.jsonl --above=0.9 --below=0.1
  dualenc label --run=bm25.trec --teacher=scores.tsv --calibration=1,0
    --tasks=beir/scifact --gin.DATA_ROOT=/data

The candidates of a query are the best passages of a model, of BM25 or of runs.
Passages whose probability is above --above are positives, those below --below
are hard negatives, in the order of retrieval; the rest is not used. Known
positives remain positives. Queries whose text is in another split of the task
are left out.

Writes to OUTPUT_DIR: pairs.jsonl, to train on with --gin_file=tasks/pairs.gin,
with the origin of each positive, logits and probabilities; report.md and
labels.json; with a cross-encoder scores.tsv, from which a killed run continues.
Files of an earlier run are replaced, except those of another task or of other
sources.
"""

import argparse
from collections.abc import Sequence
import logging
import math
import pathlib
import shlex

import numpy as np

from dualenc_jax.cli import candidate_sources, config, flags, rerank
from dualenc_jax.cli.candidate_sources import CandidateRequest
from dualenc_jax.data.text.ragged import fingerprints
from dualenc_jax.pipelines.mining import filters, labels
from dualenc_jax.retrieval.encoding.teacher import Calibration, PairScorer
from dualenc_jax.utils import files, untrusted
from dualenc_jax.utils.errors import expect, SourceUnavailable, UserError

_LOG = logging.getLogger(__name__)
_FLAGS = (
    'above', 'below', 'bm25', 'calibration', 'depth', 'num_negatives',
    'positives', 'queries', 'run',
)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  rules = labels.Rules(
      args.above, args.below, args.positives, args.num_negatives
  )
  if args.queries is not None and args.positives == 'none':
    raise UserError(
        '--queries have no known positives: leave out --positives=none.'
    )
  with candidate_sources.open_request(
      args, 'labels', labels.FACTS, labels.PAIRS
  ) as request:
    command = shlex.join(['dualenc', 'label', *(argv or ())])
    _label(args, rules, request, command)


def _label(
    args: argparse.Namespace, rules: labels.Rules, request: CandidateRequest,
    command: str,
) -> None:
  folder, ranked = pathlib.Path(args.output_dir), request.ranked
  truth = args.truth and labels.read_truth(args.truth, ranked)
  calibration = _calibration(args, request.teacher)
  candidates = request.candidates(args)
  if request.host.index:
    return
  kept = [
      filters.filter_candidates(
          each, filters.Rules(last_rank=args.depth), ranked, request.score
      )
      for each in candidates
  ]
  if args.calibration == '1,0':
    labels.check_logits(kept)
  dropped = _in_evaluation(request, args.queries is None)
  found = labels.label_all(
      kept, ranked, dropped, rules, calibration.probabilities
  )
  facts = {
      **request.facts(),
      'flags': {name: getattr(args, name) for name in _FLAGS},
      'counts': found.counts,
      'command': command,
  }
  # Written first: a killed run would leave files without their description.
  files.write_json(folder / labels.FACTS, facts)
  files.write_json_lines(
      folder / labels.PAIRS, labels.rows(ranked, found.written)
  )
  lines = list(labels.report(found, truth, rules))
  files.write(folder / labels.REPORT, '\n'.join(lines) + '\n')
  print('\n'.join(lines[1:]))
  if not found.written:
    raise UserError(
        f'No query is left to train on; {folder / labels.REPORT} counts why.'
        ' Lower --above, raise --below, or take another teacher.'
    )
  print(f'Written to {folder}.')


def make_parser() -> flags.Parser:
  parser = config.make_parser('label', __doc__)
  candidate_sources.add_flags(parser)
  add = parser.add_argument
  add('--teacher', required=True, metavar=rerank.TEACHER,
      help='a cross-encoder, or a file of query id, passage id and logit')
  rerank.add_form(parser)
  add('--calibration', metavar='SLOPE,INTERCEPT',
      help="map from logits to probabilities (default the teacher's own)")
  add('--above', type=flags.number, default=0.9,
      help='lower bound of the probability of a positive (default %(default)s)')
  add('--below', type=flags.number, default=0.1,
      help='upper bound of the probability of a negative (default %(default)s)')
  add('--positives', choices=labels.POSITIVES, default='best',
      help='passages above --above to take per query (default %(default)s)')
  add('--num_negatives', type=flags.whole(0), default=4,
      help='maximum negatives per query (default %(default)s)')
  add('--truth', metavar='QRELS',
      help='hidden or graded labels to compare with')
  add('--output_dir', default='labelled',
      help='folder of the results (default %(default)s)')
  return parser


def _calibration(
    args: argparse.Namespace, teacher: PairScorer | pathlib.Path | None
) -> Calibration:
  """The map from scores to probabilities, by a flag or the teacher's own."""
  if args.calibration is not None:
    calibration = _parse_calibration(args.calibration)
  elif isinstance(teacher, PairScorer) and teacher.calibration is not None:
    calibration = teacher.calibration
  else:
    raise UserError(
        f'{args.teacher} has no calibration, but thresholds need probabilities.'
        ' Give --calibration=SLOPE,INTERCEPT: 1,0 if the scores are logits.'
    )
  _LOG.info('A score s is the probability %s.', calibration.describe())
  return calibration


def _parse_calibration(text: str) -> Calibration:
  try:
    slope, intercept = map(untrusted.parse_number, text.split(','))
  except ValueError:
    slope = intercept = math.nan
  expect(
      0 < slope < math.inf and math.isfinite(intercept), '--calibration', text,
      "two numbers separated by ',', with a slope above 0",
  )
  return Calibration(slope, intercept)


def _in_evaluation(request: CandidateRequest, labelled: bool) -> np.ndarray:
  """bool [Q]: queries whose text a validation or test split has.

  Queries that are labelled are those of a split, which does not count.
  """
  task = request.inputs.task.for_split(request.split)
  ranked = request.ranked
  texts = fingerprints(ranked.cache.query_texts)[ranked.query_rows]
  dropped = np.zeros(len(texts), bool)
  skipped = {'corpus', 'train', *([request.split] if labelled else [])}
  for split in task.splits():
    if split not in skipped:
      try:
        others = request.inputs.cache(split).query_texts
        dropped |= np.isin(texts, fingerprints(others))
      except SourceUnavailable as e:
        _LOG.warning('Queries of split %s are not compared: %s', split, e)
  return dropped
