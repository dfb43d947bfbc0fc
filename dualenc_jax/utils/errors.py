"""`UserError`, the one error type that a user is meant to read; statuses."""

import os
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


class SourceUnavailable(UserError):
  """The examples of a task cannot be read here; a prepared cache may serve."""


# What a command exits with that was told to stop, and goes on when it is run
# again: EX_TEMPFAIL of sysexits.h.
RUN_AGAIN = 75
# The same after Ctrl-C: who pressed it wants no loop to go on.
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
