"""One program on one device, as the compiler of a slice expects it."""

from collections.abc import Mapping, Set
import dataclasses
from typing import Any, NamedTuple

import jax

from dualenc_jax.forecast import compile_cache, kernels
from dualenc_jax.forecast.parts import part_of
from dualenc_jax.forecast.schedule import num_bytes, Schedule, Transfer
from dualenc_jax.forecast.slices import Generation, Slice
from dualenc_jax.run import memory


class Sent(NamedTuple):
  """The traffic of collectives of one kind.

  Attributes:
    times: number of runs.
    bytes: bytes of their results on a device.
    alone: bytes of these with no other operation beside them.
    exposed: estimated seconds that the device waits for them.
  """

  times: float = 0
  bytes: float = 0
  alone: float = 0
  exposed: float = 0

  def plus(self, transfer: Transfer, on: Generation) -> 'Sent':
    size = transfer.times * transfer.bytes
    return Sent(
        self.times + transfer.times,
        self.bytes + size,
        self.alone + (0 if transfer.hidden else size),
        self.exposed + transfer.times * transfer.exposed(on.link, on.clock),
    )


@dataclasses.dataclass(frozen=True)
class Program:
  """A compiled program.

  Attributes:
    stats: its memory.
    cycles: cycles by part.
    sent: traffic by kind of collective.
    uncounted: bytes of results without cycles, by kind: sorts, gathers,
      scatters.
    kernels: names of kernels whose cycles are from their own schedules.
    unknown: names of kernels without cycles.
    is_kept: whether it is from an earlier compile.
  """

  stats: memory.Stats
  cycles: Mapping[str, float] = dataclasses.field(default_factory=dict)
  sent: Mapping[str, Sent] = dataclasses.field(default_factory=dict)
  uncounted: Mapping[str, float] = dataclasses.field(default_factory=dict)
  kernels: Set[str] = frozenset()
  unknown: Set[str] = frozenset()
  is_kept: bool = False

  def seconds(self, on: Generation) -> dict[str, float]:
    """Seconds by part, waiting for collectives included; {} for GPUs."""
    if not self.cycles:
      return {}
    found = {part: cycles / on.clock for part, cycles in self.cycles.items()}
    if waited := sum(sent.exposed for sent in self.sent.values()):
      found['waiting for collectives'] = waited
    return found


@dataclasses.dataclass(frozen=True)
class Forecast:
  """A program whose memory has names.

  Attributes:
    parts: bytes by name; they add up to the memory that a device needs.
    program: cycles and collectives.
    layers: number of compiled layers of encoders, if the rest is extrapolated.
  """

  parts: Mapping[str, int]
  program: Program
  layers: int | None = None

  @property
  def peak(self) -> int:
    return sum(self.parts.values())


def of_inputs(program: Program, inputs: Mapping[str, int]) -> Forecast:
  """The forecast of a program with the bytes of its inputs by name."""
  temporaries = program.stats.temporaries
  rest = program.stats.total - temporaries - sum(inputs.values())
  # Inputs that the program does not read take memory all the same.
  parts = {**inputs, 'temporaries': temporaries, 'other': max(rest, 0)}
  return Forecast(parts, program)


def measured(
    lowered: jax.stages.Lowered,
    what: str,
    on: Slice,
    less: str = memory.FEWER_PAIRS,
    memory_alone: bool = False,
) -> Program:
  """Compiles a program for a slice, or reads an earlier compile.

  Args:
    lowered: the program for devices of the slice.
    what: its description for errors.
    on: the slice.
    less: ways to less memory, for errors.
    memory_alone: leaves out cycles, as kernels take a while.

  Raises:
    UserError: see `memory.compile_program`.
  """
  file = compile_cache.file(lowered, on, 'memory' if memory_alone else 'all')
  if found := compile_cache.read(file, _FIELDS):
    return _of_json(found)
  compiled = memory.compile_program(lowered, what, less)
  stats = memory.stats(compiled)
  program = Program(stats) if memory_alone else _compiled(compiled, stats, on)
  compile_cache.write(file, _to_json(program))
  return program


def _compiled(
    compiled: jax.stages.Compiled, stats: memory.Stats, on: Slice
) -> Program:
  text, known, unknown = kernels.timed(compiled.as_text() or '', on)
  schedule = Schedule(text)
  cycles: dict[str, float] = {}
  uncounted: dict[str, float] = {}
  for operation, times in schedule.operations():
    if operation.cycles:
      part = part_of(operation)
      cycles[part] = cycles.get(part, 0.0) + times * operation.cycles
    elif kind := operation.uncounted:
      size = times * num_bytes(operation.type)
      uncounted[kind] = uncounted.get(kind, 0.0) + size
  sent: dict[str, Sent] = {}
  for transfer in schedule.transfers():
    before = sent.get(transfer.kind, Sent())
    sent[transfer.kind] = before.plus(transfer, on.generation)
  return Program(stats, cycles, sent, uncounted, known, unknown)


_NUMBER = int | float
_FIELDS = {
    'stats': {name: int for name in memory.Stats._fields},
    'cycles': {str: _NUMBER},
    'sent': {str: {name: _NUMBER for name in Sent._fields}},
    'uncounted': {str: _NUMBER},
    'kernels': [str],
    'unknown': [str],
}


def _to_json(program: Program) -> dict[str, Any]:
  return {
      'stats': program.stats._asdict(),
      'cycles': program.cycles,
      'sent': {kind: sent._asdict() for kind, sent in program.sent.items()},
      'uncounted': program.uncounted,
      'kernels': sorted(program.kernels),
      'unknown': sorted(program.unknown),
  }


def _of_json(found: Mapping[str, Any]) -> Program:
  def picked(kind: Any, value: Mapping[str, Any]) -> Any:
    return kind(**{name: value[name] for name in kind._fields})

  return Program(
      picked(memory.Stats, found['stats']),
      found['cycles'],
      {kind: picked(Sent, sent) for kind, sent in found['sent'].items()},
      found['uncounted'],
      frozenset(found['kernels']),
      frozenset(found['unknown']),
      is_kept=True,
  )
