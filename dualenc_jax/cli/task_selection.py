"""The tasks that `--tasks` names, and their splits."""

import argparse
from collections.abc import Sequence
import logging
from typing import Any

from dualenc_jax.cli import config, data_command
from dualenc_jax.data import Dataset, readers
from dualenc_jax.utils.errors import SourceUnavailable, UserError

_LOG = logging.getLogger(__name__)


def gin_files(names: Sequence[str]) -> list[str]:
  """The gin files of tasks such as 'beir/scifact', to load before a config."""
  first = {name.partition('/')[0] for name in names}
  found = (readers.find_reader(name).task_name for name in first)
  return sorted(f'tasks/{name}.gin' for name in found)


def inputs_without_model(
    args: argparse.Namespace,
) -> tuple[Any, list[tuple[Dataset, str]]]:
  """Data of a command line without a model, and the tasks that it selects."""
  names = args.tasks or ()
  args.gin_file = [*gin_files(names), *args.gin_file]
  inputs = data_command.build(args, needs_task=not names)
  return inputs, select(inputs, names, args.split)


def select_one(chosen: Sequence[tuple[Dataset, str]]) -> tuple[Dataset, str]:
  """The one task and its split; UserError where there are several."""
  if len(chosen) > 1:
    names = ', '.join(task.label for task, _ in chosen)
    raise UserError(
        f'{len(chosen)} data sets are given: {names}. Expected one, such as'
        f' --tasks={chosen[0][0].label}.'
    )
  return chosen[0]


def select(
    inputs: Any, names: Sequence[str], split: str | None
) -> list[tuple[Dataset, str]]:
  """The tasks to evaluate on, that of the inputs or named, and their splits.

  The gin files of names, such as beir or beir/scifact, must be loaded. A split
  of None is the one that each task is measured on.
  """
  if not names:
    task = inputs.task
    if task is None:
      raise UserError(
          'A model of another library has no task of its own. Give --tasks, or'
          ' --gin_file=tasks/pairs.gin with --gin.TEST_FILE=FILE.'
      )
    # A mixture has no split of its own to be measured on.
    if isinstance(task, Dataset):
      split = split or task.evaluated
    split = split or 'validation'
    return [(task.for_split(split), split)]
  tasks: dict[str, Dataset] = {}
  for name in names:
    task_name, _, dataset = name.partition('/')
    task = config.build(readers.find_reader(task_name))
    tasks |= {one.label: one for one in task.select_datasets(dataset or None)}
  return [(task, split or task.evaluated) for task in tasks.values()]


def keep_available(
    chosen: Sequence[tuple[Dataset, str]], skip_missing: bool
) -> list[tuple[Dataset, str]]:
  """Returns the tasks whose files exist, before hours are spent on some."""
  found, missing = [], {}
  for task, split in chosen:
    try:
      task.check_split(split)
      corpus_split = task.corpus_split(split)
      if corpus_split is not None:
        task.check_split(corpus_split)
      found.append((task, split))
    except SourceUnavailable as e:
      missing[task.label] = e
  if missing and (not skip_missing or not found):
    first = next(iter(missing.values()))
    others = f' Missing: {", ".join(missing)}.' if len(missing) > 1 else ''
    hint = ' Leave out what is missing with --skip_missing.' if found else ''
    raise UserError(f'{first}{others}{hint}')
  if missing:
    _LOG.warning('Left out, files are missing: %s.', ', '.join(missing))
  return found
