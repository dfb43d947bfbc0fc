"""Trains a dual encoder, a cross-encoder or a generator, or goes on with it.

  dualenc train --gin_file=runs/quickstart.gin --model_dir=my_model
"""

import argparse
from collections.abc import Sequence
import contextlib
import logging
import pathlib
import time

import jax

from dualenc_jax.commands import config, flags, model_dir, runtime
from dualenc_jax.errors import UserError
from dualenc_jax.io import files
from dualenc_jax.results import aligned, while_training
from dualenc_jax.run import loop
from dualenc_jax.run.experiment import describe, Experiment, make_plan

_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  started = time.perf_counter()
  args = config.parse_args(make_parser(), argv)
  runtime.start(args.multihost)
  train(build(args), args.allow_config_change, started)


def make_parser() -> flags.Parser:
  parser = config.make_parser('train', __doc__)
  parser.add_argument('--model_dir', help='short for --gin.MODEL_DIR')
  parser.add_argument(
      '--allow_config_change', action='store_true',
      help='resume although the config differs from the one of MODEL_DIR',
  )
  runtime.add_flags(parser)
  return parser


def build(args: argparse.Namespace) -> Experiment:
  """The experiment of a command line."""
  bindings = list(args.gin_bindings)
  if args.model_dir:
    bindings.append(f'MODEL_DIR = {args.model_dir!r}')
  experiment = model_dir.build_experiment(
      args.gin_file, bindings, args.gin_search_paths
  )
  config.check_macros_effect(bindings)
  config.check_files_effect(args.gin_file)
  return experiment


def train(
    experiment: Experiment, allow_config_change: bool, started: float
) -> None:
  """Checks, says what will run, writes the config and trains."""
  text = config.operative_config()
  experiment.objective.check_batch(experiment)
  plan = make_plan(experiment)
  for line in describe(experiment, plan):
    _LOG.info('%s', line)
  model_dir.check(experiment.model_dir, text, allow_config_change)
  # Nothing is written before data and checkpoints are known to be good.
  with contextlib.ExitStack() as alone:
    if not jax.process_index():
      folder = pathlib.Path(experiment.model_dir)
      alone.enter_context(files.alone(folder, 'trains', 'another MODEL_DIR'))
    ended = loop.train(
        experiment,
        plan,
        text,
        [
            *while_training.hooks(experiment, plan),
            *aligned.hooks(experiment, plan),
        ],
        ready=lambda: model_dir.write(
            experiment.model_dir, text, experiment.tokenizer.vocabulary.file
        ),
        allow_other_data=allow_config_change,
        started=started,
    )
  for line in while_training.verdict(experiment):
    _LOG.info('%s', line)
  if best := ended.best:
    _LOG.info(
        'The model is that of step %d, whose %s, %.4f, is the best.',
        best['step'],
        best['metric'],
        best['value'],
    )
  if ended.early:
    _LOG.info(
        'It ended at step %d of %d: %s',
        ended.step,
        experiment.steps,
        ended.early,
    )
  elif experiment.until is not None:
    raise UserError(
        f'All {ended.step:,} steps of {experiment.model_dir} are trained, and'
        ' the towers are not aligned as UNTIL wants it. Give more STEPS (with'
        ' --allow_config_change; ALIGNMENT_STEPS of recipes/daft.gin), a higher'
        ' LEARNING_RATE, a larger run.UntilAligned.share (SHARE) or threshold,'
        ' or UNTIL=None to take it as it is.'
    )
  _LOG.info('Trained %d steps: %s', ended.step, experiment.model_dir)
