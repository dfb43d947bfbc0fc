"""Builds the token caches of a task in advance, so that a run starts at once.

  dualenc data prepare msmarco --gin.DATA_ROOT=~/data --gin.VOCABULARY=t5.model
  dualenc data prepare train.jsonl validation.jsonl --split=train

Give the same flags or --gin_file as for the run: vocabulary, lengths and cache
folder must be the same. An interrupted build starts again.
"""

from collections.abc import Sequence
import logging

from dualenc_jax.cli import config, data_command, flags
from dualenc_jax.data import Dataset, prepare
from dualenc_jax.data.dataset import Mixture
from dualenc_jax.utils.errors import did_you_mean, UserError
from dualenc_jax.utils.progress import Progress


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  logging.basicConfig(format='%(message)s')
  logging.getLogger('dualenc_jax').setLevel(logging.INFO)
  inputs = data_command.build(args)
  chosen = chosen_splits(inputs.task, args.split)
  tokenizer = inputs.tokenizer
  print(
      f'Vocabulary {tokenizer.vocabulary.path}, up to {tokenizer.query_length}'
      f' tokens a query and {tokenizer.passage_length} a passage.'
  )
  for task, split in chosen:
    with Progress(f'{task.label}, {split}', None, 'examples') as progress:
      cache = prepare(
          task, split, tokenizer, inputs.folder, progress=progress
      )
    print(f'{task.label}, {split}: {len(cache):,} examples: {cache.folder}')


def make_parser() -> flags.Parser:
  parser = config.make_parser('data prepare', __doc__)
  add = parser.add_argument
  data_command.add_flags(parser)
  add('--split', action='append', metavar='SPLIT',
      help='split to build; repeatable (default all)')
  return parser


def chosen_splits(
    task: Dataset | Mixture, names: Sequence[str] | None
) -> list[tuple[Dataset, str]]:
  """Tasks and their splits of these names, all that a run can use for None."""
  if isinstance(task, Mixture):
    found = [(part, 'train') for part, _ in task.parts()]
    found += [(task.validation, 'validation')] if task.validation else []
  else:
    found = [(p, split) for p, _ in task.parts() for split in p.splits()]
  known = list(dict.fromkeys(split for _, split in found))
  if not known:
    raise UserError(f'Task {task.label!r} has no splits, as no file is given.'
                    ' Give one.')
  for name in names or ():
    if name not in known:
      raise UserError(
          f'--split={name}: there is no such split.{did_you_mean(name, known)}'
          f' Splits: {", ".join(known)}.'
      )
  return [pair for pair in found if names is None or pair[1] in names]
