"""`Dataset`, retrieval examples by split, and `Mixture`, several datasets."""

import abc
from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

from dualenc_jax.data import columns
from dualenc_jax.utils.errors import did_you_mean, expect, UserError

# Options of these names are files of these splits.
_SPLITS = ('train', 'validation', 'test')
_TEXTS = [
    (c.name, bool(c.rank)) for c in columns.STANDARD if c.dtype == columns.TEXT
]


def example(
    query: str = '', passage: str = '', **values: Any
) -> dict[str, Any]:
  """A row of a split, of one of three kinds.

  A pair has a query and a passage, which in training is relevant. A row of a
  corpus has no query. A query without a known passage has no passage.

  Args:
    query: text.
    passage: text, with its title, if any.
    **values: others of `columns.STANDARD` and `columns.OPTIONAL`: negatives,
      passages; query_id and passage_id, '' for a hash of the text; name, shown
      with a search hit; location, 'file:line'; relevance, as in qrels; answers,
      of which a passage that answers the query has one; weights, the weight of
      the pair in the loss.
  """
  return columns.example({'query': query, 'passage': passage, **values})


class Dataset(abc.ABC):
  """A data set to train or evaluate on, the base class of all readers.

  A dataset of the user's own, bound as `TASK = @my_module.MyDataset()`, needs
  `splits` and `examples`; `fingerprint` spares reading all examples first.

  Splits are 'train', 'validation' and 'test', as far as they exist, and
  'corpus' if there are more passages to rank than those of the pairs. A
  dataclass's fields are the options in the key of a token cache; `root` and
  `data_root` are folders.

  Attributes:
    task_name: name of the benchmark, by default of the class.
    dataset: one of the benchmark's data sets; None if it has only one.
    self_hits: whether a passage with a query's own id must not be ranked for
    it.
    evaluated: the split that the benchmark measures.
    extra_columns: columns of examples of train beyond `columns.STANDARD`.
    FILES: options that are paths of files.
    NOT_OF_CORPUS: options that the split 'corpus' does not depend on.
    REPEATS: whether pairs repeat on purpose, under ids of their own.
  """

  FILES: Collection[str] = ()
  NOT_OF_CORPUS: Collection[str] = ()
  REPEATS = False
  dataset: str | None = None

  @abc.abstractmethod
  def splits(self) -> tuple[str, ...]:
    """The splits that exist."""

  @abc.abstractmethod
  def examples(self, split: str) -> Iterator[Mapping[str, Any]]:
    """Yields examples, always in the same order.

    They are mappings of some of the arguments of `data.example`, to train on at
    least query and passage, and of `extra_columns`.
    """

  def fingerprint(self, split: str) -> str:
    """Hash of the source of a split; equal for equal data.

    By default it is that of the examples themselves, which are read for it.
    """
    digest = hashlib.sha256()
    for row in rows(self, split):
      digest.update(json.dumps(row).encode() + b'\n')
    return digest.hexdigest()

  def check_split(self, split: str) -> None:
    """Raises UserError where a split or its files are missing."""
    if split not in self.splits():
      raise self.missing_split(split, self.splits())

  def corpus_split(self, split: str) -> str | None:
    """The split whose passages the queries of `split` are ranked over.

    None if these are the passages of the split itself.
    """
    del split
    return None

  def answer_text(self, passage: str, name: str) -> str:
    """The part of a passage, with its name, that is searched for answers."""
    del name
    return passage

  def judging_documents(self) -> 'Dataset':
    """The dataset with judgements of documents, if it has documents."""
    return self

  def select_datasets(self, name: str | None = None) -> list['Dataset']:
    """The benchmark's data sets, or the one called `name`, each by itself."""
    if name is None:
      return [self]
    raise UserError(
        f'Task {self.task_name!r} has no data sets to choose {name!r} from.'
    )

  @property
  def extra_columns(self) -> Collection[columns.Column]:
    return ()

  @property
  def self_hits(self) -> bool:
    return False

  @property
  def task_name(self) -> str:
    return type(self).__name__

  @property
  def label(self) -> str:
    """The name of the task, with that of the data set."""
    return '-'.join(filter(None, (self.task_name, self.dataset)))

  @property
  def evaluated(self) -> str:
    return 'test' if 'test' in self.splits() else 'validation'

  @property
  def options(self) -> dict[str, Any]:
    """The options that the dataset was made with, by name."""
    if dataclasses.is_dataclass(self):
      return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    return {k: v for k, v in vars(self).items() if not k.startswith('_')}

  def identity(self, split: str) -> dict[str, Any]:
    """The options that determine a split's examples.

    The folder of a file does not count, only its name, so that a token cache
    is found on another machine.
    """
    ignored = {'root', 'data_root', *(s for s in _SPLITS if s != split)}
    if split == 'corpus':
      ignored |= {*self.NOT_OF_CORPUS}
    return {
        name: pathlib.PurePath(value).name
        if value is not None and name in self.FILES
        else value
        for name, value in self.options.items()
        if name not in ignored
    }

  def parts(self) -> list[tuple['Dataset', float | None]]:
    """(dataset, rate) of a mixture, rates adding up to 1; else itself."""
    return [(self, 1.0)]

  def prompt_of(self, task: 'Dataset') -> str | None:
    """The name of the prompt of a part's queries; None for their prefix."""
    del task
    return None

  def for_split(self, split: str) -> 'Dataset':
    """The one dataset that has a split."""
    del split
    return self

  def missing_split(self, split: str, known: Collection[str]) -> UserError:
    """The error that a split does not exist."""
    return UserError(
        f'Task {self.label!r} has no split {split!r}.'
        f'{did_you_mean(split, known)} Splits: {", ".join(known) or "none"}.'
    )


def rows(dataset: Dataset, split: str) -> Iterator[dict[str, Any]]:
  """Yields the examples of a split, with all columns.

  Raises:
    UserError: an unknown split, bad data, or a row that is not an example.
  """
  dataset.check_split(split)
  for number, row in enumerate(dataset.examples(split), 1):
    try:
      row = columns.example(row, dataset.extra_columns)
      for name, is_list in _TEXTS:
        value = row[name]
        if not (
            all(isinstance(text, str) for text in value)
            if is_list and value
            else isinstance(value, list if is_list else str)
        ):
          raise TypeError(f'{name!r} holds {value!r}, not text')
    except TypeError as error:
      raise UserError(
          f'Task {dataset.label!r}, split {split!r}, example {number}: {error}.'
          ' Expected a mapping of columns, such as query and passage.'
      ) from None
    yield row


@dataclasses.dataclass(frozen=True)
class Mixture:
  """Tasks whose training examples are mixed, as in a seqio mixture.

  Each task has its own token cache. Its share of every 65,536 pairs in a row is
  its rate.

  Attributes:
    tasks: tasks with a train split.
    rates: positive weights of the tasks; they need not add up to 1. None for
      the numbers of examples.
    validation: the task whose validation split is evaluated during training;
      None for no such evaluation.
    prompts: names of the prompts (PROMPTS) of the tasks' queries, one each;
      None for QUERY_PREFIX, of a task or of all.
  """

  tasks: Sequence[Dataset]
  rates: Sequence[float] | None = None
  validation: Dataset | None = None
  prompts: Sequence[str | None] | None = None

  def __post_init__(self):
    if not self.tasks:
      raise UserError('Mixture.tasks is empty; expected at least one task.')
    for task in self.tasks:
      check_dataset('One of Mixture.tasks', task)
    count = len(self.tasks)
    expect(
        self.prompts is None or len(self.prompts) == count,
        'Mixture.prompts', self.prompts,
        f'the name of a prompt, or None, for each of the {count} tasks',
    )
    expect(
        self.rates is None
        or len(self.rates) == count and all(rate > 0 for rate in self.rates),
        'Mixture.rates', self.rates,
        f'a positive number for each of the {count} tasks',
    )

  @property
  def task_name(self) -> str:
    return '+'.join(task.task_name for task in self.tasks)

  @property
  def label(self) -> str:
    return '+'.join(task.label for task in self.tasks)

  def splits(self) -> tuple[str, ...]:
    return ('train', 'validation') if self.validation else ('train',)

  def parts(self) -> list[tuple[Dataset, float | None]]:
    """(task, rate) of each, rates adding up to 1; None if by examples."""
    parts = [part for task in self.tasks for part, _ in task.parts()]
    if len(parts) > len(self.tasks):
      raise UserError(
          f'Mixture.tasks: {self.task_name} has a mixture among its tasks.'
          ' Name the tasks of that mixture.'
      )
    if self.rates is None:
      return [(task, None) for task in self.tasks]
    total = sum(self.rates)
    return [(task, rate / total) for task, rate in zip(self.tasks, self.rates)]

  def prompt_of(self, task: Dataset) -> str | None:
    prompts = zip(self.tasks, self.prompts or ())
    return next((prompt for own, prompt in prompts if own == task), None)

  def for_split(self, split: str) -> Dataset:
    """The one task that has a split."""
    if split == 'validation' and self.validation is not None:
      return self.validation
    raise UserError(
        f'The mixture {self.task_name} has no split {split!r}. Name one of its'
        ' tasks, or give Mixture.validation.'
    )


def check_dataset(name: str, task: Any) -> None:
  """Raises UserError unless `task`, bound as `name`, is a dataset."""
  if isinstance(task, type):
    raise UserError(
        f'{name} is the class {task.__name__}; expected an object of it. In'
        ' gin, write the reference with ().'
    )
  if not hasattr(task, 'parts'):
    raise UserError(
        f'{name} is {task!r}; expected a dataset, such as @readers.Pairs().'
    )
