"""Collectives of a compiled program, by its text."""

import collections
from collections.abc import Iterator
import math
import re

_COLLECTIVE = re.compile(
    r'%[\w.\-]+ = (.*?) (all-gather|all-reduce|all-to-all|collective-broadcast'
    r'|collective-permute|ragged-all-to-all|reduce-scatter)(-start)?\('
)
_COMPUTATION = re.compile(r'(?:ENTRY )?%([\w.\-]+) \(.*\{$')
_CHAIN = re.compile(r'chain_id="\d+"')
_ARRAY = re.compile(r'\b(pred|bf16|[fsuc]\d+)\w*\[([\d,]*)\]')


def describe_collectives(text: str) -> Iterator[str]:
  """Yields lines of the number and bytes of collectives, by their kind.

  Args:
    text: that of a compiled program.
  """
  counts: collections.Counter[str] = collections.Counter()
  sizes: collections.Counter[str] = collections.Counter()
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
    counts[kind] += 1
    sizes[kind] += sum(map(_bytes_of, arrays))
  if counts:
    yield 'Collectives of a device; what a loop repeats counts once:'
  for kind, count in sorted(counts.items()):
    yield f'  {kind:<22} {count:>6,} {sizes[kind] / 2**20:>14,.2f} MiB'


def _bytes_of(array: tuple[str, str]) -> int:
  """Bytes of an array, by its dtype and its sizes: ('bf16', '8,512')."""
  kind, sizes = array
  bits = {'pred': 8, 'bf16': 16}.get(kind) or int(kind[1:])
  return bits * math.prod(int(size) for size in sizes.split(',') if size) // 8
