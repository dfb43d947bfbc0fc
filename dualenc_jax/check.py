"""Explains a config without training: names, shapes, parameters, memory.

  dualenc check --gin_file=runs/finetune.gin --gin.TRAIN_FILE=pairs.jsonl
"""

from collections.abc import Sequence
import sys

import jax

from dualenc_jax import cli
from dualenc_jax import config
from dualenc_jax import runtime
from dualenc_jax import train
from dualenc_jax.training import plan as plan_lib
from dualenc_jax.training import summary


def main(argv: Sequence[str] | None = None) -> None:
  parser = config.make_parser('check', __doc__)
  parser.add_argument('--model_dir', help='short for --gin.MODEL_DIR')
  parser.add_argument(
      '--no_compile',
      action='store_true',
      help='skip the compiled memory, which takes as long as compiling',
  )
  args = config.parse_args(parser, argv)
  args.model_dir = args.model_dir or 'unused'
  runtime.start()
  experiment = train.build(args)

  print(config.operative_config())
  task = experiment.task
  splits = task.splits()
  for split in {'train', *splits}:
    task.fingerprint(split)  # Reads the source, so that a missing file is told.
  print(f'Task {task.name}: splits {", ".join(splits)}.')
  plan = plan_lib.make_plan(experiment)
  for line in summary.describe(experiment, plan):
    print(line)
  for path, leaf in zip(
      plan_lib.param_paths(plan), jax.tree.leaves(plan.abstract.params)
  ):
    print(f'  {path} {list(leaf.shape)} {leaf.sharding.spec}')
  batch = plan_lib.abstract_batch(experiment)
  for name, array in batch.items():
    print(f'  batch {name} {list(array.shape)} {array.dtype}')
  if not args.no_compile:
    print(memory(plan, batch))


def memory(plan: plan_lib.Plan, batch: dict[str, jax.ShapeDtypeStruct]) -> str:
  """Bytes a device of the compiled train step, as the compiler plans them."""
  compiled = plan.train_step.lower(plan.abstract, batch).compile()
  analysis = compiled.memory_analysis()
  state, work = analysis.argument_size_in_bytes, analysis.temp_size_in_bytes
  return (
      'Compiled memory a device:'
      f' {state / 2**20:,.1f} MiB parameters, optimizer state and batch +'
      f' {work / 2**20:,.1f} MiB temporaries ='
      f' {(state + work) / 2**20:,.1f} MiB.'
  )


if __name__ == '__main__':
  sys.exit(cli.run(main))
