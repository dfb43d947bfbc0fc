"""Trains a dual encoder, a cross-encoder or a generator, or resumes its run.

  dualenc train --gin_file=runs/quickstart.gin --model_dir=my_model

SIGTERM, SIGINT (Ctrl-C) and SIGUSR1 (SLURM's --signal=USR1@60) stop a run: it
ends the current step and evaluations that have begun, saves a checkpoint (the
same step on all hosts) and exits with status 75, after Ctrl-C 130. The same
command then resumes, bit for bit as if it had not stopped. A
second signal, a second or more after the first, stops it at once, with status
128 + number. Before the first step begins to compile nothing needs saving, and
one signal is enough (Ctrl-C: 130).
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import logging
import pathlib
import time

import jax

from dualenc_jax.checkpoints import checkpoint_reader
from dualenc_jax.cli import config, flags, runtime, saved_config, saved_run
from dualenc_jax.evaluation.results import comparison, training_evals
from dualenc_jax.parallel import hosts
from dualenc_jax.training import loop
from dualenc_jax.training.experiment import describe, Experiment, make_plan
from dualenc_jax.training.hooks import Hook, Training
from dualenc_jax.training.stopping import Stopping
from dualenc_jax.utils import folder_lock
from dualenc_jax.utils.errors import UserError

# Seconds between checks that the folder of a run still exists.
_LOOK_SECONDS = 5.0
# The activity of a run in its folder, and the remedy if another run has it.
_WRITES = 'trains', 'another MODEL_DIR'
_LOG = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  runtime.start(args)
  stopping = Stopping()
  with stopping.handle_signals():
    train(build(args), args, stopping)


def make_parser() -> flags.Parser:
  parser = config.make_parser('train', __doc__)
  add = parser.add_argument
  add('--model_dir', help='short for --gin.MODEL_DIR')
  add_change_flags(parser)
  runtime.add_flags(parser)
  return parser


def add_change_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that let a run resume with another config or other data."""
  add = parser.add_argument
  add('--allow_config_change', action='store_true',
      help='resume even if the config differs from that of MODEL_DIR, or the'
      ' run had ended early')
  add('--allow_data_change', action='store_true',
      help='resume even if the training examples, their order or the batch size'
      ' have changed')


def build(args: argparse.Namespace) -> Experiment:
  """The experiment of a command line."""
  bindings = list(args.gin_bindings)
  if args.model_dir:
    bindings.append(f'MODEL_DIR = {args.model_dir!r}')
  experiment = saved_run.build_experiment(
      args.gin_file, bindings, args.gin_search_paths
  )
  config.check_effect(bindings, args.gin_file, macros=True)
  return experiment


def train(
    experiment: Experiment, args: argparse.Namespace, stopping: Stopping
) -> None:
  """Checks and logs what will run, writes the config and trains.

  The flags are those of `add_change_flags`. SystemExit is raised where the run
  was stopped.
  """
  folder = pathlib.Path(experiment.model_dir)
  if not jax.process_index():
    folder_lock.check_free(folder, *_WRITES)
  text = config.operative_config()
  hosts.agree('configs', '\n'.join(config.statements(text, but='MODEL_DIR')))
  experiment.objective.check_batch(experiment)
  plan = make_plan(experiment)
  for line in describe(experiment, plan):
    _LOG.info('%s', line)
  saved_config.check(experiment.model_dir, text, args.allow_config_change)
  hosts.agree(
      'checkpoints', f'{checkpoint_reader.steps(folder)}',
      'MODEL_DIR must be a folder that all hosts see.',
  )
  # Nothing is written before data and checkpoints are known to be good.
  with _alone(folder) as watches:
    hooks = [*training_evals.hooks(experiment, plan), *watches]
    outcome = loop.train(
        experiment, plan, text, hooks,
        ready=lambda: saved_config.write(experiment.model_dir, text),
        allow_other_data=args.allow_data_change,
        allow_other_config=args.allow_config_change,
        stopping=stopping,
    )
  if outcome.stopped:
    saved = 'Its checkpoint is saved'
    _LOG.warning(
        'Stopped at step %d of %d: %s. %s; run the same command again to go'
        ' on.', outcome.step, experiment.steps, outcome.stopped,
        saved if outcome.step else 'There is nothing to save',
    )
    hosts.leave()
    raise SystemExit(stopping.status)
  for line in comparison.verdict_of_training(folder):
    _LOG.info('%s', line)
  if best := outcome.best:
    _LOG.info(
        'The model is that of step %d, whose %s, %.4f, is the best.',
        best['step'], best['metric'], best['value'],
    )
  if outcome.ended:
    _LOG.info(
        'It ended at step %d of %d: %s',
        outcome.step, experiment.steps, outcome.ended,
    )
  elif experiment.until is not None:
    raise UserError(
        f'All {outcome.step:,} steps of {experiment.model_dir} are trained, but'
        ' the towers are not yet aligned by UNTIL. Give more STEPS with'
        ' --allow_config_change, or UNTIL=None to take the model as it is.'
    )
  _LOG.info('Trained %d steps: %s', outcome.step, experiment.model_dir)


@contextlib.contextmanager
def _alone(folder: pathlib.Path) -> Iterator[list[Hook]]:
  """Locks a run's folder, on the first host.

  The hook checks every few seconds that the folder exists and has no other
  writer.
  """
  if jax.process_index():
    hosts.wait_for_all()
    yield []
    return
  with folder_lock.lock_folder(folder, *_WRITES) as lock:
    hosts.wait_for_all()
    last = time.monotonic()

    def look(run: Training) -> None:
      nonlocal last
      del run
      now = time.monotonic()
      if now - last > _LOOK_SECONDS:
        last = now
        lock.check()

    try:
      yield [Hook(look, every=1, late=True)]
    except Exception:
      # If the folder is gone, that is the cause of the error.
      lock.check()
      raise
    lock.check()
