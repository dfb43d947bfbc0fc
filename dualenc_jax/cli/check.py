"""Explains a config without training: names, shapes, parameters, memory.

  dualenc check --gin_file=runs/finetune.gin --gin.TRAIN_FILE=pairs.jsonl

With --fit_batch it also finds the largest batch that fits the device.

  dualenc check --gin_file=runs/finetune.gin ... --topology=v5e:4x4

compiles the step for TPUs that this machine does not have, and reports whether
it fits and what the devices send each other.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax

from dualenc_jax.cli import config, flags, runtime, train
from dualenc_jax.forecast import collectives, slices
from dualenc_jax.parallel.partitioning import leaf_paths
from dualenc_jax.training import experiment as experiment_lib, memory
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils import machine
from dualenc_jax.utils.errors import UserError


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  args.model_dir = args.model_dir or 'unused'
  on = None if args.topology is None else slices.find_slice(args.topology)
  runtime.start(keep_programs=not on)
  experiment = train.build(args)
  available: Any = args.device_memory_gib or machine.device_memory()
  if on:
    experiment = dataclasses.replace(
        experiment, partitioner=slices.on_slice(experiment.partitioner, on)
    )
    available = args.device_memory_gib or on.memory

  print(config.operative_config())
  task = experiment.task
  splits = task.splits()
  # Reads the sources, so that a missing file is reported.
  for part, _ in task.parts():
    part.fingerprint('train')
  for split in splits:
    if split != 'train':
      task.for_split(split).fingerprint(split)
  print(f'Task {task.task_name}: splits {", ".join(splits)}.')
  if not args.fit_batch:
    experiment.objective.check_batch(experiment)
  plan = experiment_lib.make_plan(experiment)
  for line in experiment_lib.describe(experiment, plan):
    print(line)
  if start := experiment_lib.make_start(plan, experiment):
    print(start)
  params = plan.all_params(plan.abstract)
  for path, leaf in zip(leaf_paths(params), jax.tree.leaves(params)):
    print(f'  {path} {list(leaf.shape)} {leaf.sharding.spec}')
  if args.fit_batch:
    experiment = largest_batch(experiment, available)
  batch = experiment.objective.abstract_batch(experiment)
  for key, array in jax.tree.leaves_with_path(batch):
    name = jax.tree_util.keystr(key, simple=True, separator='/')
    print(f'  batch {name} {list(array.shape)} {array.dtype}')
  # A machine of another size, or a larger batch, may need more examples.
  if not (on or args.fit_batch):
    for line in experiment.objective.describe_batches(experiment, 0):
      print(line)
  if args.no_compile:
    return
  compiled = memory.compile_step(experiment)
  if on:
    print(f'The train step on {on.name}, compiled by {on.compiler}.')
    for line in collectives.describe_collectives(compiled.as_text() or ''):
      print(line)
  print(f'Compiled memory a device at {experiment.batch_size:,} pairs, MiB:')
  parts = memory.memory_parts(experiment, compiled)
  for line in memory.format_table(parts, available):
    print(f'  {line}')
  gradients = memory.mib(memory.device_bytes(plan.abstract.params))
  print(f'  The temporaries have gradients of at most {gradients}.')
  if on:
    peak = memory.peak_of(compiled)
    if peak > available:
      raise UserError(
          f'The step does not fit {on.name}: it needs {memory.mib(peak)} MiB a'
          f' device, {memory.mib(peak - available)} more than there are.'
          f' {memory.FEWER_PAIRS}'
      )
    print(f'The step fits {on.name}.')


def make_parser() -> flags.Parser:
  parser = config.make_parser('check', __doc__)
  add = parser.add_argument
  add('--model_dir',
      help='short for --gin.MODEL_DIR')
  compiled = parser.add_mutually_exclusive_group()
  compiled.add_argument(
      '--no_compile', action='store_true',
      help='skip the compiled memory, which needs a compilation',
  )
  compiled.add_argument(
      '--fit_batch', action='store_true',
      help='find the largest global batch that fits the device, by compiling'
      ' about five sizes',
  )
  add('--topology', metavar='v5e:4x4',
      help='compile for these TPUs (generation and chips per side) or GPUs'
      ' (h100:8), without having them')
  add('--device_memory_gib', type=flags.gib,
      help='memory of a device, in GiB (default that of this one)')
  return parser


def largest_batch(
    experiment: Experiment, available: int | None
) -> Experiment:
  """Returns the experiment with the largest batch that fits, which it prints.

  `available` is the memory of a device, in bytes.
  """
  if available is None:
    raise UserError(
        f'The backend {jax.default_backend()} does not report how much memory a'
        ' device has; give --device_memory_gib.'
    )
  print(
      f'Looking for the largest batch of at most {memory.USABLE:.0%} of'
      f' {memory.mib(available)} MiB a device:'
  )

  def log(size: int, found: int | None) -> None:
    text = 'too much to compile'
    if found is not None:
      text = f'{memory.mib(found)} MiB'
    print(f'  batch {size:,}: {text}', flush=True)

  fit = memory.fit_batch(experiment, available, log)
  note = '; no larger one was tried'
  if fit.too_large is not None:
    note = f'; {fit.too_large:,} do not fit, and what is between was not tried'
  partitioner: Any = experiment.partitioner
  on = getattr(partitioner, 'slice', None)
  kind = on.name if on else partitioner.mesh.devices.flat[0].device_kind
  print(
      f'Largest batch: {fit.batch_size:,} pairs, {memory.mib(fit.peak)} MiB a'
      f' device of kind {kind!r}{note}.'
  )
  return dataclasses.replace(experiment, batch_size=fit.batch_size)
