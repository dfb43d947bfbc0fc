"""The checkpoint that a model_dir's results should be of."""

from collections.abc import Mapping
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.evaluation.results.folder import Result
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError

# The tasks of a mixture are a list.
_META = {
    'run_id?': str,
    'data?': {'task?': str | list},
    'notes?': {
        'best?': {'step': int, 'metric': str, 'value': int | float},
        'ended?': str,
    },
}
# Folders from a result to its model_dir: evaluation, those of dim and prompts,
# and that of the result's system.
_ABOVE = 6


class Newest(NamedTuple):
  """The checkpoint that commands read: which it is, and of which run."""

  which: str
  step: int
  run_id: str | None

  @classmethod
  def of(cls, step: int, meta: Mapping[str, Any]) -> 'Newest':
    """By the newest step and its meta, which knows the best."""
    best, run_id = meta.get('notes', {}).get('best'), meta.get('run_id')
    if best:
      return cls('best', best['step'], run_id)
    return cls('newest', step, run_id)

  def other(self, result: Result) -> str:
    """What else a result is of, '' if it is of this checkpoint or of none."""
    step, run_id = map(result.provenance.get, ('checkpoint_step', 'run_id'))
    if step not in (None, self.step):
      return (
          f'of step {step:,}, the {self.which} checkpoint of step'
          f' {self.step:,}'
      )
    if None not in (run_id, self.run_id) and run_id != self.run_id:
      return f'of another training run than the {self.which} checkpoint'
    return ''


def newest_step(model_dir: pathlib.Path) -> int | None:
  """The step of the newest checkpoint; None before the first."""
  # Orbax gives a checkpoint its name, the step, when it is complete.
  names = [path.name for path in model_dir.glob('checkpoints/*')]
  return max(map(int, filter(untrusted.is_digits, names)), default=None)


def read_meta(path: pathlib.Path) -> dict[str, Any]:
  """What was saved beside a checkpoint's tensors, without the config."""
  meta = json_file.read(path, '')
  json_file.check(meta, _META, path)
  return {name: meta[name] for name in meta if name != 'config'}


def outdated(result: Result) -> str:
  """As `Newest.other`, by the model_dir that a result lies in, if any."""
  if 'checkpoint_step' not in result.provenance:
    return ''
  for folder in pathlib.Path(result.where).resolve().parents[:_ABOVE]:
    step = newest_step(folder)
    if step is not None and (folder / 'config.gin').exists():
      try:
        meta = read_meta(folder / f'checkpoints/{step}/meta/metadata')
      except UserError:
        return ''
      return Newest.of(step, meta).other(result)
  return ''
