"""Draws and measures the embedding space of one model, or of several.

  dualenc analyze --model_dir=my_model
  dualenc analyze --model_dir=a --model_dir=b --output_dir=a_and_b
    --tasks=beir/scifact --gin.DATA_ROOT=/data

Writes to MODEL_DIR/analysis/<task>-<split>: maps of queries and passages by
t-SNE and PCA, how well a classifier separates them, the cosines of queries and
best hits, the ratios of similarities, and the cosines of relevant passages with
their queries and with other hits. Figures are PNG and SVG, with their
numbers as CSV; analysis.json holds the numbers of the models.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import importlib.util
import pathlib

from dualenc_jax.cli import config, flags, runtime, saved_run, task_selection
from dualenc_jax.evaluation.analysis import figures, vectors
from dualenc_jax.evaluation.analysis.embedding_space import analyse, Analysis
from dualenc_jax.evaluation.results import evaluate
from dualenc_jax.parallel import hosts
from dualenc_jax.utils import files, table as table_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.table import Cell, MISSING, Row, Table

_ANOTHER = 'another --output_dir'


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  folders = [pathlib.Path(folder) for folder in args.model_dir]
  names = args.names
  if names is None:
    names = [folder.resolve().name for folder in folders]
  check_args(args, names)
  for folder in args.model_dir:
    saved_run.check_is_one(folder)
  if args.output_dir:
    files.make_folder(args.output_dir, _ANOTHER)
  else:
    home = saved_run.results_dir(
        args.model_dir[0], args.dim, args.prompt, args.passage_prompt
    )
  runtime.start(args)
  analyses: list[Analysis] = []
  for number, name in enumerate(names):
    analysis, result_name = analyse_model(name, number, args)
    analyses.append(analysis)
    for key, value in analyses[0].data.items():
      if analysis.data[key] != value:
        raise UserError(
            f'{names[0]} and {name} are from different data sets: {key} is'
            f' {value!r} and {analysis.data[key]!r}. Name the task for all, as'
            ' by --gin_file=tasks/beir.gin.'
        )
  if runtime.host().index:
    hosts.wait_for_all()
    return
  output = args.output_dir or home / 'analysis' / result_name
  files.make_folder(output, _ANOTHER)
  figures.write(analyses, output, args.sample)
  print(table_lib.text(_make_table(analyses)), end='')
  if not analyses[0].sample.has_pairs:
    print(
        'Ratios, alignment and cosines of relevant passages are left out: fewer'
        f' than {vectors.FEWEST} of the queries have a relevant passage.'
    )
  print(f'Written to {output}.')
  hosts.wait_for_all()


def make_parser() -> flags.Parser:
  parser = config.make_parser('analyze', __doc__)
  saved_run.add_flags(
      parser, 'folder of a trained model, or st:FOLDER; repeatable, to compare',
      action='append',
  )
  add = parser.add_argument
  add('--names', type=flags.listed,
      help='names of the models in figures (default their folders)')
  add('--tasks', type=flags.listed,
      help=flags.ONE_TASK)
  add('--split', help=flags.SPLIT)
  add('--index_dir', action='append', type=flags.path,
      help='folder for the embeddings of the corpus, one for each model; an'
      ' index of `dualenc encode` is used as it is')
  add('--output_dir', type=flags.path,
      help='folder of the results; required with several models')
  add('--sample', type=flags.whole(vectors.FEWEST), default=400,
      help='number of queries, and of passages, on the maps (default'
      ' %(default)s, as in the papers)')
  add('--seed', type=flags.whole(0), default=0,
      help='random seed (default %(default)s)')
  runtime.add_flags(parser)
  return parser


def check_args(args: argparse.Namespace, names: Sequence[str]) -> None:
  """Raises UserError for what does not go together or is not installed."""
  runtime.check_multihost(args, needs_index=True)
  flags.check_models(args, names)
  models = len(args.model_dir)
  if models > 1 and not args.output_dir:
    raise UserError(
        f'The results of {models} models need a folder: give --output_dir.'
    )
  packages = {'matplotlib': 'matplotlib', 'sklearn': 'scikit-learn'}
  missing = [packages[m] for m in packages if not importlib.util.find_spec(m)]
  if missing:
    raise UserError(
        f'`dualenc analyze` needs {" and ".join(missing)}:'
        " pip install 'dualenc-jax[plots]'."
    )


def analyse_model(
    name: str, number: int, args: argparse.Namespace
) -> tuple[Analysis, str]:
  """The analysis of the model of that number, and the name of its folder."""
  wanted = args.tasks or ()
  own = {**vars(args), 'model_dir': args.model_dir[number]}
  model = saved_run.load_from_args(
      argparse.Namespace(**own), per_host=True,
      before=task_selection.gin_files(wanted),
  )
  chosen = task_selection.select(model.experiment, wanted, args.split)
  task, split = task_selection.select_one(chosen)
  analysis = analyse(
      name,
      model,
      dataclasses.replace(model.experiment, task=task),
      split,
      mapped=args.sample,
      seed=args.seed,
      index_dir=args.index_dir and args.index_dir[number],
      host=runtime.host(),
  )
  return analysis, evaluate.folder_name(task, split)


def _make_table(analyses: Sequence[Analysis]) -> Table:
  """The numbers, a model a column."""
  names = dict.fromkeys(name for a in analyses for name in a.numbers)
  rows = []
  for name in names:
    values = [a.numbers.get(name) for a in analyses]
    cells = (Cell(MISSING if v is None else f'{v:.4f}') for v in values)
    rows.append(Row((name,), tuple(cells)))
  columns = tuple(('', a.name) for a in analyses)
  return Table('', '', ('',), columns, tuple(rows))
