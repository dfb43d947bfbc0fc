"""Ranks a whole corpus exactly for every query of a split, and measures.

The corpus is the task's own for that split, where it has one, else the
passages of the split.

  dualenc evaluate --model_dir=my_model --split=test

Writes metrics.json and run.trec to MODEL_DIR/evaluation/<task>-<split>.
"""

from collections.abc import Sequence
import json
import pathlib
import sys
from typing import Any

from dualenc_jax import cli
from dualenc_jax import config
from dualenc_jax import model_dir
from dualenc_jax import runtime
from dualenc_jax.errors import UserError
from dualenc_jax.experiment import Experiment
from dualenc_jax.retrieval import evaluation
from dualenc_jax.retrieval import metrics as metrics_lib
from dualenc_jax.retrieval import trec
from dualenc_jax.retrieval.ranking import Ranking


def main(argv: Sequence[str] | None = None) -> None:
  parser = config.make_parser('evaluate', __doc__)
  model_dir.add_flags(parser)
  parser.add_argument('--split', default='test', help='test by default')
  parser.add_argument(
      '--k', type=int, default=1000, help='hits a query in the run file'
  )
  parser.add_argument('--output_dir', help='where the files go')
  args = config.parse_args(parser, argv)
  if args.k < 1:
    raise UserError(f'--k is {args.k}; expected at least 1.')
  runtime.start()
  model = model_dir.load_from_args(args)
  task = model.experiment.task
  name = f'{task.label}-{args.split}'.replace('/', '-')
  output = default_output(args.model_dir, name)
  if args.output_dir:
    output = pathlib.Path(args.output_dir)
  metrics = evaluate(model, args.split, output, args.k)
  for name, value in metrics.items():
    print(f'{name:<12} {value:.4f}')
  print(f'Written to {output}.')


def default_output(folder: str, name: str) -> pathlib.Path:
  """Where the results of a model_dir on a task and split are."""
  return pathlib.Path(folder) / 'evaluation' / name


def evaluate(
    model: model_dir.TrainedModel,
    split: str,
    output: pathlib.Path,
    k: int = 1000,
) -> dict[str, float]:
  """Evaluates on a split and writes metrics.json, run.trec and config.gin."""
  experiment = model.experiment
  retrieval_set = retrieval_set_of(experiment, split)
  model_dir.make_writable('--output_dir', output)
  metrics, ranking = evaluation.evaluate(
      model.embedder, model.params, retrieval_set, max(k, metrics_lib.DEPTH)
  )
  write_json(
      output / 'metrics.json',
      {
          'metrics': metrics,
          'task': experiment.task.label,
          'split': split,
          'queries': len(retrieval_set.query_ids),
          'passages': len(retrieval_set.passage_ids),
          'source': retrieval_set.cache.header['source'],
          'corpus': {
              name: retrieval_set.corpus.cache.header[name]
              for name in ('split', 'source')
          },
          **model.provenance,
      },
  )
  (output / model_dir.CONFIG).write_text(config.operative_config())
  trec.write_run(
      output / 'run.trec',
      Ranking(ranking.scores[:, :k], ranking.indices[:, :k]),
      retrieval_set.query_ids,
      retrieval_set.passage_ids,
  )
  return metrics


def retrieval_set_of(
    experiment: Experiment, split: str
) -> evaluation.RetrievalSet:
  """The queries of a split and the passages that they are ranked over."""
  task = experiment.task.for_split(split)
  corpus_split = task.corpus_split(split)
  return evaluation.RetrievalSet.from_cache(
      experiment.cache(split),
      None if corpus_split is None else experiment.cache(corpus_split),
      task.answer_text(),
      task.self_hits(),
  )


def write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
  """Writes an object as indented JSON."""
  path.write_text(json.dumps(value, indent=2) + '\n')


if __name__ == '__main__':
  sys.exit(cli.run(main))
