"""Sides of a benchmark, each in a process of its own that takes orders.

So sides take turns within a round, and memory and caches are each one's own.
Standard library only: every Python that a side runs in imports this.
"""

import argparse
from collections.abc import Mapping, Sequence
import contextlib
import json
import os
import statistics
import subprocess
import sys
from typing import Any


class SideError(Exception):
  """What a side was asked for failed; the message is its own."""


class Side:
  """A process that runs `serve`; it lives until `close`."""

  def __init__(self, command: Sequence[str]):
    self._process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

  def ask(self, method: str, *args: Any) -> Any:
    """What the served object's method returns.

    Raises:
      SideError: the method raised, or the process is gone.
    """
    try:
      print(json.dumps([method, *args]), file=self._process.stdin, flush=True)
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ''
    if not answer:
      raise SideError(f'the process ended ({self._process.wait()})')
    result, error = json.loads(answer)
    if error is not None:
      raise SideError(error)
    return result

  def close(self) -> None:
    """Ends the process, which may be gone already."""
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.close()
    self._process.wait()


def start(
    commands: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Side], dict[str, Any], dict[str, float]]:
  """Starts all sides.

  Returns:
    The sides, what each says of itself, and the ceiling: the best rates of a
    large product, of whichever library is faster. It is measured by processes
    that are gone before memory is.
  """
  ceilings = []
  # One process for each script.
  for command in {each[1]: each for each in commands.values()}.values():
    side = Side(command)
    with contextlib.suppress(SideError):
      ceilings.append(side.ask('ceiling'))
    side.close()
  ceiling = {key: max(c[key] for c in ceilings) for key in ceilings[0]}
  running = {name: Side(command) for name, command in commands.items()}
  described = {name: side.ask('describe') for name, side in running.items()}
  return running, described, ceiling


def medians(turns: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """By name, the median of each number that the turns have."""
  return {
      key: statistics.median(turn[key] for turn in turns)
      for key, value in turns[0].items()
      if not isinstance(value, str)
  }


def flags(args: argparse.Namespace, names: Sequence[str]) -> list[str]:
  """Flags of these names as they were given, for a side."""
  given = {name: getattr(args, name) for name in names}
  return [
      f'--{name}' if value is True else f'--{name}={value}'
      for name, value in given.items()
      if value not in (None, False)
  ]


def table(header: str, rows: Sequence[str]) -> str:
  """Markdown of lines whose cells are parted by ' | '."""
  rule = '|---' * (header.count(' | ') + 1) + '|'
  return '\n'.join([f'| {header} |', rule, *(f'| {row} |' for row in rows)])


def mib(size: float | None) -> str:
  """'12 MiB', '' for nothing."""
  return f'{size / 2**20:.0f} MiB' if size else ''


def one_line(error: Exception) -> str:
  """What to show of an error, whose message may be pages long."""
  return f'{type(error).__name__}: {error}'.splitlines()[0][:300]


def serve(served: Any) -> None:
  """Calls methods of `served` as ordered on stdin until that is closed.

  A line is JSON, [method, *arguments]; the answer is a line with [result,
  error]. Whatever else is printed to stdout goes to stderr.
  """
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  for line in sys.stdin:
    method, *args = json.loads(line)
    result, error = None, None
    try:
      result = getattr(served, method)(*args)
    except Exception as e:  # Whatever it is, the other sides go on.
      error = one_line(e)
    print(json.dumps([result, error]), file=answers, flush=True)
