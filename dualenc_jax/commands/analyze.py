"""Draws and measures the embedding space of one model, or of several.

  dualenc analyze --model_dir=my_model
  dualenc analyze --model_dir=a --model_dir=b --output_dir=a_and_b
    --task=beir/scifact --gin.DATA_ROOT=/data

Writes to MODEL_DIR/analysis/<task>-<split>: a t-SNE map and principal
components of queries and passages, how well a classifier tells them apart, the
cosines of queries and best hits, the ratios of similarities, alignment and
uniformity, duplicates and lengths. Figures are PNG and SVG with their numbers
as CSV; analysis.json and numbers.csv hold the numbers of the models.
"""

import argparse
from collections.abc import Sequence
import dataclasses
import importlib.util
import logging
import pathlib

from dualenc_jax.analysis import (
  lengths as lengths_lib,
  numbers as numbers_lib,
  output,
  projector,
  sample as sample_lib,
  vectors as vectors_lib,
)
from dualenc_jax.analysis.output import Analysis
from dualenc_jax.commands import config, evaluate, model_dir, runtime
from dualenc_jax.errors import UserError
from dualenc_jax.io import files

_LOG = logging.getLogger(__name__)
_AT_LEAST = {
    'sample': sample_lib.FEWEST,
    'measured': sample_lib.FEWEST,
    'max_passages': sample_lib.FEWEST,
    'seed': 0,
}


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  names = model_names(args)
  check_args(args)
  check_installed()
  for folder in args.model_dir:
    model_dir.check_is_one(folder)
  if args.output_dir:
    files.make_folder(pathlib.Path(args.output_dir), 'another --output_dir')
  runtime.start()
  analyses = []
  for number, name in enumerate(names):
    analysis = analyse(name, number, args)
    analyses.append(analysis)
    output.check_same_data(analyses[0], analysis)
  folder = output_dir(args, analyses[0])
  files.make_folder(folder, 'another --output_dir')
  output.write(analyses, folder, args.sample)
  if args.projector:
    models = [a.vectors for a in analyses]
    projector.write(
        folder / 'projector', models, analyses[0].sample, args.sample
    )
  print(table(analyses))
  print(f'Written to {folder}.')


def make_parser() -> argparse.ArgumentParser:
  parser = config.make_parser('analyze', __doc__)
  add = parser.add_argument
  add(
      '--model_dir',
      action='append',
      required=True,
      help='the folder that training wrote; repeatable: models side by side',
  )
  add('--step', type=int, help='checkpoint of each, the newest by default')
  add('--names', help='what the models are called, a,b; else their folders')
  add(
      '--task',
      help='such as msmarco or beir/scifact; by default the task that the model'
      ' was trained on, or that of --gin_file',
  )
  add('--split', help='by default what the benchmark measures, else test')
  add(
      '--index_dir',
      action='append',
      help='keep the embeddings of the corpus on disk, one folder for each'
      ' model; those that `dualenc encode` left there are used',
  )
  add('--output_dir', help='where the files go; needed for several models')
  add(
      '--sample',
      type=int,
      default=400,
      help='queries, and passages, on the maps; 400, as in the papers, by'
      ' default',
  )
  add(
      '--measured',
      type=int,
      default=5000,
      help='queries, and passages, that numbers and histograms are of, those on'
      ' the maps among them; 5,000 by default',
  )
  add(
      '--passages',
      choices=(sample_lib.RANDOM, sample_lib.RELEVANT),
      default=sample_lib.RANDOM,
      help='random ones of the corpus, by default, or those relevant for the'
      ' sampled queries',
  )
  add(
      '--max_passages',
      type=int,
      help='encode and search only so many passages, drawn at random, and the'
      ' relevant ones; by default the whole corpus',
  )
  add('--seed', type=int, default=0, help='of all draws, 0 by default')
  add(
      '--projector',
      action='store_true',
      help='also write files for the Embedding Projector of TensorBoard',
  )
  return parser


def check_args(args: argparse.Namespace) -> None:
  """Raises UserError for values that make no sense."""
  for name, least in _AT_LEAST.items():
    value = getattr(args, name)
    if value is not None and value < least:
      raise UserError(f'--{name} is {value}; expected at least {least}.')
  models = len(args.model_dir)
  if args.index_dir and len(args.index_dir) != models:
    raise UserError(
        f'{len(args.index_dir)} --index_dir for {models} --model_dir; expected'
        ' one for each, in the same order, or none.'
    )
  if args.index_dir and args.max_passages:
    raise UserError(
        '--max_passages has no use with --index_dir, which has the whole'
        ' corpus; leave one out.'
    )
  if models > 1 and not args.output_dir:
    raise UserError(
        f'{models} models need a folder of their own: give --output_dir.'
    )


def model_names(args: argparse.Namespace) -> list[str]:
  """What the models are called.

  Raises:
    UserError: not one name for each, or two that are the same in file names.
  """
  folders = [pathlib.Path(folder).resolve().name for folder in args.model_dir]
  names = folders
  if args.names:
    names = [name.strip() for name in args.names.split(',')]
  if len(names) != len(folders) or not all(names):
    raise UserError(
        f'--names={args.names} for {len(folders)} --model_dir; expected a name'
        ' for each, with commas between.'
    )
  if len({projector.safe(name) for name in names}) < len(names):
    raise UserError(
        f'Two models have one name: {", ".join(names)}. Give --names=a,b.'
    )
  return names


def check_installed() -> None:
  """Raises UserError unless the libraries that draw and fit are there."""
  missing = [
      package
      for module, package in (
          ('matplotlib', 'matplotlib'),
          ('sklearn', 'scikit-learn'),
      )
      if importlib.util.find_spec(module) is None
  ]
  if missing:
    raise UserError(
        f'`dualenc analyze` needs {" and ".join(missing)}:'
        " pip install 'dualenc-jax[plots]'."
    )


def analyse(name: str, number: int, args: argparse.Namespace) -> Analysis:
  """Loads, samples, embeds and measures the model of that number."""
  model, split = load(args.model_dir[number], args)
  retrieval_set = evaluate.retrieval_set_of(model.experiment, split)
  sample = sample_lib.draw(
      retrieval_set,
      max(args.sample, args.measured),
      args.passages,
      args.seed,
      args.max_passages,
  )
  _LOG.info('Passages of %s: %s.', name, f'{len(sample.searched):,}')
  searched = retrieval_set.corpus.subset(sample.searched)
  index = args.index_dir and pathlib.Path(args.index_dir[number])
  encoded = evaluate.passages_of(
      model, dataclasses.replace(retrieval_set, corpus=searched), index
  )
  vectors = vectors_lib.embed(
      name,
      model.embedder,
      model.params,
      sample,
      encoded,
      args.sample if args.projector else 0,
  )
  _LOG.info('Measuring %s.', name)
  numbers = numbers_lib.numbers(vectors, sample)
  if 'separability' not in numbers:
    _LOG.warning(
        'No separability of %s: most queries, or passages, hang together by'
        ' shared relevant passages or equal texts, and no folds part them.',
        name,
    )
  return Analysis(
      {
          'label': model.experiment.task.label,
          'split': split,
          'source': retrieval_set.cache.header['source'],
          'corpus': {
              key: retrieval_set.corpus.cache.header[key]
              for key in ('split', 'source')
          },
      },
      model.provenance,
      sample,
      vectors,
      numbers,
      lengths_lib.count_tokens(model.experiment.tokenizer, sample, name),
  )


def load(
    folder: str, args: argparse.Namespace
) -> tuple[model_dir.TrainedModel, str]:
  """The model of a folder, with the task to look at, and its split.

  Raises:
    UserError: what `model_dir.load` raises, or a task of several data sets.
  """
  tasks = [args.task] if args.task else []
  model = model_dir.load(
      folder,
      args.step,
      args.gin_file,
      args.gin_bindings,
      args.gin_search_paths,
      before=[f'tasks/{name.partition("/")[0]}.gin' for name in tasks],
  )
  chosen = evaluate.sets_of(model.experiment, tasks, args.split)
  if len(chosen) > 1:
    names = ', '.join(task.label for task, _ in chosen)
    raise UserError(
        f'--task={args.task} is several data sets: {names}. Expected one of'
        f' them, --task={args.task}/NAME.'
    )
  ((task, split),) = chosen
  experiment = dataclasses.replace(model.experiment, task=task)
  return dataclasses.replace(model, experiment=experiment), split


def output_dir(args: argparse.Namespace, analysis: Analysis) -> pathlib.Path:
  """Where the files go."""
  if args.output_dir:
    return pathlib.Path(args.output_dir)
  data = analysis.data
  name = f'{data["label"]}-{data["split"]}'.replace('/', '-')
  return pathlib.Path(args.model_dir[0]) / 'analysis' / name


def table(analyses: Sequence[Analysis]) -> str:
  """The numbers as aligned text, a model a column."""
  lines = [f'{"":<24}' + ''.join(f'{a.vectors.name:>20}' for a in analyses)]
  for name in output.number_names(analyses):
    values = [a.numbers.get(name) for a in analyses]
    texts = ['' if value is None else f'{value:.4f}' for value in values]
    lines.append(f'{name:<24}' + ''.join(f'{text:>20}' for text in texts))
  return '\n'.join(lines)
