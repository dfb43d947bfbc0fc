"""The report of `check --topology` on the programs of a config."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dualenc_jax.forecast import encode, report, search, slices, step, work
from dualenc_jax.forecast.program import Forecast
from dualenc_jax.models import DualEncoder
from dualenc_jax.training import memory
from dualenc_jax.training.experiment import Experiment
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.suggest import did_you_mean_or_known

TRAIN = 'train'
# Hits that `evaluate` asks for.
_HITS = 1000
# What a program is and its rows, its memory, and what takes less.
_Found = tuple[str, str, Forecast, str]


def check_names(programs: Sequence[str]) -> None:
  """Raises UserError for a program that is none."""
  for name in programs:
    if name not in _PROGRAMS:
      raise UserError(
          f'--program={name}: there is no such program.'
          + did_you_mean_or_known(name, _PROGRAMS)
      )


def describe(
    experiment: Experiment, programs: Sequence[str], available: int, whole: bool
) -> None:
  """Prints the forecasts of programs on the experiment's slice.

  A device has `available` bytes; where a program does not fit, the others are
  printed before it is raised.
  """
  if set(programs) - {TRAIN}:
    encode.check(experiment)
  assert isinstance(experiment.partitioner, slices.SlicePartitioner)
  on, errors = experiment.partitioner.slice, []
  assert on is not None
  for name in dict.fromkeys(programs):
    try:
      what, at, found, less = _PROGRAMS[name](experiment, on, whole)
      print(f'Memory a device at {at}, MiB:')
      for line in memory.table(found.parts, available):
        print(f'  {line}')
      over = found.peak - available
      if over > 0:
        raise memory.OutOfMemory(
            f'{what} does not fit {on.name}: it needs {memory.mib(found.peak)}'
            f' MiB a device, {memory.mib(over)} more than there are. {less}'
        )
      print(f'{what} fits {on.name}.')
    except memory.OutOfMemory as e:
      errors.append(str(e))
  if errors:
    raise UserError('\n'.join(errors))


def _train(experiment: Experiment, on: slices.Slice, whole: bool) -> _Found:
  model, of_batch = getattr(experiment.objective, 'model', None), None
  # --fit_batch may have found more than there are.
  enough = sum(map(len, experiment.caches)) >= experiment.batch_size
  if isinstance(model, DualEncoder) and enough:
    of_batch = work.work(model, experiment.batches(0))
  found = step.forecast(experiment, whole)
  _print(report.step(found, on, of_batch))
  pairs = f'{experiment.batch_size:,} pairs'
  return 'The step', pairs, found, memory.FEWER_PAIRS


def _encode(experiment: Experiment, on: slices.Slice, whole: bool) -> _Found:
  found = encode.forecast(experiment, whole)
  _print(report.encoding(found, on))
  return 'Encoding', f'{found.rows} passages', found.forecast, encode.LESS


def _search(experiment: Experiment, on: slices.Slice, whole: bool) -> _Found:
  del whole
  objective: Any = experiment.objective
  dim = objective.model.projection.features
  found = search.forecast(dim, _HITS, on)
  _print(report.search(found, on))
  rows = f'a block of {found.rows:,} passages'
  return 'The search', rows, found.forecast, search.LESS


def _print(lines: Iterator[str]) -> None:
  for line in lines:
    print(line)


_PROGRAMS: dict[str, Callable[[Experiment, slices.Slice, bool], _Found]] = {
    TRAIN: _train, 'encode': _encode, 'search': _search
}
