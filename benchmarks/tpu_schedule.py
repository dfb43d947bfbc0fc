"""The operations of a compiled TPU program, in order, with expected cycles.

The compiler writes no cycles next to collectives, gathers, scatters and sorts.
"""

from collections.abc import Iterator
import dataclasses
import functools
import math
import re

from dualenc_jax.forecast import slices

_BYTES = {'pred': 1, 'bf16': 2}  # Of the others, the digits are the bits.
_SHAPE = re.compile(r'\b(pred|bf16|[fsuc]\d+)\[([\d,]*)\]')
_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
_OPERATION = re.compile(
    r'^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$'
)
_CALLED = re.compile(
    r'(?:body|to_apply|calls|branch_computations|called_computations'
    r'|true_computation|false_computation)=(%[\w.\-]+|\{[^}]*\})'
)
_CONDITION = re.compile(r'condition=%([\w.\-]+)')
_INDEX = re.compile(r'index=(\d+)')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_PLACE = re.compile(r'op_name="([^"]*)"')
_NAME = re.compile(r'%([\w.\-]+)')
_METADATA = re.compile(r'kernel_metadata=\{\s+([^{}]*?)\s+\}')
_CHAIN = re.compile(r'chain_id="\d+"')
# Operations without cycles, alone or as the last of a fusion.
_UNCOUNTED = re.compile(r'(?:^|/)(sort|gather|scatter)(?:-add)?$')
# Operations of bfloat16 products a second, of one of JAX's devices.
_FLOPS = {
    'v2': 23e12, 'v3': 61.5e12, 'v4': 137.5e12, 'v5e': 197e12, 'v5p': 459e12,
    'v6e': 918e12, 'tpu7x': 1153.5e12,
}
# Operations of bfloat16 products in a cycle, by the compiler's estimates of
# large ones, and bytes a second one way along a wire to a neighbour.
_OF_CYCLE = {
    'v2': (2**15, 62e9), 'v3': (2**16, 81e9), 'v4': (2**17, 45e9),
    'v5e': (2**17, 45e9), 'v5p': (2**18, 90e9), 'v6e': (2**19, 90e9),
    'tpu7x': (2**19, 90e9),
}
COLLECTIVES = (
    'all-gather', 'all-reduce', 'all-to-all', 'collective-broadcast',
    'collective-permute', 'ragged-all-to-all', 'reduce-scatter',
)


@dataclasses.dataclass(frozen=True)
class Operation:
  """A line of the program.

  Attributes:
    name: name of its result.
    kind: 'fusion', 'while', 'all-reduce-start'.
    type: type of its result, 'f32[8,128]{1,0:T(8,128)}'.
    rest: operands and attributes.
  """

  name: str
  kind: str
  type: str
  rest: str

  @property
  def cycles(self) -> int:
    """Expected cycles; 0 where the compiler writes none."""
    found = _CYCLES.search(self.rest)
    return int(found[1]) if found else 0

  @property
  def uncounted(self) -> str | None:
    """'sort', 'gather' or 'scatter' without cycles."""
    if self.cycles or self.kind not in ('fusion', 'sort', 'gather', 'scatter'):
      return None
    name = self.place if self.kind == 'fusion' else self.kind
    found = _UNCOUNTED.search(name)
    return found and found[1]

  @property
  def place(self) -> str:
    """Its origin: 'jit(step)/jvp(DualEncoder)/encoder/.../dot'."""
    found = _PLACE.search(self.rest)
    return found[1] if found else ''

  @property
  def operands(self) -> list[str]:
    return _NAME.findall(self.rest.split('),', 1)[0])

  @property
  def called(self) -> list[str]:
    return _NAME.findall(' '.join(_CALLED.findall(self.rest)))


@dataclasses.dataclass(frozen=True)
class Transfer:
  """A collective operation.

  Attributes:
    kind: 'all-reduce'.
    bytes: bytes of its result on a device, or of its operands, each time.
    times: number of runs.
    hidden: cycles of other operations between its start and its end; None if
      the device waits for it.
    place: its origin.
  """

  kind: str
  bytes: int
  times: float
  hidden: float | None
  place: str

  def exposed(self, link: float, clock: float) -> float:
    """Estimated seconds that a device waits for it each time.

    A ring of chips sends both ways, and an all-reduce goes round twice; a
    permute goes one way. `link` is in bytes a second one way along a wire,
    `clock` in cycles a second.
    """
    rounds = {'all-reduce': 1.0, 'collective-permute': 1.0}
    seconds = rounds.get(self.kind, 0.5) * self.bytes / link
    return max(seconds - (self.hidden or 0) / clock, 0.0)


def clock_and_link(on: slices.Slice) -> tuple[float, float]:
  """Cycles a second of a device, and bytes a second of a wire."""
  operations, link = _OF_CYCLE[on.name.partition(':')[0]]
  return peak_flops(on) / operations, link


def peak_flops(on: slices.Slice) -> float:
  """Operations of bfloat16 products a second of a device."""
  return _FLOPS[on.name.partition(':')[0]]


class Schedule:
  """The operations of a compiled program, in the order in which they run."""

  def __init__(self, text: str):
    self._bodies: dict[str, list[Operation]] = {}
    body: list[Operation] = []
    for line in one_line_each(text).splitlines():
      if head := _HEAD.match(line):
        body = self._bodies[head[2]] = []
        if head[1]:
          self._entry = head[2]
      elif found := _OPERATION.match(line):
        name, type_, kind, rest = found.groups()
        body.append(Operation(name, kind, type_, rest))

  def operations(self) -> Iterator[tuple[Operation, float]]:
    """Each operation and its number of runs; a fusion is one."""
    return self._within(self._entry, 1.0)

  def cycles(self) -> float:
    """Cycles of the whole program."""
    return self._cycles(self._entry)

  def transfers(self) -> list[Transfer]:
    """All collective operations."""
    runs = self._runs(self._entry, 1.0)
    return [t for name, times in runs for t in self._transfers(name, times)]

  def _within(
      self, name: str, times: float
  ) -> Iterator[tuple[Operation, float]]:
    for body, times in self._runs(name, times):
      for operation in self._bodies[body]:
        yield operation, times

  def _runs(self, name: str, times: float) -> Iterator[tuple[str, float]]:
    """Bodies that run within one, itself first, and their number of runs."""
    yield name, times
    for operation in self._bodies[name]:
      if operation.kind == 'while':
        trips = self._trips(name, operation)
        for called in operation.called:
          yield from self._runs(called, times * trips)
      elif operation.kind == 'conditional':
        yield from self._runs(self._longest(operation), times)
      elif operation.kind in ('call', 'async-start'):
        for called in operation.called:
          yield from self._runs(called, times)

  def _longest(self, operation: Operation) -> str:
    """The branch of most cycles."""
    return max(operation.called, key=self._cycles)

  @functools.cache
  def _cycles(self, name: str) -> float:
    return sum(
        operation.cycles * times for operation, times in self._within(name, 1.0)
    )

  def _trips(self, name: str, loop: Operation) -> float:
    """Runs of a loop; half of its end where the start is no constant."""
    condition = self._bodies[_group(_CONDITION, loop.rest)]
    ends = [int(o.rest.split(')')[0]) for o in condition
            if o.kind == 'constant' and o.type.startswith(('s32[]', 'u32[]'))]
    if len(ends) != 1:
      return 1.0
    here = {operation.name: operation for operation in self._bodies[name]}
    number = [
        int(_group(_INDEX, o.rest))
        for o in condition if o.kind == 'get-tuple-element'
    ]
    start = here.get(loop.operands[0])
    if start is not None and start.kind == 'tuple' and number:
      start = here.get(start.operands[number[0]])
    while start is not None and start.kind.startswith(('copy', 'bitcast')):
      start = here.get(start.operands[0])
    if start is None or start.kind != 'constant':
      return ends[0] / 2
    return max(ends[0] - int(start.rest.split(')')[0]), 0)

  def _transfers(self, name: str, times: float) -> Iterator[Transfer]:
    body = self._bodies[name]
    ends = {
        operand: number
        for number, operation in enumerate(body)
        if operation.kind.endswith('-done')
        for operand in operation.operands
    }

    def hidden(first: int, last: int) -> float:
      return sum(self._alone(name, each) for each in body[first + 1 : last])

    # One that runs beside products is in each fusion from its start to its end,
    # a chain; others may share a channel.
    fused: dict[str, list[int]] = {}
    for number, operation in enumerate(body):
      kind = operation.kind.removesuffix('-start')
      if inner := self._fused(operation):
        chain = _CHAIN.search(inner.rest)
        key = chain[0] if chain else operation.name
        fused.setdefault(key, []).append(number)
      elif kind in COLLECTIVES and kind == operation.kind:
        size = self._size(name, operation)
        yield Transfer(kind, size, times, None, operation.place)
      elif kind in COLLECTIVES:
        # Its type has the operands, too.
        size = max(map(num_bytes, _arrays(operation.type)))
        beside = hidden(number, ends[operation.name])
        yield Transfer(kind, size, times, beside, operation.place)
    for numbers in fused.values():
      first, last = body[numbers[0]], body[numbers[-1]]
      inner, around = self._fused(first), first.called[0]
      assert inner is not None
      summed = around.startswith('all-reduce-scatter')
      yield Transfer(
          'reduce-scatter' if summed else inner.kind,
          self._size(around, inner),
          times,
          None if first is last else hidden(numbers[0], numbers[-1]),
          inner.place or first.place,
      )

  def _fused(self, operation: Operation) -> Operation | None:
    """The collective operation within a fusion, if any."""
    if operation.kind != 'fusion':
      return None
    inner = (each for name in operation.called for each in self._bodies[name])
    return next((each for each in inner if each.kind in COLLECTIVES), None)

  def _size(self, name: str, operation: Operation) -> int:
    """The larger of the bytes of the result and of the operands."""
    operands = sum(
        num_bytes(each.type)
        for each in self._bodies[name] if each.name in operation.operands
    )
    return max(num_bytes(operation.type), operands)

  def _alone(self, name: str, operation: Operation) -> float:
    """Cycles of one operation with all that it calls."""
    called = sum(map(self._cycles, operation.called))
    if operation.kind == 'while':
      return self._trips(name, operation) * called
    if operation.kind == 'conditional':
      return self._cycles(self._longest(operation))
    return operation.cycles


def one_line_each(text: str) -> str:
  """The program with one line an operation; a kernel's metadata has several."""
  return _METADATA.sub(
      lambda found: f'kernel_metadata={{{" ".join(found[1].split())}}}', text
  )


def num_bytes(text: str) -> int:
  """Bytes of all arrays in a type."""
  return sum(
      math.prod(int(dim) for dim in dims.split(',') if dim)
      * (_BYTES.get(kind) or int(kind[1:]) // 8)
      for kind, dims in _SHAPE.findall(text)
  )


def _group(pattern: re.Pattern[str], text: str) -> str:
  found = pattern.search(text)
  assert found, (pattern, text)
  return found[1]


def _arrays(text: str) -> list[str]:
  return [f'{kind}[{dims}]' for kind, dims in _SHAPE.findall(text)]
