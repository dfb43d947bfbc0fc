"""Every task of this project in seqio's registry, by its name.

  import tasks               # in a clone
  import dualenc_jax.tasks   # where it is installed

registers msmarco, multireqa_nq, multireqa_squad and the other sets, the mixture
multireqa, open_nq, beir_scifact and the other sets, pairs and python_code, with
int32 features inputs (the query), targets (the passage) and negatives.

Nothing is read before a task is. What `register` is not given comes from the
environment: DUALENC_DATA_ROOT, DUALENC_TRAIN_FILE, DUALENC_VALIDATION_FILE and
DUALENC_TEST_FILE when a task is read, DUALENC_VOCABULARY when it is registered.
"""

from collections.abc import Callable, Iterator, Sequence
import functools
import inspect
import os
import re
from typing import Any, cast

from dualenc_jax.data import (
  Dataset,
  readers,
  seqio_adapter,
  Tokenizer,
  Vocabulary,
)
from dualenc_jax.data.readers import beir, multireqa
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.files import default_cache_dir

__all__ = ['register']

_SHORT = {'NaturalQuestions': 'nq'}
_SPLITS = ('train', 'validation', 'test')
_VARIABLES = 'DATA_ROOT', *(f'{split.upper()}_FILE' for split in _SPLITS)
# A macro, its value, and in parentheses the option that it sets.
_FLAG = re.compile(r'--gin\.(\w+)(=\S+)?(?: \((\w+)\))?')


def register(
    name: str | None = None,
    data_root: str | None = None,
    tokenizer: Tokenizer | None = None,
    cache_dir: str | None = None,
    train_file: str | None = None,
    validation_file: str | None = None,
    test_file: str | None = None,
    roots: Sequence[str] = ('stdlib',),
    strict: bool = True,
) -> str | None:
  """Registers all tasks, in place of those that were registered before.

  Args:
    name: of a task or mixture; it is returned, for MIXTURE_OR_TASK_NAME.
    data_root: folder of the benchmarks' folders.
    tokenizer: by default of 64 tokens a query and 256 a passage.
    cache_dir: folder of the token caches.
    train_file: of pairs, as are the two below.
    validation_file: the same.
    test_file: the same.
    roots: of python_code.
    strict: as of the readers.
  """
  if tokenizer is None:
    path = os.environ.get('DUALENC_VOCABULARY', 'python_code_8k')
    tokenizer = Tokenizer(Vocabulary(path), 64, 256)
  files = dict(zip(_SPLITS, (train_file, validation_file, test_file)))

  def below(reader: Callable[..., Dataset], **options: Any) -> Dataset:
    root = data_root or os.environ.get('DUALENC_DATA_ROOT')
    return reader(data_root=root, strict=strict, **options)

  def pairs() -> Dataset:
    found = {
        split: file or os.environ.get(f'DUALENC_{split.upper()}_FILE')
        for split, file in files.items()
    }
    return readers.Pairs(**found, strict=strict)

  def all_tasks() -> Iterator[tuple[str, Callable[[], Dataset], Sequence[str]]]:
    """Yields name, maker and splits."""
    yield 'pairs', pairs, _SPLITS
    code = readers.PythonCode(roots)
    yield 'python_code', lambda: code, code.splits()
    yield (
        'open_nq',
        lambda: below(readers.OpenNQ),
        readers.OpenNQ().splits(),
    )
    yield 'msmarco', lambda: below(readers.MsMarco), (*_SPLITS, 'corpus')
    for dataset in multireqa.SETS:
      yield (
          multireqa_name(dataset),
          lambda dataset=dataset: below(readers.MultiReQA, dataset=dataset),
          readers.MultiReQA(dataset).splits(),
      )
    for dataset in beir.SETS:
      yield (
          'beir_' + dataset.replace('-', '_').replace('/', '_'),
          lambda dataset=dataset: below(readers.Beir, dataset=dataset),
          (*_SPLITS, 'corpus'),
      )

  folder = cache_dir or default_cache_dir() / 'tokens'
  for task_name, reader, splits in all_tasks():
    make = functools.partial(_named, reader)
    seqio_adapter.register(task_name, make, splits, tokenizer, folder)
  # By the published numbers of pairs: counting would read all of them.
  rates = {
      multireqa_name(dataset): float(qa_set.train_pairs)
      for dataset, qa_set in multireqa.SETS.items()
      if qa_set.train_pairs
  }
  seqio_adapter.register_mixture('multireqa', rates)
  return name


def multireqa_name(dataset: str) -> str:
  """The task of a set of MultiReQA."""
  return f'multireqa_{_SHORT.get(dataset, dataset.lower())}'


class _Named:
  """A dataset whose errors name what sets it here, not flags."""

  def __init__(self, dataset: Dataset):
    self._dataset = dataset

  def __getattr__(self, name: str) -> Any:
    return getattr(self._dataset, name)

  def check_split(self, split: str) -> None:
    self._call(self._dataset.check_split, split)

  def fingerprint(self, split: str) -> str:
    return self._call(self._dataset.fingerprint, split)

  def examples(self, split: str) -> Iterator[Any]:
    examples = iter(self._call(self._dataset.examples, split))
    end = object()
    while (example := self._call(next, examples, end)) is not end:
      yield example

  def _call(self, function: Callable[..., Any], *args: Any) -> Any:
    try:
      return function(*args)
    except UserError as error:
      error.args = (_FLAG.sub(_setting, str(error)),)
      raise


def _named(make: Callable[[], Dataset]) -> Dataset:
  return cast(Dataset, _Named(make()))


def _setting(flag: re.Match[str]) -> str:
  """The variable or the argument of `register` that has a flag's place."""
  macro, value, option = flag.groups('')
  if macro in _VARIABLES:
    return f'DUALENC_{macro}{value}'
  name = option or macro.lower()
  known = name in inspect.signature(register).parameters
  return f'tasks.register({name}{value or "=..."})' if known else flag[0]


register()
