"""Trains, evaluates and searches on this machine, in minutes, without a GPU.

  dualenc quickstart

The data is this Python's standard library: find a function by what its
docstring says. Interrupted, the same command goes on where it stopped.
"""

from collections.abc import Mapping, Sequence
import pathlib
import shlex
import time

import jax

from dualenc_jax.commands import config, model_dir, runtime, train
from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import of_model
from dualenc_jax.io import files
from dualenc_jax.models import model_params
from dualenc_jax.parallel import partitioning
from dualenc_jax.results import evaluate, significance
from dualenc_jax.results.baselines import (
  Baselines,
  BM25_FOLDER,
  HYBRID_FOLDER,
  VALIDATION,
)
from dualenc_jax.retriever import Retriever
from dualenc_jax.run.experiment import make_plan

RUN = 'runs/quickstart.gin'
QUERIES = (
    'parse an ISO 8601 date',
    'remove a directory tree',
    'compress data with gzip',
)
_COLUMNS = ('P@1', 'MRR', 'MRR@10', 'nDCG@10', 'Recall@10', 'Recall@100')


def main(argv: Sequence[str] | None = None) -> None:
  started = time.perf_counter()
  parser = config.make_parser('quickstart', __doc__)
  parser.add_argument('--model_dir', default='quickstart_model')
  parser.add_argument('--allow_config_change', action='store_true')
  args = config.parse_args(parser, argv)
  args.gin_file = [RUN, *args.gin_file]
  runtime.start()
  if jax.default_backend() == 'cpu' and partitioning.has_gpu():
    print('JAX sees no GPU here; the quickstart runs on the CPU.')
    jax.config.update('jax_platforms', 'cpu')
  train.train(train.build(args), args.allow_config_change, started)

  model = model_dir.load(args.model_dir)
  folder = pathlib.Path(args.model_dir)
  experiment = model.experiment
  retrieval_set = RetrievalSet.from_cache(experiment.cache('test'))
  found = evaluate.evaluate(
      model,
      experiment,
      'test',
      evaluate.default_output(folder) / 'python_code-test',
      config.operative_config(),
      shlex.join(['dualenc', 'evaluate', f'--model_dir={folder}']),
      evaluate.Options(baselines=Baselines(weight=VALIDATION)),
  )
  systems = {
      'untrained model': untrained(model, retrieval_set),
      'BM25': found[BM25_FOLDER],
      'trained model': found[''],
      'both (hybrid)': found[HYBRID_FOLDER],
  }
  rows = {name: system.metrics for name, system in systems.items()}
  files.write_json(folder / 'quickstart.json', rows)
  print(
      f'\nHeld-out functions: {len(retrieval_set.query_ids)} docstrings,'
      f' {len(retrieval_set.corpus)} passages of code.\n'
  )
  print(table(rows))
  print('\nAgainst BM25, by a paired randomization test of MRR:')
  baseline = systems['BM25'].scores.values['MRR']
  for name in ('trained model', 'both (hybrid)'):
    values = systems[name].scores.values['MRR']
    p = significance.randomization_test(baseline, values)
    print(f'  {name:<16}{values.mean() - baseline.mean():+.4f}, p {p:.4f}')
  print('\nWhat the trained model finds in the whole standard library:\n')
  retriever = Retriever(model, of_model.open_own(model, experiment))
  for query, hits in zip(QUERIES, retriever.find(QUERIES, 3)):
    print(query)
    for hit in hits:
      print(f'  {hit.score:.3f}  {hit.passage.describe()}')
  print(next_steps(args.model_dir))
  print(f'Done in {time.perf_counter() - started:.0f} s.')


def untrained(
    model: model_dir.TrainedModel, retrieval_set: RetrievalSet
) -> Evaluation:
  """The model as it was before the first step."""
  params = make_plan(model.experiment).init().params
  return evaluation.evaluate(
      model.embedder, model_params(params), retrieval_set
  )


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
  """Metrics as an aligned table, one system a line."""
  head = f'{"":<16}' + ''.join(f'{name:>12}' for name in _COLUMNS)
  lines = [
      f'{system:<16}' + ''.join(f'{metrics[c]:>12.4f}' for c in _COLUMNS)
      for system, metrics in rows.items()
  ]
  return '\n'.join([head, *lines])


def next_steps(folder: str) -> str:
  """What to try now."""
  return f"""
Next:
  dualenc search --model_dir={folder} "your own words"
  dualenc quickstart --model_dir=pair_model --gin_file=losses/pair.gin
  dualenc check --gin_file=runs/finetune.gin --gin.TRAIN_FILE=pairs.jsonl \\
    --gin.VOCABULARY=python_code_8k --gin.VOCAB_SIZE=8064
  pip install tensorboard && tensorboard --logdir={folder}/events
"""
