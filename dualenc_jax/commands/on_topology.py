"""What `check --topology` says of the programs of a config."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses

from dualenc_jax.errors import UserError
from dualenc_jax.forecast import (
  encode,
  report,
  search,
  slices,
  step,
  work,
)
from dualenc_jax.forecast.program import Forecast
from dualenc_jax.models import DualEncoder
from dualenc_jax.run import memory
from dualenc_jax.run.experiment import Experiment
from dualenc_jax.suggest import did_you_mean_or_known

TRAIN = 'train'
# Hits that `evaluate` asks for.
_HITS = 1000


@dataclasses.dataclass(frozen=True)
class _Check:
  """Of an experiment on a slice.

  Attributes:
    experiment: of a `slices.SlicePartitioner`.
    available: bytes of a device.
    whole: all layers are compiled.
  """

  experiment: Experiment
  available: int
  whole: bool

  @property
  def on(self) -> slices.Slice:
    return self.experiment.partitioner.slice

  def train(self) -> Iterator[str]:
    experiment = self.experiment
    model, of_batch = getattr(experiment.objective, 'model', None), None
    # --fit_batch may have found more than there are.
    enough = sum(map(len, experiment.caches)) >= experiment.batch_size
    if isinstance(model, DualEncoder) and enough:
      of_batch = work.work(model, experiment.batches(0))
    found = step.forecast(experiment, self.whole)
    yield from report.step(found, self.on, of_batch)
    pairs = f'{experiment.batch_size:,} pairs'
    yield from self._memory(found, pairs, 'The step', memory.FEWER_PAIRS)

  def encode(self) -> Iterator[str]:
    experiment = self.experiment
    real = encode.of_passages(experiment)
    found = encode.forecast(experiment, self.whole)
    yield from report.encoding(found, real, self.on)
    rows = f'{found.rows} passages'
    yield from self._memory(found.forecast, rows, 'Encoding', encode.LESS)

  def search(self) -> Iterator[str]:
    dim = self.experiment.objective.model.projection.features
    found = search.forecast(dim, _HITS, self.on)
    yield from report.search(found, self.on)
    rows = f'a block of {found.rows:,} passages'
    yield from self._memory(found.forecast, rows, 'The search', search.LESS)

  def _memory(
      self, found: Forecast, at: str, what: str, less: str
  ) -> Iterator[str]:
    yield f'Memory a device at {at}, MiB:'
    for line in memory.table(found.parts, self.available):
      yield f'  {line}'
    over = found.peak - self.available
    if over > 0:
      raise memory.OutOfMemory(
          f'{what} does not fit {self.on.name}: it needs'
          f' {memory.mib(found.peak)} MiB a device, {memory.mib(over)} more'
          f' than there are. {less}'
      )
    yield f'{what} fits {self.on.name}.'


_PROGRAMS: dict[str, Callable[[_Check], Iterator[str]]] = {
    TRAIN: _Check.train, 'encode': _Check.encode, 'search': _Check.search
}


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
  """Prints what the compiler of a slice expects of programs.

  Args:
    experiment: of a `slices.SlicePartitioner`.
    programs: their names, as `check_names` knows them.
    available: bytes of a device.
    whole: all layers are compiled.

  Raises:
    UserError: a program does not fit; the others have been printed.
  """
  if set(programs) - {TRAIN}:
    encode.check(experiment)
  check, errors = _Check(experiment, available, whole), []
  for name in dict.fromkeys(programs):
    try:
      for line in _PROGRAMS[name](check):
        print(line)
    except memory.OutOfMemory as e:
      errors.append(str(e))
  if errors:
    raise UserError('\n'.join(errors))
