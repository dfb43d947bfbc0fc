"""Compares models, or other systems, with a baseline on the tasks they share.

  dualenc compare BASELINE_DIR MODEL_DIR [MODEL_DIR ...]
  dualenc compare bm25.trec my.trec --qrels=qrels/test.tsv

The first is the baseline. Each is a model_dir with results of `dualenc
evaluate`, one result folder, or a TREC run file of any system; run files are
measured by --qrels. Tests are paired and two-sided.

With --output_dir it writes comparison.json, .csv, .md and .tex, the papers'
tables (tables.md, tables.tex), and figures of the relative improvements.
"""

import argparse
from collections.abc import Sequence
import pathlib

from dualenc_jax.errors import UserError
from dualenc_jax.results import (
  comparison as comparison_lib,
  comparison_files,
  folder,
  improvement_figure,
  run_file,
  table as table_lib,
)
from dualenc_jax.results.folder import Model


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  for flag in ('k', 'permutations'):
    value = getattr(args, flag)
    if value is not None and value < 1:
      raise UserError(f'--{flag} is {value}; expected at least 1.')
  baseline, *models = read_systems(args)
  comparison = comparison_lib.compare(
      baseline,
      models,
      comparison_lib.Options(
          metrics=_listed(args.metrics),
          common_queries=args.common_queries,
          permutations=args.permutations,
          seed=args.seed,
      ),
  )
  for table in comparison_files.comparison_tables(comparison):
    print(table_lib.text(table))
  if args.output_dir:
    output = pathlib.Path(args.output_dir).expanduser()
    names = comparison_files.write_comparison(output, comparison)
    names += save_figures(output, comparison)
    print(f'Written to {output}: {", ".join(names)}.')


def make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog='dualenc compare',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument(
      'systems',
      nargs='+',
      metavar='MODEL_DIR | RESULT_DIR | RUN_FILE',
      help='two or more, the baseline first',
  )
  parser.add_argument(
      '--qrels', metavar='FILE', help="of run files; TREC's or BEIR's form"
  )
  parser.add_argument(
      '--k', type=int, help='use only the k best hits a query of run files'
  )
  parser.add_argument(
      '--metrics',
      metavar='NAME[,NAME]',
      help='such as MRR@10,Recall@100; by default those of the papers',
  )
  parser.add_argument(
      '--names',
      metavar='NAME[,NAME]',
      help='what to call the systems, in their order',
  )
  parser.add_argument(
      '--common_queries',
      action='store_true',
      help='use the queries that both have, where they are not the same',
  )
  parser.add_argument(
      '--permutations',
      type=int,
      default=10_000,
      help='of the randomization test, 10,000 by default',
  )
  parser.add_argument(
      '--seed', type=int, default=0, help='of these permutations'
  )
  parser.add_argument(
      '--output_dir', metavar='DIR', help='where the files go, if they shall'
  )
  return parser


def read_systems(args: argparse.Namespace) -> list[Model]:
  """The systems of a command line, under different names.

  Raises:
    UserError: fewer than two, one that cannot be read, run files without qrels
      or mixed with folders, or names that do not fit.
  """
  paths = [pathlib.Path(name).expanduser() for name in args.systems]
  if len(paths) < 2:
    raise UserError('Give two or more systems to compare, the baseline first.')
  names = _listed(args.names) or [None] * len(paths)
  if len(names) != len(paths):
    raise UserError(
        f'--names has {len(names)} names for {len(paths)} systems; expected as'
        ' many.'
    )
  if None not in names and len({*names}) < len(names):
    raise UserError(f'--names={args.names} has a name twice.')
  missing = [path for path in paths if not path.exists()]
  if missing:
    raise UserError(f'{missing[0]} does not exist.')
  runs = [path for path in paths if path.is_file()]
  if runs and len(runs) < len(paths):
    raise UserError(
        f'{runs[0]} is a run file, but others are folders. Give the run.trec'
        ' of their result folders instead, and --qrels.'
    )
  if runs and not args.qrels:
    raise UserError(f'{runs[0]} is a run file: give --qrels to measure it by.')
  if not runs and (args.qrels or args.k):
    raise UserError('--qrels and --k are for run files, and none is given.')
  if runs:
    judgements = run_file.Judgements.read(pathlib.Path(args.qrels))
    models = [
        run_file.read_model(path, judgements, args.k, name)
        for path, name in zip(paths, names)
    ]
  else:
    models = [folder.read_model(path, name) for path, name in zip(paths, names)]
  return _told_apart(models)


def save_figures(
    output: pathlib.Path, comparison: comparison_lib.Comparison
) -> list[str]:
  """Writes the figures if matplotlib is installed; returns their files."""
  try:
    from dualenc_jax.figures import figure as figure_lib

    saved = [
        figure_lib.save(figure, output)
        for figure in improvement_figure.figures(comparison)
    ]
  except ImportError:
    print("No figures without matplotlib: pip install 'dualenc-jax[plots]'.")
    return []
  return [files[kind] for files in saved for kind in ('png', 'svg', 'csv')]


def _told_apart(models: list[Model]) -> list[Model]:
  """The models, where names are repeated under their paths."""
  for name in (lambda m: m.name, lambda m: m.where):
    names = list(map(name, models))
    if len({*names}) == len(names):
      return [
          Model(name, model.where, model.results)
          for name, model in zip(names, models)
      ]
  raise UserError(
      f'{", ".join(names)}: one is given twice. Give different ones, or tell'
      ' them apart by --names.'
  )


def _listed(names: str | None) -> list[str] | None:
  return None if names is None else [n.strip() for n in names.split(',')]
