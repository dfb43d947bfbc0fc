"""The `dualenc` program: picks a command. Imports nothing heavy itself."""

from collections.abc import Callable, Sequence
import importlib
import os
import signal
import sys
import traceback

import dualenc_jax
from dualenc_jax.cli import process, quick_help
from dualenc_jax.parallel import hosts
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import did_you_mean, INTERRUPTED, stop, UserError

COMMANDS = {
    'quickstart': 'train, evaluate and search on this machine, in minutes',
    'train': 'train a dual encoder, a cross-encoder or a query generator',
    'evaluate': 'rank whole corpora exactly and measure, with tables',
    'bm25': 'rank whole corpora by BM25, the baseline to beat',
    'rerank': 'reorder the hits of a run by a cross-encoder',
    'generate': 'generate queries for a corpus that has none, by a T5',
    'mine': 'mine hard negatives by a model, BM25 or runs',
    'label': 'label passages by the scores of a teacher',
    'compare': 'compare models or TREC runs with a baseline, with tests',
    'analyze': 'draw and measure the embedding space',
    'report': 'write all results of a model as one HTML page',
    'encode': 'embed a corpus into an index',
    'search': 'search an index',
    'serve': 'serve models and indexes: a search page, and JSON',
    'latency': 'measure the cost of a query at serving time, by model',
    'convert': 'convert models and indexes from and to other libraries',
    'check': 'explain a config and what it needs, without training',
    'verify': 'read all checkpoints of a run, and name damaged files',
    'recipe': 'run several commands in order, each only if it is out of date',
    'data check': 'inspect a data set: counts, lengths, faults',
    'data prepare': 'build the token cache of a task in advance',
    'data vocabulary': 'train a SentencePiece vocabulary on your own texts',
}
# Commands that spend their time in JAX's programs.
COMPUTING = {
    'quickstart', 'train', 'evaluate', 'rerank', 'generate', 'mine', 'label',
    'analyze', 'encode', 'search', 'serve', 'latency',
}
# Commands that a later run continues after a signal; their status says so.
RESUMED = {'train', 'recipe'}
# The same, and commands that a later run continues from what was saved.
CONTINUED = RESUMED | {
    'quickstart', 'rerank', 'generate', 'mine', 'label', 'encode',
}


def usage() -> str:
  """The text of `dualenc --help`."""
  commands = '\n'.join(f'  {n:<16} {text}' for n, text in COMMANDS.items())
  return (
      f'dualenc {dualenc_jax.__version__}: dual-encoder retrievers in JAX\n\n'
      f'usage: dualenc COMMAND [flags]\n\n{commands}\n\n'
      'dualenc COMMAND --help says more.'
  )


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; returns the exit status."""
  from_shell = argv is None
  argv = list(sys.argv[1:] if argv is None else argv)
  helps = '-h', '--help', 'help'
  if not argv or argv[0] in helps or argv[0] == 'data' and (
      not argv[1:] or argv[1] in helps
  ):
    print(usage())
    return 0
  if argv[0] == '--version':
    print(dualenc_jax.__version__)
    return 0
  command, rest = split(argv)
  if command not in COMMANDS:
    print(f'error: {no_command(command)}\n\n{usage()}', file=sys.stderr)
    return 2
  if from_shell:
    _prepare_process(command, rest)
  # As with `python -m`, a user's modules are found in the working directory.
  sys.path.append(os.getcwd())

  def import_and_run(rest: Sequence[str]) -> None:
    if from_shell and callable(signal.getsignal(signal.SIGINT)):
      signal.signal(signal.SIGINT, signal.default_int_handler)
    with process.signals_held():
      module = importlib.import_module(module_name(command))
    module.main(rest)

  return run(import_and_run, rest, command in CONTINUED)


def _prepare_process(command: str, rest: Sequence[str]) -> None:
  """Sets up a process that runs this command and nothing else."""
  if list(rest) in (['--help'], ['-h']):
    quick_help.install()
  elif command in COMPUTING:
    process.restart_with_huge_pages()
  if command in RESUMED:
    for number in (signal.SIGTERM, signal.SIGUSR1):
      signal.signal(number, stop)
  elif os.getpid() == 1:
    # The first process of a container ignores what it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
  process.send_ignored_signals_again()


def split(argv: Sequence[str]) -> tuple[str, list[str]]:
  """A command, such as 'data check', and its flags."""
  words = 2 if argv[0] == 'data' else 1
  return ' '.join(argv[:words]), [*argv[words:]]


def no_command(name: str) -> str:
  """The error about a command that does not exist."""
  return f'there is no command {name!r}.{did_you_mean(name, COMMANDS)}'


def module_name(command: str) -> str:
  """The module of a command, with `main` and `make_parser`."""
  return f'dualenc_jax.cli.{command.replace(" ", "_")}'


def run(
    command: Callable[[Sequence[str]], None],
    argv: Sequence[str] | None = None,
    continues: bool = False,
) -> int:
  """Runs one command's `main`, with bad input as a message, not a traceback.

  `continues` is whether a later run goes on from what this one has saved.
  """
  try:
    with files.removing_empty_folders():
      command(sys.argv[1:] if argv is None else argv)
    return 0
  except UserError as e:
    hosts.wait_for_verdict(e)
    print(f'error: {e}', file=sys.stderr)
    return hosts.end(2, f'has stopped: {e}'.rstrip('.'))
  except KeyboardInterrupt:
    again = ' Run the same command again: it goes on from what is saved.'
    print(f'\nInterrupted.{again * continues}', file=sys.stderr)
    return hosts.end(INTERRUPTED, 'was interrupted')
  except BrokenPipeError:
    # Standard output was closed, as by `| head`.
    sys.stderr.close()
    return hosts.end(0, 'has lost the reader of its output')
  except SystemExit as e:
    # Other hosts may be in the midst of a step.
    if not hosts.is_joined() or not e.code:
      raise
    status = e.code if isinstance(e.code, int) else 1
    return hosts.end(status, 'was asked to stop')
  except Exception as e:
    if not hosts.is_joined():
      raise
    hosts.wait_for_verdict(e)
    traceback.print_exc()
    return hosts.end(1, f'has failed: {type(e).__name__}: {e}')
