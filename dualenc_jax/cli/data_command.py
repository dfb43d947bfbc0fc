"""The task of a `dualenc data` command, from its command line."""

import argparse
from collections.abc import Sequence
import dataclasses
import pathlib
import re

from dualenc_jax.cli import config
from dualenc_jax.data import Cache, Dataset, dataset, prepare, Tokenizer
from dualenc_jax.data.dataset import Mixture
from dualenc_jax.data.readers import tables
from dualenc_jax.utils.errors import did_you_mean, UserError
from dualenc_jax.utils.files import default_cache_dir

_FILE = 'commands/data.gin'
_SPLITS = ('TRAIN_FILE', 'VALIDATION_FILE', 'TEST_FILE')
# Task and macro of a folder with a corpus, by whether it has judgements.
_FOLDERS = {True: ('beir', 'BEIR_FOLDER'), False: ('documents', 'DOCUMENTS')}
# Macros of the sets of a task, which are named as for --tasks: beir/scifact.
_SETS = {'beir': 'BEIR_SET', 'multireqa': 'MULTIREQA_SET'}


@dataclasses.dataclass(frozen=True)
class DataInputs:
  """A task and what its texts become tokens with.

  `cache_dir` is the folder of token caches, None for the default one.
  """

  task: Dataset | Mixture
  tokenizer: Tokenizer
  cache_dir: str | None = None

  @property
  def folder(self) -> pathlib.Path:
    """The folder of token caches."""
    folder = self.cache_dir or default_cache_dir() / 'tokens'
    return pathlib.Path(folder).expanduser()

  def cache(self, split: str) -> Cache:
    """The token cache of a split, built if there is none yet."""
    task = self.task.for_split(split)
    return prepare(task, split, self.tokenizer, self.folder)

  passage_cache = cache


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the task or files; a parser of `config.make_parser` has the rest."""
  parser.add_argument(
      'what', nargs='*', metavar='TASK | FILE',
      help='a task, such as msmarco or beir/scifact, a folder in the layout of'
      ' BEIR, or one to'
      ' three files of pairs (train, validation, test); not needed if'
      ' --gin_file names the task',
  )


def build(args: argparse.Namespace, needs_task: bool = True) -> DataInputs:
  """The task, tokenizer and cache folder of a command line; or UserError.

  Args:
    args: from `config.parse_args`, with the flags of `add_flags`.
    needs_task: refuse a command line that names none.
  """
  files, bindings = _named(args.what)
  inputs = read(
      [*args.gin_file, *files], [*bindings, *args.gin_bindings],
      args.gin_search_paths,
  )
  if inputs.task is None and needs_task:
    raise UserError(
        'Give a task, or files of pairs such as train.jsonl, or a --gin_file'
        f' that sets TASK. Tasks: {", ".join(_tasks())}.'
    )
  if needs_task:
    dataset.check_dataset('TASK', inputs.task)
  return inputs


def read(
    files: Sequence[str], bindings: Sequence[str], search_paths: Sequence[str]
) -> DataInputs:
  """The same of gin files and bindings; the task is None if they name none."""
  # runs/base.gin requires it; a data command has no use for it.
  given = ["MODEL_DIR = 'unused'", *bindings]
  config.load([_FILE, *files], given, search_paths)
  inputs = config.build(DataInputs)
  # Bindings of a model or loss may come along from a training command line.
  of_data = re.compile(r'(.*/)?(data|readers)\.')
  config.check_effect([b for b in bindings if of_data.match(b)])
  return inputs


def _named(what: Sequence[str]) -> tuple[list[str], list[str]]:
  """Gin files and bindings of the positional arguments."""
  if not what:
    return [], []
  if len(what) == 1 and what[0] not in _tasks():
    (name,) = what
    corpus = pathlib.Path(name).expanduser() / 'corpus.jsonl'
    if corpus.exists() or corpus.with_suffix('.jsonl.gz').exists():
      judged = (corpus.parent / 'qrels').is_dir()
      task, macro = _FOLDERS[judged]
      return [f'tasks/{task}.gin'], [f'{macro} = {name!r}']
    task, _, dataset = name.partition('/')
    if dataset and task in _SETS and not pathlib.Path(name).exists():
      return [f'tasks/{task}.gin'], [f'{_SETS[task]} = {dataset!r}']
  for name in what:
    if _is_file(name):
      continue
    if len(what) > 1:
      raise UserError(
          f'{name!r} is not a file. Expected one task, or up to three files of'
          ' pairs.'
      )
    if name not in _tasks():
      raise UserError(
          f'There is no task, file or folder with a corpus.jsonl {name!r}.'
          f'{did_you_mean(name, _tasks())} Tasks: {", ".join(_tasks())}.'
      )
    return [f'tasks/{name}.gin'], []
  if len(what) > len(_SPLITS):
    raise UserError(
        f'{len(what)} files are given; expected up to three: train, validation,'
        ' test, in this order.'
    )
  files = [f'{macro} = {name!r}' for macro, name in zip(_SPLITS, what)]
  return ['tasks/pairs.gin'], files


def _is_file(name: str) -> bool:
  path = pathlib.Path(name)
  looks_so = path.suffix or path.name != name
  return bool(looks_so) or path.is_file() or tables.is_arrow_folder(path)


def _tasks() -> list[str]:
  files = (pathlib.PurePath(file) for file in config.shipped_files())
  return [file.stem for file in files if file.parent.name == 'tasks']
