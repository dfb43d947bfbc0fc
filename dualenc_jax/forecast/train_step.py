"""The train step on an absent slice: its memory and its collectives."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
import re
from typing import Any, NamedTuple

from flax import linen as nn

from dualenc_jax.forecast.slices import Slice
from dualenc_jax.training import memory
from dualenc_jax.training.experiment import Experiment

# Layers of an encoder that are compiled; those of deeper ones are alike.
_COMPILED = 2
_COLLECTIVE = re.compile(
    r'%[\w.\-]+ = (.*?) (all-gather|all-reduce|all-to-all|collective-broadcast'
    r'|collective-permute|ragged-all-to-all|reduce-scatter)(-start)?\('
)
_COMPUTATION = re.compile(r'(?:ENTRY )?%([\w.\-]+) \(.*\{$')
_CHAIN = re.compile(r'chain_id="\d+"')
_ARRAY = re.compile(r'\b(pred|bf16|[fsuc]\d+)\w*\[([\d,]*)\]')


class CollectiveStats(NamedTuple):
  """The collectives of one kind, each as often as it is in the program.

  Attributes:
    number: how many there are; what a loop repeats counts once.
    bytes: bytes of their results on a device.
  """

  number: float = 0
  bytes: float = 0


@dataclasses.dataclass(frozen=True)
class Forecast:
  """The needs of a compiled program on a device.

  Attributes:
    parts: bytes by name; they add up to the memory that a device needs.
    collectives: `CollectiveStats` by kind, such as 'all-gather'.
    layers: number of compiled layers of encoders, if the rest is extrapolated.
  """

  parts: Mapping[str, int]
  collectives: Mapping[str, CollectiveStats] = dataclasses.field(
      default_factory=dict
  )
  layers: int | None = None

  @property
  def peak(self) -> int:
    return sum(self.parts.values())

  def describe(self, on: Slice) -> Iterator[str]:
    """Yields lines of text on the step and its collectives."""
    yield f'The train step on {on.name}, compiled by {on.compiler}.'
    if self.layers is not None:
      yield (
          f'Encoders were compiled with {self.layers} layers and'
          f' {self.layers - 1}; the others are taken to cost their difference.'
          ' --whole compiles all.'
      )
    if self.collectives:
      yield 'Collectives of a device; what a loop repeats counts once:'
    for kind, (count, size) in sorted(self.collectives.items()):
      yield f'  {kind:<22} {count:>6,.0f} {size / 2**20:>14,.2f} MiB'


def forecast(experiment: Experiment, all_layers: bool = False) -> Forecast:
  """Compiles the train step for the devices of a `SlicePartitioner`.

  Args:
    experiment: a run with this partitioner.
    all_layers: compile all layers of encoders, see `extrapolate`.

  Raises:
    memory.OutOfMemory: the compiler ran out of the device's memory.
  """

  def measure(experiment: Experiment) -> Forecast:
    compiled = memory.compile_step(experiment)
    parts = memory.parts_of_compiled(experiment, compiled)
    return Forecast(parts, count_collectives(compiled.as_text() or ''))

  return extrapolate(experiment, measure, all_layers)


def forecast_peak(experiment: Experiment, all_layers: bool = False) -> int:
  """Returns bytes a device, sooner than `forecast`."""

  def measure(experiment: Experiment) -> Forecast:
    return Forecast({'step': memory.measure_peak(experiment)})

  return extrapolate(experiment, measure, all_layers).peak


def extrapolate(
    experiment: Experiment,
    measure: Callable[[Experiment], Forecast],
    all_layers: bool = False,
) -> Forecast:
  """Returns the forecast of a program of encoders, by few of their layers.

  Layers of one encoder are alike. So deep encoders are compiled with two
  layers, and each of them once more with one: the difference is the cost of a
  layer.

  Args:
    experiment: a run with all layers.
    measure: compiles the program.
    all_layers: compile all of them instead.
  """
  deep = [] if all_layers else _deep_encoders(experiment.objective)
  if not deep:
    return measure(experiment)
  few = {encoder: _COMPILED for encoder in deep}
  base = measure(_with_layers(experiment, few))
  total = base
  for encoder in deep:
    less = measure(_with_layers(experiment, few | {encoder: _COMPILED - 1}))
    total = _add_layers(total, base, less, encoder.num_layers - _COMPILED)
  return dataclasses.replace(total, layers=_COMPILED)


def _add_layers(
    total: Forecast, base: Forecast, less: Forecast, layers: int
) -> Forecast:
  """Adds layers to `total`, each the difference of `base` and `less`."""

  def add(total: float, base: float, less: float) -> float:
    return total + layers * max(base - less, 0)

  parts = {
      part: int(add(total.parts[part], size, less.parts[part]))
      for part, size in base.parts.items()
  }
  none = CollectiveStats()
  collectives = {
      kind: CollectiveStats(*map(
          add, total.collectives[kind], stats, less.collectives.get(kind, none)
      ))
      for kind, stats in base.collectives.items()
  }
  return Forecast(parts, collectives)


def _deep_encoders(objective: Any) -> list[Any]:
  """The different encoders of more layers than are compiled."""
  deep: list[Any] = []

  def note(encoder: Any) -> Any:
    # One in a scan has a single layer in the program.
    is_scan = getattr(encoder, 'scan_layers', False)
    is_deep = encoder.num_layers > _COMPILED and not is_scan
    if is_deep and encoder not in deep:
      deep.append(encoder)
    return encoder

  _map_encoders(objective, note)
  return deep


def _with_layers(experiment: Experiment, layers: Mapping[Any, int]) -> Any:

  def change(encoder: Any) -> Any:
    if encoder not in layers:
      return encoder
    return encoder.clone(num_layers=layers[encoder])

  objective = _map_encoders(experiment.objective, change)
  return dataclasses.replace(experiment, objective=objective)


def _map_encoders(tree: Any, change: Callable[[Any], Any]) -> Any:
  """Returns a tree of dataclasses and modules with its encoders changed."""
  if isinstance(tree, nn.Module) and hasattr(tree, 'num_layers'):
    return change(tree)
  if not dataclasses.is_dataclass(tree) or isinstance(tree, type):
    return tree
  changed = {}
  for field in dataclasses.fields(tree):
    if field.init and field.name not in ('parent', 'name'):
      old = getattr(tree, field.name)
      new = _map_encoders(old, change)
      if new is not old:
        changed[field.name] = new
  if not changed:
    return tree
  if isinstance(tree, nn.Module):
    return tree.clone(**changed)
  return dataclasses.replace(tree, **changed)


def count_collectives(text: str) -> dict[str, CollectiveStats]:
  """Returns `CollectiveStats` by kind, of the text of a compiled program."""
  total: dict[str, CollectiveStats] = {}
  chains, computation = set(), ''
  for line in text.splitlines():
    if head := _COMPUTATION.match(line):
      computation = head[1]
    if not (match := _COLLECTIVE.search(line)):
      continue
    # On TPUs one that runs beside products is in several fusions, a chain.
    if chain := _CHAIN.search(line):
      if chain[0] in chains:
        continue
      chains.add(chain[0])
    kind, arrays = match[2], _ARRAY.findall(match[1])
    if match[3] and kind != 'all-reduce':
      # Beside its results are as many operands, and scalars.
      arrays = [array for array in arrays if array[1]]
      arrays = arrays[len(arrays) // 2 :]
    if computation.startswith('all-reduce-scatter'):
      kind = 'reduce-scatter'
    count, size = total.get(kind, CollectiveStats())
    size += sum(map(_bytes_of, arrays))
    total[kind] = CollectiveStats(count + 1, size)
  return total


def _bytes_of(array: tuple[str, str]) -> int:
  """Bytes of an array, by its dtype and its sizes: ('bf16', '8,512')."""
  kind, sizes = array
  bits = {'pred': 8, 'bf16': 16}.get(kind) or int(kind[1:])
  return bits * math.prod(int(size) for size in sizes.split(',') if size) // 8
