"""Parsers of commands, and types of the values of flags."""

import argparse
from collections.abc import Callable, Sequence
import itertools
import math
import pathlib
import re
from typing import Any, NoReturn

from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import did_you_mean, UserError

# Help that several commands have.
CANDIDATES = (
    'candidates of an index of --codec=binary that are scored again (default'
    ' as encoded, 1000)'
)
INDEX_DIR = (
    'folder of the index (default MODEL_DIR/index, with --dim'
    ' MODEL_DIR/dim-<dim>/index)'
)
ONE_TASK = 'task, as for `dualenc evaluate`, but only one'
SPLIT = 'split (default the one that the benchmark measures, else test)'


class Parser(argparse.ArgumentParser):
  """The parser of a command, which raises UserError for bad flags."""

  def __init__(self, command: str, doc: str | None):
    super().__init__(
        prog=f'dualenc {command}',
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

  def parse_args(  # type: ignore[override] # Its overloads are not needed.
      self, args: Sequence[str] | None = None, namespace: Any = None
  ) -> argparse.Namespace:
    # A misspelt flag is named before the flag that is missing then.
    for flag in itertools.takewhile('--'.__ne__, args or ()):
      name = flag.partition('=')[0]
      if name.startswith('--') and name not in self._option_string_actions:
        macro = [f'--gin.{name[2:]}'] * name.isupper()
        near = did_you_mean(name, macro or self._option_string_actions)
        self.error(f'unrecognized arguments: {flag}.{near}')
    return super().parse_args(args, namespace)

  def error(self, message: str) -> NoReturn:
    message = re.sub(r'^argument (\S+): (?=is )', r'\1 ', message)
    choice = re.search(r"choice: '(.*)' \(choose from (.*)\)", message)
    if choice:
      known = re.findall(r"[^', ]+", choice[2])
      message += f'.{did_you_mean(choice[1], known)}'
    end = '' if message.endswith('?') else '.'
    raise UserError(
        f'{message.rstrip(".")}{end} `{self.prog} --help` says more.'
    )


def whole(least: int = 1) -> Callable[[str], int]:
  """The type of a flag that is a whole number, not below `least`."""

  def parse(text: str) -> int:
    if not re.fullmatch('[+-]?[0-9]+', text):
      raise argparse.ArgumentTypeError(f'is {text}; expected a whole number')
    if int(text) < least:
      raise argparse.ArgumentTypeError(f'is {text}; expected at least {least}')
    return int(text)

  return parse


def address(text: str) -> str:
  """The type of a flag that is HOST:PORT."""
  if not re.fullmatch(r'.+:\d+', text):
    raise argparse.ArgumentTypeError(
        f'is {text}; expected a name and a port, such as 10.0.0.1:8476'
    )
  return text


def number(text: str) -> float:
  """The type of a flag that is a finite number."""
  value = untrusted.parse_number(text)
  if not math.isfinite(value):
    raise argparse.ArgumentTypeError(f'is {text}; expected a number')
  return value


def gib(text: str) -> int:
  """The type of a flag in GiB: bytes, more than none."""
  size = untrusted.parse_number(text) * 2**30
  if not 0 < size < math.inf:
    raise argparse.ArgumentTypeError(
        f'is {text}; expected a number above 0, such as 80'
    )
  return int(size)


def listed(text: str) -> list[str]:
  """The type of a flag that is names with commas between; blank ones go."""
  return list(filter(None, map(str.strip, text.split(','))))


def path(text: str) -> pathlib.Path:
  """The type of a flag that is a file or folder, `~` being the home."""
  if not text:
    raise argparse.ArgumentTypeError('is blank; expected a path')
  return pathlib.Path(text).expanduser()


def add_dim(parser: argparse.ArgumentParser) -> None:
  """Adds --dim."""
  parser.add_argument(
      '--dim', type=whole(),
      help='cut embeddings to their first DIM components, normalized again;'
      ' best a number that the model was trained for (losses/matryoshka.gin)',
  )


def add_prompts(
    parser: argparse.ArgumentParser, of_passages: bool = True
) -> None:
  """Adds --prompt and, if there are passages, --passage_prompt."""
  add = parser.add_argument
  add('--prompt', metavar='NAME',
      help="prompt before queries, by its name in the model's PROMPTS (default"
      " the model's query prefix)")
  if of_passages:
    add('--passage_prompt', metavar='NAME',
        help="prompt before passages (default the model's passage prefix)")


def add_relevance_level(parser: argparse.ArgumentParser) -> None:
  """Adds --relevance_level."""
  parser.add_argument(
      '--relevance_level', type=whole(), metavar='GRADE', default=1,
      help='lowest grade that is relevant, for all metrics but nDCG; 2 for TREC'
      ' DL (default %(default)s)',
  )


def add_metrics(parser: argparse.ArgumentParser) -> None:
  """Adds --metrics of a command that measures."""
  parser.add_argument(
      '--metrics', type=listed, default=(), metavar='NAME[,NAME]',
      help='metrics beside the standard ones, such as'
      ' MRR@100,Recall@20,nDCG@20,P@5,MAP@100,Success@5,Top-50',
  )


def add_equal_texts(parser: argparse.ArgumentParser) -> None:
  """Adds --equal_texts."""
  parser.add_argument(
      '--equal_texts', choices=['one'],
      help='take passages of one text as one, with the highest grade of its'
      ' copies (default: each on its own)',
  )


def check_models(args: argparse.Namespace, names: Sequence[str]) -> None:
  """Raises UserError unless each --model_dir has a name, and an index if any.

  `args` have --model_dir and --index_dir, lists.
  """
  count, index_dirs = len(args.model_dir), args.index_dir
  if len(names) != count or len({*names}) < count:
    raise UserError(
        f"The names of {count} models are {','.join(names)}; expected as many"
        ' different ones. Give --names=a,b.'
    )
  if index_dirs and len(index_dirs) != count:
    raise UserError(
        f'{len(index_dirs)} --index_dir for {count} --model_dir; expected'
        ' one for each, in the same order, or none.'
    )
