"""Whether towers of different start collapse, and by which negatives.

  python benchmarks/collapse.py --train=train.jsonl --validation=dev.jsonl \
    --vocabulary=own.model --vocab_size=8000 --folder=runs --seeds=0,1,2

The passage tower (three layers, width 64) and the query tower (one layer) have
been trained apart, each in a dual encoder of its own and from another seed.
Together they are trained in-batch or with a negative cache of which the 64
nearest count, with candidates nearly as near as the positive masked out or not,
directly or after the query tower was aligned. Last come loss and effective
ranks, means of ten steps, and P@1 and MRR on the validation split. A run that
is in the folder is not trained again.
"""

import argparse
import itertools
import json
import pathlib

import numpy as np

from dualenc_jax.commands import cli

_SIZES = (
    '--gin.models.TokenEmbedder.features=64',
    '--gin.models.Projection.features=64',
    '--gin.models.T5Encoder.num_heads=4',
    '--gin.models.T5Encoder.head_dim=16',
    '--gin.models.T5Encoder.mlp_dim=128',
)
_NEGATIVES = {
    'in-batch': ('--gin_file=losses/softmax.gin',
                 '--gin.losses.InBatchSoftmax.bidirectional=False'),
    'cache': ('--gin_file=losses/negative_cache.gin', '--gin.TOP_K=64'),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  for name in ('train', 'validation', 'vocabulary', 'folder'):
    add(f'--{name}', required=True)
  add('--vocab_size', type=int, required=True)
  add('--query_column', default='query')
  add('--passage_column', default='passage')
  add('--seeds', default='0')
  add('--negatives', default='in-batch,cache')
  add('--steps', type=int, default=300)
  add('--batch_size', type=int, default=48)
  add('--cache_size', type=int, default=4096)
  add('--margin', type=float, default=-0.05)
  add('--rate', type=float, default=1e-3)
  args = parser.parse_args()
  rows = []
  cells = itertools.product(
      args.negatives.split(','), (False, True), (False, True)
  )
  for negatives, masked, aligned in cells:
    for seed in map(int, args.seeds.split(',')):
      rows.append(measure(args, negatives, masked, aligned, seed))
      print('\t'.join(rows[-1]), flush=True)
  head = 'negatives', 'masked', 'start', 'seed', 'loss', 'chance', 'query rank'
  head += 'passage rank', 'P@1', 'MRR'
  print('\n| ' + ' | '.join(head) + ' |\n|' + '---|' * len(head))
  for row in rows:
    print('| ' + ' | '.join(row) + ' |')


def measure(
    args: argparse.Namespace,
    negatives: str,
    masked: bool,
    aligned: bool,
    seed: int,
) -> tuple[str, ...]:
  """Trains what a cell needs; a row of the table."""
  passages = train(args, f'passages-{seed}', seed, 3)
  queries = train(args, f'queries-{seed}', seed + 100, 1)
  light = (
      '--gin_file=architectures/light_query.gin', '--gin.QUERY_LAYERS=1'
  )
  start = (
      f'--gin.INITIAL_CHECKPOINT_PATH={passages}',
      f'--gin.QUERY_CHECKPOINT_PATH={queries}',
  )
  if aligned:
    alignment = (
        '--gin_file=losses/alignment.gin', '--gin.QUERY_LAYERS=1',
        '--gin.TRAIN_PROJECTION=True', *start,
    )
    folder = train(args, f'aligned-{seed}', seed, 3, *alignment)
    start = (
        f'--gin.INITIAL_CHECKPOINT_PATH={folder}',
        '--gin.QUERY_LAYERS_FROM=None',
    )
  margin = args.margin if masked else None
  words = negatives, *['masked'] * masked, *['aligned'] * aligned, str(seed)
  folder = train(
      args, '-'.join(words), seed, 3, *_NEGATIVES[negatives], *light, *start,
      f'--gin.FALSE_NEGATIVE_MARGIN={margin}',
  )
  lines = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
  steps, last = [], {}
  for line in lines:
    if line['group'] == 'train':
      steps.append(line)
    elif line['group'] == 'validation':
      last = line
  names = 'loss', 'chance', 'query_rank', 'passage_rank'
  means = [np.mean([step[name] for step in steps[-10:]]) for name in names]
  return (
      negatives,
      str(margin),
      'aligned' if aligned else 'direct',
      str(seed),
      *(f'{mean:.2f}' for mean in means),
      *(f'{last[name]:.3f}' for name in ('P@1', 'MRR')),
  )


def train(
    args: argparse.Namespace, name: str, seed: int, layers: int, *flags: str
) -> pathlib.Path:
  """The folder of a run, which is trained unless it has been."""
  folder = pathlib.Path(args.folder) / name
  if (folder / 'done').exists():
    return folder
  status = cli.main([
      'train',
      '--gin_file=runs/from_scratch.gin',
      '--gin_file=tasks/pairs.gin',
      '--gin_file=optimizers/adamw.gin',
      '--gin_file=losses/softmax.gin',
      f'--gin.TRAIN_FILE={args.train}',
      f'--gin.VALIDATION_FILE={args.validation}',
      f'--gin.QUERY_COLUMN={args.query_column}',
      f'--gin.PASSAGE_COLUMN={args.passage_column}',
      f'--gin.VOCABULARY={args.vocabulary}',
      f'--gin.VOCAB_SIZE={args.vocab_size}',
      f'--gin.BATCH_SIZE={args.batch_size}',
      f'--gin.STEPS={args.steps}',
      f'--gin.EVAL_EVERY={args.steps}',
      f'--gin.LEARNING_RATE={args.rate}',
      '--gin.TEMPERATURE=0.05',
      '--gin.PASSAGE_LENGTH=64',
      f'--gin.SEED={seed}',
      *_SIZES,
      f'--gin.models.T5Encoder.num_layers={layers}',
      *flags,
      *([f'--gin.CACHE_SIZE={args.cache_size}'] * ('cache' in name)),
      f'--model_dir={folder}',
  ])
  if status:
    raise SystemExit(f'{name} has failed.')
  (folder / 'done').touch()
  return folder


if __name__ == '__main__':
  main()
