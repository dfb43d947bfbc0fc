"""A run as `train`, `check` and `quickstart` build it, and training it."""

import argparse
import logging

from dualenc_jax.commands import config, model_dir
from dualenc_jax.evaluation import evaluation
from dualenc_jax.run import loop, plan as plan_lib
from dualenc_jax.run.experiment import Experiment

_LOG = logging.getLogger(__name__)


def build(args: argparse.Namespace) -> Experiment:
  """The experiment of a command line."""
  bindings = list(args.gin_bindings)
  if args.model_dir:
    bindings.append(f'MODEL_DIR = {args.model_dir!r}')
  experiment = model_dir.build_experiment(
      args.gin_file, bindings, args.gin_search_paths
  )
  config.check_macros_effect(bindings)
  return experiment


def train(
    experiment: Experiment, allow_config_change: bool, started: float
) -> None:
  """Checks, says what will run, writes the config and trains."""
  text = config.operative_config()
  experiment.objective.check_batch(experiment)
  plan = plan_lib.make_plan(experiment)
  for line in plan_lib.describe(experiment, plan):
    _LOG.info('%s', line)
  model_dir.check(experiment.model_dir, text, allow_config_change)
  # Nothing is written before data and checkpoints are known to be good.
  loop.train(
      experiment,
      plan,
      text,
      evaluation.hooks(experiment, plan),
      ready=lambda: model_dir.write(
          experiment.model_dir, text, experiment.tokenizer.vocabulary.file
      ),
      allow_other_data=allow_config_change,
      started=started,
  )
  _LOG.info('Trained %d steps: %s', experiment.steps, experiment.model_dir)
