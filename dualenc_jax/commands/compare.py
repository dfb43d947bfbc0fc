"""Compares models, or other systems, with a baseline on the tasks they share.

  dualenc compare BASELINE_DIR MODEL_DIR [MODEL_DIR ...]
  dualenc compare bm25.trec.gz MODEL_DIR bm25.trec.gz+MODEL_DIR
    --qrels=qrels/test.tsv

The first is the baseline. Each is a model_dir with results of `dualenc
evaluate`, one result folder (either with :bm25 or :hybrid after it for these,
as they were evaluated beside the model), or a TREC run file of any system,
plain or .gz. With --qrels all of them are measured by these, folders by the
run.trec in them, and several with + between them are fused by reciprocal ranks.
Tests are paired and two-sided.

With --output_dir it writes comparison.json, .csv, .md and .tex, the papers'
tables (tables.md, tables.tex), and figures of the relative improvements.
"""

from collections.abc import Sequence
import pathlib

from dualenc_jax.commands import flags
from dualenc_jax.figures import table as table_lib
from dualenc_jax.results import (
  comparison as comparison_lib,
  comparison_files,
  improvement_figure,
  systems,
)


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  baseline, *models = systems.read(
      args.systems, args.names, args.qrels, args.k, args.relevance_level
  )
  options = comparison_lib.Options(
      args.metrics, args.common_queries, args.permutations, args.seed
  )
  comparison = comparison_lib.compare(baseline, models, options)
  tables = [comparison_files.narrow_table(comparison)]
  if args.wide:
    tables = comparison_files.comparison_tables(comparison)
  for table in tables:
    print(table_lib.text(table))
  if args.output_dir:
    output = args.output_dir
    names = comparison_files.write_comparison(output, comparison)
    try:
      names += improvement_figure.save(comparison, output)
    except ImportError:
      print("No figures without matplotlib: pip install 'dualenc-jax[plots]'.")
    print(f'Written to {output}: {", ".join(names)}.')


def make_parser() -> flags.Parser:
  parser = flags.Parser('compare', __doc__)
  add = parser.add_argument
  add(
      'systems', nargs='+', type=flags.path,
      metavar='MODEL_DIR | RESULT_DIR | RUN_FILE[+RUN_FILE]',
      help='two or more, the baseline first',
  )
  add(
      '--qrels', type=pathlib.Path, metavar='FILE',
      help="measures runs; TREC's or BEIR's form",
  )
  add(
      '--k', type=flags.whole(), help='use only the k best hits a query of runs'
  )
  add(
      '--relevance_level', type=flags.whole(), metavar='GRADE',
      help="least grade of a relevant passage of --qrels; 2 is TREC DL's for"
      ' all but nDCG, whose gains are the grades',
  )
  add(
      '--metrics', type=flags.listed, metavar='NAME[,NAME]',
      help='such as MRR@10,Recall@100; by default those of the papers',
  )
  add(
      '--names', type=flags.listed, metavar='NAME[,NAME]',
      help='what to call the systems, in their order',
  )
  add(
      '--wide', action='store_true',
      help='print all columns and tests, a table a model, as files have them',
  )
  add(
      '--common_queries', action='store_true',
      help='use the queries that both have, where they are not the same',
  )
  add(
      '--permutations', type=flags.whole(), default=10_000,
      help='of the randomization test, 10,000 by default',
  )
  add('--seed', type=int, default=0, help='of these permutations')
  add(
      '--output_dir', type=flags.path, metavar='DIR',
      help='where the files go, if they shall',
  )
  return parser
