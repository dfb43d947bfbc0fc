"""Reads the text of compiled HLO: its arrays and what it sends."""

import math
import re

_BYTES = {'pred': 1, 'bf16': 2}  # Of the others, the digits are the bits.
_SHAPE = re.compile(r'\b(pred|bf16|[fsuc]\d+)\[([\d,]*)\]')
_COLLECTIVE = re.compile(
    r'= (.*?) (all-gather|all-reduce|all-to-all|collective-permute'
    r'|collective-broadcast|reduce-scatter)(?:-start)?\('
)
_CALLED = re.compile(
    r'(?:body|condition|to_apply|calls|branch_computations'
    r'|called_computations|true_computation|false_computation)='
    r'(%[\w.\-]+|\{[^}]*\})'
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def shapes(text):
  """(type, number of elements) of every array named in `text`."""
  for kind, dims in _SHAPE.findall(text):
    yield kind, math.prod(int(dim) for dim in dims.split(',') if dim)


def num_elements(text):
  """Elements of the largest array."""
  return max(size for _, size in shapes(text))


def num_bytes(text):
  """Bytes of all arrays named in `text`."""
  return sum(
      size * (_BYTES.get(kind) or int(kind[1:]) // 8)
      for kind, size in shapes(text)
  )


def collectives(text):
  """[(name of the operation, its result's type)], wherever they are."""
  return [(name, type_) for type_, name in _COLLECTIVE.findall(text)]


def sent_bytes(text, name='collective-permute', within=''):
  """Bytes that a device gets by an operation in one run of the program.

  Args:
    text: of the compiled program.
    name: of the operation.
    within: only of those whose line contains this.
  """
  computations, entry = _computations(text)

  def total(computation):
    result = 0
    for line in computations[computation]:
      found = _COLLECTIVE.search(line)
      if found and found[2] == name and within in line:
        assert f'{name}-start' not in line, 'its type has the operand, too'
        result += num_bytes(found[1])
      called = re.findall(r'%[\w.\-]+', ' '.join(_CALLED.findall(line)))
      inner = sum(total(c) for c in called)
      if inner and re.search(r'\bwhile\(', line):
        inner *= int(_TRIPS.search(line)[1])
      result += inner
    return result

  return total(entry)


def _computations(text):
  """{name: lines} of every computation, and the name of the first to run."""
  result, entry = {}, None
  for line in text.splitlines():
    header = re.match(r'(ENTRY )?(%[\w.\-]+) \(.*\{$', line)
    if header:
      lines = result[header[2]] = []
      entry = header[2] if header[1] else entry
    elif line.startswith(' ') and result:
      lines.append(line)
  return result, entry
