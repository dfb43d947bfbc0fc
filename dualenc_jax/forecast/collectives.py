"""Collectives of a compiled program, by its text."""

from collections.abc import Iterator
import math
import re
from typing import NamedTuple

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

  number: int = 0
  bytes: int = 0


def describe_collectives(text: str) -> Iterator[str]:
  """Yields lines of the collectives in the text of a compiled program."""
  found = count_collectives(text)
  if found:
    yield 'Collectives of a device; what a loop repeats counts once:'
  for kind, (count, size) in sorted(found.items()):
    yield f'  {kind:<22} {count:>6,} {size / 2**20:>14,.2f} MiB'


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
