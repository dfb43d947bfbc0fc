"""Compares models, or other systems, with a baseline on the tasks they share.

  dualenc compare BASELINE_DIR MODEL_DIR [MODEL_DIR ...]
  dualenc compare bm25.trec.gz MODEL_DIR --qrels=qrels/test.tsv
  dualenc compare my.trec --qrels=qrels/test.tsv

The first system is the baseline. A system is a model_dir with results of
`dualenc evaluate`, one result folder, or a TREC run file, plain or .gz.
MODEL_DIR:bm25 and MODEL_DIR:hybrid are the baselines that were evaluated beside
the model. With --qrels, run files (and the run.trec of folders) are measured
anew, and one system is measured alone.
Tests are paired and two-sided.

With --output_dir it writes this table as comparison.md and .tex, every number
as comparison.json, the papers' tables as tables.md and tables.tex, and figures
of the relative improvements; --over adds figures of the values over a number.
"""

import argparse
from collections.abc import Sequence

from dualenc_jax.cli import flags
from dualenc_jax.evaluation.results import (
  compared_systems,
  comparison as comparison_lib,
  comparison_files,
  quality_over,
  tables as tables_lib,
)
from dualenc_jax.utils import files, table as table_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.untrusted import escape


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  over = _check_over(args)
  systems = compared_systems.systems(args.systems, args.names, args.lines)
  missing: tuple[str, ...] = ()
  if args.skip_missing:
    systems, missing = compared_systems.keep_available(systems)
  baseline, *models = compared_systems.read(
      systems, args.qrels, args.k, args.relevance_level, args.metrics or ()
  )
  comparison = comparison_lib.compare(
      baseline, models, args.metrics or None, missing
  )
  if not models:
    (result,) = baseline.results.values()
    metrics = {m: result.metrics[m] for m in args.metrics or result.metrics}
    queries = len(result.per_query().queries)
    print(escape(f'{baseline.name}, {queries:,} queries of {result.key}:'))
    print(tables_lib.metric_lines({'': metrics}))
    if args.output_dir:
      files.make_folder(args.output_dir)
      names = tables_lib.write_tables(args.output_dir, [baseline])
      print(f'Written to {args.output_dir}: {", ".join(names)}.')
    return
  print(table_lib.text(comparison_files.make_table(comparison)))
  if args.output_dir:
    output = args.output_dir
    # Errors come before a file is written.
    lines = [] if over is None else quality_over.figures(comparison, over)
    names = comparison_files.write_comparison(output, comparison)
    try:
      names += comparison_files.write_figures(output, comparison, lines)
    except ImportError:
      print("No figures without matplotlib: pip install 'dualenc-jax[plots]'.")
    print(f'Written to {output}: {", ".join(names)}.')


def _check_over(args: argparse.Namespace) -> quality_over.Over | None:
  """The number of --over; UserError for flags that need another."""
  if args.over is None:
    if args.lines is not None:
      raise UserError('--lines needs --over: give it, too.')
    return None
  if args.output_dir is None or len(args.systems) < 2:
    raise UserError(
        '--over draws figures of two systems or more: give these, and'
        ' --output_dir.'
    )
  return quality_over.parse(args.over)


def make_parser() -> flags.Parser:
  parser = flags.Parser('compare', __doc__)
  add = parser.add_argument
  add('systems', nargs='+', type=flags.path,
      metavar='MODEL_DIR | RESULT_DIR | RUN_FILE',
      help='two or more systems, the baseline first; one with --qrels')
  add('--qrels', type=flags.path, metavar='FILE',
      help="relevance judgements to measure run files by, in TREC's or BEIR's"
      ' form')
  add('--k', type=flags.whole(),
      help='use only the k best hits per query of run files')
  add('--relevance_level', type=flags.whole(), metavar='GRADE',
      help='lowest grade of --qrels that is relevant, for all metrics but nDCG;'
      ' 2 for TREC DL')
  add('--metrics', type=flags.listed, metavar='NAME[,NAME]',
      help='metrics such as MRR@10,Recall@100 (default those of the papers)')
  add('--names', type=flags.listed, metavar='NAME[,NAME]',
      help='names of the systems, in order; {codec} in one is its codec;'
      ' systems of one name are one, with the results of all')
  add('--skip_missing', action='store_true',
      help='leave out systems without results, and say so')
  add('--over', metavar='NUMBER | FILE',
      help='also draw each metric over a number of the systems: parameters,'
      ' bytes (of a passage), steps, candidates, or milliseconds of the'
      ' latency.json of `dualenc latency`')
  add('--lines', type=flags.listed, metavar='NAME[,NAME]',
      help='lines of --over that the systems are points of, in order (default'
      ' one line)')
  add('--output_dir', type=flags.path, metavar='DIR',
      help='folder of the results (default none: print only)')
  return parser
