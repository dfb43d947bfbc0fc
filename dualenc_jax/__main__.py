"""`dualenc`, and `python -m dualenc_jax`, from its first line on."""

import os
import signal
import sys


def main() -> int:
  """Runs a command; returns the exit status.

  Until the command begins, Ctrl-C ends the process at once.
  """
  # Background jobs of a shell ignore it.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
  from dualenc_jax.cli import main as cli

  return cli.main()


def _end(number: int, frame: object) -> None:
  # An import may swallow an exception, or make another of it.
  del frame
  os.write(2, b'\nInterrupted.\n')
  os._exit(128 + number)


if __name__ == '__main__':
  sys.exit(main())
