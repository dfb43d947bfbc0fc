"""Sides of a benchmark, each in a process of its own that takes orders.

So sides take turns within a round, and memory and caches are each one's own.
Standard library only: every Python that a side runs in imports this.
"""

from collections.abc import Sequence
import contextlib
import json
import os
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
