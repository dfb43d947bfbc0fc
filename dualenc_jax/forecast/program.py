"""One program on one device, as the compiler of a slice makes it."""

from collections.abc import Mapping
import dataclasses
import math
import re
from typing import NamedTuple

import jax

from dualenc_jax.training import memory

_COLLECTIVE = re.compile(
    r'%[\w.\-]+ = (.*?) (all-gather|all-reduce|all-to-all|collective-broadcast'
    r'|collective-permute|ragged-all-to-all|reduce-scatter)(-start)?\('
)
_COMPUTATION = re.compile(r'(?:ENTRY )?%([\w.\-]+) \(.*\{$')
_CHAIN = re.compile(r'chain_id="\d+"')
_ARRAY = re.compile(r'\b(pred|bf16|[fsuc]\d+)\w*\[([\d,]*)\]')


class Sent(NamedTuple):
  """The collectives of one kind, each as often as it is in the program.

  Attributes:
    times: their number; what a loop repeats counts once.
    bytes: bytes of their results on a device.
  """

  times: float = 0
  bytes: float = 0


@dataclasses.dataclass(frozen=True)
class Forecast:
  """What a compiled program needs of a device.

  Attributes:
    parts: bytes by name; they add up to the memory that a device needs.
    sent: `Sent` by kind of collective, such as 'all-gather'.
    layers: number of compiled layers of encoders, if the rest is extrapolated.
  """

  parts: Mapping[str, int]
  sent: Mapping[str, Sent] = dataclasses.field(default_factory=dict)
  layers: int | None = None

  @property
  def peak(self) -> int:
    return sum(self.parts.values())


def forecast(
    lowered: jax.stages.Lowered, what: str, inputs: Mapping[str, int], less: str
) -> Forecast:
  """Compiles a program.

  Args:
    lowered: the program for devices of a slice.
    what: its description for errors.
    inputs: bytes of its inputs by name.
    less: ways to less memory, for errors.

  Raises:
    UserError: see `memory.compile_program`.
  """
  compiled = memory.compile_program(lowered, what, less)
  stats = memory.stats(compiled)
  rest = stats.total - stats.temporaries - sum(inputs.values())
  # Inputs that the program does not read take memory all the same.
  parts = {**inputs, 'temporaries': stats.temporaries, 'other': max(rest, 0)}
  return Forecast(parts, collectives(compiled.as_text() or ''))


def collectives(text: str) -> dict[str, Sent]:
  """`Sent` by kind, of the text of a compiled program."""
  sent: dict[str, Sent] = {}
  chains, computation = set(), ''
  for line in text.splitlines():
    if head := _COMPUTATION.match(line):
      computation = head[1]
    if not (found := _COLLECTIVE.search(line)):
      continue
    # On TPUs one that runs beside products is in several fusions, a chain.
    if chain := _CHAIN.search(line):
      if chain[0] in chains:
        continue
      chains.add(chain[0])
    kind, arrays = found[2], _ARRAY.findall(found[1])
    if found[3] and kind != 'all-reduce':
      # Beside its results are as many operands, and scalars.
      arrays = [array for array in arrays if array[1]]
      arrays = arrays[len(arrays) // 2 :]
    if computation.startswith('all-reduce-scatter'):
      kind = 'reduce-scatter'
    times, size = sent.get(kind, Sent())
    sent[kind] = Sent(times + 1, size + sum(map(_bytes, arrays)))
  return sent


def _bytes(array: tuple[str, str]) -> int:
  kind, sizes = array
  bits = {'pred': 8, 'bf16': 16}.get(kind) or int(kind[1:])
  return bits * math.prod(int(size) for size in sizes.split(',') if size) // 8
