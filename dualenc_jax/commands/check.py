"""Explains a config without training: names, shapes, parameters, memory.

  dualenc check --gin_file=runs/finetune.gin --gin.TRAIN_FILE=pairs.jsonl

With --fit_batch it also finds the largest batch that fits the device.
"""

from collections.abc import Sequence
import dataclasses

import jax

from dualenc_jax.commands import config, flags, runtime, train
from dualenc_jax.errors import UserError
from dualenc_jax.io import machine
from dualenc_jax.parallel.partitioning import leaf_paths
from dualenc_jax.run import fit_batch, memory
from dualenc_jax.run.experiment import (
  describe,
  Experiment,
  make_plan,
  make_start,
)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  args.model_dir = args.model_dir or 'unused'
  runtime.start()
  experiment = train.build(args)
  available = args.device_memory_gib or machine.device_memory()

  print(config.operative_config())
  task = experiment.task
  splits = task.splits()
  # Reads the sources, so that a missing file is told.
  for part, _ in task.parts():
    part.fingerprint('train')
  for split in splits:
    if split != 'train':
      task.for_split(split).fingerprint(split)
  print(f'Task {task.task_name}: splits {", ".join(splits)}.')
  if not args.fit_batch:
    experiment.objective.check_batch(experiment)
  plan = make_plan(experiment)
  for line in describe(experiment, plan):
    print(line)
  if start := make_start(plan, experiment):
    print(start)
  params = plan.abstract.params
  for path, leaf in zip(leaf_paths(params), jax.tree.leaves(params)):
    print(f'  {path} {list(leaf.shape)} {leaf.sharding.spec}')
  if args.fit_batch:
    experiment = largest_batch(experiment, available)
  for path, array in jax.tree.leaves_with_path(
      experiment.objective.abstract_batch(experiment)
  ):
    name = jax.tree_util.keystr(path, simple=True, separator='/')
    print(f'  batch {name} {list(array.shape)} {array.dtype}')
  if not args.no_compile:
    print(f'Compiled memory a device at {experiment.batch_size:,} pairs, MiB:')
    for line in memory.by_part(experiment).describe(available):
      print(f'  {line}')


def make_parser() -> flags.Parser:
  parser = config.make_parser('check', __doc__)
  parser.add_argument('--model_dir', help='short for --gin.MODEL_DIR')
  compiled = parser.add_mutually_exclusive_group()
  compiled.add_argument(
      '--no_compile', action='store_true',
      help='skip the compiled memory, which takes as long as compiling',
  )
  compiled.add_argument(
      '--fit_batch', action='store_true',
      help='find the largest global batch that fits the device, by compiling'
      ' about five sizes',
  )
  parser.add_argument(
      '--device_memory_gib', type=flags.gib,
      help='memory of a device; by default what this one has',
  )
  return parser


def largest_batch(experiment: Experiment, available: int | None) -> Experiment:
  """Reports, and returns the experiment with, the largest batch that fits."""
  if available is None:
    raise UserError(
        f'The backend {jax.default_backend()} does not tell how much memory a'
        ' device has; give --device_memory_gib.'
    )
  print(
      f'Looking for the largest batch of at most {fit_batch.USABLE:.0%} of'
      f' {memory.mib(available)} MiB a device:'
  )

  def tell(size: int, peak: int | None) -> None:
    text = 'too much to compile' if peak is None else f'{memory.mib(peak)} MiB'
    print(f'  batch {size:,}: {text}', flush=True)

  fit = fit_batch.fit_batch(experiment, available, tell)
  note = ', and no larger one was tried' if fit.capped else ''
  print(
      f'Largest batch: {fit.batch_size:,} pairs, {memory.mib(fit.peak)} MiB a'
      f' device{note}. It was compiled for {jax.devices()[0].device_kind!r};'
      ' another kind of device may need more or less.'
  )
  return dataclasses.replace(experiment, batch_size=fit.batch_size)
