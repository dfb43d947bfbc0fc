"""`UserError`, the one error type for users; suggestions; exit statuses."""

from collections.abc import Iterable, Sequence
import difflib
import math
import numbers
import os
import pathlib
import signal
from typing import Any, NoReturn


class UserError(ValueError):
  """Bad input. The message names the culprit, what was expected, and the fix.

  The command line prints it without a traceback and exits with status 2.
  """


def expect(holds: object, name: str, value: object, expected: str) -> None:
  """Raises '<name> is <value>; expected <expected>.' unless that holds."""
  if not holds:
    raise UserError(f'{name} is {value!r}; expected {expected}.')


def check_whole(name: str, value: Any, least: int) -> None:
  """Raises UserError unless the value is a whole number from `least` on."""
  expect(type(value) is int, name, value, 'a whole number')
  bound = f'at least {least}' if least else '0 or more'
  expect(value >= least, name, value, bound)


def check_positive(name: str, value: Any) -> None:
  """Raises UserError unless the value is a finite number above 0."""
  above = isinstance(value, numbers.Real) and 0.0 < float(value) < math.inf
  expect(above, name, value, 'a finite number above 0')


def check_one_of(name: str, value: Any, known: Sequence[str]) -> None:
  """Raises UserError unless the value is a known one."""
  expect(value in known, name, value, f'one of {", ".join(map(repr, known))}')


class SourceUnavailable(UserError):
  """The examples of a task cannot be read here; a prepared cache may serve."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
  """" Did you mean 'x' or 'y'?", or nothing when no known name is near."""

  def key(name: str) -> str:
    # The dashes before flags make none of them nearer to another.
    return name.lower().lstrip('-')

  by_key = {key(k): k for k in sorted(known)}
  close = difflib.get_close_matches(key(name), by_key, n=3)
  if not close:
    return ''
  return f' Did you mean {" or ".join(repr(by_key[c]) for c in close)}?'


def missing(path: pathlib.Path) -> str:
  """'PATH does not exist.', with the names beside it that may be meant."""
  folder = path.parent
  names = os.listdir(folder) if folder.is_dir() else []
  place = '' if path.is_absolute() else f' in {os.getcwd()}'
  return f'{path} does not exist{place}.{did_you_mean(path.name, names)}'


def did_you_mean_or_known(name: str, known: Iterable[str]) -> str:
  """`did_you_mean`, or a list of all known names when none is near."""
  known = sorted(set(known))
  listing = f' Known: {", ".join(known)}.' if 0 < len(known) <= 30 else ''
  return did_you_mean(name, known) or listing


# The exit status of a command that was stopped and continues when it is run
# again: EX_TEMPFAIL of sysexits.h.
RUN_AGAIN = 75
# The exit status after Ctrl-C, which ends a loop around the command, too.
INTERRUPTED = 130


def stop(number: int, frame: Any = None) -> NoReturn:
  """Handles a signal where no step is to be saved: ends the program."""
  del frame
  # Printing may be what was interrupted.
  name = signal.Signals(number).name
  os.write(
      2,
      f'\n{name}: stopped; there was no step to save. Run the same command'
      ' again to go on.\n'.encode(),
  )
  raise SystemExit(RUN_AGAIN)
