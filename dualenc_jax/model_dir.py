"""The folder of a run: its config, and the trained model in it."""

import argparse
from collections.abc import Sequence
import dataclasses
import logging
import os
import pathlib
import tempfile
from typing import Any

import jax

from dualenc_jax import config
from dualenc_jax.errors import UserError
from dualenc_jax.experiment import Experiment
from dualenc_jax.retrieval.embedder import Embedder
from dualenc_jax.training import plan as plan_lib
from dualenc_jax.training.checkpoints import Checkpoints

CONFIG = 'config.gin'
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TrainedModel:
  """A model as its newest (or a chosen) checkpoint has it.

  Attributes:
    experiment: how it was trained, with the overrides of this command.
    params: the model's parameters, without those of the loss.
    embedder: its towers, compiled.
    step: the checkpoint's step.
  """

  experiment: Experiment
  params: Any
  embedder: Embedder
  step: int

  @property
  def provenance(self) -> dict[str, Any]:
    """What numbers and vectors of this model depend on."""
    e = self.experiment
    return {
        'checkpoint_step': self.step,
        'model_dir': pathlib.Path(e.model_dir).name,
        'vocabulary': e.tokenizer.vocabulary.sha256,
        'query_length': e.tokenizer.query_length,
        'passage_length': e.tokenizer.passage_length,
        'dtype': e.model.encoder.dtype,
        'seed': e.seed,
    }


def write_config(model_dir: str, text: str, allow_change: bool) -> None:
  """Makes the folder and puts the config into it.

  Args:
    model_dir: the run's folder.
    text: the full gin config.
    allow_change: go on although the folder has another config, which is then
      kept as `config.<n>.gin`.

  Raises:
    UserError: the folder cannot be written, or has another config.
  """
  if '://' in model_dir:
    raise UserError(
        f'MODEL_DIR {model_dir} is no folder. Mount the bucket (gcsfuse, say)'
        ' and give the path, which every host must see.'
    )
  folder = pathlib.Path(model_dir)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
      pass
  except OSError as e:
    raise UserError(
        f'MODEL_DIR {folder} cannot be written: {e.strerror or e}. Give a'
        ' folder that can.'
    ) from e
  path = folder / CONFIG
  if path.exists():
    changes = config.differences(path.read_text(), text)
    if changes and not allow_change:
      raise UserError(
          f'{path} is of another config. '
          + '; '.join(changes)
          + '. Use another MODEL_DIR, or give --allow_config_change to go on'
          ' with the new values.'
      )
    if changes and jax.process_index() == 0:
      number = len(list(folder.glob('config.*.gin'))) + 1
      path.rename(folder / f'config.{number}.gin')
      _LOG.warning('Going on with a changed config: %s', '; '.join(changes))
  if jax.process_index() == 0:
    temporary = folder / f'.{CONFIG}.{os.getpid()}'
    temporary.write_text(text)
    temporary.replace(path)


def load(args: argparse.Namespace) -> TrainedModel:
  """Rebuilds the model of `args.model_dir` and restores its parameters.

  Raises:
    UserError: the folder holds no trained model, or one that cannot be read.
  """
  folder = pathlib.Path(args.model_dir)
  path = folder / CONFIG
  if not path.exists():
    raise UserError(
        f'{folder} is no model_dir: it has no {CONFIG}. Give the folder that'
        ' `dualenc train` wrote (its MODEL_DIR).'
    )
  experiment = build_experiment(
      [str(path), *args.gin_file],
      [*args.gin_bindings, f'MODEL_DIR = {str(folder)!r}'],
      args.gin_search_paths,
  )
  plan = plan_lib.make_plan(experiment)
  params, meta = Checkpoints(folder).restore_params(
      plan.abstract.params, args.step
  )
  _LOG.info('Restored step %d of %s.', meta['step'], folder)
  return TrainedModel(
      experiment,
      {k: v for k, v in params.items() if k != 'loss'},
      plan_lib.make_embedder(plan, experiment),
      meta['step'],
  )


def build_experiment(
    files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str]
) -> Experiment:
  """The experiment of gin files and bindings."""
  if not files:
    raise UserError(
        'Give --gin_file; for example --gin_file=runs/quickstart.gin. Runs'
        ' shipped: '
        + ', '.join(f for f in config.shipped_files() if f.startswith('runs/'))
        + '.'
    )
  config.load(files, bindings, search_paths)
  return config.build(Experiment)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of a command that reads a trained model."""
  parser.add_argument(
      '--model_dir', required=True, help='the folder that training wrote'
  )
  parser.add_argument(
      '--step', type=int, default=None, help='checkpoint, the newest by default'
  )
