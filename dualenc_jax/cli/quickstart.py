"""Trains, evaluates and searches on this machine, in minutes, without a GPU.

  dualenc quickstart

The task is to find functions of Python's standard library by their docstrings.
After an interruption the same command continues where it stopped.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import json
import pathlib
import shlex
import time
from typing import Any

import jax

from dualenc_jax.cli import config, flags, runtime, saved_run, train
from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.results import baselines, evaluate, significance
from dualenc_jax.evaluation.results.result_files import METRICS
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.models import model_params
from dualenc_jax.parallel import partitioning
from dualenc_jax.retrieval.index import build_for_model
from dualenc_jax.retriever import Retriever
from dualenc_jax.training.experiment import make_plan
from dualenc_jax.training.stopping import Stopping
from dualenc_jax.utils import figure as figure_lib, files

RUN, SOFTMAX = 'runs/quickstart.gin', 'losses/softmax.gin'
RESULT = 'python_code-test'
QUERIES = (
    'parse an ISO 8601 date', 'remove a directory tree',
    'compress data with gzip',
)
_COLUMNS = ('P@1', 'MRR', 'MRR@10', 'nDCG@10', 'Recall@10', 'Recall@100')
# Names of losses in the table.
_LOSSES = {'InBatchSoftmax': 'in-batch softmax'}
# Queries, and passages, on the map.
_MAPPED = 400


def main(argv: Sequence[str] | None = None) -> None:
  started = time.perf_counter()
  args = config.parse_args(make_parser(), argv)
  args.gin_file = [RUN, *args.gin_file]
  runtime.start()
  if jax.default_backend() == 'cpu' and partitioning.has_gpu():
    print('JAX sees no GPU here; the quickstart runs on the CPU.')
    jax.config.update('jax_platforms', 'cpu')
  folder = pathlib.Path(args.model_dir)
  model = train_and_load(args)
  found = evaluate_test(model, folder, baselines.Baselines())
  softmax = train_and_load(argparse.Namespace(**{
      **vars(args),
      'model_dir': str(folder / 'softmax'),
      'gin_file': [*args.gin_file, SOFTMAX],
  }))
  no_baselines = baselines.Baselines(())
  of_softmax = evaluate_test(softmax, folder / 'softmax', no_baselines)
  retrieval_set = RetrievalSet.from_cache(model.experiment.cache('test'))
  # The model before the first step.
  params = make_plan(model.experiment).init().params
  before = evaluation.evaluate(
      model.embedder, model_params(params), retrieval_set
  )
  objective: Any = model.experiment.objective
  loss = type(objective.loss).__name__
  systems = {
      'BM25': found[baselines.BM25_FOLDER],
      'untrained': before,
      _LOSSES['InBatchSoftmax']: of_softmax[''],
      (name := _LOSSES.get(loss, loss)): found[''],
      f'{name}, BM25': found[baselines.HYBRID_FOLDER],
  }
  rows = {name: system.metrics for name, system in systems.items()}
  files.write_json(folder / 'quickstart.json', rows)
  print(
      f'\nHeld-out functions: {len(retrieval_set.query_ids)} docstrings,'
      f' {len(retrieval_set.corpus)} passages of code.\n'
  )
  print(table(rows))
  print('\nMRR, and p of a paired randomization test:')
  for line in compare(systems, name):
    print(line)
  draw_map({_LOSSES['InBatchSoftmax']: softmax, name: model}, folder)
  # The share of the dense scores that suits the validation split.
  path = evaluate.default_output(folder) / RESULT / baselines.HYBRID_FOLDER
  weight = json.loads((path / METRICS).read_text())['weight']
  print('\nWhat is found in the whole standard library, by both:\n')
  index = build_for_model.open_task_index(
      model, model.own_passages(), args.model_dir
  )
  retriever = Retriever(model, index)
  for query, hits in zip(QUERIES, retriever.find(QUERIES, 3, weight)):
    print(query)
    for hit in hits:
      print(f'  {hit.score:.3f}  {hit.passage.describe()}')
  print(next_steps(args.model_dir, weight))
  print(f'Done in {time.perf_counter() - started:.0f} s.')


def make_parser() -> flags.Parser:
  parser = config.make_parser('quickstart', __doc__)
  parser.add_argument(
      '--model_dir', default='quickstart_model',
      help='folder of the model (default %(default)s)',
  )
  train.add_change_flags(parser)
  return parser


def train_and_load(args: argparse.Namespace) -> saved_run.TrainedModel:
  """The model of a command line, trained, or trained on after a stop."""
  stopping = Stopping()
  with stopping.handle_signals():
    train.train(train.build(args), args, stopping)
  return saved_run.load(args.model_dir)


def evaluate_test(
    model: saved_run.TrainedModel,
    folder: pathlib.Path,
    beside: baselines.Baselines,
) -> dict[str, Evaluation]:
  """The results on the held-out functions, by system."""
  return evaluate.evaluate(
      model, model.experiment, 'test',
      evaluate.default_output(folder) / RESULT,
      config.operative_config(),
      shlex.join(['dualenc', 'evaluate', f'--model_dir={folder}']),
      evaluate.Options(baselines=beside),
  )


def compare(systems: Mapping[str, Evaluation], name: str) -> Iterator[str]:
  """Yields a line on each system beside BM25, and one on two losses."""
  ranked = {n: system.scores.values['MRR'] for n, system in systems.items()}
  softmax = _LOSSES['InBatchSoftmax']
  pairs = [('BM25', other) for other in ranked if other != 'BM25']
  if name != softmax:
    pairs.append((softmax, name))
  for before, after in pairs:
    found = significance.paired(ranked[before], ranked[after])
    difference = found.after - found.before
    verdict = 'ahead of' if difference > 0 else 'behind'
    if found.p >= 0.05:
      verdict = 'even with, as far as these queries show,'
    yield f'  {difference:+.4f}  p {found.p:.4f}  {after}: {verdict} {before}'


def draw_map(
    models: Mapping[str, saved_run.TrainedModel], folder: pathlib.Path
) -> None:
  """Writes a map of the models' embedding spaces, if matplotlib is there."""
  output = folder / 'embedding_space'
  try:
    from dualenc_jax.evaluation.analysis import embedding_space, figures
  except ImportError:
    print("\nFor a map of the embedding space: pip install -e '.[plots]'.")
    return
  analyses = [
      embedding_space.analyse(name, model, model.experiment, 'test', _MAPPED)
      for name, model in models.items()
  ]
  output.mkdir(exist_ok=True)
  figure_lib.save(figures.tsne_figure(analyses, _MAPPED), output)
  print(f'\nThe embedding space of both losses: {output / "tsne.svg"}')


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
  """Metrics as an aligned table, one system a line."""
  head = f'{"":<16}' + ''.join(f'{name:>12}' for name in _COLUMNS)
  lines = [
      f'{system:<16}' + ''.join(f'{metrics[c]:>12.4f}' for c in _COLUMNS)
      for system, metrics in rows.items()
  ]
  return '\n'.join([head, *lines])


def next_steps(folder: str, weight: float) -> str:
  """Text with the commands to try next."""
  return f"""
Next:
  dualenc search --model_dir={folder} --hybrid={weight:g} "your own words"
  dualenc report --model_dir={folder}
Your own documents, lines of {{"title": ..., "text": ...}}; queries not needed:
  dualenc data vocabulary --gin_file=tasks/documents.gin \\
    --gin.DOCUMENTS=docs.jsonl --output_file=my.model
  dualenc train --gin_file=runs/from_scratch.gin --gin.DOCUMENTS=docs.jsonl \\
    --gin.VOCABULARY=my.model --model_dir=my_model
To start from a pretrained T5, with layers:
  dualenc train --gin_file=runs/finetune.gin --model_dir=my_model \\
    --gin.INITIAL_CHECKPOINT_PATH=... --gin.VOCABULARY=... --gin.TRAIN_FILE=...
"""
